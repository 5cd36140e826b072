// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/home"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// without is the roster of a node that cannot read that on its disk. It has this node and the voters that are kept
// elsewhere, so that the node reads the store again, and admits no other: one that was removed could not be told from
// one that joined.
func (m *Membership) without(kept *home.Membership, why error) (*member.Roster, error) {
	m.unread = true
	p := problem.Of("cannot read the roster", why)
	fix := p.Fix
	if errors.Is(why, fs.ErrNotExist) {
		fix = "restore " + m.dir.Path(home.RosterFile) + " from a backup, or " + rejoin(kept.Name)
	}
	m.fault("member_roster", problem.New("voters that were known alone are admitted until this node reads the store",
		problem.Text(p.What, p.Why, ""), fix))
	x, err := x509.ParseCertificate(kept.Certificate)
	if err != nil {
		return nil, err
	}
	claims, err := member.ClaimsOf(x)
	if err != nil {
		return nil, err
	}
	r := &member.Roster{Fabric: kept.Fabric, At: m.cfg.Now(), Skew: int64(member.MaxSkew),
		CAs: slices.Clone(kept.CAs), Members: []member.Record{{GUID: kept.GUID, Name: kept.Name, Key: member.KeyOf(x),
			Certificate: kept.Certificate, Roles: claims.Roles, State: member.Active}}}
	for _, x := range kept.Voters {
		if x.GUID != kept.GUID {
			r.Members = append(r.Members, x)
		}
	}
	for i := range r.CAs {
		r.CAs[i].State = member.CAFrozen // only certificates in records count
	}
	return r, nil
}

// maxKept bounds the voters that are kept apart from the roster.
const maxKept = 16

// keptVoters are records of voters but self as they are kept apart from the roster: what others need to be admitted and
// reached.
func keptVoters(r *member.Roster, self ib.GUID) (list []member.Record) {
	for i := range r.Members {
		x := &r.Members[i]
		if x.GUID == self || !x.Roles.Has(member.Voter) || len(list) == maxKept {
			continue
		}
		list = append(list, member.Record{GUID: x.GUID, Name: x.Name, Key: x.Key, Certificate: x.Certificate,
			Roles: x.Roles, State: member.Active, Addresses: x.Addresses, Store: x.Store, Joined: x.Joined})
	}
	return list
}

// keepVoters keeps the voters of a roster apart from it, where they have changed.
func (m *Membership) keepVoters(r *member.Roster) error {
	list := keptVoters(r, m.cfg.GUID)
	m.saving.Lock()
	defer m.saving.Unlock()
	m.mu.Lock()
	kept := *m.kept
	m.mu.Unlock()
	before, err1 := json.Marshal(kept.Voters)
	after, err2 := json.Marshal(list)
	if err := errors.Join(err1, err2); err != nil || bytes.Equal(before, after) {
		return err
	}
	kept.Voters = list
	if err := m.dir.Save(&kept); err != nil {
		return err
	}
	m.mu.Lock()
	m.kept = &kept
	m.mu.Unlock()
	return nil
}

// rejoin is what a person does where a member has to join again: its record would refuse it.
func rejoin(name string) string {
	return "weft member remove --force " + name + ", on a member that lists it; weft leave; weft join, with a new token"
}
