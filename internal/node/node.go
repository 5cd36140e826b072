// SPDX-License-Identifier: Apache-2.0

// Package node builds a node from its configuration and runs it: it owns
// every goroutine, every clock read, every descriptor, and the order in which
// they end.
//
// What comes in: a config.Config; what goes out: the files of a node's
// directory (docs/notes/abi.md, section 1), device sockets for clients, and RoCEv2 on
// the host's addresses. Command line and tests call Run. The packet path is in
// the lanes; nothing else here may touch what a lane owns except through
// lane.do.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/unixsock"
	"weft/internal/host/cgroup"
	"weft/internal/host/hostnet"
	"weft/internal/host/rundir"
	"weft/internal/node/admission"
	"weft/internal/node/conn"
	"weft/internal/node/control"
	"weft/internal/node/intent"
	"weft/internal/node/ipif"
	"weft/internal/node/lane"
	"weft/internal/node/membership"
	"weft/internal/node/mesh"
	"weft/internal/node/mgmt"
	"weft/internal/node/session"
	"weft/internal/node/subnet"
	"weft/internal/node/vesw"
	"weft/internal/node/vmcard"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/verbs/hca"
)

// Node is a running node.
type Node struct {
	cfg      config.Config
	log      *slog.Logger
	dir      *rundir.Dir
	started  time.Time
	base     time.Time
	adapter  *hca.Adapter   // function 0: the host's addresses
	all      *hca.Functions // every function
	identity ib.GUID        // the base of the node's GUIDs
	lanes    *lane.Group
	sessions *session.Registry
	groups   *ipGroups
	host     string // the host's name
	cm       *conn.Service
	sub      *subnet.Subnet // nil: the node is in no subnet
	ip       *ipif.Host     // nil: the same
	vesw     *vesw.Host     // nil: the same
	cards    *vmcard.Cards
	gate     admission.Gate // closed while the host is drained

	mgmt     *mgmt.Network
	member   *membership.Membership
	mesh     *mesh.Mesh // nil: the node is in no subnet
	intent   *intent.Store
	stop     context.CancelCauseFunc
	captures *control.Captures
	faults   *control.Faults

	table       atomic.Pointer[hostnet.Table] // the host's addresses
	funcs       *functionTable
	tree        *portTree
	editor      *functionEditor
	functionOps *functionOperations
	reports     *reporter
	perm        permissions // of sockets
	ready       atomic.Bool // programs can use the node
}

// Run runs a node until ctx ends, its idle time is over, or it fails, and
// returns when nothing of it is left; but for a lane that waits for the memory
// of a program and does not come back, which the error names and only the end of
// this process ends. ready is called once programs can use the node.
func Run(ctx context.Context, cfg config.Config, ready func(), log *slog.Logger) (err error) {
	if n := heapBound(os.Getenv("GOMEMLIMIT"), cgroup.MemoryLimit(os.DirFS("/"))); n > 0 {
		debug.SetMemoryLimit(n)
		log.Info("the control group bounds the memory of the node", "heap", n)
	}
	return runNode(ctx, cfg, func(*Node) { ready() }, log)
}

// heapBound is how many octets the runtime may use before it collects garbage more often: nine tenths of group, the
// memory that the control group allows. 0: the runtime keeps its own limit, because the group has none or because
// GOMEMLIMIT sets one.
func heapBound(goMemLimit string, group int64) int64 {
	if goMemLimit != "" {
		return 0
	}
	return group / 10 * 9
}

// testHookOpened is called with a node before it lives, where a test sets it.
var testHookOpened func(*Node)

// runNode is Run that passes the node to ready.
func runNode(ctx context.Context, cfg config.Config, ready func(*Node), log *slog.Logger) (err error) {
	dir, err := rundir.Acquire(cfg.Dir, cfg.DirPerm(os.Geteuid()))
	if err != nil {
		return err
	}
	defer dir.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	now := time.Now()
	n := &Node{cfg: cfg, log: log, dir: dir, started: now, base: now.Add(-time.Second), stop: stop}
	if err := n.open(); err != nil {
		return err
	}
	if testHookOpened != nil {
		testHookOpened(n)
	}
	lived := make(chan error, 1)
	go func() { lived <- n.live(ctx, func() { ready(n) }) }()
	over := make(chan struct{})
	defer close(over)
	select {
	case err := <-lived:
		return err
	case err := <-n.heldUp(ctx, over):
		return err
	}
}

// live serves until ctx ends, and takes down all that open built and it added.
func (n *Node) live(ctx context.Context, ready func()) error {
	defer n.tree.remove() // after the last goroutine that writes it
	defer n.close()
	if err := n.startSubnet(); err != nil {
		return err
	}
	if err := n.mgmt.Start(ctx); err != nil {
		return err
	}
	if n.mesh != nil {
		n.mesh.Start()
	}
	if err := n.member.Start(ctx); err != nil {
		return err
	}
	n.restore(ctx)
	return n.serve(ctx, ready)
}

// now is the node's clock. It starts above zero, which means "none".
func (n *Node) now() mono.Time { return mono.Time(time.Since(n.base)) }

// wall is a time of the node's clock as people have it.
func (n *Node) wall(t mono.Time) time.Time { return n.base.Add(time.Duration(t)) }

// open reads the host's addresses, and builds the adapter and the rooms.
func (n *Node) open() (err error) {
	table, err := hostnet.Read(nil, n.roceInterfaces())
	if err != nil {
		return fmt.Errorf("read the host's addresses: %w", err)
	}
	n.table.Store(table)
	if n.identity, err = n.dir.Identity(); err != nil {
		return err
	}
	n.adapter = hca.NewAdapter(n.port(table), hca.DefaultLimits)
	n.adapter.Name, n.adapter.NodeGUID = n.cfg.Device, table.NodeGUID
	n.all = hca.NewFunctions(n.adapter)
	n.funcs = newFunctionTable(n.adapter)
	n.perm = permissions{shared: len(n.cfg.AllowUIDs) > 0 || os.Geteuid() == 0}
	return n.openRooms()
}

// roceInterfaces are the interfaces with the addresses that are GIDs of function 0.
func (n *Node) roceInterfaces() hostnet.Choice { return hostnet.Choice{Names: n.cfg.RoCEInterfaces} }

// port describes the port that a table of addresses gives the node.
func (n *Node) port(t *hostnet.Table) *hca.Port {
	p := &hca.Port{
		Link:        ib.LinkEthernet,
		State:       ib.PortActive,
		Phys:        ib.PhysLinkUp,
		MTU:         t.MTU,
		MaxMTU:      ib.MTU4096,
		PKeys:       []ib.PKey{ib.DefaultPKey},
		WireLocal:   n.cfg.WireLocal,
		Allow:       n.cfg.RoCEAllowed(),
		Route:       n.route,
		MaxRun:      lane.RoCEBurst,
		MaxLocalRun: lane.LocalBurst,
	}
	for _, e := range t.Entries {
		p.GIDs = append(p.GIDs, hca.GIDEntry{GID: e.GID, NetDev: e.Interface, IfIndex: e.IfIndex, MTU: e.PathMTU(),
			LocalOnly: e.LocalOnly})
	}
	return p
}

// route implements hca.Port.Route by the routes of the host.
func (n *Node) route(src *hca.GIDEntry, dst ib.GID, tclass uint8) error {
	return hostnet.Route(hostnet.Leaving{Src: src.GID.Addr(), Dst: dst.Addr(), IfIndex: src.IfIndex,
		Port: uint16(n.cfg.RoCEPort), TClass: tclass})
}

// serve opens the device sockets and waits for the end.
func (n *Node) serve(ctx context.Context, ready func()) error {
	if err := n.tree.functionsChanged(); err != nil {
		return err
	}
	if err := rundir.Ensure(filepath.Join(n.cfg.Dir, rundir.SocketDir), n.perm.dir()); err != nil {
		return err
	}
	guard := n.sessions.Guard()
	// A user that the node does not serve gets the reason from the control interface.
	control, err := n.dir.Listen(guard, rundir.ControlSock, unixsock.Options{Mode: n.perm.socket(), Explain: true})
	if err != nil {
		return err
	}
	defer control.Close() // where the server does not
	var wg sync.WaitGroup
	defer wg.Wait()
	operations := n.operations()
	server := api.NewServer(operations, api.PeerAccess(os.Geteuid(), n.cfg.AllowUIDs), n.log)
	server.Forwarder = n.mgmt.Forwarder()
	n.member.Commands().Serve(operations)
	defer n.member.Commands().Serve(nil)
	defer func() { // after the sockets; the requester of the end still receives the answer
		n.captures.Close()
		ctx, cancel := context.WithTimeout(context.Background(), lastAnswers)
		defer cancel()
		server.Shutdown(ctx)
		server.Close()
	}()
	defer n.editor.closeSockets()
	if err := n.editor.openSockets(); err != nil {
		return err
	}
	listen := func(name string, most, mostOfUser int) (*session.Records, error) {
		l, err := n.dir.ListenRecords(guard, name, unixsock.Options{Mode: n.perm.socket()})
		if err != nil {
			return nil, err
		}
		return n.sessions.OpenRecords(l, most, mostOfUser), nil
	}
	rdmacm, err := listen(rundir.CMSock, conn.DeviceConns, conn.DeviceUserConns)
	if err != nil {
		return err
	}
	n.cm.OpenDevice(rdmacm)
	defer rdmacm.Close()
	if n.sub != nil {
		u, err := listen(rundir.UmadSock, subnet.UserMADConns, subnet.UserMADUserConns)
		if err != nil {
			return err
		}
		n.sub.OpenUserMADs(u, n.funcs.adapter)
		defer u.Close()
		defer n.vesw.Close()
		defer n.ip.Close()
		if err := n.ip.Start(n.cfg.IPoIB); err != nil {
			return err
		}
	}
	table := n.table.Load() // addressesChanged replaces it
	wg.Go(func() {          // not before the device sockets are there, since it lists their counters
		if err := server.Serve(control); !errors.Is(err, http.ErrServerClosed) {
			n.stop(fmt.Errorf("control socket: %w", err))
		}
	})
	wg.Go(func() {
		if err := hostnet.Watch(ctx, table, n.roceInterfaces(), n.addressesChanged); err != nil && ctx.Err() == nil {
			n.log.Warn("addresses are not followed any more", "err", err)
		}
	})
	wg.Go(func() { n.watchLanes(ctx) })
	wg.Go(func() { n.followCounters(ctx) })
	wg.Go(func() { n.intent.Run(ctx) })
	if n.cfg.IdleExit > 0 {
		wg.Go(func() { n.watchIdle(ctx) })
	}
	n.ready.Store(true)
	ready()
	<-ctx.Done()
	n.stop(nil)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, errEnd) {
		return err
	}
	return nil
}

// lastAnswers is how long an ending node still replies to pending requests.
const lastAnswers = time.Second

var errEnd = errors.New("the node was asked to end")

// close ends the manager, the management goroutine, the lanes, then the links they used.
func (n *Node) close() {
	n.member.Close()
	if n.mesh != nil {
		n.mesh.Close()
	}
	n.mgmt.Close()
	n.cm.Close()
	if n.sub != nil {
		n.sub.Close()
	}
	n.lanes.Close()
	n.closeTrunks()
}

// watchIdle ends a node that was not in use for a while.
func (n *Node) watchIdle(ctx context.Context) {
	t := time.NewTicker(max(n.cfg.IdleExit/10, 10*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if n.sessions.EndIfIdle(n.cfg.IdleExit, func() bool { return len(n.cards.All()) > 0 }) {
			n.log.Info("the node is not in use: it ends", "idle", n.cfg.IdleExit)
			n.stop(errEnd)
			return
		}
	}
}

// addressesChanged publishes a new GID table and notifies the clients.
func (n *Node) addressesChanged(t *hostnet.Table) {
	n.table.Store(t)
	n.tree.update(func() []subnet.PortChange {
		p := n.port(t)
		if old := n.adapter.Port(); old.State != ib.PortActive {
			p.State, p.Phys = old.State, old.Phys // it is disabled
		}
		n.adapter.SetPort(p)
		return nil
	})
	n.groups.addressesChanged()
	n.log.Info("addresses changed", "gids", len(t.Entries), "mtu", t.MTU.Bytes())
	n.tree.changed(subnet.PortChange{Adapter: n.adapter, Events: []ib.Event{ib.EventGIDChange}})
}
