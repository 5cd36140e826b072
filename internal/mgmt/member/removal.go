// SPDX-License-Identifier: Apache-2.0

package member

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"weft/internal/proto/problem"
)

// Replaced is a set of kinds of secrets that a removal replaces.
type Replaced uint8

// Kinds of secrets.
const (
	// ReplaceSessions: every trunk and store session with the member ends. Keys of sessions are of two members each, so
	// those between others stay.
	ReplaceSessions Replaced = 1 << iota
	// ReplaceTokens: all join tokens are deleted. A manager or voter reads their hashes, an administrator makes them,
	// and any member may have seen a line that was pasted on it.
	ReplaceTokens
	// ReplaceMKey: the M_Key of the subnet changes. Each member's switch receives its own in management datagrams, and
	// managers have the one of all.
	ReplaceMKey
	// ReplaceCA: the key of the CA was sealed to the member. Another CA signs from now on, and of those whose key it
	// had only certificates in records are valid.
	ReplaceCA
)

var replacedNames = []string{"sessions", "tokens", "M_Key", "CA"}

// List names the secrets.
func (r Replaced) List() (s []string) {
	for i, name := range replacedNames {
		if r&(1<<i) != 0 {
			s = append(s, name)
		}
	}
	return s
}

// Has reports whether r has all of x.
func (r Replaced) Has(x Replaced) bool { return r&x == x }

// Removal is the plan of a removal. The caller writes Gone, deletes the record, the name, the report and the tokens,
// and writes Fabric, in one transaction; then the M_Key changes. Each member drops sessions when its roster changes.
type Removal struct {
	Gone    Gone
	Replace Replaced
	Fabric  *Fabric // nil: unchanged; else what PlanRemoval was given with CAs frozen and next signing
	Voters  []Record
}

// PlanRemoval plans the removal of a member. next is a new CA, which the caller made in case ReplaceCA is needed; its
// epoch is one above the last. by is the author. force removes the last voter's or an undrained member's record too.
func PlanRemoval(f Fabric, r *Roster, name string, next *Authority, now time.Time, by string, force bool) (*Removal,
	*problem.Error) {
	what := "cannot remove the member " + printable(name)
	m := r.ByName(name)
	if m == nil {
		return nil, problem.New(what, "there is none of that name", "weft member list")
	}
	if m.State != Drained && !force {
		first := fmt.Sprintf("weft member drain %s first", m.Name)
		if m.State == Draining {
			first = fmt.Sprintf("weft member drain %s names them: wait for their end", m.Name)
		}
		return nil, problem.New(what, "it is "+m.State.String()+", and programs may use it",
			first+", or weft member remove --force "+m.Name)
	}
	p := &Removal{Replace: ReplaceSessions | ReplaceTokens | ReplaceMKey}
	others, administrators := 0, 0
	for i := range r.Members {
		o := &r.Members[i]
		if o.GUID == m.GUID {
			continue
		}
		if o.Roles.Has(Voter) {
			others++
			p.Voters = append(p.Voters, *o)
		}
		if o.Roles.Has(Administrator) {
			administrators++
		}
	}
	if others == 0 {
		return nil, problem.New(what, "no other member is a voter, and the store and the CA would end with it",
			"weft token --role voter; weft join, on another host, first")
	}
	if administrators == 0 {
		return nil, problem.New(what,
			"no other member is an administrator, and the fabric could not be changed any more",
			"weft token --role voter,administrator; weft join, on another host, first")
	}
	p.Gone = Gone{GUID: m.GUID, Name: m.Name, Key: m.Key, At: now, By: by[:min(len(by), maxText)],
		Until: untilOf(m, now, f.Policy), MKey: true}
	held := slices.ContainsFunc(f.CAs, func(c CA) bool { return slices.Contains(m.Epochs, c.Epoch) })
	if !held {
		return p, nil
	}
	p.Replace |= ReplaceCA
	fabric, err := Freeze(f, m.Epochs, next, now)
	if err != nil {
		return nil, problem.New(what, err.Error(), "weft member list")
	}
	p.Fabric = &fabric
	return p, nil
}

// untilOf is when every certificate of a member has ended.
func untilOf(m *Record, now time.Time, p Policy) time.Time {
	until := now.Add(p.MemberLife)
	if c, err := x509.ParseCertificate(m.Certificate); err == nil && c.NotAfter.After(until) {
		until = c.NotAfter
	}
	return until.Add(p.Skew)
}

// Freeze replaces CAs with keys that a removed member had: next signs at once.
func Freeze(f Fabric, epochs []uint32, next *Authority, now time.Time) (Fabric, error) {
	f.CAs = slices.Clone(f.CAs)
	if next == nil || next.Epoch != f.NextEpoch() {
		return f, errors.New("the next CA has a wrong epoch")
	}
	for i := range f.CAs {
		c := &f.CAs[i]
		switch {
		case c.State == CAFrozen:
		case slices.Contains(epochs, c.Epoch):
			if err := c.become(CAFrozen, now); err != nil {
				return f, err
			}
		case c.State == CASigning: // its key was not the member's: an introduced one's was
			if err := c.become(CARetiring, now); err != nil {
				return f, err
			}
		}
	}
	f.CAs = append(f.CAs, next.CA(CASigning, now))
	return f, f.Check()
}

// NextEpoch is the epoch of the next CA.
func (f *Fabric) NextEpoch() uint32 { return f.CAs[len(f.CAs)-1].Epoch + 1 }

// Introduce begins a rotation in peace: members trust next, and the present CA goes on signing. Two CAs are valid.
func Introduce(f Fabric, next *Authority, now time.Time) (Fabric, error) {
	if slices.ContainsFunc(f.CAs, func(c CA) bool { return c.State == CAIntroduced }) {
		return f, errors.New("a rotation is under way: a CA is introduced and does not sign yet")
	}
	if next == nil || next.Epoch != f.NextEpoch() {
		return f, errors.New("the next CA has a wrong epoch")
	}
	f.CAs = append(slices.Clone(f.CAs), next.CA(CAIntroduced, now))
	return f, f.Check()
}

// Advance takes a rotation one step on, when it can: an introduced CA signs once every member's report has its epoch;
// a retiring or frozen one goes once no member has a certificate of it, or all that it signed have ended. It returns
// false where nothing changes. Members without a report, or with an old one, hold the rotation up to hold after the
// last step; then it goes on without them, and they join again.
func Advance(f Fabric, r *Roster, reports []Report, now time.Time, hold time.Duration) (Fabric, bool) {
	f.CAs = slices.Clone(f.CAs)
	by := map[uint64]*Report{}
	for i := range reports {
		by[uint64(reports[i].GUID)] = &reports[i]
	}
	all := func(test func(*Report) bool) bool {
		for i := range r.Members {
			if p := by[uint64(r.Members[i].GUID)]; p == nil || !test(p) {
				return false
			}
		}
		return true
	}
	for i := range f.CAs {
		c := &f.CAs[i]
		late := now.Sub(c.Since) >= hold
		switch c.State {
		case CAIntroduced:
			if !late && !all(func(p *Report) bool { return slices.Contains(p.CAs, c.Epoch) }) {
				continue
			}
			old := f.Signing()
			if old == nil || old.become(CARetiring, now) != nil || c.become(CASigning, now) != nil {
				continue
			}
			return f, true
		case CARetiring, CAFrozen:
			if late || all(func(p *Report) bool { return p.Signed != c.Epoch && p.Signed != 0 }) {
				f.CAs = slices.Delete(f.CAs, i, i+1)
				return f, true
			}
		}
	}
	return f, false
}
