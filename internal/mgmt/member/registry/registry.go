// SPDX-License-Identifier: Apache-2.0

// Package registry keeps the members of a fabric in its store.
//
// What comes in: requests to join, commands of administrators, reports of members; what goes out: certificates, tokens,
// rosters. Callers: the node, and member/join by way of it. Decisions are those of package member; this package reads
// the store, has them decided, and writes the result in one transaction, or decides again if something changed in
// between. It never writes half of a change: after a crash each record is as before or as after.
package registry

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// retries bounds how often a change is decided again because the store changed meanwhile.
const retries = 16

// Hold is how long a rotation of the CA waits for a member that does not report.
const Hold = 24 * time.Hour

// Config is what a Registry needs.
type Config struct {
	Store    store.Store
	Now      func() time.Time // wall clock
	GUID     ib.GUID          // of this node
	Identity *member.Identity
	Random   io.Reader // nil: crypto/rand
	// Rekey replaces the M_Key of the subnet; nil where another part of the node does that later.
	Rekey func(context.Context) error
}

// Registry is the members of a fabric as one member reaches them. Methods may be called by several goroutines. Errors
// are those of the store, or problems.
type Registry struct {
	cfg      Config
	patience time.Duration // agreeWait, but in tests

	mu     sync.Mutex
	ca     map[uint32]*member.Authority // by epoch, opened before
	missed map[member.Key]time.Time     // since when members are not connected to the store, as this node has seen it
	// caused bounds, for each member, how often its reports change its record.
	caused map[ib.GUID]member.Bucket
	newer  Newer
	// differ is since when members use other certificates than those of their records, as this node has seen it.
	differ map[member.Key]time.Time
	// cleaned are the removals after which nothing that their members wrote is left, or why something is.
	cleaned map[member.Key]error
}

// Newer are the records that a later weft wrote, with fields that this one may lack.
type Newer struct {
	Records int
	Key     string // of one of them
}

// Newer returns those that were read last.
func (r *Registry) Newer() Newer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.newer
}

// New returns a registry; it does nothing before its methods are called.
func New(c Config) *Registry {
	if c.Random == nil {
		c.Random = rand.Reader
	}
	return &Registry{cfg: c, patience: agreeWait, ca: map[uint32]*member.Authority{}, caused: map[ib.GUID]member.Bucket{}}
}

// view is all records at a time. Writes carry the condition that change is as it was.
type view struct {
	change store.Cond
	fabric member.Fabric
	roster member.Roster
	report map[ib.GUID]member.Report
	joined map[ib.GUID]reach // of the records; roster has those that were reported since
	bad    []*problem.Error  // records that are unreadable
	newer  Newer
}

// reach is where a member is reached.
type reach struct {
	addresses []string
	store     string
}

// record writes the record of a member of the view. Where the member is reached stays as it was when it joined: what
// members report about themselves is in their reports alone.
func (v *view) record(m member.Record) write {
	if at, ok := v.joined[m.GUID]; ok {
		m.Addresses, m.Store = at.addresses, at.store
	}
	return put(recordKey(m.GUID), m)
}

// ErrNoFabric is the error of a store without a fabric.
var ErrNoFabric = problem.New("cannot use the fabric", "no fabric has been made: this host is alone",
	"weft token makes one, and prints the line for the next host")

// load reads the store, again while it changes meanwhile: what it returns was so at one time.
func (r *Registry) load(ctx context.Context) (v *view, err error) {
	for range retries {
		v, err = r.read(ctx)
		if v == nil {
			return nil, err
		}
		e, again := r.cfg.Store.Get(ctx, member.KeyChange)
		if again != nil {
			return nil, again
		}
		if store.At(e) == v.change {
			break
		}
	}
	return v, err
}

// read reads the store once. A view with an error has records that contradict each other.
func (r *Registry) read(ctx context.Context) (*view, error) {
	s := r.cfg.Store
	v := &view{report: map[ib.GUID]member.Report{}, joined: map[ib.GUID]reach{}}
	// The change key is read first: what is read after it is at least as new.
	e, err := s.Get(ctx, member.KeyChange)
	if errors.Is(err, store.ErrNotFound) {
		return nil, ErrNoFabric
	} else if err != nil {
		return nil, err
	}
	v.change = store.At(e)
	if e, err = s.Get(ctx, member.KeyFabric); err != nil {
		return nil, err
	}
	if v.fabric, err = member.Decode[member.Fabric](e.Value); err != nil {
		return nil, problem.New("cannot use the fabric", err.Error(), restoreOrUpgrade)
	}
	v.see(member.KeyFabric, &v.fabric)
	v.roster = member.Roster{Fabric: v.fabric.ID, Revision: int64(v.change.Rev), At: r.cfg.Now(),
		Skew: int64(v.fabric.Policy.Skew), CAs: v.fabric.CAs}
	records, err := s.List(ctx, member.TreeRecord)
	if err != nil {
		return nil, err
	}
	v.roster.Members = decodeAll[member.Record](v, records)
	gone, err := s.List(ctx, member.TreeGone)
	if err != nil {
		return nil, err
	}
	v.roster.Removed = decodeAll[member.Gone](v, gone)
	reports, err := s.List(ctx, member.TreeReport)
	if err != nil {
		return nil, err
	}
	for i, p := range decodeAll[member.Report](v, reports) {
		if reportKey(p.GUID) == reports.Entries[i].Key {
			v.report[p.GUID] = p
		}
	}
	for i := range v.roster.Members {
		m := &v.roster.Members[i]
		v.joined[m.GUID] = reach{m.Addresses, m.Store}
		p, ok := v.report[m.GUID]
		if ok && len(p.Addresses) > 0 {
			m.Addresses = p.Addresses
		}
		if ok && p.Store != "" {
			m.Store = p.Store
		}
	}
	v.dropAmbiguous()
	r.mu.Lock()
	r.newer = v.newer
	r.mu.Unlock()
	return v, v.roster.Consistent()
}

// dropAmbiguous takes out the addresses that several members report, such as that of a bridge which each host has. One
// that a member joined with stays: joins are refused with an address of another, so that no report of another takes it
// away. Nor does a report take the last address of a member.
func (v *view) dropAmbiguous() {
	all := v.roster.Members
	n := map[string]int{}
	for i := range all {
		for _, a := range all[i].Addresses {
			n[a]++
		}
	}
	claims := map[string]int{}
	for _, at := range v.joined {
		for _, a := range at.addresses {
			claims[a]++
		}
	}
	for i := range all {
		m := &all[i]
		left := slices.DeleteFunc(slices.Clone(m.Addresses), func(a string) bool {
			own := claims[a] == 1 && slices.Contains(v.joined[m.GUID].addresses, a)
			return n[a] > 1 && !own
		})
		if len(left) > 0 {
			m.Addresses = left
		}
	}
}

// asJoined is the roster with the addresses that members joined with: no member keeps another host out by a report.
func (v *view) asJoined() member.Roster {
	r := v.roster
	r.Members = slices.Clone(r.Members)
	for i := range r.Members {
		m := &r.Members[i]
		m.Addresses, m.Store = v.joined[m.GUID].addresses, v.joined[m.GUID].store
	}
	return r
}

// see counts a record that a later weft wrote. A report is not among them: any member writes its own as it likes, and
// Members has the version there.
func (v *view) see(key string, x member.Value) {
	if x.Newer() && !store.Below(member.TreeReport, key) {
		v.newer.Records++
		v.newer.Key = key
	}
}

// restoreOrUpgrade is the fix of records that cannot be read.
const restoreOrUpgrade = "weft store restore FILE with a backup, or upgrade weft"

// unreadable reports a record that cannot be read. A report is of its member alone, which writes it anew.
func (v *view) unreadable(key string, err error) {
	fix := restoreOrUpgrade
	if store.Below(member.TreeReport, key) {
		fix = "upgrade weft on the host with that GUID, or remove it: weft member list"
	}
	v.bad = append(v.bad, problem.New("cannot read "+key, err.Error(), fix))
}

// decodeAll decodes a listing. An unreadable record is left out and reported: its member is not admitted.
func decodeAll[T any, R interface {
	*T
	member.Value
}](v *view, l store.Listing) (list []T) {
	for i := 0; i < len(l.Entries); i++ {
		e := l.Entries[i]
		x, err := member.Decode[T, R](e.Value)
		if err != nil {
			v.unreadable(e.Key, err)
			l.Entries = slices.Delete(l.Entries, i, i+1)
			i--
			continue
		}
		v.see(e.Key, R(&x))
		list = append(list, x)
	}
	return list
}

// edit decides a change and writes it: decide returns the operations for a view, none for no change. Every change that
// members see is one of these.
func (r *Registry) edit(ctx context.Context, decide func(*view) ([]store.Op, error)) error {
	for range retries {
		v, err := r.load(ctx)
		if err != nil {
			return err
		}
		ops, err := decide(v)
		if err != nil || len(ops) == 0 {
			return err
		}
		ops = append(ops, store.PutOp(member.KeyChange, fmt.Appendf(nil, "%d", v.change.Rev)))
		_, err = r.cfg.Store.Txn(ctx, store.Txn{If: []store.Cond{v.change}, Do: ops})
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return problem.New("cannot change the members", "other changes come faster than this one", "repeat the command")
}

// Roster returns the members of the fabric.
func (r *Registry) Roster(ctx context.Context) (*member.Roster, error) {
	v, err := r.load(ctx)
	if err != nil {
		return nil, err
	}
	return &v.roster, nil
}

// readAgain is how long after a failure Follow reads the store again.
const readAgain = time.Second

// Follow calls f with the roster, now and after changes, until ctx or the store ends. Changes that are in the roster
// before, which was read after them, call nothing. What cannot be read is given to bad, as is ErrNoFabric of a store
// without a fabric: the last roster stays in force, and the store is read again each readAgain.
func (r *Registry) Follow(ctx context.Context, f func(*member.Roster), bad func(error)) error {
	changes, err := r.cfg.Store.Watch(ctx, member.TreeFabric)
	if err != nil {
		return err
	}
	var has store.Rev
	var again <-chan time.Time // nil: nothing has failed
	for {
		select {
		case c, open := <-changes:
			if !open {
				return ctx.Err()
			}
			if !c.Reset && c.Rev <= has {
				continue
			}
		case <-again:
		}
		again = nil
		roster, err := r.Roster(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			bad(err)
			again = time.After(readAgain)
		default:
			has = store.Rev(roster.Revision)
			f(roster)
		}
	}
}

// FollowReports calls f for each change of a member's report, until ctx or the store ends.
func (r *Registry) FollowReports(ctx context.Context, f func()) error {
	changes, err := r.cfg.Store.Watch(ctx, member.TreeReport)
	if err != nil {
		return err
	}
	for range changes {
		f()
	}
	return ctx.Err()
}

// Founder is the first member of a fabric.
type Founder struct {
	Name      string
	Addresses []string
	Store     string // HOST:PORT at which its store will serve members; empty: the store is an etcd elsewhere
	By        string
	Policy    member.Policy // zero: DefaultPolicy
}

// Found makes a fabric with this node as its only member, unless the store has one. It returns its own certificate.
// After a crash it does nothing twice: the keys of this node are on its disk before.
func (r *Registry) Found(ctx context.Context, f Founder) (cert []byte, err error) {
	now := r.cfg.Now()
	if f.Policy == (member.Policy{}) {
		f.Policy = member.DefaultPolicy
	}
	id, err := member.NewFabric(r.cfg.Random)
	if err != nil {
		return nil, err
	}
	ca, err := member.NewAuthority(id, 1, now, 0)
	if err != nil {
		return nil, err
	}
	me := r.cfg.Identity
	claims := member.Claims{Fabric: id, Name: f.Name, GUID: r.cfg.GUID, Roles: member.HostRoles,
		Seal: me.Seal.PublicKey().Bytes()}
	if cert, err = ca.Issue(claims, &me.Sign.PublicKey, now, f.Policy.MemberLife, r.cfg.Random); err != nil {
		return nil, err
	}
	sealed, err := ca.Seal(claims, me.Key())
	if err != nil {
		return nil, err
	}
	fabric := member.Fabric{ID: id, Made: now, Policy: f.Policy, CAs: []member.CA{ca.CA(member.CASigning, now)}}
	record := member.Record{GUID: r.cfg.GUID, Name: f.Name, Key: me.Key(), Certificate: cert, Roles: member.HostRoles,
		State: member.Active, Addresses: f.Addresses, Store: f.Store, Epochs: []uint32{1}, Joined: now, By: f.By}
	ops, err := join(
		put(member.KeyFabric, fabric),
		put(sealedKey(1, r.cfg.GUID), sealed),
		put(recordKey(r.cfg.GUID), record),
	)
	if err != nil {
		return nil, err
	}
	ops = append(ops, store.PutOp(nameKey(f.Name), []byte(member.GUIDKey(r.cfg.GUID))),
		store.PutOp(member.KeyChange, []byte("0")))
	_, err = r.cfg.Store.Txn(ctx, store.Txn{If: []store.Cond{store.Absent(member.KeyChange)}, Do: ops})
	if !errors.Is(err, store.ErrConflict) {
		return cert, err
	}
	v, err := r.load(ctx)
	if err != nil {
		return nil, err
	}
	for i := range v.roster.Members {
		if m := &v.roster.Members[i]; m.Key == me.Key() && m.GUID == r.cfg.GUID {
			return m.Certificate, nil
		}
	}
	return nil, problem.New("cannot make a fabric",
		"the store has fabric "+v.fabric.ID+", and this node is no member of it",
		"weft join")
}

// authority returns the CA of an epoch, opened with this voter's key.
func (r *Registry) authority(ctx context.Context, ca *member.CA) (*member.Authority, error) {
	const what = "cannot sign a certificate"
	if ca == nil {
		return nil, problem.New(what, "no CA signs", "weft member list")
	}
	r.mu.Lock()
	a := r.ca[ca.Epoch]
	r.mu.Unlock()
	if a != nil {
		return a, nil
	}
	e, err := r.cfg.Store.Get(ctx, sealedKey(ca.Epoch, r.cfg.GUID))
	if errors.Is(err, store.ErrNotFound) {
		return nil, ErrNoKey
	} else if err != nil {
		return nil, err
	}
	s, err := member.Decode[member.Sealed](e.Value)
	if err != nil {
		return nil, problem.New(what, err.Error(), "weft store restore FILE with a backup")
	}
	if a, err = s.Open(r.cfg.Identity, *ca); err != nil {
		return nil, problem.New(what, err.Error(), "weft member list names the other voters")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ca[ca.Epoch] = a
	return a, nil
}

// ErrNoKey is the error of a member that is no voter, or no voter yet.
var ErrNoKey = problem.New("cannot sign a certificate", "the key of the CA is not sealed to this member",
	"weft member list names the voters: use one of them")

// Answer is what a host gets for its request, and a member for a renewal.
type Answer struct {
	Certificate []byte        `json:"certificate"`
	Roster      member.Roster `json:"roster"`
	Warnings    []string      `json:"warnings,omitempty"`
	Repeat      bool          `json:"repeat,omitempty"` // the host was this member already
}

// TokenHash returns the hash of a token, by which this member proves itself to a joiner.
func (r *Registry) TokenHash(ctx context.Context, id string) (member.Key, error) {
	t, err := r.token(ctx, id)
	if err != nil {
		return member.Key{}, err
	}
	if t == nil || !t.End.After(r.cfg.Now()) {
		return member.Key{}, errNoToken(id)
	}
	return t.Hash, nil
}

func errNoToken(id string) error {
	return problem.New("cannot join the fabric",
		"it has no token "+id+": the token ended, was deleted, or is of another fabric",
		"weft token, on a member, prints a new one")
}

// token reads a token, nil where there is none.
func (r *Registry) token(ctx context.Context, id string) (*member.Token, error) {
	if err := store.CheckKey(member.TreeToken + "/" + id); err != nil {
		return nil, nil
	}
	e, err := r.cfg.Store.Get(ctx, member.TreeToken+"/"+id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	t, err := member.Decode[member.Token](e.Value)
	return &t, err
}

// Join decides about a request and makes the host a member: record, name and use of the token in one transaction. mtu
// is that of the path to the joiner, 0 if unknown; host is the address that it connected to.
func (r *Registry) Join(ctx context.Context, q *member.Request, mtu int, host string) (*Answer, error) {
	var a *Answer
	err := r.edit(ctx, func(v *view) ([]store.Op, error) {
		now := r.cfg.Now()
		t, err := r.token(ctx, q.Token)
		if err != nil {
			return nil, err
		}
		g, p := member.Check(q, &member.Situation{Fabric: v.fabric, Roster: v.asJoined(), Token: t, MTU: mtu,
			Host: host}, now)
		if p != nil {
			return nil, p
		}
		ca, err := r.authority(ctx, v.fabric.Signing())
		if err != nil {
			return nil, err
		}
		der, err := ca.Issue(g.Claims, g.Key, now, v.fabric.Policy.MemberLife, r.cfg.Random)
		if err != nil {
			return nil, err
		}
		g.Record.Certificate = der
		ops, err := join(put(recordKey(g.Record.GUID), g.Record), put(member.TreeToken+"/"+g.Token.ID, g.Token))
		if err != nil {
			return nil, err
		}
		ops = append(ops, store.PutOp(nameKey(g.Record.Name), []byte(member.GUIDKey(g.Record.GUID))))
		a = &Answer{Certificate: der, Warnings: g.Warnings, Repeat: g.Repeat, Roster: withRecord(v.roster, g.Record)}
		return ops, nil
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// withRecord returns a roster with a record added or replaced.
func withRecord(r member.Roster, m member.Record) member.Roster {
	r.Members = slices.DeleteFunc(slices.Clone(r.Members), func(o member.Record) bool { return o.GUID == m.GUID })
	r.Members = append(r.Members, m)
	return r
}

// Renew signs a new certificate for a member that proved to own the present one. Name and roles are those of the
// record. Where none is due, the answer has the certificate of the record, and nothing is written.
func (r *Registry) Renew(ctx context.Context, c *x509.Certificate) (*Answer, error) {
	var a *Answer
	err := r.edit(ctx, func(v *view) ([]store.Op, error) {
		now := r.cfg.Now()
		claims, verdict, p := v.roster.Admit(c, now)
		if p != nil {
			return nil, p
		}
		if verdict != member.Admitted {
			return nil, problem.New("cannot renew the certificate", claims.Name+" has no record yet", "wait a second")
		}
		i := slices.IndexFunc(v.roster.Members, func(m member.Record) bool { return m.GUID == claims.GUID })
		m := v.roster.Members[i]
		if !due(v, &m, now) {
			a = &Answer{Certificate: m.Certificate, Roster: v.roster}
			return nil, nil
		}
		der, err := r.issue(ctx, v, &m, c)
		if err != nil {
			return nil, err
		}
		m.Certificate = der
		a = &Answer{Certificate: der, Roster: withRecord(v.roster, m)}
		return join(v.record(m))
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// due reports whether a member gets another certificate than that of its record: this one lags behind the record or the
// CA that signs, or is to be renewed by now.
func due(v *view, m *member.Record, now time.Time) bool {
	c, err := x509.ParseCertificate(m.Certificate)
	if err != nil {
		return true
	}
	x, err := member.ClaimsOf(c)
	if err != nil || x.Name != m.Name || x.Roles != m.Roles {
		return true
	}
	signs := v.fabric.Signing()
	if signs == nil {
		return true
	}
	ca, err := x509.ParseCertificate(signs.Certificate)
	if err != nil || c.CheckSignatureFrom(ca) != nil {
		return true
	}
	return !now.Before(member.LifeOf(c).RenewAt(1, time.Time{}, false))
}

// issue signs a certificate for the record of a member with the key and the sealing key of its present one.
func (r *Registry) issue(ctx context.Context, v *view, m *member.Record, c *x509.Certificate) ([]byte, error) {
	claims, err := member.ClaimsOf(c)
	if err != nil {
		return nil, err
	}
	claims.Name, claims.Roles = m.Name, m.Roles
	pub, err := publicKey(c)
	if err != nil {
		return nil, err
	}
	ca, err := r.authority(ctx, v.fabric.Signing())
	if err != nil {
		return nil, err
	}
	return ca.Issue(claims, pub, r.cfg.Now(), v.fabric.Policy.MemberLife, r.cfg.Random)
}
