// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

func recordKey(g ib.GUID) string     { return member.TreeRecord + "/" + member.GUIDKey(g) }
func reportKey(g ib.GUID) string     { return member.TreeReport + "/" + member.GUIDKey(g) }
func nameKey(name string) string     { return member.TreeName + "/" + name }
func goneKey(k member.Key) string    { return member.TreeGone + "/" + k.String() }
func sealedTree(epoch uint32) string { return fmt.Sprintf("%s/%d", member.TreeSealed, epoch) }

func sealedKey(epoch uint32, g ib.GUID) string { return sealedTree(epoch) + "/" + member.GUIDKey(g) }

// write is an operation, or why there is none.
type write struct {
	op  store.Op
	err error
}

// put is the operation that writes a record.
func put[T any, R interface {
	*T
	member.Value
}](key string, v T) write {
	b, err := member.Encode[T, R](v)
	return write{store.PutOp(key, b), err}
}

// join collects operations.
func join(all ...write) (ops []store.Op, err error) {
	for _, w := range all {
		if w.err != nil {
			return nil, w.err
		}
		ops = append(ops, w.op)
	}
	return ops, nil
}

func publicKey(c *x509.Certificate) (*ecdsa.PublicKey, error) {
	pub, ok := c.PublicKey.(*ecdsa.PublicKey)
	if !ok || pub.Curve != elliptic.P256() {
		return nil, errors.New("the key of the certificate is not ECDSA on P-256")
	}
	return pub, nil
}

// TokenSpec is a token to make.
type TokenSpec struct {
	Roles member.Role
	Uses  int           // 0: any number
	Life  time.Duration // 0: TokenLife
	By    string
}

// CreateToken makes a token. Its secret is in the answer alone.
func (r *Registry) CreateToken(ctx context.Context, spec TokenSpec) (s member.Secret, t member.Token, err error) {
	const what = "cannot make a token"
	if spec.Life == 0 {
		spec.Life = member.TokenLife
	}
	err = r.edit(ctx, func(v *view) ([]store.Op, error) {
		ca := v.fabric.Signing()
		if s, err = member.NewSecret(ca.Pin(), r.cfg.Random); err != nil {
			return nil, err
		}
		now := r.cfg.Now()
		t = member.Token{ID: s.ID, Hash: s.Hash(), Epoch: ca.Epoch, Roles: spec.Roles, Uses: spec.Uses, Made: now,
			End: now.Add(spec.Life), By: spec.By}
		if err := errors.Join(t.Roles.Assignable(), t.Check()); err != nil {
			return nil, problem.New(what, err.Error(), "weft token --help")
		}
		all, err := r.Tokens(ctx)
		if err != nil {
			return nil, err
		}
		if len(all) >= member.MaxTokens {
			return nil, problem.New(what, fmt.Sprintf("there are %d tokens, and no more fit", len(all)),
				"weft token delete ID")
		}
		return join(put(member.TreeToken+"/"+t.ID, t))
	})
	return s, t, err
}

// Tokens lists the tokens by the time of their end.
func (r *Registry) Tokens(ctx context.Context) ([]member.Token, error) {
	l, err := r.cfg.Store.List(ctx, member.TreeToken)
	if err != nil {
		return nil, err
	}
	list := decodeAll[member.Token](&view{}, l)
	slices.SortFunc(list, func(a, b member.Token) int { return a.End.Compare(b.End) })
	return list, nil
}

// DeleteToken deletes a token: it lets in no host from then on.
func (r *Registry) DeleteToken(ctx context.Context, id string) error {
	return r.edit(ctx, func(*view) ([]store.Op, error) {
		t, err := r.token(ctx, id)
		if err == nil && t == nil {
			return nil, problem.New("cannot delete the token", "there is no token "+id, "weft token list")
		} else if err != nil && t == nil {
			return nil, err
		}
		return []store.Op{store.DeleteOp(member.TreeToken + "/" + id)}, nil // also an unreadable one
	})
}

// Member is a member with what it reports.
type Member struct {
	member.Record
	Report *member.Report // nil: it has not reported
}

// Members lists the members by name, and the removals that are not complete.
func (r *Registry) Members(ctx context.Context) (list []Member, problems []*problem.Error, err error) {
	v, err := r.load(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range v.roster.Members {
		x := Member{Record: m}
		if p, ok := v.report[m.GUID]; ok {
			x.Report = &p
		}
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	for _, g := range v.roster.Removed {
		if p := r.incomplete(&g); p != nil {
			v.bad = append(v.bad, p)
		}
	}
	differ, err := r.disagreeing(ctx, v)
	return list, append(v.bad, differ...), err
}

// change edits the record of a member.
func (r *Registry) change(ctx context.Context, what, name string, f func(*view, *member.Record) ([]store.Op,
	error)) error {
	return r.edit(ctx, func(v *view) ([]store.Op, error) {
		m := v.roster.ByName(name)
		if m == nil {
			return nil, problem.New(what, "there is no member "+name, "weft member list")
		}
		return f(v, m)
	})
}

// Rename gives a member another name. Its certificate has the new one as soon as it renews it, which it does at once.
func (r *Registry) Rename(ctx context.Context, from, to string) error {
	const what = "cannot rename the member"
	if err := member.CheckName(to); err != nil {
		return problem.New(what, err.Error(), "weft member rename NAME NEW")
	}
	return r.change(ctx, what, from, func(v *view, m *member.Record) ([]store.Op, error) {
		if other := v.roster.ByName(to); other != nil {
			return nil, problem.New(what, "there is a member "+to, "weft member list")
		}
		m.Name = to
		ops, err := join(v.record(*m))
		return append(ops, store.DeleteOp(nameKey(from)), store.PutOp(nameKey(to), []byte(member.GUIDKey(m.GUID)))), err
	})
}

// SetDrain begins a drain, by force if programs shall be ended, or ends it.
func (r *Registry) SetDrain(ctx context.Context, name string, drain, force bool) error {
	return r.change(ctx, "cannot drain the member", name, func(v *view, m *member.Record) ([]store.Op, error) {
		event := member.Undrain
		if drain {
			event = member.Drain
		}
		next := m.State.After(event)
		force := drain && (force || m.Force)
		if next == m.State && force == m.Force {
			return nil, nil
		}
		m.State, m.Force = next, force
		return join(v.record(*m))
	})
}

// Report writes what this member reports about itself, and takes its state on: from joining to active, from draining
// to drained once nothing uses it.
func (r *Registry) Report(ctx context.Context, p member.Report) error {
	p.GUID = r.cfg.GUID
	w := put(reportKey(p.GUID), p)
	if w.err != nil {
		return w.err
	}
	if _, err := r.cfg.Store.Txn(ctx, store.Txn{Do: []store.Op{w.op}}); err != nil {
		return err
	}
	return nil
}

// Recorded returns the certificate in the record of this member as the store has it; nil where there is no record.
func (r *Registry) Recorded(ctx context.Context) ([]byte, error) {
	e, err := r.cfg.Store.Get(ctx, recordKey(r.cfg.GUID))
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	m, err := member.Decode[member.Record](e.Value)
	return m.Certificate, err
}

// Reported returns the report of this member as the store has it; the zero Report where there is none.
func (r *Registry) Reported(ctx context.Context) (member.Report, error) {
	e, err := r.cfg.Store.Get(ctx, reportKey(r.cfg.GUID))
	if errors.Is(err, store.ErrNotFound) {
		return member.Report{}, nil
	} else if err != nil {
		return member.Report{}, err
	}
	return member.Decode[member.Report](e.Value)
}

// replaceCA writes a fabric with a new CA, its key sealed to voters.
func (r *Registry) replaceCA(v *view, f member.Fabric, next *member.Authority, voters []member.Record) ([]store.Op,
	error) {
	ops, err := join(put(member.KeyFabric, f))
	if err != nil {
		return nil, err
	}
	for i := range voters {
		more, err := r.seal(v, next, &voters[i], f.CAs)
		if err != nil {
			return nil, err
		}
		if i < maxSealed {
			ops = append(ops, more...)
		}
	}
	return ops, nil
}

// maxSealed bounds the voters to which one transaction seals a key; Advance seals to the others.
const maxSealed = 10

var notVoter = problem.New("", "its certificate is of no voter", "")

// seal seals a CA's key to a voter, and notes in its record that it has it.
//
// Writing a record does not give the key: the sealing key is that of a certificate which a CA signed.
func (r *Registry) seal(v *view, a *member.Authority, m *member.Record, cas []member.CA) ([]store.Op, error) {
	c, err := x509.ParseCertificate(m.Certificate)
	if err != nil {
		return nil, err
	}
	claims, verdict, p := v.roster.Admit(c, r.cfg.Now())
	if verdict != member.Admitted || !claims.Roles.Has(member.Voter) {
		v.bad = append(v.bad, problem.New("cannot give the CA's key to "+m.Name, problem.Of("", cmp.Or(p,
			notVoter)).Why,
			"weft join, there"))
		return nil, nil
	}
	s, err := a.Seal(claims, m.Key)
	if err != nil {
		return nil, err
	}
	x := *m
	x.Epochs = slices.DeleteFunc(slices.Clone(m.Epochs), func(e uint32) bool { // of CAs that are gone
		return e == a.Epoch || !slices.ContainsFunc(cas, func(c member.CA) bool { return c.Epoch == e })
	})
	x.Epochs = append(x.Epochs, a.Epoch)
	return join(put(sealedKey(a.Epoch, m.GUID), s), v.record(x))
}

// rekeyAfter is how long after a removal a voter replaces the M_Key in the place of the member that removed: until
// then that one does.
const rekeyAfter = 10 * time.Second

// rekey replaces the M_Key, and then notes that no removed member has it.
func (r *Registry) rekey(ctx context.Context) error {
	if err := r.cfg.Rekey(ctx); err != nil {
		return problem.New("the member is out, and the M_Key is not replaced yet", err.Error(),
			"weft sm set --m-key random")
	}
	return r.edit(ctx, func(v *view) (ops []store.Op, err error) {
		for _, g := range v.roster.Removed {
			if g.MKey && len(ops) < store.MaxTxn/2 {
				g.MKey = false
				w := put(goneKey(g.Key), g)
				if w.err != nil {
					return nil, w.err
				}
				ops = append(ops, w.op)
			}
		}
		return ops, nil
	})
}

// Rotate replaces the secrets of the fabric in peace, and no member: it deletes all tokens, begins a rotation of the
// CA, with which Advance goes on while members renew their certificates, and replaces the M_Key. It is refused while a
// rotation is under way. Where the M_Key could not be replaced the error reports that alone.
func (r *Registry) Rotate(ctx context.Context) error {
	err := r.whenAgreed(ctx, func(late bool) error { return r.edit(ctx, r.rotation(ctx, late)) })
	if err != nil || r.cfg.Rekey == nil {
		return err
	}
	if err := r.cfg.Rekey(ctx); err != nil {
		return problem.New("the CA and the tokens are replaced, and the M_Key is not", err.Error(),
			"weft sm set --m-key random")
	}
	return nil
}

// rotation decides about a rotation. late is that of whenAgreed.
func (r *Registry) rotation(ctx context.Context, late bool) func(*view) ([]store.Op, error) {
	return func(v *view) ([]store.Op, error) {
		const what = "cannot replace the CA"
		if err := r.agreed(ctx, v, what, "", late); err != nil {
			return nil, err
		}
		now := r.cfg.Now()
		next, err := member.NewAuthority(v.fabric.ID, v.fabric.NextEpoch(), now, 0)
		if err != nil {
			return nil, err
		}
		f, err := member.Introduce(v.fabric, next, now)
		if err != nil {
			return nil, problem.New(what, err.Error(),
				"weft status, which lists ca_rotation until its end")
		}
		var voters []member.Record
		for _, m := range v.roster.Members {
			if m.Roles.Has(member.Voter) {
				voters = append(voters, m)
			}
		}
		ops, err := r.replaceCA(v, f, next, voters)
		tokens, listed := r.cfg.Store.List(ctx, member.TreeToken)
		for _, t := range tokens.Entries {
			ops = append(ops, store.DeleteOp(t.Key))
		}
		return ops, errors.Join(err, listed)
	}
}

// Advance does what time or reports make due, one step: states of members, a rotation's next step, the CA's key for a
// voter that lacks it, the M_Key of an incomplete removal, what its member wrote, the end of old tokens and removals. A
// voter calls it now and then, and after changes; several at once do no harm. It reports whether there may be more to
// do at once.
func (r *Registry) Advance(ctx context.Context) (again bool, err error) {
	pending := false
	var last *view
	err = r.edit(ctx, func(v *view) ([]store.Op, error) {
		again, pending, last = false, false, v
		now := r.cfg.Now()
		for _, g := range v.roster.Removed {
			pending = pending || g.MKey && now.Sub(g.At) > rekeyAfter
			if now.After(g.Until) && !g.MKey {
				again = true
				return []store.Op{store.DeleteOp(goneKey(g.Key))}, nil
			}
		}
		for i := range v.roster.Members {
			if ops, err := r.advanceMember(ctx, v, &v.roster.Members[i]); err != nil || len(ops) > 0 {
				again = true
				return ops, err
			}
		}
		if ops, err := r.placeMembers(ctx, v, now); err != nil || len(ops) > 0 {
			again = true
			return ops, err
		}
		var reports []member.Report
		for _, p := range v.report {
			reports = append(reports, p)
		}
		if f, moved := member.Advance(v.fabric, &v.roster, reports, now, Hold); moved {
			again = true
			ops, err := join(put(member.KeyFabric, f))
			for _, c := range v.fabric.CAs {
				if slices.ContainsFunc(f.CAs, func(o member.CA) bool { return o.Epoch == c.Epoch }) {
					continue
				}
				sealed, listed := r.cfg.Store.List(ctx, sealedTree(c.Epoch))
				err = errors.Join(err, listed)
				for _, e := range sealed.Entries[:min(len(sealed.Entries), store.MaxTxn/2)] {
					ops = append(ops, store.DeleteOp(e.Key))
				}
			}
			return ops, err
		}
		tokens, err := r.Tokens(ctx)
		for _, t := range tokens {
			if !t.End.After(now) || t.Epoch != v.fabric.Signing().Epoch {
				again = true
				return []store.Op{store.DeleteOp(member.TreeToken + "/" + t.ID)}, nil
			}
		}
		return nil, err
	})
	if err == nil && !again {
		r.clean(ctx, last)
	}
	if err == nil && pending && r.cfg.Rekey != nil {
		err = r.rekey(ctx)
	}
	return again && err == nil, err
}

// SetShape gives a member the role spine or leaf, or with 0 neither.
func (r *Registry) SetShape(ctx context.Context, name string, role member.Role) error {
	const what = "cannot change the role"
	return r.change(ctx, what, name, func(v *view, m *member.Record) ([]store.Op, error) {
		roles := m.Roles&^(member.Spine|member.Leaf) | role
		if err := roles.Check(); err != nil {
			return nil, problem.New(what, fmt.Sprintf("%s has the roles %v: %v", name, m.Roles, err),
				"weft member remove "+name+"; weft token --role leaf; weft join, there")
		}
		if err := role.Assignable(); role == member.Spine && !roles.Transits() {
			return nil, problem.New(what, fmt.Sprintf("%s has the roles %v: %v", name, m.Roles, err),
				"weft member remove "+name+"; weft token --role manager,spine; weft join, there")
		}
		if roles == m.Roles {
			return nil, nil
		}
		m.Roles = roles
		return join(v.record(*m))
	})
}

// advanceMember takes the state of a member on by its report, and seals the CA's keys to a voter that lacks them.
func (r *Registry) advanceMember(ctx context.Context, v *view, m *member.Record) ([]store.Op, error) {
	if p, ok := v.report[m.GUID]; ok {
		next := m.State.After(member.Seen)
		if len(p.Users) > 0 {
			next = next.After(member.Busy)
		} else {
			next = next.After(member.Idle)
		}
		if next != m.State && r.mayChange(m.GUID, r.cfg.Now()) {
			x := *m
			x.State = next
			return join(v.record(x))
		}
	}
	if !m.Roles.Has(member.Voter) {
		return nil, nil
	}
	for i := range v.fabric.CAs {
		c := &v.fabric.CAs[i]
		if c.State != member.CASigning && c.State != member.CAIntroduced || slices.Contains(m.Epochs, c.Epoch) {
			continue
		}
		a, err := r.authority(ctx, c)
		if errors.Is(err, ErrNoKey) {
			return nil, nil // another voter does it
		} else if err != nil {
			return nil, err
		}
		return r.seal(v, a, m, v.fabric.CAs)
	}
	return nil, nil
}
