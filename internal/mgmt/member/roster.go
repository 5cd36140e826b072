// SPDX-License-Identifier: Apache-2.0

package member

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// Roster is what every member holds, and keeps on disk: it decides about certificates also while the store is away.
type Roster struct {
	Form
	Fabric   string    `json:"fabric"`
	Revision int64     `json:"revision"` // of the store
	At       time.Time `json:"at"`       // when it was read
	Skew     int64     `json:"skew"`     // nanoseconds, of Policy
	CAs      []CA      `json:"cas"`
	Members  []Record  `json:"members"`
	Removed  []Gone    `json:"removed"`
}

// Check returns why r is no roster.
func (r *Roster) Check() error {
	for i := range r.Members {
		if err := r.Members[i].Check(); err != nil {
			return err
		}
	}
	for i := range r.Removed {
		if err := r.Removed[i].Check(); err != nil {
			return err
		}
	}
	return r.Consistent()
}

// Consistent returns why records that passed their own Check are no roster together.
func (r *Roster) Consistent() error {
	if err := checkFabric(r.Fabric); err != nil {
		return err
	}
	if err := checkCAs(r.Fabric, r.CAs); err != nil {
		return err
	}
	if len(r.Members) > MaxMembers || len(r.Removed) > 16*MaxMembers || r.Skew < 0 {
		return errors.New("a list of the roster is too long")
	}
	names, guids, keys := map[string]bool{}, map[ib.GUID]bool{}, map[Key]bool{}
	for i := range r.Members {
		m := &r.Members[i]
		if names[m.Name] || guids[m.GUID] || keys[m.Key] {
			return fmt.Errorf("two members have the name, the GUID or the key of %s", m.Name)
		}
		names[m.Name], guids[m.GUID], keys[m.Key] = true, true, true
	}
	for i := range r.Removed {
		if keys[r.Removed[i].Key] {
			return fmt.Errorf("%s is a member and removed", r.Removed[i].Name)
		}
	}
	return nil
}

// Renewed reports whether each member has a certificate of a CA that is not frozen.
func (r *Roster) Renewed() bool {
	for i := range r.Members {
		c, err := x509.ParseCertificate(r.Members[i].Certificate)
		if err != nil {
			return false
		}
		if ca := r.signerOf(c); ca == nil || ca.State == CAFrozen {
			return false
		}
	}
	return true
}

// Verdict is the answer to whether a certificate is a member's.
type Verdict uint8

// Verdicts. The zero Verdict refuses.
const (
	Malformed   Verdict = iota // no certificate of a member
	OtherFabric                // its fabric is another
	BadChain                   // no CA of the fabric signed it
	NotYetValid                // it is of the future: a clock is wrong
	Expired
	RemovedKey // its member was removed
	OtherKey   // its member has another key: the identity was copied, or joined again since
	// Unlisted: no record has it, though it is older than the roster or its CA is frozen; or its CA is frozen and it
	// lasts longer than the certificate in the record.
	Unlisted
	// Provisional: a member that joined after the roster was read. It is admitted.
	Provisional
	// Admitted: the certificate of a record.
	Admitted

	Verdicts = int(Admitted) + 1
)

var verdictNames = [Verdicts]string{"malformed", "other_fabric", "bad_chain", "not_yet_valid", "expired", "removed",
	"other_key", "unlisted", "provisional", "admitted"}

// String is the name of the verdict, as counters have it.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return "unknown"
}

// OK reports whether the verdict admits.
func (v Verdict) OK() bool { return v >= Provisional }

// Admit decides about a certificate that its holder proved to own (by a TLS handshake). The claims of an admitted one
// are those of its record, which may be newer than the certificate: name and roles of a renamed or changed member are
// in force at once. Roles are never more than both state.
func (r *Roster) Admit(c *x509.Certificate, now time.Time) (Claims, Verdict, *problem.Error) {
	const what = "cannot accept the certificate"
	refuse := func(v Verdict, why, fix string) (Claims, Verdict, *problem.Error) {
		return Claims{}, v, problem.New(what, why, fix)
	}
	x, err := ClaimsOf(c)
	if err != nil {
		return refuse(Malformed, err.Error(), "weft join, there")
	}
	if x.Fabric != r.Fabric {
		return refuse(OtherFabric, fmt.Sprintf("%s is a member of fabric %s, this is fabric %s", x.Name, x.Fabric,
			r.Fabric), "weft leave; weft join, there")
	}
	key := KeyOf(c)
	for i := range r.Removed {
		if g := &r.Removed[i]; g.Key == key {
			return refuse(RemovedKey, fmt.Sprintf("%s was removed %s by %s", g.Name, stamp(g.At), printable(g.By)),
				"weft token here; weft leave; weft join, there")
		}
	}
	ca := r.signerOf(c)
	if ca == nil {
		return refuse(BadChain, "no CA of the fabric signed the certificate of "+x.Name, rejoin(x.Name))
	}
	skew := time.Duration(r.Skew)
	switch {
	case now.Add(skew).Before(c.NotBefore):
		return refuse(NotYetValid, fmt.Sprintf("that of %s is valid from %s on, and here it is %s", x.Name,
			stamp(c.NotBefore), stamp(now)), "set the clocks of both hosts")
	case now.Add(-skew).After(c.NotAfter):
		return refuse(Expired, fmt.Sprintf("that of %s ended %s, and here it is %s", x.Name, stamp(c.NotAfter),
			stamp(now)), rejoin(x.Name))
	}
	m := r.byKey(key)
	if m == nil {
		return r.admitUnknown(c, x, ca, refuse)
	}
	if m.GUID != x.GUID {
		return refuse(OtherKey, fmt.Sprintf("the key of %s is in a certificate of %v", m.Name, x.GUID),
			"weft member remove "+m.Name)
	}
	if ca.State == CAFrozen && !m.preceded(c) {
		return refuse(Unlisted, fmt.Sprintf("a CA that was replaced signed it, and it lasts longer than the "+
			"certificate of %s in the records", m.Name), rejoin(m.Name))
	}
	x.Name = m.Name
	x.Roles &= m.Roles
	return x, Admitted, nil
}

// preceded reports whether c is the certificate of the record, or one that this certificate can have replaced: c has
// the same key and ends no later. A member uses its old certificate until it has received the new one, which is in the
// record before. A removed member with the CA's key gains nothing by signing such a certificate: only the holder of the
// member's own key can use it, with the roles of the record and no longer than the record's certificate.
func (m *Record) preceded(c *x509.Certificate) bool {
	if string(m.Certificate) == string(c.Raw) {
		return true
	}
	own, err := x509.ParseCertificate(m.Certificate)
	return err == nil && KeyOf(own) == KeyOf(c) && !c.NotAfter.After(own.NotAfter)
}

// rejoin is what a person does where a member has to join again: its record would refuse it, and its removal ends the
// tokens that there are.
func rejoin(name string) string {
	return "weft member remove --force " + name +
		" here, if it is listed; weft token here; weft leave; weft join, there"
}

// admitUnknown decides about a valid certificate without a record.
func (r *Roster) admitUnknown(c *x509.Certificate, x Claims, ca *CA,
	refuse func(Verdict, string, string) (Claims, Verdict, *problem.Error)) (Claims, Verdict, *problem.Error) {
	if m := r.ByGUID(x.GUID); m != nil {
		return refuse(OtherKey, fmt.Sprintf("%s has joined with another key since, or its identity was copied", m.Name),
			rejoin(m.Name))
	}
	switch {
	case ca.State == CAFrozen:
		return refuse(Unlisted, fmt.Sprintf("a CA that was replaced signed that of %s, and no record has it", x.Name),
			rejoin(x.Name))
	case !c.NotBefore.Add(backdate).After(r.At.Add(-time.Duration(r.Skew))):
		return refuse(Unlisted, fmt.Sprintf("no record has that of %s, and it is older than the records of %s", x.Name,
			stamp(r.At)), rejoin(x.Name))
	}
	return x, Provisional, nil
}

// SignerOf is the epoch of the CA that signed the certificate in a record, as SignedBy.
func (r *Roster) SignerOf(m *Record) uint32 {
	c, err := x509.ParseCertificate(m.Certificate)
	if err != nil {
		return 0
	}
	return r.SignedBy(c)
}

// signerOf returns the CA that signed a certificate, nil where none of the roster did.
func (r *Roster) signerOf(c *x509.Certificate) *CA {
	for i := range r.CAs {
		ca, err := r.CAs[i].parse()
		if err == nil && c.CheckSignatureFrom(ca) == nil {
			return &r.CAs[i]
		}
	}
	return nil
}

// SignedBy is the epoch of the CA that signed a certificate, 0 where no CA of the roster did.
func (r *Roster) SignedBy(c *x509.Certificate) uint32 {
	if ca := r.signerOf(c); ca != nil {
		return ca.Epoch
	}
	return 0
}

func (r *Roster) byKey(k Key) *Record {
	for i := range r.Members {
		if r.Members[i].Key == k {
			return &r.Members[i]
		}
	}
	return nil
}

// KeyOfVoter reports whether a certificate has the key of a voter, and the roster admits the certificate of that
// voter. Such a voter has proved in the handshake that it is the one in the roster, whichever CA signed its present
// certificate. What the certificate states counts for nothing.
func (r *Roster) KeyOfVoter(c *x509.Certificate, now time.Time) bool {
	m := r.byKey(KeyOf(c))
	if m == nil || !m.Roles.Has(Voter) {
		return false
	}
	own, err := x509.ParseCertificate(m.Certificate)
	if err != nil {
		return false
	}
	_, v, _ := r.Admit(own, now)
	return v == Admitted
}

// ByGUID returns the record of the member with a GUID, nil where there is none.
func (r *Roster) ByGUID(g ib.GUID) *Record {
	for i := range r.Members {
		if r.Members[i].GUID == g {
			return &r.Members[i]
		}
	}
	return nil
}

// ByName returns the record of a member, nil where there is none.
func (r *Roster) ByName(name string) *Record {
	for i := range r.Members {
		if r.Members[i].Name == name {
			return &r.Members[i]
		}
	}
	return nil
}

// Transit is the set of the members that may carry packets of third members, by the GUID of their node, which is that
// of its switch.
func (r *Roster) Transit() map[ib.GUID]bool {
	set := map[ib.GUID]bool{}
	for i := range r.Members {
		if r.Members[i].Roles.Transits() {
			set[r.Members[i].GUID] = true
		}
	}
	return set
}

// Hosts are the IP addresses in the addresses of the members; those of DNS names are not among them.
func (r *Roster) Hosts() map[netip.Addr]bool {
	hosts := map[netip.Addr]bool{}
	for i := range r.Members {
		for _, a := range append(r.Members[i].Addresses[:len(r.Members[i].Addresses):len(r.Members[i].Addresses)],
			r.Members[i].Store) {
			if at, err := netip.ParseAddrPort(a); err == nil {
				hosts[at.Addr().Unmap().WithZone("")] = true
			}
		}
	}
	return hosts
}

// Stores lists the addresses at which members serve the store.
func (r *Roster) Stores() (list []string) {
	for i := range r.Members {
		if s := r.Members[i].Store; s != "" {
			list = append(list, s)
		}
	}
	return list
}

// stamp is a time for people, in UTC so that clocks of two hosts compare.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// DrainedAt is the name of the drained member with a port; empty: its member is not drained, or there is none. Ports
// have the GUID of their node and a number. A nil Roster has no members.
func (r *Roster) DrainedAt(port ib.GUID) string {
	if r == nil {
		return ""
	}
	x := r.ByGUID(port &^ (1<<ib.NodeBits - 1))
	if x == nil || x.State != Draining && x.State != Drained {
		return ""
	}
	return x.Name
}
