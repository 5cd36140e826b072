// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3compactor"
	"go.etcd.io/etcd/server/v3/features"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/voters"
)

// MaxSize is how large the embedded store may become on disk.
const MaxSize = 256 << 20

// memberName and memberURL name the replica of a server that is alone. Nothing listens there: a replica without others
// needs an address, not a socket.
const (
	memberName = "weft"
	memberURL  = "http://127.0.0.1:1"
)

// ServerConfig configures an embedded store. Zero means default, except for Dir.
type ServerConfig struct {
	Dir       string                // of the data, made with 0700; one server at a time
	Listen    string                // URL for other nodes, as http://10.0.0.1:2379 (port 0: any); empty: none
	TLS       *tls.Config           // for https: certificate, and client verification (ClientAuth)
	Known     func(netip.Addr) bool // addresses of members; nil: none
	Admit     Admit                 // of certificates; nil: every connection may do what is served
	Namespace string                // of this fabric's keys; DefaultNamespace
	Timeout   time.Duration         // of one call; DefaultTimeout
	Log       *slog.Logger          // nil: discarded

	// Of a replica among others. Name is that of the member, Advertise the URL where the other replicas reach Listen,
	// Files authenticate the connections to them.
	Name      string
	Advertise string
	Files     PeerFiles
	// Join is the group to join where Dir has no files; nil makes a new group.
	Join []Replica

	cas           string                                     // digest of Files.CA, for reports
	counters      *ListenerCounters                          // of Listen; nil: of this server alone
	maxSize       int64                                      // MaxSize, except in tests
	snapshotCount uint64                                     // changes between snapshots of the log; 1000
	authToken     string                                     // kind of etcd's tokens of users, in tests
	free          func(dir string) (octets int64, err error) // freeSpace, except in tests
	// starting is called in tests before a start finds out whether etcd runs; failed is closed where it ended.
	starting func(failed <-chan struct{})
}

// PeerFiles are the paths of PEM files: the certificate of the member, its key, the CA. etcd reads certificate and key
// for each connection. The certificate of the other end must be valid for PeerName. Zero: no TLS.
type PeerFiles struct{ Cert, Key, CA string }

// PeerName is a DNS name in the certificate of each member that may hold a replica. The connections between replicas
// check it rather than an address, which may change.
const PeerName = "voter.weft.internal"

// Server is an embedded etcd: one that is alone, or a replica of a group. It opens no socket but the one of Listen.
type Server struct {
	c        ServerConfig
	dir      string
	lock     *fileutil.LockedFile
	etcd     *door
	listener net.Listener // nil: none
	front    *front
	rpc      *grpc.Server
	web      *http.Server
	stop     context.CancelFunc // of the goroutines below
	work     sync.WaitGroup
	once     sync.Once             // of Close
	running  chan struct{}         // closed when etcd runs
	opened   chan struct{}         // closed when Start is at its end
	withheld atomic.Pointer[error] // the answer to calls of other nodes; nil: they are served

	mu      sync.Mutex
	clients map[*Client]struct{} // nil once closed
	// yielding has the transfers of the lead that Yield began; none is begun once the replica leaves.
	yielding sync.WaitGroup
	leaving  bool
	room     error         // why it ended where its disk is full; nil otherwise
	failure  string        // why etcd cannot go on
	failed   chan struct{} // closed when it is set
}

// A segment of the log is made whole when it is begun: etcd's 64 MiB would be
// most of what a small store takes and of the time it needs to start.
var smallSegments = sync.OnceFunc(func() { wal.SegmentSizeBytes = segmentSize })

// Start starts a server, on what an earlier one left in the directory if there
// is anything, and waits until it answers or ctx ends. A replica that the group has removed is returned as one that is
// down, and so is one that found its disk full.
func Start(ctx context.Context, c ServerConfig) (*Server, error) {
	smallSegments()
	s := &Server{c: c, dir: c.Dir, clients: map[*Client]struct{}{}, running: make(chan struct{}),
		opened: make(chan struct{}), failed: make(chan struct{})}
	s.c.maxSize = cmp.Or(c.maxSize, MaxSize)
	if c.free == nil {
		s.c.free = freeSpace
	}
	err := s.open(ctx)
	close(s.opened)
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) open(ctx context.Context) error {
	if err := s.ownDir(); err != nil {
		return err
	}
	if err := s.listen(); err != nil {
		return err
	}
	if err := s.newServer(); err != nil {
		return err
	}
	s.etcd.start()
	close(s.running)
	run, stop := context.WithCancel(context.Background())
	s.stop = stop
	if s.listener != nil {
		s.serve(run)
	}
	// A replica of a group may have to wait for the others: it is of use to them before it is to this node.
	var patience <-chan time.Time
	if s.c.Advertise != "" {
		patience = time.After(groupPatience)
	}
	select {
	case <-s.etcd.ready():
	case <-s.etcd.stopping():
		s.fail(removedWhy)
	case <-s.failed:
	case <-ctx.Done():
	case <-patience:
	}
	if s.c.starting != nil {
		s.c.starting(s.failed)
	}
	why := s.down()
	if why == removedWhy || s.lacksRoom() != nil { // it runs no more, and its number shows to others which one it is
		return nil
	}
	if why != "" || ctx.Err() != nil {
		return s.broken(cmp.Or(why, "it was not ready in time"), ctx.Err())
	}
	s.work.Go(func() { s.upkeep(run) })
	s.work.Go(func() { s.watchRoom(run) })
	return nil
}

// groupPatience is how long the start of a replica waits for its group.
const groupPatience = time.Second

// ownDir makes the directory and takes its lock.
func (s *Server) ownDir() error {
	fail := func(why, fix string, err error) error {
		return &store.Error{Kind: store.ErrUnavailable, What: "cannot keep the store in " + s.dir, Why: why, Fix: fix,
			Err: err}
	}
	if !filepath.IsAbs(s.dir) {
		return &store.Error{Kind: store.ErrInvalid, What: fmt.Sprintf("cannot keep the store in %q", s.dir),
			Why: "it is not an absolute path", Fix: "give the node an absolute directory"}
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fail(err.Error(), "weft up --dir DIRECTORY, in a place that can be written", err)
	}
	// An existing directory may have other permissions.
	if err := os.Chmod(s.dir, 0o700); err != nil {
		return fail(err.Error(), "give it to the node's user", err)
	}
	lock, err := fileutil.TryLockFile(filepath.Join(s.dir, "lock"), os.O_WRONLY|os.O_CREATE, 0o600)
	switch {
	case errors.Is(err, fileutil.ErrLocked):
		return fail("another process keeps its store there", "stop that process, or give this node another directory",
			err)
	case err != nil:
		return fail(err.Error(), "give it to the node's user", err)
	}
	s.lock = lock
	return nil
}

func (s *Server) listen() error {
	if s.c.Listen == "" {
		return nil
	}
	if err := checkURL(s.c.Listen); err != nil {
		return err
	}
	u, err := url.Parse(s.c.Listen)
	if err != nil {
		return err
	}
	fail := func(kind error, why, fix string) error {
		return &store.Error{Kind: kind, What: "cannot offer the store at " + s.c.Listen, Why: why, Fix: fix}
	}
	switch {
	case u.Scheme == "https" && s.c.TLS == nil:
		return fail(store.ErrInvalid, "https needs a certificate",
			"name certificate and key, or use http within a trusted network")
	case u.Scheme == "http" && s.c.TLS != nil:
		return fail(store.ErrInvalid, "there is a certificate, but http does not use it", "use https")
	}
	l, err := net.Listen("tcp", u.Host)
	if err != nil {
		return fail(store.ErrUnavailable, err.Error(), "give an address of this host and a free port")
	}
	s.listener = l
	return nil
}

// newServer makes the server out of the directory. Where etcd would end the
// process about it, only its goroutine ends.
func (s *Server) newServer() error {
	name := cmp.Or(s.c.Name, memberName)
	peers, err := types.NewURLs([]string{cmp.Or(s.c.Advertise, memberURL)})
	if err != nil {
		return err
	}
	group := types.URLsMap{name: peers}
	for _, r := range s.c.Join {
		if group[r.Name], err = types.NewURLs([]string{r.URL}); err != nil {
			return err
		}
	}
	var token [16]byte
	rand.Read(token[:]) // never fails
	var clients types.URLs
	if url := s.URL(); url != "" {
		if clients, err = types.NewURLs([]string{url}); err != nil {
			return err
		}
	}
	log := bridge(s.c.Log, s.fatal, s.etcdEnds)
	cfg := config.ServerConfig{
		Name:               name,
		ClientURLs:         clients,
		PeerURLs:           peers,
		DataDir:            filepath.Join(s.dir, "etcd"),
		InitialPeerURLsMap: group,
		// Two groups never have the same number, so that the replicas of one refuse the messages of the other.
		InitialClusterToken: hex.EncodeToString(token[:]),
		NewCluster:          len(s.c.Join) == 0,
		Logger:              log,
		ServerFeatureGate:   features.NewDefaultServerFeatureGate(name, log),
		PeerTLSInfo: transport.TLSInfo{CertFile: s.c.Files.Cert, KeyFile: s.c.Files.Key, TrustedCAFile: s.c.Files.CA,
			ServerName: serverName(s.c.Files), MinVersion: tls.VersionTLS13},

		// One replica elects itself after one or two ticks. A group has another leader 0.8 to 1.6 s after one died.
		TickMs:                     100,
		ElectionTicks:              electionTicks(s.c.Advertise != ""),
		InitialElectionTickAdvance: true,
		PreVote:                    true,

		// Little data: few entries in memory, few old files on disk. Writes are
		// synced to the log one by one; the table follows at its leisure.
		SnapshotCount:          cmp.Or(s.c.snapshotCount, 1000),
		SnapshotCatchUpEntries: 100,
		MaxSnapFiles:           1,
		MaxWALFiles:            1,
		BackendBatchInterval:   500 * time.Millisecond,
		QuotaBackendBytes:      s.c.maxSize,

		// The last thousand changes are remembered for watchers that were away.
		AutoCompactionMode:      v3compactor.ModeRevision,
		AutoCompactionRetention: 1000,

		MaxTxnOps:            128,
		MaxRequestBytes:      3 << 19,
		MaxConcurrentStreams: maxConnStreams, // others wait in their client

		WarningApplyDuration:        time.Second,
		WarningUnaryRequestDuration: time.Second,
		BcryptCost:                  10, // of passwords, which it has none of
		AuthToken:                   s.c.authToken,
		// Package voters checks each change; etcd's check refuses all in the first seconds of a connection.
		StrictReconfigCheck:  false,
		MaxLearners:          maxLearners,
		DowngradeCheckTime:   5 * time.Second,
		CompactHashCheckTime: time.Minute,
		Metrics:              "basic",
	}
	type result struct {
		etcd *door
		err  error
	}
	made := make(chan result, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil { // a log without its beginning is more than etcd expects
				s.fail(fmt.Sprintf("etcd cannot make sense of its files: %v", r))
			}
		}()
		etcd, err := newDoor(cfg, s.fail, s.failed)
		made <- result{etcd, err}
	}()
	select {
	case r := <-made:
		if r.err != nil {
			return s.broken(r.err.Error(), r.err)
		}
		s.etcd = r.etcd
		return nil
	case <-s.failed:
		// The goroutine has ended, or waits for another of etcd's that has.
		return s.broken(s.down(), nil)
	}
}

// fail records why etcd ended.
func (s *Server) fail(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == "" {
		s.failure = why
		close(s.failed)
	}
}

// etcdEnds reports whether etcd runs no more: it was stopped, or stopped by itself, and gives up what it was doing.
func (s *Server) etcdEnds() bool {
	select {
	case <-s.running: // s.etcd is set
	default:
		return false
	}
	select {
	case <-s.etcd.stopping():
		return true
	default:
		return false
	}
}

// down returns why the server cannot be used, "" if it can.
func (s *Server) down() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// anew is what a person does where the files cannot be used. A member has more than these files in its directory: its
// keys, without which it is no member.
func (s *Server) anew() string {
	const first = "free space on its disk and start again; if its files are damaged, "
	if s.c.Admit != nil {
		return first +
			"weft member remove --force NAME, on a member that lists it; weft leave; weft join, with a new token"
	}
	return first + "move the directory away: the fabric is configured anew"
}

func (s *Server) broken(why string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return &store.Error{Kind: store.ErrUnavailable, What: "cannot start the store in " + s.dir, Why: why,
			Fix: "give the directory to the node's user", Err: err}
	}
	return &store.Error{Kind: store.ErrUnavailable, What: "cannot start the store in " + s.dir, Why: why,
		Fix: s.anew(), Err: err}
}

func electionTicks(group bool) int {
	if group {
		return 8
	}
	return 2
}

// maxLearners bounds the learners: some may not have left when others are added.
const maxLearners = 2 * voters.MaxLearners

func serverName(f PeerFiles) string {
	if f.Cert == "" {
		return ""
	}
	return PeerName
}

// serve answers other nodes.
func (s *Server) serve(run context.Context) {
	namespace := cmp.Or(s.c.Namespace, DefaultNamespace) + "/"
	count := cmp.Or(s.c.counters, &ListenerCounters{})
	s.front = newFront(s.listener, s.c.TLS, s.c.Known, count)
	g := &gate{count: count, etcd: s.etcd, withheld: &s.withheld, namespace: namespace, admit: s.c.Admit,
		use: newQuotas()}
	s.rpc = g.server(
		grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second,
			PermitWithoutStream: true}),
		// A node that vanished without a word gives its connection back.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}))
	s.web = s.peerServer()
	ended := func(err error) {
		if err != nil && run.Err() == nil && !errors.Is(err, http.ErrServerClosed) {
			s.fail("it does not answer at " + s.URL() + " any more: " + err.Error())
		}
	}
	s.work.Go(func() { ended(s.front.serve()) })
	s.work.Go(func() { ended(s.rpc.Serve(s.front.rpc)) })
	s.work.Go(func() { ended(s.web.Serve(s.front.web)) })
	s.work.Go(func() {
		select {
		case <-s.failed: // wakes the other waiters too
			s.listener.Close()
		case <-s.etcd.stopping(): // it was removed from its group, or another replica reported that
			s.fail(removedWhy)
		case <-run.Done():
		}
	})
}

// removedWhy is why a server ended that etcd ended in good order.
const removedWhy = "this replica was removed from the group"

// leftGroup reports whether the removal of this replica is in its own copy: the report of another one is no proof.
func (s *Server) leftGroup() bool { return s.etcd.removed(s.ID()) }

// URL is where other nodes reach the server, "" without Listen.
func (s *Server) URL() string {
	if s.listener == nil {
		return ""
	}
	scheme := "http://"
	if s.c.TLS != nil {
		scheme = "https://"
	}
	return scheme + s.listener.Addr().String()
}

// Client returns a client in this process. Closing it leaves the server.
func (s *Server) Client() (*Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients == nil {
		return nil, store.Closed()
	}
	cli, leases := s.etcd.client()
	leasing := numbered{leases}
	cli.Lease = clientv3.NewLeaseFromLeaseClient(leasing, cli, time.Second)
	c, err := newClient(cli, leasing, s.c.Namespace, s.c.Timeout)
	if err != nil {
		return nil, err
	}
	c.server = s
	s.clients[c] = struct{}{}
	return c, nil
}

func (s *Server) forget(c *Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, c)
}

// finish runs a function that ends a part of etcd and waits for it: only briefly if etcd has ended by
// itself, because a wait for its goroutines then never ends.
func (s *Server) finish(end func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		end()
	}()
	select {
	case <-done:
	case <-s.failed:
		select {
		case <-done:
		case <-time.After(s.endPatience()):
		}
	}
}

// transferTime bounds the search for another leader at the end of a replica.
const transferTime = time.Second

// Yield passes the lead of the group on, where this replica has it: the others elect no leader then, which takes them a
// second. It needs the connections of the others to this replica. It returns when another leads, or after transferTime:
// etcd itself tries for seven seconds where no other replica answers.
func (s *Server) Yield() {
	if s.etcd == nil || s.down() != "" {
		return
	}
	done := make(chan struct{})
	begun := s.transfer(func() {
		defer close(done)
		if err := s.etcd.yield(); err != nil {
			s.c.Log.Info("the group elects another leader of the store", "err", err)
		}
	})
	if !begun {
		return
	}
	select {
	case <-done:
	case <-s.failed:
	case <-time.After(transferTime):
	}
}

// transfer runs f on a goroutine of its own, and reports whether it does: not once the replica leaves.
func (s *Server) transfer(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return false
	}
	s.yielding.Go(f)
	return true
}

// leave ends the replica. A Yield from then on, such as that of a node that ends while the replica is retired, does
// nothing.
func (s *Server) leave() {
	s.mu.Lock()
	s.leaving = true
	s.mu.Unlock()
	s.etcd.stop()
	s.yielding.Wait()
}

// Close closes the clients of this process, then ends the server and waits
// for it. What was put stays in the directory.
func (s *Server) Close() error {
	s.once.Do(s.close)
	return nil
}

func (s *Server) close() {
	s.Yield()
	if why := s.lacksRoom(); why != nil {
		s.fail(why.Error())
	}
	s.mu.Lock()
	clients := s.clients
	s.clients = nil
	s.mu.Unlock()
	s.finish(func() {
		for c := range clients {
			c.Close()
		}
	})
	if s.stop != nil {
		s.stop()
	}
	if s.rpc != nil {
		_ = s.web.Close()
		s.finish(s.rpc.Stop)
		s.front.close()
	} else if s.listener != nil {
		s.listener.Close()
	}
	s.finish(s.work.Wait)
	if s.etcd != nil {
		s.finish(s.leave)
		if !s.ended() {
			s.etcd.mute() // a part of it may still run
		}
	}
	if s.lock != nil {
		s.lock.Close()
	}
}
