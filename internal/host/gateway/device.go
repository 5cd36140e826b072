// SPDX-License-Identifier: Apache-2.0

// Package gateway bridges a VESW to an interface of the host: a vnic.Segment whose stations are those of the network
// at that interface.
//
// What comes in: every frame that the interface receives, by a packet socket, tags put back and segments whole; its state from
// rtnetlink. What goes out: frames from the VESW, to that network; which stations with local addresses are there, for the
// Ethernet Manager to tell the other ports. Package node opens one per gateway port, and a lane reads and writes it. It must never let a frame
// back to the side that its sender is on, nor change the interface: with the socket goes all that it did.
//
// The host's own programs are not at the gateway: what they send by the interface does not enter the VESW, nor do they get what comes
// out of it. A TAP device is for them.
package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/proto/ether"
	"weft/internal/proto/mono"
	"weft/internal/service/vnic"
)

// ErrGone means that the interface was removed, or moved to another namespace.
var ErrGone = errors.New("the interface was removed")

// Config says what interface to use.
type Config struct {
	Interface string
	Device    vnic.Device // how the port begins
	// Now is the time, for a lane to ask once per batch.
	Now func() mono.Time
	// Notify, unless nil, is told what Event says, first and after changes, on a
	// goroutine of the device. Close waits for it. Whoever acts upon it later should ask
	// Event then: Configure may have come between.
	Notify func(vnic.SegmentEvent)
}

// Counters are frames that did not pass, by reason.
type Counters struct {
	NotDelivered atomic.Uint64 // to the interface: refused by the kernel, as while it is down, or longer than its MTU
	Overrun      atomic.Uint64 // from the interface: the lane did not read them in time
	Looped       atomic.Uint64 // from one side, by a station that is on the other
	Repeated     atomic.Uint64 // to a group, passed the same way just now: went round, or was sent twice
	Local        atomic.Uint64 // to a station that is on the side where it came from
	Reserved     atomic.Uint64 // to the groups that no bridge forwards (IEEE 802.1Q table 8-1)
	Malformed    atomic.Uint64 // without a whole header, or from a group
}

// Device is a gateway: a vnic.FrameWriter. Its methods TryReadBatch, WriteBatch and WriteFrames
// belong to one goroutine, a lane; any goroutine may call the others.
type Device struct {
	Counters Counters

	cfg    Config
	file   *os.File // not known to the runtime's poller: the lane watches it
	fd     int
	conn   syscall.RawConn
	nl     *netlink.Handle
	index  int
	events *os.File // rtnetlink

	state   atomic.Pointer[state]
	outside atomic.Pointer[[][6]byte] // by the lane
	closed  atomic.Bool
	tell    chan struct{}
	cancel  context.CancelFunc
	wg      sync.WaitGroup // own goroutines

	mu   sync.Mutex // guards what follows
	want vnic.Device

	lane
}

var _ vnic.FrameWriter = (*Device)(nil)

// state is what the kernel says of the interface. It is immutable.
type state struct {
	up      bool // and running
	mtu     int
	mac     [6]byte
	gone    bool
	problem string
}

// Open makes a gateway of an interface in the network namespace of the calling thread.
func Open(cfg Config) (*Device, error) {
	if cfg.Now == nil {
		return nil, fmt.Errorf("gateway to %s: no clock", cfg.Interface)
	}
	d := &Device{cfg: cfg, want: cfg.Device, tell: make(chan struct{}, 1)}
	if err := d.open(); err != nil {
		d.release()
		return nil, fmt.Errorf("gateway to %s: %w", cfg.Interface, err)
	}
	d.lane.init(d)
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	d.wg.Add(2)
	go func() { defer d.wg.Done(); d.watch(ctx) }()
	go func() { defer d.wg.Done(); d.follow(ctx) }()
	return d, nil
}

func (d *Device) open() (err error) {
	if d.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("rtnetlink: %w", err)
	}
	// Bound before there is anything to miss.
	if d.events, err = subscribe(); err != nil {
		return err
	}
	link, err := d.nl.LinkByName(d.cfg.Interface)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return fmt.Errorf("%w: no such interface. fix: ip link shows which there are", unix.ENODEV)
	}
	if err != nil {
		return fmt.Errorf("find it: %w", err)
	}
	at := link.Attrs()
	if at.EncapType != "ether" || at.Flags&net.FlagLoopback != 0 {
		return fmt.Errorf("%w: it is of type %s. fix: choose an Ethernet interface", unix.EINVAL, at.EncapType)
	}
	d.index = at.Index
	if err := d.look(); err != nil {
		return err
	}
	return d.socket()
}

// Sizes of the socket's buffers.
const socketBuffer = 8 << 20

func (d *Device) socket() error {
	// Deaf until it is set up.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return explain("packet socket", err)
	}
	// What blocks is left alone by the runtime's poller, which would otherwise be
	// woken for each frame, beside the lane. It does not block for long.
	d.fd, d.file = fd, os.NewFile(uintptr(fd), "packet")
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("make it non-blocking: %w", err)
	}
	if d.conn, err = d.file.SyscallConn(); err != nil {
		return err
	}
	for _, o := range []struct {
		what   string
		option int
	}{
		{"offloads", unix.PACKET_VNET_HDR},
		{"tags", unix.PACKET_AUXDATA},
		// What this host sends is not for the VESW, least of all what comes from it.
		{"only what is received (since Linux 4.20)", unix.PACKET_IGNORE_OUTGOING},
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, o.option, 1); err != nil {
			return explain(o.what, err)
		}
	}
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		// Beyond the limit that is set for others, where we may.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], socketBuffer); err != nil {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], socketBuffer); err != nil {
				return explain("buffers", err)
			}
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: d.index}); err != nil {
		return explain("bind", err)
	}
	err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &unix.PacketMreq{Ifindex: int32(d.index), Type: unix.PACKET_MR_PROMISC})
	if err != nil {
		return explain("promiscuous mode", err)
	}
	return nil
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// explain says what failed, why, and what to do.
func explain(what string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%s: %w: it needs CAP_NET_RAW. fix: run as root, or setcap cap_net_raw,cap_net_admin+ep on the program", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (d *Device) release() {
	if d.file != nil {
		d.file.Close()
	}
	if d.events != nil {
		d.events.Close()
	}
	if d.nl != nil {
		d.nl.Close()
	}
}

// Close ends the gateway and waits for its goroutines.
func (d *Device) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	d.cancel()
	d.wg.Wait()
	d.release()
	return nil
}

// Name is the interface's.
func (d *Device) Name() string { return d.cfg.Interface }

// Takes returns what the interface takes; the kernel does what its hardware cannot.
func (d *Device) Takes() ether.Features {
	return ether.FeatureCsum | ether.FeatureTSO4 | ether.FeatureTSO6 | ether.FeatureECN
}

// FD is readable while frames wait.
func (d *Device) FD() int { return d.fd }

// Arm does nothing: FD is readable as long as anything waits.
func (d *Device) Arm() (waiting bool) { return false }

// Problem is what does not work as it should, or "".
func (d *Device) Problem() string { return d.state.Load().problem }

// Configure is of vnic.Segment. The interface is the host's: nothing of it changes.
func (d *Device) Configure(dev vnic.Device) {
	d.mu.Lock()
	d.want = dev
	d.mu.Unlock()
	d.changed()
}

func (d *Device) changed() {
	select {
	case d.tell <- struct{}{}:
	default: // one waits
	}
}

// Event is what the port is now, as Notify is told: up while the interface is up and has a carrier; with as much of its MTU as
// the VESW carries; Unicast are stations at the interface that have local addresses, which other ports would take for
// those of ports.
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

// follow tells what changes.
func (d *Device) follow(ctx context.Context) {
	var told vnic.SegmentEvent
	for first := true; ; first = false {
		e := d.Event()
		same := !first && e.Up == told.Up && e.MTU == told.MTU && e.MAC == told.MAC && slices.Equal(e.Unicast, told.Unicast)
		if told = e; !same && d.cfg.Notify != nil {
			d.cfg.Notify(e)
		}
		select {
		case <-d.tell:
		case <-ctx.Done():
			return
		}
	}
}

// subscribe opens a socket of the calling thread's namespace that hears of changes of interfaces.
func subscribe() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch interfaces: %w", err)
	}
	f := os.NewFile(uintptr(fd), "rtnetlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK}); err != nil {
		f.Close()
		return nil, fmt.Errorf("watch interfaces: %w", err)
	}
	return f, nil
}

// watch reads the interface after changes, and what was lost each second, until ctx ends.
func (d *Device) watch(ctx context.Context) {
	defer context.AfterFunc(ctx, func() { _ = d.events.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 64<<10)
	for due := time.Now(); ; {
		_ = d.events.SetReadDeadline(due)
		// The end of ctx sets a deadline too, which the line above may just have
		// overwritten; then ctx has ended by now.
		if ctx.Err() != nil {
			return
		}
		n, err := d.events.Read(buf)
		switch {
		case err == nil && !d.concerns(buf[:n]):
			continue
		case err == nil, errors.Is(err, unix.ENOBUFS): // the kernel had more to say than fits
		case errors.Is(err, os.ErrDeadlineExceeded):
			due = time.Now().Add(time.Second)
			d.overrun()
			continue
		default:
			d.state.Store(&state{problem: "watch interfaces: " + err.Error()})
			d.changed()
			return
		}
		if err := d.look(); err != nil {
			d.state.Store(&state{problem: err.Error()})
		}
		d.changed()
	}
}

// concerns reports whether rtnetlink messages may be about the interface.
func (d *Device) concerns(b []byte) bool {
	msgs, err := syscall.ParseNetlinkMessage(b)
	return err != nil || slices.ContainsFunc(msgs, func(m syscall.NetlinkMessage) bool {
		return len(m.Data) < 8 || binary.NativeEndian.Uint32(m.Data[4:]) == uint32(d.index)
	})
}

// look reads the state of the interface.
func (d *Device) look() error {
	link, err := d.nl.LinkByIndex(d.index)
	if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
		d.state.Store(&state{gone: true, problem: ErrGone.Error()})
		return nil
	}
	if err != nil {
		return fmt.Errorf("read interface: %w", err)
	}
	at := link.Attrs()
	s := &state{up: at.Flags&net.FlagUp != 0 && at.RawFlags&unix.IFF_RUNNING != 0, mtu: at.MTU}
	copy(s.mac[:], at.HardwareAddr)
	if !s.up {
		s.problem = fmt.Sprintf("interface %s is down or has no carrier. fix: ip link set %s up", d.cfg.Interface, d.cfg.Interface)
	}
	d.state.Store(s)
	return nil
}

// overrun adds what the kernel has lost since it was asked last.
func (d *Device) overrun() {
	_ = d.conn.Control(func(fd uintptr) {
		if s, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			d.Counters.Overrun.Add(uint64(s.Drops))
		}
	})
}
