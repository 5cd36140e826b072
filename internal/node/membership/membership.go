// SPDX-License-Identifier: Apache-2.0

// Package membership is a node's part in a fabric: its certificate, the roster by which it decides about others, the
// listener of the join protocol, and the operations of the control interface on members and tokens.
//
// What comes in: the folder member of the node's directory, the store, requests of hosts and of people; what goes out:
// certificates, rosters, records in the store. The node starts it after the store and closes it before. Trunks and the
// store take Certificate and Roster from here; nothing here touches a packet.
package membership

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"weft/internal/control/api"
	"weft/internal/host/hostnet"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/home"
	"weft/internal/mgmt/member/join"
	"weft/internal/mgmt/member/registry"
	"weft/internal/mgmt/store"
	"weft/internal/proto/counters"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// Config is what the membership needs from its node.
type Config struct {
	Dir     string // of the node
	GUID    ib.GUID
	Host    string // the host's name
	Port    int    // TCP port of the join protocol
	Program string // version of weft
	Log     *slog.Logger
	Now     func() time.Time // wall clock
	// Durable reports whether the store outlives the node.
	Durable bool
	// Store is the store of the fabric, nil where there is none yet; missing is why.
	Store func() (s store.Store, missing error)
	// StoreAddress is HOST:PORT at which the node's store serves members, or will once the node is one; empty where it
	// is an etcd elsewhere; nil: never.
	StoreAddress func() string
	// First reports whether this node is the first of the voters to look at all members after a change; the others look
	// later. nil: each is.
	First func() bool
	// Users lists what uses the node.
	Users func() ([]member.User, error)
	// Switch is the node's switch as plans of trunks need it; nil: not known.
	Switch func() member.Switch
	// Drain has the node of the member with a name accept nothing new that would use the host, or with on false accept
	// it again; with force it ends what uses the host. It is called at the start, and for each roster.
	Drain func(name string, on, force bool)
	// Rekey replaces the subnet's M_Key.
	Rekey func(context.Context) error
	// Roster is called with each roster that the node follows; nil: nothing follows it.
	Roster func(*member.Roster)
	// MayFound returns why the node cannot be the first member of a fabric; nil: it can. Founded opens the node to
	// other members when it is the first; nil: nothing is to be opened.
	MayFound func() error
	Founded  func(context.Context) error
}

// Times of the work below.
const (
	workEvery = 2 * time.Second
	workTime  = 10 * time.Second // of one round
	// upkeepEvery is how often a voter looks at all members where nothing changed: for what time makes due.
	upkeepEvery = 30 * time.Second
	// upkeepLater to twice that is how long after a change the voters look that are not the first: where all of many
	// look at all after each change of each, the store does nothing else.
	upkeepLater = 10 * time.Second
	// endTime is how long after a drain by force the node reports again: what used the host has ended by then.
	endTime = 300 * time.Millisecond
	// reportEvery is how often a report is written that has not changed.
	reportEvery = 5 * time.Minute
)

// Membership is a node's part in a fabric. Its methods may be called on any goroutine but lanes and the management
// goroutine.
type Membership struct {
	cfg         Config
	dir         home.Dir
	incarnation uint64
	unread      bool // the roster on the disk could not be read; set by Open

	cert     atomic.Pointer[tls.Certificate] // nil: the node is in no fabric
	roster   atomic.Pointer[member.Roster]
	hosts    atomic.Pointer[hosts]
	commands *Commands
	poke     chan struct{} // the work has something to do now
	due      atomic.Bool   // members or reports changed since a voter looked at all of them
	ctx      context.Context
	stop     context.CancelFunc
	work     sync.WaitGroup

	founding  sync.Mutex // held while a fabric is made; taken before mu
	accepting sync.Mutex // held while a roster becomes the node's; taken before saving
	saving    sync.Mutex // held while kept is changed and written; taken before mu

	mu       sync.Mutex // guards what follows; it is held for no call of the store or the network
	kept     *home.Membership
	id       *member.Identity
	registry *registry.Registry
	server   *join.Server
	faults   map[string]*problem.Error // what is wrong, by name
}

// New returns a membership that is not started.
func New(c Config) *Membership {
	m := &Membership{cfg: c, dir: home.Open(c.Dir), incarnation: rand.Uint64(), poke: make(chan struct{}, 1),
		faults: map[string]*problem.Error{}}
	m.commands = newCommands(m)
	return m
}

// Open reads what the node keeps of its membership. What others may have read, or what is damaged, is an error: a
// member without its identity would be a stranger to its fabric.
func (m *Membership) Open() error {
	kept, err := m.dir.Load()
	if errors.Is(err, home.ErrNone) {
		return nil
	} else if err != nil {
		return err
	}
	if kept.GUID != m.cfg.GUID {
		return problem.New("cannot use the identity of the node",
			fmt.Sprintf("its certificate is of %v, the node is %v: "+
				"the directory was copied in part", kept.GUID, m.cfg.GUID), "weft leave; weft join, with a new token")
	}
	roster, err := m.dir.Roster()
	if err != nil {
		if roster, err = m.without(kept, err); err != nil {
			return err
		}
	}
	return m.adopt(kept, roster)
}

// Alone reports whether the node is the only member of its fabric, as its roster has it. A node that could not read its
// roster is not.
func (m *Membership) Alone() bool {
	r := m.roster.Load()
	return !m.unread && r != nil && len(r.Members) == 1 && r.Members[0].GUID == m.cfg.GUID
}

// adopt makes kept the node's membership, with the first roster that the node has.
func (m *Membership) adopt(kept *home.Membership, roster *member.Roster) error {
	m.roster.Store(roster) // before the certificate, by which the node is a member
	return m.carry(kept, roster.CAs)
}

// carry makes kept what the node is to others: its certificate goes out with that of the CA in cas that signed it.
func (m *Membership) carry(kept *home.Membership, cas []member.CA) error {
	id, err := kept.Identity()
	if err != nil {
		return err
	}
	x, err := x509.ParseCertificate(kept.Certificate)
	if err != nil {
		return err
	}
	c := &tls.Certificate{Certificate: [][]byte{kept.Certificate}, PrivateKey: id.Sign, Leaf: x}
	for _, ca := range cas {
		if y, err := x509.ParseCertificate(ca.Certificate); err == nil && x.CheckSignatureFrom(y) == nil {
			c.Certificate = append(c.Certificate, ca.Certificate)
		}
	}
	m.mu.Lock()
	m.kept, m.id = kept, id
	m.mu.Unlock()
	m.cert.Store(c)
	return nil
}

// Certificate returns the node's certificate, with that of its CA behind it; an error where it is in no fabric.
func (m *Membership) Certificate() (*tls.Certificate, error) {
	if c := m.cert.Load(); c != nil {
		return c, nil
	}
	return nil, home.ErrNone
}

// Roster returns the members of the fabric, nil where the node is in none. It is immutable.
func (m *Membership) Roster() *member.Roster { return m.roster.Load() }

// hosts are the addresses of the members of a roster.
type hosts struct {
	roster *member.Roster
	known  map[netip.Addr]bool
}

// Knows reports whether an address, without a zone, is one of a member's.
func (m *Membership) Knows(a netip.Addr) bool {
	r, h := m.roster.Load(), m.hosts.Load()
	if r == nil {
		return false
	}
	if h == nil || h.roster != r {
		h = &hosts{r, r.Hosts()}
		m.hosts.Store(h)
	}
	return h.known[a]
}

// Name is the node's name in the fabric, empty where it is in none.
func (m *Membership) Name() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil {
		return ""
	}
	return m.kept.Name
}

// addresses are those at which other members reach this node: those that weft join --address named, or those of its
// interfaces.
func (m *Membership) addresses() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept != nil && len(m.kept.Addresses) > 0 {
		return slices.Clone(m.kept.Addresses)
	}
	return hostnet.Addresses(uint16(m.cfg.Port), member.MaxAddresses)
}

// Own lists the hosts of the addresses at which other members reach this node.
func (m *Membership) Own() (list []string) {
	for _, a := range m.addresses() {
		if host, _, err := net.SplitHostPort(a); err == nil {
			list = append(list, host)
		}
	}
	return list
}

// Reached is HOST:PORT at which other members reach a port of this host: at the first address that weft join --address
// named, at that from which it sends to most other voters, or where there is none at the first of its interfaces.
func (m *Membership) Reached(port int) string {
	own := m.addresses()
	host, _, err := net.SplitHostPort(own[0])
	if err != nil {
		host = own[0]
	}
	m.mu.Lock()
	named := m.kept != nil && len(m.kept.Addresses) > 0
	m.mu.Unlock()
	if r := m.roster.Load(); r != nil && !named {
		host = cmp.Or(towards(own, r, m.cfg.GUID, hostnet.Source), host)
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// maxTowards bounds the members that towards looks at.
const maxTowards = 8

// towards is the one of a host's own addresses from which it sends to most other voters, the earlier one of two; empty
// where it sends to none from these. source is hostnet.Source. What another member and this host both have, such as
// the address of a bridge for containers, leads to this host itself.
func towards(own []string, r *member.Roster, self ib.GUID, source func(netip.Addr) netip.Addr) (host string) {
	mine := make([]netip.Addr, len(own))
	for i, a := range own {
		if p, err := netip.ParseAddrPort(a); err == nil {
			mine[i] = p.Addr()
		}
	}
	uses, looked := make([]int, len(own)), 0
	for i := range r.Members {
		x := &r.Members[i]
		if x.GUID == self || !x.Roles.Has(member.Voter) || looked == maxTowards {
			continue
		}
		looked++
		reaches := map[int]bool{} // by index in own: a member counts once for each
		for _, a := range x.Addresses {
			p, err := netip.ParseAddrPort(a)
			if err != nil || slices.Contains(mine, p.Addr()) {
				continue
			}
			if from := source(p.Addr()); from.IsValid() {
				reaches[slices.Index(mine, from)] = true
			}
		}
		for j := range reaches {
			if j >= 0 {
				uses[j]++
			}
		}
	}
	if most := slices.Max(uses); most > 0 {
		return mine[slices.Index(uses, most)].String()
	}
	return ""
}

// Label is the name of the member with a GUID as keys have it; the GUID where no member has it.
func (m *Membership) Label(key string) string {
	if r := m.roster.Load(); r != nil {
		for i := range r.Members {
			if x := &r.Members[i]; member.GUIDKey(x.GUID) == key {
				return x.Name
			}
		}
	}
	return key
}

// Start starts what a member does: answer hosts, renew its certificate, report, follow the roster. A node in no fabric
// does nothing until it makes one.
func (m *Membership) Start(ctx context.Context) error {
	m.ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	if m.cert.Load() == nil {
		return nil
	}
	m.answerHosts() // without the listener the node is a member all the same
	m.live()
	return nil
}

// live starts the goroutines of a member.
func (m *Membership) live() {
	r := m.roster.Load()
	m.follows(r)
	if _, v, p := r.Admit(m.cert.Load().Leaf, m.cfg.Now()); v == member.RemovedKey { // as it was when the node ended
		m.fault("member_out", out(m.Name(), p.Why))
	}
	m.followDrain(r, true)
	m.work.Go(m.follow)
	m.work.Go(m.followReports)
	m.work.Go(m.run)
}

// answerHosts opens the listener of the join protocol unless it is open, and returns why that cannot be.
func (m *Membership) answerHosts() *problem.Error {
	m.mu.Lock()
	open := m.server != nil
	m.mu.Unlock()
	if open {
		return nil
	}
	p := m.listen()
	m.fault("join_server", p)
	return p
}

// listen opens the listener of the join protocol.
func (m *Membership) listen() *problem.Error {
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(m.cfg.Port)))
	if err != nil {
		return &problem.Error{What: "cannot answer hosts that join", Why: err.Error(), Err: err,
			Fix: "weft up --trunk-port PORT, with a TCP port that is free as well"}
	}
	server := join.NewServer(join.ServerConfig{Backend: backend{m}, Certificate: m.Certificate, Elsewhere: m.elsewhere,
		Known: m.Knows, MTU: hostnet.PathMTU, Now: m.cfg.Now, Log: m.cfg.Log, Commands: m.commands})
	m.mu.Lock()
	m.server = server
	m.mu.Unlock()
	m.work.Go(func() {
		if err := server.Serve(l); err != nil {
			m.fault("join_server", problem.Of("the listener of the join protocol has ended", err))
		}
	})
	return nil
}

// Summary is the membership in a line, empty where the node is in no fabric.
func (m *Membership) Summary() string {
	name, r := m.Name(), m.roster.Load()
	if r == nil || name == "" {
		return ""
	}
	state, roles := "", ""
	if x := r.ByGUID(m.cfg.GUID); x != nil {
		state, roles = ", "+x.State.String(), ": "+x.Roles.String()
	}
	return fmt.Sprintf("%s of fabric %s, one of %d%s%s", name, r.Fabric, len(r.Members), state, roles)
}

// follows has the node follow a roster.
func (m *Membership) follows(r *member.Roster) {
	if m.cfg.Roster != nil {
		m.cfg.Roster(r)
	}
}

// storeAddress is Config.StoreAddress.
func (m *Membership) storeAddress() string {
	if m.cfg.StoreAddress == nil {
		return ""
	}
	return m.cfg.StoreAddress()
}

// Close ends all of it.
func (m *Membership) Close() {
	if m.stop == nil {
		return
	}
	m.stop()
	m.commands.close()
	m.mu.Lock()
	server := m.server
	m.mu.Unlock()
	if server != nil {
		server.Close()
	}
	m.work.Wait()
}

// open returns the registry of the fabric's store.
func (m *Membership) open() (*registry.Registry, error) {
	s, err := m.cfg.Store()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.id == nil:
		return nil, registry.ErrNoFabric
	case s == nil && err == nil:
		err = problem.New("cannot reach the fabric's store", "this node has none", "weft store status")
		fallthrough
	case s == nil:
		return nil, err
	}
	if m.registry == nil {
		m.registry = registry.New(registry.Config{Store: s, Now: m.cfg.Now, GUID: m.cfg.GUID, Identity: m.id,
			Rekey: m.cfg.Rekey})
	}
	return m.registry, nil
}

// backend answers hosts by the registry.
type backend struct{ m *Membership }

// TokenHash implements join.Backend.
func (b backend) TokenHash(ctx context.Context, id string) (k member.Key, err error) {
	r, err := b.m.open()
	if err != nil {
		return k, err
	}
	return r.TokenHash(ctx, id)
}

// Join implements join.Backend.
func (b backend) Join(ctx context.Context, q *member.Request, mtu int, host string) (*registry.Answer, error) {
	r, err := b.m.open()
	if err != nil {
		return nil, err
	}
	return r.Join(ctx, q, mtu, host)
}

// Renew implements join.Backend.
func (b backend) Renew(ctx context.Context, c *x509.Certificate) (*registry.Answer, error) {
	r, err := b.m.open()
	if err != nil {
		return nil, err
	}
	return r.Renew(ctx, c)
}

// elsewhere lists the addresses of voters, nil where this node is one.
func (m *Membership) elsewhere() []string {
	if m.voter() {
		return nil
	}
	return voters(m.roster.Load(), m.cfg.GUID)
}

// voters lists the addresses of the voters but self.
func voters(r *member.Roster, self ib.GUID) (list []string) {
	for i := range r.Members {
		if x := &r.Members[i]; x.GUID != self && x.Roles.Has(member.Voter) {
			list = append(list, x.Addresses...)
		}
	}
	return list
}

// fault notes what is wrong, or with nil that it is not any more.
func (m *Membership) fault(name string, p *problem.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.faults[name]; p != nil && (old == nil || old.Error() != p.Error()) {
		m.cfg.Log.Warn(name, "err", p)
	}
	if p == nil {
		delete(m.faults, name)
	} else {
		m.faults[name] = p
	}
}

// follow keeps the roster as the store has it, in memory and on disk.
func (m *Membership) follow() {
	for m.ctx.Err() == nil {
		r, err := m.open()
		if err == nil {
			err = r.Follow(m.ctx, m.accept, m.storeFault)
		}
		if m.ctx.Err() != nil {
			return
		}
		m.storeFault(err)
		select {
		case <-m.ctx.Done():
		case <-time.After(workEvery):
		}
	}
}

// followReports has changed reports looked at, by voters. follow reports a store that is away.
func (m *Membership) followReports() {
	for m.ctx.Err() == nil {
		if r, err := m.open(); err == nil && m.voter() {
			r.FollowReports(m.ctx, m.changed)
		}
		select {
		case <-m.ctx.Done():
		case <-time.After(workEvery):
		}
	}
}

// voter reports whether this node is one.
func (m *Membership) voter() bool {
	r := m.roster.Load()
	return slices.ContainsFunc(r.Members, func(x member.Record) bool {
		return x.GUID == m.cfg.GUID && x.Roles.Has(member.Voter)
	})
}

// otherStore is the fix of a member whose store is that of another fabric, or of none.
const otherStore = "weft store status; start the node with the settings of its fabric: weft down; weft up --detach"

// storeFault notes why the members cannot be read.
func (m *Membership) storeFault(err error) {
	m.fault("member_store", problem.Of("cannot read the members", m.noFabric(err)))
}

// noFabric replaces the error of a store without a fabric where the node is a member of one.
func (m *Membership) noFabric(err error) error {
	if r := m.roster.Load(); r != nil && errors.Is(err, registry.ErrNoFabric) {
		return problem.New("cannot reach the members", "the store of this node is not that of fabric "+r.Fabric,
			otherStore)
	}
	return err
}

// acceptNewer is accept for a roster that another member sent: it takes effect where it is newer than the node's, since
// an older one may lack a removal.
func (m *Membership) acceptNewer(r *member.Roster) {
	m.accepting.Lock()
	defer m.accepting.Unlock()
	if r.Revision > m.roster.Load().Revision {
		m.take(r)
	}
}

// accept makes a roster of the store the node's. One without this node is its removal.
func (m *Membership) accept(r *member.Roster) {
	m.accepting.Lock()
	defer m.accepting.Unlock()
	m.take(r)
}

// take is accept, with accepting held.
func (m *Membership) take(r *member.Roster) {
	old := m.roster.Load()
	if r.Fabric != old.Fabric {
		m.fault("member_store", problem.New("cannot use the store",
			fmt.Sprintf("it is of fabric %s, this node is in fabric %s",
				r.Fabric, old.Fabric), otherStore))
		return
	}
	m.fault("member_store", nil)
	m.fault("member_roster", nil)
	m.roster.Store(r)
	m.commands.client.CloseIdleConnections() // each was verified by the roster before
	m.follows(r)
	if err := errors.Join(m.keepVoters(r), m.dir.SaveRoster(r)); err != nil {
		m.fault("member_disk", problem.Of("cannot keep the roster", err))
	} else {
		m.fault("member_disk", nil)
	}
	_, _, p := r.Admit(m.cert.Load().Leaf, m.cfg.Now())
	if p != nil {
		p = out(m.Name(), p.Why)
	}
	m.fault("member_out", p)
	m.followDrain(r, false)
	m.changed()
}

// followDrain follows the drain of this host in a roster. A node that starts on a drained host begins as after a drain
// by force: nothing uses the host yet.
func (m *Membership) followDrain(r *member.Roster, starting bool) {
	x := r.ByGUID(m.cfg.GUID)
	if x == nil {
		return // it was removed
	}
	if x.State != member.Draining && x.State != member.Drained {
		m.cfg.Drain(x.Name, false, false)
		m.fault("member_drain", nil)
		return
	}
	m.cfg.Drain(x.Name, true, x.Force || starting)
	if x.Force {
		time.AfterFunc(endTime, m.wake)
	}
	m.fault("member_drain", problem.New("this host is drained", "it accepts nothing new that would use it",
		"weft member undrain "+x.Name))
}

// changed notes that members or their reports changed.
func (m *Membership) changed() {
	m.due.Store(true)
	m.wake()
}

func (m *Membership) wake() {
	select {
	case m.poke <- struct{}{}:
	default:
	}
}

// run does what is due now and then.
func (m *Membership) run() {
	w := worker{m: m, spread: rand.Float64()}
	paced(m.ctx, m.poke, func() {
		ctx, stop := context.WithTimeout(m.ctx, workTime)
		defer stop()
		w.round(ctx)
	})
}

// unknownFix is the fix of an error without one: it is of the store, or of the path to a voter.
const unknownFix = "weft store status; weft trunk"

// Degraded lists what is wrong with the membership.
func (m *Membership) Degraded() (list []api.Degraded) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.faults["member_out"]; p != nil { // all else follows from it
		return []api.Degraded{{What: "member_out", Why: problem.Text(p.What, p.Why, ""),
			Fix: cmp.Or(p.Fix, unknownFix)}}
	}
	for name, p := range m.faults {
		list = append(list, api.Degraded{What: name, Why: problem.Text(p.What, p.Why, ""),
			Fix: cmp.Or(p.Fix, unknownFix)})
	}
	slices.SortFunc(list, func(a, b api.Degraded) int { return cmp.Compare(a.What, b.What) })
	return list
}

// Notices lists a rotation of the CA that is under way, and records that a later weft wrote.
func (m *Membership) Notices() (list []api.Degraded) {
	if r := m.roster.Load(); r != nil && len(r.CAs) >= 2 {
		list = append(list, api.Degraded{What: "ca_rotation",
			Why: fmt.Sprintf("%d CAs of the fabric are valid, until each member has a certificate of the newest", len(r.CAs)),
			Fix: "none is needed; start the members that are away: weft member list"})
	}
	m.mu.Lock()
	r := m.registry
	m.mu.Unlock()
	if r == nil {
		return list
	}
	if n := r.Newer(); n.Records > 0 {
		list = append(list, api.Degraded{What: "records_newer",
			Why: fmt.Sprintf("a later weft wrote %d records of the fabric, such as %s: what it added to them has no effect here",
				n.Records, n.Key),
			Fix: "install that version of weft here: weft member list --wide has them all"})
	}
	return list
}

// Counters adds the counters of the join protocol, and of the commands at its port.
func (m *Membership) Counters(add func(scope, instance, name string, v uint64)) {
	m.mu.Lock()
	s := m.server
	m.mu.Unlock()
	if s != nil {
		each := func(name string, v uint64) { add(api.ScopeJoin, "", name, v) }
		counters.Each("", &s.Count, each)
		counters.Each("", &m.commands.count, each)
	}
}

// Register registers the operations of the control interface.
func (m *Membership) Register(mux *http.ServeMux) {
	api.Handle(mux, api.ListMembers, api.NoInput(m.members))
	api.Handle(mux, api.RenameMember, api.NoOutput(m.rename))
	api.Handle(mux, api.SetMember, api.NoOutput(m.setShape))
	api.Handle(mux, api.DrainMember, api.ByName(m.drain))
	api.Handle(mux, api.RemoveMember, m.remove)
	api.Handle(mux, api.RotateSecrets, api.NoInput(m.rotate))
	api.Handle(mux, api.ListTokens, api.NoInput(m.tokens))
	api.Handle(mux, api.CreateToken, m.createToken)
	api.Handle(mux, api.DeleteToken, api.NoOutput(m.deleteToken))
}
