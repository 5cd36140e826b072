// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/device/ethdev"
	"weft/internal/device/vhost"
	"weft/internal/host/rundir"
	"weft/internal/node/mgmt"
	"weft/internal/node/subnet"
	"weft/internal/node/vesw"
	"weft/internal/service/vnic"
	"weft/internal/verbs/hca"
)

// machine is the network card of a virtual machine: a function of the node, whose first port in a virtual Ethernet
// switch carries the frames of a front-end of vhost-user. The card outlives sessions of the front-end, and the port.
type machine struct {
	n    *Node
	want api.NewVM // all of it filled in
	port *ethdev.Port
	f    *function // set before it is published

	// news is what the segment in use was made with, nil: none is.
	news atomic.Pointer[func(vnic.SegmentEvent)]
	// guest is the device of the session that there is.
	guest atomic.Pointer[ethdev.Device]

	mu       sync.Mutex    // guards what follows
	server   *vhost.Server // nil before the node serves
	failed   error         // why there is none
	of       *vhost.Session
	peer     unix.Ucred
	sessions int
}

var _ ethdev.Lane = machineLane{}

// machineLane is lane 0, where all data of virtual Ethernet switches flows, as a card uses it.
type machineLane struct{ n *Node }

// Do implements ethdev.Lane.
func (l machineLane) Do(f func()) error { return l.n.lanes.First().Do(f) }

// Watch implements ethdev.Lane.
func (l machineLane) Watch(k *vhost.Kick) error { return l.n.lanes.First().WatchKick(nil, -1, k) }

// Unwatch implements ethdev.Lane.
func (l machineLane) Unwatch(k *vhost.Kick) { l.n.lanes.First().UnwatchKick(k.FD()) }

// Quiesce implements ethdev.Lane.
func (l machineLane) Quiesce() { l.n.lanes.Quiesce() }

// vmDir holds the sockets of cards, below the node's directory.
const vmDir = "vm"

// newMachine completes a request and makes a card without a function.
func (n *Node) newMachine(want api.NewVM) (*machine, error) {
	if want.Queues == 0 {
		want.Queues = 1
	}
	if want.MAC == "" {
		b := []byte{0x52, 0x54, 0, 0, 0, 0} // the prefix that emulators use
		rand.Read(b[3:])
		want.MAC = net.HardwareAddr(b).String()
	}
	if want.Socket == "" && want.Connect == "" {
		want.Socket = filepath.Join(n.cfg.Dir, vmDir, want.Name+".sock")
	}
	if err := want.Validate(); err != nil {
		return nil, err
	}
	mac, err := api.ParseMAC(want.MAC)
	if err != nil {
		return nil, err
	}
	m := &machine{n: n, want: want}
	m.port, err = ethdev.New(ethdev.Config{Lane: machineLane{n}, Log: n.log.With("vm", want.Name), Pairs: want.Queues, MAC: mac, Event: m.event})
	return m, err
}

// event passes the guest's changes of the vport to the owner of the segment.
func (m *machine) event(e vnic.SegmentEvent) {
	if f := m.news.Load(); f != nil {
		(*f)(e)
	}
}

// makeMachine makes a card and its function; the intentStore's mu is held.
func (n *Node) makeMachine(want api.NewVM, change *api.FunctionChange, number func(*hca.Adapter) error) (*machine, error) {
	m, err := n.newMachine(want)
	if err != nil {
		return nil, err
	}
	if err := m.free(); err != nil {
		return nil, err
	}
	n.mu.Lock()
	_, there := n.vms[want.Name]
	if !there {
		n.vms[want.Name] = m // before its function can get a port of a VESW
	}
	n.mu.Unlock()
	if there {
		return nil, errFunctionThere
	}
	f, err := n.functionOps.create(&api.NewFunction{Name: want.Name, FunctionChange: *change}, number)
	if err != nil {
		n.forgetMachine(m)
		return nil, err
	}
	n.editor.mu.Lock()
	defer n.editor.mu.Unlock()
	n.mu.Lock()
	m.f = f
	n.mu.Unlock()
	if serving := n.funcs.setMachine(f, m); !serving {
		return m, nil
	}
	if err := m.open(); err != nil {
		return nil, errors.Join(err, n.editor.drop(f), n.tree.functionsChanged())
	}
	return m, nil
}

// free refuses sockets of other cards, and paths of files that are no sockets.
func (m *machine) free() error {
	path := m.want.Socket + m.want.Connect
	for _, o := range m.n.machines() {
		if o.want.Name != m.want.Name && o.want.Socket+o.want.Connect == path {
			return fmt.Errorf("%s is the socket of %s", path, o.want.Name)
		}
	}
	if m.want.Socket == "" {
		return nil
	}
	if st, err := os.Lstat(m.want.Socket); err == nil && st.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is there, and is no socket", m.want.Socket)
	}
	return nil
}

func (n *Node) forgetMachine(m *machine) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.vms[m.want.Name] == m {
		delete(n.vms, m.want.Name)
	}
}

// machines lists the cards in the order of their names.
func (n *Node) machines() (list []*machine) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.vms {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *machine) int { return cmp.Compare(a.want.Name, b.want.Name) })
	return list
}

// machine returns the card with a name, or nil.
func (n *Node) machine(name string) *machine {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.vms[name]
}

// open listens for the front-end, or begins to connect to it; the functionEditor's mu is held. All sockets share the quotas of the first
// device socket.
func (m *machine) open() error {
	n := m.n
	c := vhost.Config{New: m.admit, OnEnd: m.ended, Limits: n.sessions.Limits(), OnRefuse: n.sessions.Refused, Share: n.funcs.all()[0].socket}
	var s *vhost.Server
	if m.want.Connect != "" {
		s = vhost.Dial(m.want.Connect, c)
	} else {
		var err error
		if filepath.Dir(m.want.Socket) == filepath.Join(n.cfg.Dir, vmDir) {
			err = rundir.Ensure(filepath.Dir(m.want.Socket), n.perm.dir())
		}
		if err == nil {
			s, err = vhost.Listen(m.want.Socket, n.perm.socket(), c)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.want.Socket, err)
		}
	}
	m.mu.Lock()
	m.server = s
	m.mu.Unlock()
	return nil
}

// openLate is open of a card that was restored: the node serves without it.
func (m *machine) openLate() {
	if err := m.open(); err != nil {
		m.n.log.Error("a virtual machine has no network card", "vm", m.want.Name, "err", err)
		m.mu.Lock()
		m.failed = err
		m.mu.Unlock()
	}
}

// close ends the session and the socket. The lanes run.
func (m *machine) close() {
	if s := m.socket(); s != nil {
		s.Close()
	}
}

// socket is the server of the front-end, nil before there is one.
func (m *machine) socket() *vhost.Server {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.server
}

// admit makes the device of a front-end.
func (m *machine) admit(s *vhost.Session) (vhost.Device, error) {
	p := s.Peer()
	if m.want.Connect == "" && !m.n.sessions.Allowed(int(p.Uid)) {
		return nil, fmt.Errorf("uid %d may not use this node: %w", p.Uid, os.ErrPermission)
	}
	d, err := m.port.Attach(s)
	if err != nil {
		return nil, err
	}
	m.guest.Store(d)
	m.mu.Lock()
	m.of, m.peer = s, p
	m.sessions++
	m.mu.Unlock()
	m.n.log.Info("guest connected", "vm", m.want.Name, "pid", p.Pid)
	return d, nil
}

// ended notes the end of a session.
func (m *machine) ended(s *vhost.Session, reason error) {
	p := s.Peer()
	m.mu.Lock()
	if m.of == s {
		m.of, m.peer = nil, unix.Ucred{}
	}
	m.mu.Unlock()
	if reason == nil || errors.Is(reason, vhost.Gone) || errors.Is(reason, vhost.Shutdown) {
		m.n.log.Info("guest gone", "vm", m.want.Name, "pid", p.Pid)
		return
	}
	m.n.sessions.Complain("session of a guest ended", "vm", m.want.Name, "pid", p.Pid, "reason", reason)
}

// Fail implements lane.MemoryOwner.
func (m *machine) Fail(reason error) {
	if d := m.port.Device(); d != nil {
		d.Fail(reason)
	}
}

// owns reports whether addr lies in the guest's memory.
func (m *machine) owns(addr uintptr) bool {
	d := m.guest.Load()
	return d != nil && d.Owns(addr)
}

// machineSegment is a card at work for a vport.
type machineSegment struct {
	*ethdev.Port
	m *machine
}

var _ vnic.Segment = (*machineSegment)(nil)

// segment puts the card to work for a port of its function. A card has one.
func (m *machine) segment(d vnic.Device, news func(vnic.SegmentEvent)) (vnic.Segment, error) {
	if !m.news.CompareAndSwap(nil, &news) {
		return nil, errors.New("the virtual machine's card is in another VESW")
	}
	s := &machineSegment{m.port, m}
	s.Configure(d)
	return s, nil
}

// Configure implements vnic.Segment: on the lane, where the guest may be telling something at the
// same time.
func (s *machineSegment) Configure(d vnic.Device) {
	s.m.n.lanes.First().Do(func() { s.Port.Configure(d) })
}

// Close implements vnic.Segment. The card and its guest stay.
func (s *machineSegment) Close() error {
	s.m.news.Store(nil)
	return nil
}

// cards are the network cards of a node.
type cards struct{ n *Node }

var _ vesw.Cards = cards{}

// Has implements vesw.Cards.
func (c cards) Has(device string) bool { return c.n.machine(device) != nil }

// Segment implements vesw.Cards.
func (c cards) Segment(device string, d vnic.Device, notify func(vnic.SegmentEvent)) (vnic.Segment, error) {
	m := c.n.machine(device)
	if m == nil {
		return nil, errNoFunction
	}
	return m.segment(d, notify)
}

// VMs implements api.Backend.
func (n *Node) VMs(context.Context) (list []api.VM, err error) {
	for _, m := range n.machines() {
		list = append(list, m.describe())
	}
	return list, nil
}

// describe describes a card.
func (m *machine) describe() api.VM {
	n := m.n
	v := api.VM{NewVM: m.want}
	v.Kept, v.NotKept = n.intentStore.kept()
	n.mu.Lock()
	f := m.f
	n.mu.Unlock()
	if f != nil {
		v.Number, v.PortGUID = int(f.a.Number()), (f.a.NodeGUID + 1).String()
		v.CarrierReason = "it is in no VESW"
		if m.want.VESW != "" {
			v.CarrierReason = "the Ethernet Manager has made no port in " + m.want.VESW + " yet"
		}
		if s := n.vesw.PortState(f.a.Number()); s.VESW != 0 {
			v.VESWNumber, v.VPort, v.MTU = s.VESW, s.VPort, s.Device.MaxMTU
			v.Carrier, v.CarrierReason = s.Device.Carrier, s.Device.Reason
		}
	}
	v.Running = m.running()
	m.mu.Lock()
	defer m.mu.Unlock()
	v.Sessions = m.sessions
	switch {
	case m.of != nil:
		v.Guest, v.PID, v.UID = true, int(m.peer.Pid), int(m.peer.Uid)
	case m.failed != nil:
		v.Reason = m.failed.Error()
	case m.server == nil:
		v.Reason = "starting"
	case m.want.Connect != "":
		v.Reason = "no emulator listens at " + m.want.Connect
		if err := m.server.Waiting(); err != nil {
			v.Reason = err.Error()
		}
	default:
		v.Reason = "no emulator is connected to " + m.want.Socket
	}
	return v
}

// counters are those of the card.
func (m *machine) counters(add func(scope, instance, name string, v uint64)) error {
	var s ethdev.Stats
	if err := m.n.lanes.First().Query(func() { s = m.port.Stats }); err != nil {
		return err
	}
	s.Each(func(name string, v uint64) { add(api.ScopeVM, m.want.Name, name, v) })
	return nil
}

// running reports whether a driver uses the card.
func (m *machine) running() (yes bool) {
	m.n.lanes.First().Query(func() {
		if d := m.port.Device(); d != nil {
			yes = d.Running()
		}
	})
	return yes
}

// AddVM implements api.Backend.
func (n *Node) AddVM(ctx context.Context, want api.NewVM) (v api.VM, err error) {
	if n.sub == nil {
		return v, mgmt.ErrNoFabric
	}
	if v, err = n.addVM(ctx, want); err != nil || want.VESW == "" {
		return v, err
	}
	// The options for the machine depend on the switch.
	ctx, stop := context.WithTimeout(ctx, vesw.Patience)
	defer stop()
	n.vesw.Await(ctx, func() bool {
		m := n.machine(want.Name)
		if m != nil {
			v = m.describe()
		}
		return m == nil || v.Carrier // or deleted meanwhile
	})
	return v, nil
}

func (n *Node) addVM(ctx context.Context, want api.NewVM) (api.VM, error) {
	const what = "cannot add the virtual machine"
	n.intentStore.mu.Lock()
	defer n.intentStore.mu.Unlock()
	if err := n.intentStore.editable(what); err != nil {
		return api.VM{}, err
	}
	if want.VESW != "" {
		if _, err := n.mgmt.VESW(ctx, want.VESW); err != nil {
			return api.VM{}, elsewhere(err, want.VESW, want.Name)
		}
	}
	m, err := n.makeMachine(want, &api.FunctionChange{}, n.all.Add)
	switch {
	case errors.Is(err, errFunctionThere):
		return api.VM{}, &api.Error{Code: api.CodeInvalid, What: what, Why: "there is a device " + want.Name, Fix: "choose another name"}
	case errors.Is(err, subnet.ErrNoSwitchPort):
		return api.VM{}, &api.Error{Code: api.CodeInvalid, What: what, Why: err.Error(), Fix: "delete a device, or start the node with more --switch-ports"}
	case errors.Is(err, hca.ErrNoFunction):
		return api.VM{}, &api.Error{Code: api.CodeInvalid, What: what, Why: "the node has made as many devices as it can number", Fix: "start it again"}
	case err != nil:
		return api.VM{}, &api.Error{Code: api.CodeInvalid, What: what, Why: err.Error(), Fix: "choose another --socket"}
	}
	if want.VESW != "" {
		if _, err := n.mgmt.AddVESWPort(ctx, want.VESW, api.VESWPortAdd{Port: want.Name}); err != nil {
			return api.VM{}, errors.Join(elsewhere(err, want.VESW, want.Name), n.editor.remove(want.Name))
		}
	}
	n.intentStore.forget(want.Name)
	n.intentStore.save(ctx)
	return m.describe(), nil
}

// elsewhere adds to an error the node that can put a card into a VESW, where this one cannot.
func elsewhere(err error, vesw, name string) error {
	var e *api.Error
	if errors.As(err, &e) && e.Code == api.CodeNotMaster {
		x := *e
		x.Fix = fmt.Sprintf("weft vm add %s without --vesw here, then weft vesw port add %s and its port's GUID at that node", name, vesw)
		return &x
	}
	return err
}

// DelVM implements api.Backend.
func (n *Node) DelVM(ctx context.Context, name string) error {
	const what = "cannot delete the virtual machine"
	n.intentStore.mu.Lock()
	defer n.intentStore.mu.Unlock()
	if err := n.intentStore.editable(what); err != nil {
		return err
	}
	m := n.machine(name)
	if m == nil && !n.intentStore.forget(name) {
		return &api.Error{Code: api.CodeNotFound, What: what, Why: "there is no virtual machine " + name, Fix: "weft vm"}
	}
	if m != nil {
		if m.want.VESW != "" {
			var e *api.Error
			if err := n.mgmt.DeleteVESWPort(ctx, m.want.VESW, name, -1); err != nil && !(errors.As(err, &e) && e.Code == api.CodeNotFound) {
				n.log.Warn("a deleted virtual machine is still wanted in its VESW", "vm", name, "vesw", m.want.VESW, "err", err)
			}
		}
		if err := n.editor.remove(name); err != nil {
			return err
		}
	}
	n.intentStore.save(ctx)
	return nil
}

// vmNotices lists cards without a guest, and cards in no switch.
func vmNotices(list []api.VM) (notices []api.Degraded) {
	for _, v := range list {
		if v.VESW == "" && v.VESWNumber == 0 {
			notices = append(notices, api.Degraded{What: "vm_without_vesw", Why: v.Name + ": its card is in no virtual Ethernet switch",
				Fix: "weft vesw port add NAME " + v.PortGUID + " where the Ethernet Manager runs"})
		}
		if !v.Guest {
			notices = append(notices, api.Degraded{What: "vm_without_guest", Why: v.Name + ": " + v.Reason,
				Fix: "start the machine as weft vm show " + v.Name + " says, or weft vm del " + v.Name})
		}
	}
	return notices
}
