// SPDX-License-Identifier: Apache-2.0

package vmcard

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/device/ethdev"
	"weft/internal/device/vhost"
	"weft/internal/fabric/link/neighbour"
	"weft/internal/host/rundir"
	"weft/internal/node/vesw"
	"weft/internal/service/vnic"
	"weft/internal/verbs/hca"
)

// Card is the network card of a virtual machine: a function of the node; its first port in a virtual Ethernet
// switch carries the frames of a front-end of vhost-user. The card outlives sessions of the front-end, and the port.
type Card struct {
	c    *Cards
	want api.NewVM // all of it filled in
	port *ethdev.Port
	// rdma is the Ethernet port of the card's function, for its RoCE half; nil: the card has none.
	rdma *vesw.GuestPort

	// idle polls the device while the card is in no virtual Ethernet switch.
	idle *unplugged

	// notify is what the segment in use was made with, nil: none is.
	notify atomic.Pointer[func(vnic.SegmentEvent)]
	// guest is the device of the session that there is.
	guest atomic.Pointer[ethdev.Device]

	mu       sync.Mutex    // guards what follows; no other lock is taken while it is held
	adapter  *hca.Adapter  // the function; nil before there is one
	server   *vhost.Server // nil before the node serves
	failed   error         // why there is none
	of       *vhost.Session
	half     Half // of that session
	peer     unix.Ucred
	sessions int
}

var _ ethdev.Lane = cardLane{}

// cardLane is lane 0, where all data of virtual Ethernet switches flows, as a card uses it.
type cardLane struct{ c *Cards }

// Do implements ethdev.Lane.
func (l cardLane) Do(f func()) error { return l.c.first().Do(f) }

// Watch implements ethdev.Lane.
func (l cardLane) Watch(k *vhost.Kick) error { return l.c.first().WatchKick(nil, -1, k) }

// Unwatch implements ethdev.Lane.
func (l cardLane) Unwatch(k *vhost.Kick) { l.c.first().UnwatchKick(k.FD()) }

// Quiesce implements ethdev.Lane.
func (l cardLane) Quiesce() { l.c.cfg.Lanes.Quiesce() }

// newCard completes a request and makes a card without a function.
func (c *Cards) newCard(want api.NewVM) (*Card, error) {
	if want.MAC == "" {
		b := []byte{0x52, 0x54, 0, 0, 0, 0} // the prefix that emulators use
		rand.Read(b[3:])
		want.MAC = net.HardwareAddr(b).String()
	}
	if want.Socket == "" && want.Connect == "" {
		want.Socket = filepath.Join(c.cfg.Dir, socketDir, want.Name+".sock")
	}
	if err := want.Validate(); err != nil {
		return nil, err
	}
	mac, err := api.ParseMAC(want.MAC)
	if err != nil {
		return nil, err
	}
	m := &Card{c: c, want: want}
	m.idle = &unplugged{m: m}
	m.want.Complete()
	if m.want.RDMA {
		m.rdma = c.cfg.NewGuestPort()
	}
	m.port, err = ethdev.New(ethdev.Config{Lane: cardLane{c}, Log: c.cfg.Log.With("vm", want.Name),
		Pairs: m.want.Queues, MAC: mac, Event: m.event})
	return m, err
}

// event passes the guest's changes of the vport to the owner of the segment.
func (m *Card) event(e vnic.SegmentEvent) {
	if f := m.notify.Load(); f != nil {
		(*f)(e)
	}
}

// Open listens for the front-end, or begins to connect to it. All sockets share the quotas of the first device socket.
// Calls of Open and Remove do not overlap.
func (m *Card) Open() error {
	cfg := &m.c.cfg
	c := vhost.Config{New: m.admit, OnEnd: m.ended, Limits: cfg.Sessions.Limits(), OnRefuse: cfg.Sessions.Refused,
		Share: cfg.Share(), Guard: cfg.Sessions.Guard(), Served: m.serves}
	var s *vhost.Server
	if m.want.Connect != "" {
		s = vhost.Dial(m.want.Connect, c)
	} else {
		var err error
		if filepath.Dir(m.want.Socket) == filepath.Join(cfg.Dir, socketDir) {
			err = rundir.Ensure(filepath.Dir(m.want.Socket), cfg.DirPerm)
		}
		if err == nil {
			s, err = vhost.Listen(m.want.Socket, m.socketMode(), c)
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

// serves reports whether a user may connect to the card's socket: root, the node's own user, and the user for which the
// card was added. Other users of the node may not take the place of the virtual machine.
func (m *Card) serves(uid int) bool {
	return m.c.cfg.Sessions.Own(uid) || m.want.AllowUID != 0 && uid == m.want.AllowUID
}

// socketMode returns the permissions of the card's socket.
func (m *Card) socketMode() os.FileMode {
	if m.want.AllowUID != 0 {
		return 0o666 // serves decides
	}
	return 0o600
}

// OpenLate is Open of a card that was restored: the node serves without it.
func (m *Card) OpenLate() {
	if err := m.Open(); err != nil {
		m.c.cfg.Log.Error("a virtual machine has no network card", "vm", m.want.Name, "err", err)
		m.mu.Lock()
		m.failed = err
		m.mu.Unlock()
	}
}

// Request is what was requested, with the defaults filled in.
func (m *Card) Request() *api.NewVM { return &m.want }

// EthernetPort returns the Ethernet port of the card's function, nil if the card has no RoCE half.
func (m *Card) EthernetPort() *vesw.GuestPort { return m.rdma }

// SetAdapter gives the card its function.
func (m *Card) SetAdapter(a *hca.Adapter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.adapter = a
}

// Remove is Close of a card when its function is deleted.
func (m *Card) Remove() {
	m.Close()
	m.c.forget(m)
}

// Close ends the session and the socket. The lanes run.
func (m *Card) Close() {
	if s := m.Server(); s != nil {
		s.Close()
		_ = m.c.first().Do(m.idle.end)
	}
}

// Server is the server of the front-end, nil before there is one.
func (m *Card) Server() *vhost.Server {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.server
}

// admit makes the device of a front-end.
func (m *Card) admit(s *vhost.Session) (vhost.Device, error) {
	p := s.Peer()
	if err := m.c.cfg.Admit(); err != nil {
		return vhost.Device{}, err
	}
	d, half, parts, err := m.attach(s)
	if err != nil {
		return vhost.Device{}, err
	}
	m.guest.Store(d)
	_ = m.c.first().Do(m.idle.begin) // an ended lane polls nothing
	m.mu.Lock()
	m.of, m.half, m.peer = s, half, p
	m.sessions++
	m.mu.Unlock()
	if err := m.c.cfg.Admit(); err != nil {
		s.Fail(vhost.Shutdown, err) // a drain began meanwhile: EndGuests may have missed the session
	}
	m.c.cfg.Log.Info("guest connected", "vm", m.want.Name, "pid", p.Pid)
	return parts, nil
}

// ended notes the end of a session.
func (m *Card) ended(s *vhost.Session, reason error) {
	p := s.Peer()
	m.mu.Lock()
	if m.of == s {
		m.of, m.peer, m.half = nil, unix.Ucred{}, Half{}
	}
	m.mu.Unlock()
	if m.rdma != nil {
		m.c.cfg.HalfEnded(s)
	}
	if reason == nil || errors.Is(reason, vhost.Gone) || errors.Is(reason, vhost.Shutdown) {
		m.c.cfg.Log.Info("guest gone", "vm", m.want.Name, "pid", p.Pid)
		return
	}
	m.c.cfg.Sessions.Complain("session of a guest ended", "vm", m.want.Name, "pid", p.Pid, "reason", reason)
}

// Fail implements lane.MemoryOwner.
func (m *Card) Fail(reason error) {
	if d := m.port.Device(); d != nil {
		d.Fail(reason)
	}
}

// owns reports whether addr lies in the guest's memory.
func (m *Card) owns(addr uintptr) bool {
	d := m.guest.Load()
	return d != nil && d.Owns(addr)
}

// cardSegment is a card at work for a vport.
type cardSegment struct {
	*ethdev.Port
	m *Card
}

var (
	_ vnic.Segment        = (*cardSegment)(nil)
	_ vnic.SegmentControl = (*cardSegment)(nil)
)

// segment puts the card to work for a port of its function. A card has one.
func (m *Card) segment(d vnic.Device, notify func(vnic.SegmentEvent)) (vnic.OpenSegment, error) {
	if !m.notify.CompareAndSwap(nil, &notify) {
		return vnic.OpenSegment{}, errors.New("the virtual machine's card is in another VESW")
	}
	s := &cardSegment{m.port, m}
	s.Configure(d)
	return vnic.OpenSegment{Segment: s, Control: s}, nil
}

// Configure implements vnic.SegmentControl: on the lane, where the guest may be telling something at the
// same time.
func (s *cardSegment) Configure(d vnic.Device) {
	s.m.c.first().Do(func() { s.Port.Configure(d) })
}

// Close implements vnic.SegmentControl. The card and its guest stay.
func (s *cardSegment) Close() error {
	s.m.notify.Store(nil)
	return nil
}

// describe describes a card.
func (m *Card) describe() api.VM {
	v := api.VM{NewVM: m.want}
	v.Kept, v.NotKept = m.c.cfg.Keeper.Kept()
	m.mu.Lock()
	a := m.adapter
	m.mu.Unlock()
	if a != nil {
		v.Number, v.PortGUID = int(a.Number()), (a.NodeGUID + 1).String()
		v.CarrierReason = "it is in no VESW"
		if m.want.VESW != "" {
			v.CarrierReason = "the Ethernet Manager has made no port in " + m.want.VESW + " yet"
		}
		if s := m.c.cfg.PortState(a.Number()); s.VESW != 0 {
			v.VESWNumber, v.VPort, v.MTU = s.VESW, s.VPort, s.Device.MaxMTU
			v.Carrier, v.CarrierReason = s.Device.Carrier, s.Device.Reason
		}
	}
	v.Running = m.running()
	v.RoCE = m.describeRoCE()
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
func (m *Card) counters(add func(scope, instance, name string, v uint64)) error {
	var s ethdev.Stats
	var resolver neighbour.Counters
	var unplugged uint64
	if err := m.c.first().Query(func() {
		s, unplugged = m.port.Stats, m.idle.dropped
		if m.rdma != nil {
			resolver = m.rdma.Resolver()
		}
	}); err != nil {
		return err
	}
	s.Each(func(name string, v uint64) { add(api.ScopeVM, m.want.Name, name, v) })
	add(api.ScopeVM, m.want.Name, "tx_unplugged", unplugged)
	if m.rdma != nil {
		resolver.Each(func(name string, v uint64) { add(api.ScopeVM, m.want.Name, "resolver_"+name, v) })
	}
	return nil
}

// running reports whether a driver uses the card.
func (m *Card) running() (yes bool) {
	m.c.first().Query(func() {
		if d := m.port.Device(); d != nil {
			yes = d.Running()
		}
	})
	return yes
}
