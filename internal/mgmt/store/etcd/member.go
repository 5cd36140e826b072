// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/voters"
	"weft/internal/proto/mono"
)

// Trees of the store that members and the leader of the group write.
const (
	treeMember  = "store/member"  // NAME: Record, written by the member itself
	treePresent = "store/present" // NAME: presence, with a lease, written by the member itself
	treeRoster  = "store/roster"  // keyRoster, written by the leader
	keyRoster   = treeRoster + "/group"
)

// MemberConfig configures the use of the store by a member of a fabric. Zero means default, except for Dir, Name, Now.
type MemberConfig struct {
	Dir       string // of the replica, made with 0700
	Name      string // of the member, unique in the fabric; the last part of the keys that only it may write
	Listen    string // HOST:PORT of the listener; empty: none
	ListenURL string // the same as a URL, of a node that is alone and offers its store to clients without a group
	Advertise string // HOST:PORT where others reach it; empty: the node is alone
	// Moved returns where the node is now, called once in each look. nil: it never moves.
	Moved    func() Place
	Security *Security
	// Seeds are addresses of members that have the store. A node without seeds and without files is the first: it makes
	// a new group.
	Seeds []string
	Joins bool // it never makes a group, also without Seeds
	// Fabric identifies the fabric. With Joins, files from before the node was in it are set aside; empty: they are
	// used.
	Fabric    string
	Unable    bool // it never holds a replica: it has no disk, or others do not reach it
	Settings  voters.Settings
	Namespace string
	Timeout   time.Duration // of one call; DefaultTimeout
	Every     time.Duration // between looks at the group; 1 s
	Now       func() mono.Time
	Log       *slog.Logger
	// interrupt ends a restore between the old files and the new ones, as the end of the node there; asideFails is why
	// files cannot be set aside.
	interrupt, asideFails error
	starting              func(failed <-chan struct{}) // ServerConfig.starting
	// started is called in tests when etcd runs; stopped is closed when etcd has ended.
	started       func(stopped <-chan struct{})
	free          func(dir string) (octets int64, err error) // freeSpace, except in tests
	snapshotCount uint64                                     // ServerConfig.snapshotCount
}

// Security authenticates the members to each other. Without it every connection may read and write the store:
// for tests.
type Security struct {
	Server *tls.Config // certificate, ClientCAs, and ClientAuth RequireAndVerifyClientCert
	Client *tls.Config // certificate, RootCAs, and PeerName as ServerName, or VerifyConnection, for the other end
	Files  PeerFiles
	// Admit decides about the certificates of calls to this node, and of the reports that it reads, which Client has
	// verified: a voter's alone counts.
	Admit Admit
	// Known reports whether an address is one of a member's: others cannot take the place of its connections; nil:
	// none.
	Known func(netip.Addr) bool
	// Able reports whether a member may have a replica, by the records of the fabric: its own record in the store does
	// not decide that alone; nil: each may.
	Able func(member string) bool
	// Out reports whether a member was removed from the fabric; nil: none was.
	Out func(member string) bool
	// Retain changes the content of a restore before it is used, so that what was revoked since a backup stays revoked;
	// own is what this node's copy has, nil where it has none. An error refuses the restore; nil: nothing is changed.
	Retain func(next, own *Backup) error
	// Settled reports whether every replica, by the name of its member, is of a member of the fabric, and all members
	// have certificates of CAs in Files. A replica that runs with other CAs than those is started again then, since it
	// reads them at its start; nil: they always have.
	Settled func(replicas []string) bool
}

// Record is what a member writes about itself, for the leader's decisions.
type Record struct {
	Name    string `json:"name"`
	Address string `json:"address"` // HOST:PORT
	Unable  bool   `json:"unable,omitempty"`
	Leaving bool   `json:"leaving,omitempty"`
}

// presence is the value that is there while a member is connected.
type presence struct {
	Replica uint64 `json:"replica,omitempty"` // that runs there
}

// Roster is the group as its leader last wrote it.
type Roster struct {
	Group     voters.Identity   `json:"group"`
	Replicas  []Replica         `json:"replicas"`
	Addresses map[string]string `json:"addresses"` // of the members that may have a replica, by name
}

// Role is what a member is to the store.
type Role uint8

// Roles.
const (
	RoleClient Role = iota
	RoleLearner
	RoleVoter
)

func (r Role) String() string { return [...]string{"client", "learner", "voter"}[r] }

// Member is the store of one node of a fabric: a store for its callers, and a replica of it when the group has use for
// one. All methods may be called on any goroutine.
type Member struct {
	*relay
	c      MemberConfig
	poller *http.Client
	run    context.Context // of what looks after the group
	stop   context.CancelFunc
	work   sync.WaitGroup

	arrivals  ListenerCounters
	attending atomic.Bool // this member is in the list of members that are present

	// view is for those that cannot wait for mu, which is held over calls of the network.
	view atomic.Pointer[view]

	mu     sync.Mutex // held while the replica is started, ended or replaced
	closed bool       // nothing is started any more
	server *Server    // nil: this node is a client
	known  known
	remote []string // endpoints of the client over the network; nil while the one in this process is used
	why    string   // why the node is not what it was, for people
	// split: another store of the same generation is known. Neither is used until a person decides: with both in use
	// the subnet would have two managers.
	split   bool
	rivals  []string // addresses of the other store, of a client
	asked   mono.Time
	turn    int    // which of the members without a known replica is asked next
	cas     string // what Files.CA was when the replica was started
	renewal renewal
	lead    *lead // while this replica leads
	quiet   solitude
	moved   movement
	own     string  // Place.Own, as it was in the last look
	room    error   // why there is no replica where its disk has no room; nil otherwise
	unended *Server // that did not end in order; nil: none
}

// askEvery is how often a replica queries the others whether it belongs to the group, and a client without an answer
// where the store is.
const askEvery = 5 * time.Second

// OpenMember starts the use of the store. It does not wait until the group has a leader.
func OpenMember(ctx context.Context, c MemberConfig) (*Member, error) {
	if err := c.Settings.Validate(); err != nil {
		return nil, &store.Error{Kind: store.ErrInvalid, What: "cannot use the store", Why: err.Error(),
			Fix: "weft up --help lists the settings of the store"}
	}
	if err := store.CheckKey(c.Name); err != nil {
		return nil, err
	}
	c.Every = cmp.Or(c.Every, time.Second)
	if c.free == nil {
		c.free = freeSpace
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	m := &Member{relay: newRelay(), c: c, turn: rand.IntN(1 << 20)}
	m.publish()
	m.poller = m.newPoller()
	if err := m.begin(ctx); err != nil {
		m.relay.Close()
		m.poller.CloseIdleConnections()
		return nil, err
	}
	run, stop := context.WithCancel(context.Background())
	m.run, m.stop = run, stop
	m.work.Go(func() { watchRoom(run, m, c.Every) })
	if c.Advertise != "" || len(c.Seeds) > 0 { // else there is nothing to look after
		m.live()
	}
	return m, nil
}

// live starts what looks after the group.
func (m *Member) live() {
	m.work.Go(func() { m.loop(m.run) })
	m.work.Go(func() { m.announce(m.run) })
	m.work.Go(func() { m.follow(m.run) })
}

// Group is what a member needs to share its store with others.
type Group struct {
	Name      string       // of the member, as in MemberConfig
	Listen    string       // HOST:PORT of the listener
	Advertise string       // HOST:PORT where others reach it
	Moved     func() Place // MemberConfig.Moved
	Fabric    string       // as in MemberConfig
	Security  *Security
}

// Found makes the store of a node that is alone the first replica of a group, while it runs: calls that are in progress
// are made again (a write that could then be done twice ends with store.ErrUnavailable), leases are lost, watches go
// on. On an error the store is alone as before.
func (m *Member) Found(ctx context.Context, g Group) error {
	m.mu.Lock()
	defer m.unlock()
	switch {
	case m.closed:
		return store.Closed()
	case m.c.Advertise != "" || len(m.c.Seeds) > 0:
		return &store.Error{Kind: store.ErrInvalid, What: "cannot share the store", Why: "it is shared already",
			Fix: "weft store status"}
	case m.server == nil:
		return m.away()
	}
	alone := m.c
	m.c.Name, m.c.Listen, m.c.Advertise, m.c.Fabric, m.c.Security = g.Name, g.Listen, g.Advertise, g.Fabric, g.Security
	m.c.ListenURL, m.c.Moved = "", g.Moved
	err := m.reopen(ctx)
	if err == nil {
		m.poller = m.newPoller()
		m.live()
		return nil
	}
	m.c = alone
	return errors.Join(err, m.reopen(ctx))
}

// reopen starts the replica of this node with the configuration as it is now; mu is held.
func (m *Member) reopen(ctx context.Context) error {
	m.use(nil)
	m.remote = nil
	if m.server != nil {
		m.end()
	}
	if err := m.startReplica(ctx, nil); err != nil {
		return err
	}
	return m.pick()
}

// end ends the replica, which there is; mu is held.
func (m *Member) end() {
	s := m.server
	m.server = nil
	m.publish() // it takes a while
	s.Close()
}

// begin decides with what the node starts.
func (m *Member) begin(ctx context.Context) error {
	if err := os.MkdirAll(m.c.Dir, 0o700); err != nil {
		return &store.Error{Kind: store.ErrUnavailable, What: "cannot keep the store in " + m.c.Dir, Why: err.Error(),
			Fix: "weft up --dir DIRECTORY, in a place that can be written"}
	}
	m.known = files(m.c.Dir).recall(m.c.Log)
	restored := files(m.c.Dir).restored()
	if restored {
		m.c.Log.Warn("the end of the node interrupted a restore: it is completed")
		if err := files(m.c.Dir).adopt(); err != nil {
			return &store.Error{Kind: store.ErrUnavailable, What: "cannot complete the restore of the store",
				Why: err.Error(), Fix: "free space on its disk and start again", Err: err}
		}
		m.known.Roster.Group = voters.Identity{} // as the files have it
	} else if err := os.RemoveAll(filepath.Join(m.c.Dir, restoreDir)); err != nil {
		m.c.Log.Warn("a restore that was interrupted is still there", "err", err)
	}
	if files(m.c.Dir).exist() && m.c.Joins && m.known.foreign(m.c.Fabric) {
		if err := m.setAside("it is from before this host joined the fabric"); err != nil {
			return err
		}
		m.known = known{}
		m.remember() // its group is not one that this member used
	}
	if files(m.c.Dir).exist() {
		if err := copied(ctx, m); err != nil {
			return err
		}
		verdict, why := m.resume(ctx, 0)
		switch verdict {
		case voters.Conflict:
			m.separate(why) // the replica starts, for a restore of what it has, and nothing uses it
		case voters.SetAside:
			if err := m.setAside(why); err != nil {
				return err
			}
		}
	}
	m.mu.Lock()
	defer m.unlock()
	first := !m.c.Joins && len(m.c.Seeds) == 0 && len(m.known.Roster.Addresses) == 0
	if !restored && !first && !files(m.c.Dir).exist() {
		m.look(ctx)
	}
	if restored {
		if err := m.startRestored(ctx); err != nil {
			return err
		}
		return m.pick()
	}
	if files(m.c.Dir).exist() || first {
		if err := m.startReplica(ctx, nil); err != nil && !errors.Is(err, errNoRoom) { // it starts when there is room
			return err
		}
	}
	return m.pick()
}

// scheme is that of every address of the group.
func (m *Member) scheme() string {
	if m.c.Security == nil {
		return "http://"
	}
	return "https://"
}

// startReplica starts the server with the files of this node, or as a new replica of a group; mu is held.
func (m *Member) startReplica(ctx context.Context, join []Replica) error {
	if err := roomAgain(m); err != nil {
		lackRoom(m, err)
		return err
	}
	m.cas, m.renewal = m.c.Security.readCAs(m.cas, m.c.Log), renewal{}
	m.known.Learner = m.known.Learner || join != nil
	s, err := Start(ctx, m.serverConfig(m.c.Dir, join))
	if err != nil {
		return err
	}
	if m.c.started != nil {
		m.c.started(s.etcd.stopped())
	}
	var generation uint64
	if join == nil { // else the group is that of the roster
		generation, err = s.generation(ctx)
		if err != nil && !errors.Is(err, errClosed) {
			s.Close()
			return err
		}
	}
	m.server, m.quiet = s, solitude{looked: m.c.Now()}
	if m.split {
		s.withhold(conflict(m.why))
	}
	m.known.Replica, m.known.Fabric = s.ID(), m.c.Fabric
	switch {
	case join != nil:
	case generation != 0:
		m.known.Roster.Group = voters.Identity{Cluster: s.ClusterID(), Generation: generation}
	case m.known.Roster.Group.Generation == 0: // its removal has ended it: the others are asked by its number
		m.known.Roster.Group.Cluster = s.ClusterID()
	}
	m.remember()
	return nil
}

func (m *Member) serverConfig(dir string, join []Replica) ServerConfig {
	c := ServerConfig{Dir: dir, Namespace: m.c.Namespace, Timeout: m.c.Timeout, Log: m.c.Log, Name: m.c.Name, Join: join,
		counters: &m.arrivals, cas: digest(m.cas), starting: m.c.starting, free: m.c.free,
		snapshotCount: m.c.snapshotCount}
	c.Listen = m.c.ListenURL
	if m.c.Listen != "" {
		c.Listen, c.Advertise = m.scheme()+m.c.Listen, m.scheme()+m.c.Advertise
	}
	if m.c.Security != nil {
		c.TLS, c.Admit, c.Files = m.c.Security.Server, m.c.Security.Admit, m.c.Security.Files
		c.Known = m.c.Security.Known
	}
	return c
}

// pick lets callers use the client in this process while the replica votes, otherwise one over the network; mu is held.
func (m *Member) pick() error {
	if m.split {
		return nil
	}
	if s := m.server; s != nil && s.down() == "" && s.Votes() {
		if c, _ := m.client(); c != nil && c.server == s {
			return nil
		}
		c, err := s.Client()
		if err != nil {
			return err
		}
		m.remote = nil
		m.use(c)
		return nil
	}
	urls := m.endpoints()
	if len(urls) == 0 {
		m.use(nil)
		return nil
	}
	if m.remote != nil {
		if c, _ := m.client(); c != nil && !slices.Equal(urls, m.remote) {
			c.SetEndpoints(urls)
			m.remote = urls
		}
		return nil
	}
	cfg := ClientConfig{Endpoints: urls, Namespace: m.c.Namespace, Timeout: m.c.Timeout, Log: m.c.Log, Members: true}
	if m.c.Security != nil {
		cfg.TLS = named(m.c.Security.Client)
	}
	c, err := Connect(cfg)
	if err != nil {
		return err
	}
	m.remote = urls
	m.use(c)
	return nil
}

// named makes a configuration check the name in it, ServerName, rather than the address of the connection: etcd's
// client replaces the name by the address. All other checks are those of crypto/tls.
func named(c *tls.Config) *tls.Config {
	name, roots, next := c.ServerName, c.RootCAs, c.VerifyConnection
	if name == "" || c.InsecureSkipVerify {
		return c
	}
	c = c.Clone()
	c.InsecureSkipVerify = true // VerifyConnection verifies
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("the other end has no certificate")
		}
		o := x509.VerifyOptions{Roots: roots, DNSName: name, Intermediates: x509.NewCertPool()}
		if c.Time != nil {
			o.CurrentTime = c.Time()
		}
		for _, i := range s.PeerCertificates[1:] {
			o.Intermediates.AddCert(i)
		}
		if _, err := s.PeerCertificates[0].Verify(o); err != nil {
			return err
		}
		if next != nil {
			return next(s)
		}
		return nil
	}
	return c
}

// endpoints are the URLs of the voters, of the seeds where none is known.
func (m *Member) endpoints() (urls []string) {
	for _, r := range m.known.Roster.Replicas {
		if !r.Learner && r.Name != m.c.Name {
			urls = append(urls, r.URL)
		}
	}
	if len(urls) == 0 {
		for _, a := range m.c.Seeds {
			urls = append(urls, m.scheme()+a)
		}
	}
	return urls
}

// loop looks at the group until ctx ends.
func (m *Member) loop(ctx context.Context) {
	tick := time.NewTicker(m.c.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.step(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// step is one look at the group.
func (m *Member) step(ctx context.Context) {
	m.mu.Lock()
	defer m.unlock()
	now := m.c.Now()
	m.move(ctx)
	if m.server != nil {
		m.stepReplica(ctx, now)
	}
	if m.server == nil && m.room == nil && files(m.c.Dir).exist() {
		m.resumeReplica(ctx, now)
	}
	if m.server == nil && m.room == nil {
		m.stepClient(ctx, now)
	}
	if err := m.pick(); err != nil {
		m.c.Log.Warn("the store cannot be used", "err", err)
	}
}

// resumeReplica starts a replica again that could not be started again before, at intervals, as at the node's start.
func (m *Member) resumeReplica(ctx context.Context, now mono.Time) {
	if now.Sub(m.asked) < askEvery {
		return
	}
	m.asked = now
	if err := startAgain(ctx, m); err != nil {
		m.c.Log.Warn("the replica of the store cannot be started again", "err", err)
	}
}

// startAgain starts the replica with its files, if the others report nothing against that; mu is held.
func startAgain(ctx context.Context, m *Member) error {
	switch verdict, why := m.resume(ctx, maxAsked); verdict {
	case voters.Conflict:
		m.separate(why)
		return nil
	case voters.SetAside:
		if err := m.setAside(why); err != nil {
			m.c.Log.Error("the files of the replica are still there", "err", err)
		}
		return nil
	}
	m.reunite()
	return m.reopen(ctx)
}

// stepReplica checks that the replica belongs to the group, and decides about the group where it leads.
func (m *Member) stepReplica(ctx context.Context, now mono.Time) {
	removed := m.server.down() == removedWhy && m.server.leftGroup()
	if !removed && now.Sub(m.asked) >= askEvery && m.c.Advertise != "" {
		m.asked = now
		switch verdict, why := m.resume(ctx, maxAsked); verdict {
		case voters.SetAside:
			m.retire(why)
			return
		case voters.Conflict:
			m.separate(why)
			return
		}
		m.reunite()
	}
	if removed {
		m.retire(removedWhy)
		return
	}
	again := m.server.down() == removedWhy
	if m.server.down() == "" {
		again = m.moved.stranded() || m.outdated(now) && !m.preceded(ctx, now)
	}
	if again {
		m.lead = nil
		if err := m.reopen(ctx); err != nil {
			m.c.Log.Warn("the replica of the store cannot be started again", "err", err)
		}
		return
	}
	if m.known.Learner && m.server.down() == "" && m.server.Votes() {
		m.known.Learner = false
		m.remember()
	}
	m.quiet.look(now, m.c.Every, m.server.down() == "" && reachesLeader(ctx, m))
	if m.server.down() != "" || !m.server.Leads() {
		m.lead = nil
		return
	}
	if m.lead == nil {
		m.lead = &lead{m: m, s: m.server, seen: map[string]mono.Time{}, since: map[replicaRole]mono.Time{}}
	}
	if err := m.lead.step(ctx, now); err != nil && ctx.Err() == nil {
		m.c.Log.Debug("the group of the store is left as it is", "err", err)
	}
}

// retire ends the replica: this node is a client from now on; mu is held.
func (m *Member) retire(why string) {
	m.reunite()
	m.use(nil)
	m.remote, m.lead = nil, nil
	m.end()
	if err := m.setAside(why); err != nil {
		m.c.Log.Error("the files of the replica are still there", "err", err)
	}
}

// stepClient starts a replica where the roster has one for this node, and looks for the store where none answers.
func (m *Member) stepClient(ctx context.Context, now mono.Time) {
	for _, r := range m.known.Roster.Replicas {
		if m.split {
			break
		}
		// A voter without files has lost its log. It must not vote with an empty one: the leader replaces it.
		if r.Name != m.c.Name || !r.Learner || files(m.c.Dir).exist() {
			continue
		}
		start, stop := context.WithTimeout(ctx, 10*time.Second)
		err := m.startReplica(start, m.known.Roster.Replicas)
		stop()
		if errors.Is(err, errNoRoom) { // it starts when there is room
			return
		}
		if err != nil {
			m.c.Log.Warn("cannot start a replica of the store", "err", err)
			if err := m.setAside("it did not start"); err != nil {
				m.c.Log.Error("the files of the replica are still there", "err", err)
			}
			continue
		}
		m.c.Log.Info("this node has a replica of the store", "replica", fmt.Sprintf("%x", r.ID))
		return
	}
	if now.Sub(m.asked) < askEvery {
		return
	}
	m.asked = now
	m.look(ctx)
}

// learn takes a roster; mu is held. One of an earlier generation is of a store that was replaced.
func (m *Member) learn(r Roster) {
	if r.Group.Generation < m.known.Roster.Group.Generation {
		return
	}
	before, err1 := json.Marshal(m.known.Roster)
	after, err2 := json.Marshal(r)
	if err1 == nil && err2 == nil && string(before) == string(after) {
		return
	}
	m.known.Roster = r
	m.remember()
	if err := m.pick(); err != nil {
		m.c.Log.Warn("the store cannot be used", "err", err)
	}
}

// follow keeps the roster up to date.
func (m *Member) follow(ctx context.Context) {
	changes, err := m.Watch(ctx, treeRoster)
	if err != nil {
		return // closed
	}
	for c := range changes {
		for _, e := range c.Events {
			var r Roster
			if e.Key != keyRoster || e.Deleted || json.Unmarshal(e.Value, &r) != nil {
				continue
			}
			m.mu.Lock()
			m.learn(r)
			m.unlock()
		}
	}
}

// announce keeps the records of this member in the store.
func (m *Member) announce(ctx context.Context) {
	var l store.Lease
	var value string
	for ctx.Err() == nil {
		v := m.view.Load()
		p, at := presence{}, v.advertise
		if s := v.server; s != nil && s.down() == "" {
			p.Replica = s.ID()
		}
		var lost <-chan struct{}
		if l != nil {
			lost = l.Lost()
			select {
			case <-lost:
				l, lost = nil, nil
				m.attending.Store(false)
			default:
			}
		}
		b, err := json.Marshal(p)
		if err == nil && (l == nil || string(b)+at != value) {
			if l, err = m.attend(ctx, l, at, b); err == nil {
				value = string(b) + at
				m.attending.Store(true)
			}
		}
		if err != nil {
			m.c.Log.Debug("this node is not in the list of members of the store yet", "err", err)
		}
		select {
		case <-time.After(m.c.Every):
		case <-lost:
			m.attending.Store(false)
		case <-ctx.Done():
		}
	}
}

// presenceTTL is how long after its death a member is present.
const presenceTTL = 10 * time.Second

func (m *Member) attend(ctx context.Context, l store.Lease, at string, value []byte) (store.Lease, error) {
	ctx, stop := context.WithTimeout(ctx, DefaultTimeout)
	defer stop()
	err := store.Edit(ctx, m, treeMember+"/"+m.c.Name, func(old []byte) ([]byte, error) {
		r := Record{}
		if old != nil && json.Unmarshal(old, &r) != nil {
			r = Record{}
		}
		next := Record{Name: m.c.Name, Address: at, Unable: m.c.Unable || at == "",
			Leaving: r.Leaving}
		if next == r {
			return nil, nil
		}
		return json.Marshal(next)
	})
	if err != nil {
		return l, err
	}
	if l == nil {
		if l, err = m.Lease(ctx, presenceTTL); err != nil {
			return nil, err
		}
	}
	_, err = m.Txn(ctx, store.Txn{Do: []store.Op{{Key: treePresent + "/" + m.c.Name, Value: value, Lease: l.ID()}}})
	if err != nil {
		_ = l.Revoke(ctx) // else it ends by itself
		return nil, err
	}
	return l, nil
}

// Arrivals counts the connections of others to this node's replicas.
func (m *Member) Arrivals() *ListenerCounters { return &m.arrivals }

// Close ends the use of the store. A replica keeps its files.
func (m *Member) Close() error {
	m.stop()
	m.mu.Lock()
	m.closed = true // no other goroutine of work begins
	m.mu.Unlock()
	m.work.Wait()
	m.relay.Close()
	m.mu.Lock()
	defer m.unlock()
	if m.server != nil {
		m.end()
	}
	m.poller.CloseIdleConnections()
	return nil
}
