// SPDX-License-Identifier: Apache-2.0

package member

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// Protocol is the version of what members exchange: records, the trunk handshake, the join protocol. Members of
// different programs work together within MinProtocol to Protocol.
const (
	Protocol    = 1
	MinProtocol = 1
)

// MTU bounds of a trunk's path, in octets of an IP packet: the least of IPv6 (RFC 8200, section 5), and the largest of
// an IP packet.
const (
	MinMTU = 1280
	MaxMTU = 65535
)

// MaxCSR bounds a certificate signing request, in octets.
const MaxCSR = 4096

// Request is what a host sends to join.
type Request struct {
	Protocol  int       `json:"protocol"`
	Program   string    `json:"program"` // version of weft, for people
	Fabric    string    `json:"fabric,omitempty"`
	Token     string    `json:"token"`  // its identifier
	Secret    []byte    `json:"secret"` // sent after the member proved itself
	Pin       []byte    `json:"pin"`    // the CA that the joiner trusts
	Name      string    `json:"name"`
	GUID      ib.GUID   `json:"guid"`
	Roles     *Role     `json:"roles,omitempty"` // at most these; nil: all that the token gives
	Clock     time.Time `json:"clock"`
	MTU       int       `json:"mtu"` // of the path to this member
	CSR       []byte    `json:"csr"`
	Seal      []byte    `json:"seal"`
	Addresses []string  `json:"addresses"`
}

// String is the host's name: the secret of its token is in no text.
func (r Request) String() string { return r.Name }

// GoString is the host's name.
func (r Request) GoString() string { return r.Name }

// Situation is what a member decides a request by.
type Situation struct {
	Fabric  Fabric
	Roster  Roster
	Token   *Token // that of the request; nil: there is none
	MTU     int    // of this member's path to the joiner; 0: unknown
	Members int    // most that the fabric takes; 0: MaxMembers
	Host    string // the address that the joiner connected to, for fixes
}

// Grant is what a request gets. Nothing has changed yet: the caller writes Record and Token in one transaction, and
// signs.
type Grant struct {
	Claims   Claims
	Key      *ecdsa.PublicKey
	Record   Record // without certificate
	Token    Token  // with the use counted
	Repeat   bool   // the host is this member already; its token is not used again
	Warnings []string
}

// Check decides about a request to join. It changes nothing. A refusal reveals nothing of the fabric to a joiner
// without a valid token: the token is checked first, and secrets in constant time.
func Check(r *Request, s *Situation, now time.Time) (*Grant, *problem.Error) {
	c := checker{r: r, s: s, now: now}
	for _, step := range []func() *problem.Error{c.protocol, c.token, c.clock, c.name, c.identity, c.request, c.sealing,
		c.copies, c.roles, c.path, c.addresses, c.room} {
		if p := step(); p != nil {
			return nil, p
		}
	}
	return c.grant(), nil
}

// checker holds a request between its steps.
type checker struct {
	r     *Request
	s     *Situation
	now   time.Time
	pub   *ecdsa.PublicKey
	key   Key
	role  Role
	known *Record  // the host is this member already
	at    []string // addresses that no other member has
	warn  []string
}

// refuse returns the one line of a refusal.
func refuse(why, fix string) *problem.Error { return problem.New("cannot join the fabric", why, fix) }

const newToken = "weft token, on a member, prints a new one"

func (c *checker) protocol() *problem.Error {
	switch r := c.r; {
	case r.Protocol < MinProtocol:
		return refuse(fmt.Sprintf("this host has weft %s of protocol %d, the fabric has protocol %d to %d",
			printable(r.Program), r.Protocol, MinProtocol, Protocol), "install the fabric's version of weft here")
	case r.Protocol > Protocol:
		return refuse(fmt.Sprintf("this host has weft %s of protocol %d, the fabric has protocol %d to %d",
			printable(r.Program), r.Protocol, MinProtocol, Protocol),
			"upgrade weft on the members first, or install their version here")
	}
	return nil
}

func (c *checker) token() *problem.Error {
	r, t := c.r, c.s.Token
	if !isTokenID(r.Token) {
		return refuse(fmt.Sprintf("%q is no token", printable(r.Token)), newToken)
	}
	if t != nil && t.ID != r.Token {
		t = nil
	}
	if right := t.Is(r.Secret); !right && t == nil {
		return refuse("the fabric has no token "+r.Token+": it was deleted, it is of another fabric, or the CA "+
			"was replaced after it was made", newToken)
	} else if !right {
		return refuse("the secret of the token "+r.Token+" is wrong", "copy the whole line that weft token printed")
	}
	switch {
	case r.Fabric != "" && r.Fabric != c.s.Fabric.ID:
		return refuse(fmt.Sprintf("the token is of fabric %s, this is fabric %s", printable(r.Fabric), c.s.Fabric.ID),
			newToken)
	case !t.End.After(c.now):
		return refuse(fmt.Sprintf("the token %s ended %s", t.ID, stamp(t.End)), newToken)
	case t.Made.After(c.now.Add(c.s.Fabric.Policy.Skew)):
		return refuse(fmt.Sprintf("the token %s was made %s, and this member's clock shows %s", t.ID, stamp(t.Made),
			stamp(c.now)), "set the clocks of the members")
	case t.Uses > 0 && t.Used >= t.Uses && c.joinedBefore() == nil:
		return refuse(fmt.Sprintf("the token %s has been used %s", t.ID, times(t.Used)), newToken)
	}
	ca := c.s.Fabric.Signing()
	if ca == nil {
		return refuse("no CA signs in this fabric", "weft member list")
	}
	if pin := ca.Pin(); string(pin[:]) != string(r.Pin) || t.Epoch != ca.Epoch {
		return refuse(fmt.Sprintf("the CA that the token %s is bound to has been replaced", t.ID), newToken)
	}
	return nil
}

// joinedBefore is the member that this very host is already: the same GUID and the same key. It is nil before the
// request's signature was checked only where there is no such key.
func (c *checker) joinedBefore() *Record {
	csr, err := x509.ParseCertificateRequest(c.r.CSR)
	if err != nil || csr.CheckSignature() != nil {
		return nil
	}
	m := c.s.Roster.byKey(keyOfRequest(csr))
	if m == nil || m.GUID != c.r.GUID {
		return nil
	}
	return m
}

func (c *checker) clock() *problem.Error {
	r, skew := c.r, c.s.Fabric.Policy.Skew
	const fix = "set this host's clock: timedatectl set-ntp true"
	if r.Clock.Year() < 2000 || r.Clock.Year() > 9999 {
		return refuse("this host has sent no time", fix)
	}
	d := r.Clock.Sub(c.now)
	if d.Abs() <= skew {
		return nil
	}
	which := "ahead of"
	if d < 0 {
		which = "behind"
	}
	return refuse(fmt.Sprintf("this host's clock is %v %s that of the fabric, at most %v is allowed",
		d.Abs().Round(time.Second), which, skew), fix)
}

func (c *checker) name() *problem.Error {
	if err := CheckName(c.r.Name); err != nil {
		return refuse(err.Error(), "weft join --name NAME, with a-z, 0-9 and -")
	}
	return nil
}

func (c *checker) identity() *problem.Error {
	if err := CheckGUID(c.r.GUID); err != nil {
		return refuse(err.Error(), "remove the file identity in the node's directory; weft join again")
	}
	return nil
}

const again = "weft join again, with this version of weft"

// request checks the certificate signing request, and that its key is the joiner's.
func (c *checker) request() *problem.Error {
	if len(c.r.CSR) > MaxCSR {
		return refuse(fmt.Sprintf("the certificate request has %d octets, at most %d fit", len(c.r.CSR), MaxCSR), again)
	}
	csr, err := x509.ParseCertificateRequest(c.r.CSR)
	if err != nil {
		return refuse("the certificate request is unreadable", again)
	}
	pub, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || pub.Curve != elliptic.P256() {
		return refuse("the key of the certificate request is not ECDSA on P-256", again)
	}
	if csr.CheckSignature() != nil {
		return refuse("the signature of the certificate request is wrong: this host does not have its key", again)
	}
	if csr.Subject.CommonName != c.r.Name {
		return refuse(fmt.Sprintf("the certificate request is for %q, the host's name is %q",
			printable(csr.Subject.CommonName), c.r.Name), again)
	}
	if len(csr.DNSNames)+len(csr.URIs)+len(csr.IPAddresses)+len(csr.EmailAddresses) > 0 {
		return refuse("the certificate request has more than a name", again)
	}
	c.pub, c.key = pub, keyOfRequest(csr)
	return nil
}

func (c *checker) sealing() *problem.Error {
	if err := checkSeal(c.r.Seal); err != nil {
		return refuse(err.Error(), again)
	}
	return nil
}

// copies refuses what another member has, or had.
func (c *checker) copies() *problem.Error {
	r, all := c.r, &c.s.Roster
	for i := range all.Removed {
		if g := &all.Removed[i]; g.Key == c.key {
			return refuse(fmt.Sprintf("this host was the member %s, which was removed %s", g.Name, stamp(g.At)),
				"weft leave; weft join again: it makes new keys")
		}
	}
	m := all.byKey(c.key)
	if m != nil && m.GUID != r.GUID {
		return refuse(fmt.Sprintf("the key of this host is that of the member %s: the identity was copied", m.Name),
			"weft leave; weft join again: it makes new keys")
	}
	if m != nil && m.Name != r.Name {
		return refuse(fmt.Sprintf("this host is the member %s already", m.Name), fmt.Sprintf("weft member rename %s %s",
			m.Name, r.Name))
	}
	if m != nil {
		c.known = m
		return nil
	}
	if m := all.ByGUID(r.GUID); m != nil {
		return refuse(fmt.Sprintf("the member %s has the identity %v of this host: the node's directory was "+
			"copied, or "+
			"this host left the fabric, or lost its keys", m.Name, r.GUID), fmt.Sprintf("remove the file identity here "+
			"if it was copied; else weft member remove --force %s, weft token, on a member", m.Name))
	}
	if m := all.ByName(r.Name); m != nil {
		return refuse(fmt.Sprintf("the fabric has a member %s with the identity %v", m.Name, m.GUID),
			"weft join --name NAME")
	}
	for i := range all.Members {
		if m := &all.Members[i]; string(sealOf(m)) == string(r.Seal) {
			return refuse(fmt.Sprintf("the sealing key of this host is that of the member %s: the identity was "+
				"copied",
				m.Name), "weft leave; weft join again: it makes new keys")
		}
	}
	return nil
}

func (c *checker) roles() *problem.Error {
	c.role = c.s.Token.Roles
	if c.known != nil {
		c.role = c.known.Roles
	}
	if c.r.Roles == nil {
		return nil
	}
	if err := c.r.Roles.Assignable(); err != nil {
		return refuse(err.Error(), "weft join --role ROLES")
	}
	// A leaf has fewer rights than any member, so every token gives it.
	if more := *c.r.Roles &^ (c.role | Leaf); more != 0 {
		return refuse(fmt.Sprintf("the token %s does not give the role %v", c.r.Token, more), fmt.Sprintf(
			"weft token --role %v, on a member", *c.r.Roles))
	}
	c.role = *c.r.Roles
	return nil
}

func (c *checker) path() *problem.Error {
	r := c.r
	switch {
	case r.MTU <= 0:
		return refuse("this host has no path to "+c.s.Host+": its MTU is unknown", "ip route get "+c.s.Host)
	case r.MTU < MinMTU:
		return refuse(fmt.Sprintf("the path from this host to %s has an MTU of %d, trunks need %d", c.s.Host, r.MTU,
			MinMTU), fmt.Sprintf("ip link set DEVICE mtu %d", MinMTU))
	case r.MTU > MaxMTU:
		return refuse(fmt.Sprintf("an MTU of %d is longer than an IP packet", r.MTU), again)
	case c.s.MTU > 0 && c.s.MTU < MinMTU:
		return refuse(fmt.Sprintf("the path from %s to this host has an MTU of %d, trunks need %d", c.s.Host, c.s.MTU,
			MinMTU), fmt.Sprintf("ip link set DEVICE mtu %d, there", MinMTU))
	}
	if c.s.MTU > 0 && c.s.MTU != r.MTU {
		c.warn = append(c.warn, fmt.Sprintf("the MTU is %d here and %d at %s: the trunk uses %d. fix: ip link "+
			"set DEVICE "+
			"mtu %d, on both", r.MTU, c.s.MTU, c.s.Host, min(r.MTU, c.s.MTU), max(r.MTU, c.s.MTU)))
	}
	return nil
}

func (c *checker) addresses() *problem.Error {
	const fix = "weft join --address HOST:PORT"
	list := c.r.Addresses
	switch {
	case len(list) == 0 && !c.role.Has(Leaf):
		return refuse("this host has no address that members reach", fix+", or --role leaf")
	case len(list) > MaxAddresses:
		return refuse(fmt.Sprintf("this host has %d addresses, at most %d fit", len(list), MaxAddresses), fix)
	}
	for _, a := range list {
		if err := CheckAddress(a); err != nil {
			return refuse(err.Error(), fix)
		}
		// Every host of a kind may have one such as that of a bridge for containers: it leads to no other host.
		m := c.memberAt(a)
		if m == nil {
			c.at = append(c.at, a)
			continue
		}
		if len(list) == 1 {
			return refuse(fmt.Sprintf("%s is the address of the member %s", a, m.Name), fix+
				", or weft member remove "+m.Name+" where that host is gone")
		}
		c.warn = append(c.warn, fmt.Sprintf("%s is an address of the member %s as well: members do not use it. fix: %s",
			a, m.Name, fix))
	}
	if len(c.at) == 0 && len(list) > 0 {
		return refuse("each address of this host is another member's too", fix)
	}
	return nil
}

// memberAt is another member with an address, nil where none has it.
func (c *checker) memberAt(address string) *Record {
	for i := range c.s.Roster.Members {
		m := &c.s.Roster.Members[i]
		if m.GUID != c.r.GUID && slices.Contains(m.Addresses, address) {
			return m
		}
	}
	return nil
}

func (c *checker) room() *problem.Error {
	most := c.s.Members
	if most == 0 {
		most = MaxMembers
	}
	if n := len(c.s.Roster.Members); c.known == nil && n >= most {
		return refuse(fmt.Sprintf("the fabric has %d members, and takes no more", n), "weft member remove NAME")
	}
	return nil
}

// grant makes the answer of a request that passed.
func (c *checker) grant() *Grant {
	r, t := c.r, *c.s.Token
	g := &Grant{
		Claims: Claims{Fabric: c.s.Fabric.ID, Name: r.Name, GUID: r.GUID, Roles: c.role,
			Seal: slices.Clone(r.Seal)},
		Key:      c.pub,
		Repeat:   c.known != nil,
		Warnings: c.warn,
		Record: Record{GUID: r.GUID, Name: r.Name, Key: c.key, Roles: c.role, State: Joining,
			Addresses: c.at, Joined: c.now, By: "token " + t.ID + " of " + t.By},
	}
	if m := c.known; m != nil {
		g.Record.State, g.Record.Joined, g.Record.By, g.Record.Epochs = m.State, m.Joined, m.By, m.Epochs
	} else {
		t.Used++
	}
	g.Record.By = g.Record.By[:min(len(g.Record.By), maxText)]
	g.Token = t
	return g
}

func keyOfRequest(csr *x509.CertificateRequest) Key {
	return KeyOf(&x509.Certificate{RawSubjectPublicKeyInfo: csr.RawSubjectPublicKeyInfo})
}

// sealOf is the sealing key of a member, nil where its certificate is unreadable.
func sealOf(m *Record) []byte {
	c, err := x509.ParseCertificate(m.Certificate)
	if err != nil {
		return nil
	}
	x, err := ClaimsOf(c)
	if err != nil {
		return nil
	}
	return x.Seal
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
