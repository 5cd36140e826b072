// SPDX-License-Identifier: Apache-2.0

// Package gateway bridges a VESW to an interface of the host: a vnic.Segment that stands for the network at that
// interface.
//
// What comes in: each frame that the interface receives, by a packet socket, VLAN tags inserted again and segments
// whole; the interface's state from rtnetlink. What goes out: frames from the VESW, to that network; the locally
// administered MACs there, which the Ethernet Manager distributes to the other ports. Package node opens one per
// gateway port, and a lane reads and writes it. It must never return a frame to the side of its sender, nor change the
// interface: all its effects end with the socket.
//
// The host's own programs are not reached by a gateway: frames that they send by the interface do not enter the VESW,
// and frames of the VESW are not delivered to them. A TAP device serves them.
package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/host/ifdev"
	"weft/internal/proto/ether"
	"weft/internal/proto/mono"
	"weft/internal/proto/problem"
	"weft/internal/service/vnic"
)

// Config names the interface.
type Config struct {
	Interface string
	Device    vnic.Device // the initial configuration of the port
	// Now is the clock. A lane reads it once per batch.
	Now func() mono.Time
	// Notify, unless nil, is called with the contents of Event, first and after changes, on a goroutine of the device.
	// Close waits for it. A receiver that acts upon it later should call Event then: Configure may have come between.
	Notify func(vnic.SegmentEvent)
}

// Counters are frames that did not pass, by reason.
type Counters struct {
	NotDelivered atomic.Uint64 // to the interface: refused by the kernel, as while it is down, or longer than its MTU
	Overrun      atomic.Uint64 // from the interface: the lane did not read them in time
	Looped       atomic.Uint64 // from one side, by a MAC that is on the other
	Repeated     atomic.Uint64 // to a group, passed the same way just before: a loop, or sent twice
	Local        atomic.Uint64 // to a MAC that is on the side where the frame came from
	Reserved     atomic.Uint64 // to the groups that no bridge forwards (IEEE 802.1Q table 8-1)
	Malformed    atomic.Uint64 // without a whole header, or from a group address
}

// Device is a gateway: a vnic.Segment. Its methods TryReadBatch, WriteBatch and WriteFrames belong to one
// goroutine, a lane; any goroutine may call the others.
type Device struct {
	*ifdev.Interface
	Counters Counters

	cfg  Config
	file *ifdev.Descriptor

	state    atomic.Pointer[state]
	outside  atomic.Pointer[[][6]byte] // by the lane
	notified *vnic.SegmentEvent        // of the goroutine that calls Config.Notify: the last one

	mu   sync.Mutex // guards what follows
	want vnic.Device

	bridge
}

var (
	_ vnic.Segment        = (*Device)(nil)
	_ vnic.SegmentControl = (*Device)(nil)
	_ vnic.FrameWriter    = (*Device)(nil)
)

// state is the interface as the kernel describes it. It is immutable.
type state struct {
	up      bool // and running
	mtu     int
	mac     [6]byte
	gone    bool
	problem string
}

// period is the time between two readings of the interface, and of the frames that it has lost, without a change.
const period = time.Second

// Open makes a gateway of an interface in the network namespace of the calling thread.
func Open(cfg Config) (*Device, error) {
	if cfg.Now == nil {
		return nil, fmt.Errorf("gateway to %s: no clock", cfg.Interface)
	}
	i, err := ifdev.New(unix.RTNLGRP_LINK)
	if err != nil {
		return nil, fmt.Errorf("gateway to %s: %w", cfg.Interface, err)
	}
	d := &Device{Interface: i, cfg: cfg, want: cfg.Device}
	if err := d.open(); err != nil {
		d.Close()
		return nil, fmt.Errorf("gateway to %s: %w", cfg.Interface, err)
	}
	d.bridge.init(d)
	d.Follow(ifdev.Pace{Period: period, Concerns: d.concerns}, d.follow, func(err error) {
		d.state.Store(&state{problem: "changes of the interface are not followed: " + err.Error()})
		d.notify()
	})
	return d, nil
}

func (d *Device) open() error {
	at, err := d.Find(d.cfg.Interface)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return &problem.Error{What: "find it", Why: "there is no such interface", Fix: "ip link lists them",
			Err: unix.ENODEV}
	}
	if err != nil {
		return err
	}
	if at.EncapType != "ether" || at.Flags&net.FlagLoopback != 0 {
		return &problem.Error{What: "use it", Why: "it is of type " + at.EncapType, Fix: "choose an Ethernet interface",
			Err: unix.EINVAL}
	}
	if err := d.readState(); err != nil {
		return err
	}
	// Protocol 0 receives nothing until bind, when the options are set.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return explain("packet socket", err)
	}
	if d.file, err = ifdev.NewDescriptor(fd, "packet"); err != nil {
		return err
	}
	return d.file.Control(d.setUpSocket)
}

// socketBuffer is the size of each of the socket's buffers, in octets.
const socketBuffer = 8 << 20

func (d *Device) setUpSocket(fd int) error {
	for _, o := range []struct {
		what   string
		option int
	}{
		{"offloads", unix.PACKET_VNET_HDR},
		{"tags", unix.PACKET_AUXDATA},
		// Frames that this host sends do not enter the VESW, least of all those that come from it.
		{"only what is received (since Linux 4.20)", unix.PACKET_IGNORE_OUTGOING},
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, o.option, 1); err != nil {
			return explain(o.what, err)
		}
	}
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		// Beyond the limit of other sockets, where the privilege allows it.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], socketBuffer); err != nil {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], socketBuffer); err != nil {
				return explain("buffers", err)
			}
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: d.Index()}); err != nil {
		return explain("bind", err)
	}
	membership := &unix.PacketMreq{Ifindex: int32(d.Index()), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, membership); err != nil {
		return explain("promiscuous mode", err)
	}
	return nil
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// explain adds to the error of a step its cause in the program's privileges, and the fix.
func explain(step string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return &problem.Error{What: step, Why: err.Error() + ": it needs CAP_NET_RAW",
			Fix: "run as root, or setcap cap_net_raw,cap_net_admin+ep on the program", Err: err}
	}
	return fmt.Errorf("%s: %w", step, err)
}

// Close ends the gateway and waits for the goroutine that follows the interface.
func (d *Device) Close() error {
	return d.Interface.Close(func() error {
		if d.file == nil {
			return nil
		}
		return d.file.Close()
	})
}

// Takes returns the offloads that the interface accepts; the kernel does those that its hardware cannot.
func (d *Device) Takes() ether.Features {
	return ether.FeatureCsum | ether.FeatureTSO4 | ether.FeatureTSO6 | ether.FeatureECN
}

// FD is readable while frames wait.
func (d *Device) FD() int { return d.file.FD() }

// Arm does nothing: FD is readable as long as a frame waits.
func (d *Device) Arm() (waiting bool) { return false }

// Problem is the reason for which no frame passes, or "".
func (d *Device) Problem() string { return d.state.Load().problem }

// Configure implements vnic.SegmentControl. The interface is the host's: it does not change.
func (d *Device) Configure(dev vnic.Device) {
	d.mu.Lock()
	d.want = dev
	d.mu.Unlock()
	d.Refresh()
}

// Event is the state of the port that Notify reports: up while the interface is up and has a carrier; as much of the
// interface's MTU as the VESW carries; in Unicast the locally administered MACs at the interface, which the other ports
// would otherwise assign to ports.
func (d *Device) Event() vnic.SegmentEvent {
	s := d.state.Load()
	d.mu.Lock()
	e := vnic.SegmentEvent{Up: s.up, MTU: min(s.mtu, max(d.want.MTU, d.want.MaxMTU)), MAC: d.want.MAC}
	d.mu.Unlock()
	if l := d.outside.Load(); l != nil {
		e.Unicast = *l
	}
	return e
}

// follow reads the interface after a change and reports it.
func (d *Device) follow() {
	if err := d.readState(); err != nil {
		d.state.Store(&state{problem: err.Error()})
	}
	d.countOverrun()
	d.notify()
}

// notify reports the state if it differs from the one that was reported last.
func (d *Device) notify() {
	e, last := d.Event(), d.notified
	if last != nil && e.Up == last.Up && e.MTU == last.MTU && e.MAC == last.MAC &&
		slices.Equal(e.Unicast, last.Unicast) {
		return
	}
	if d.notified = &e; d.cfg.Notify != nil {
		d.cfg.Notify(e)
	}
}

// concerns reports whether a notification of rtnetlink may be about the interface.
func (d *Device) concerns(m *syscall.NetlinkMessage) bool {
	return len(m.Data) < 8 || binary.NativeEndian.Uint32(m.Data[4:]) == uint32(d.Index())
}

// readState reads the state of the interface.
func (d *Device) readState() error {
	link, err := d.Netlink.LinkByIndex(d.Index())
	if ifdev.Removed(err) {
		d.state.Store(&state{gone: true, problem: ifdev.ErrRemoved.Error()})
		return nil
	}
	if err != nil {
		return fmt.Errorf("read interface: %w", err)
	}
	at := link.Attrs()
	s := &state{up: at.Flags&net.FlagUp != 0 && at.RawFlags&unix.IFF_RUNNING != 0, mtu: at.MTU}
	copy(s.mac[:], at.HardwareAddr)
	if !s.up {
		name := d.cfg.Interface
		s.problem = fmt.Sprintf("interface %s is down or has no carrier. fix: ip link set %s up", name, name)
	}
	d.state.Store(s)
	return nil
}

// countOverrun adds the frames that the kernel has dropped since the last call.
func (d *Device) countOverrun() {
	_ = d.file.Use(func(fd uintptr) {
		if s, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			d.Counters.Overrun.Add(uint64(s.Drops))
		}
	})
}
