// SPDX-License-Identifier: Apache-2.0

// Package tap is the interface of a VESW port as a Linux TAP device.
//
// What comes in: frames of the host's IP stack or bridge, segments whole and checksums to be
// completed as the kernel leaves them; what the administrator makes of the interface, from
// rtnetlink. What goes out: frames from the VESW, segments too, in pieces where the
// caller has them so. Package node opens one per port, and a lane reads and writes it. It must never look into a
// frame, and leaves nothing behind: with the descriptor goes the interface.
package tap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft/internal/proto/ether"
	"weft/internal/service/vnic"
)

// ErrGone means that somebody removed the interface, or moved it to another
// namespace.
var ErrGone = errors.New("the interface was removed")

// Name is that of the interface of a port which has no other.
func Name(function uint16, vport uint8) string { return fmt.Sprintf("opa%dv%d", function, vport) }

// Config says what interface to make.
type Config struct {
	Name string // at most 15 characters
	// Device is how it begins. With a zero MAC the kernel makes one up, which is told to
	// nobody before Configure has given another.
	Device vnic.Device
	// QueueLen is how many frames may wait to be read (the tx_queue_len of
	// the interface); 0 means the kernel's default.
	QueueLen int
	// Up sets the interface up, as the administrator may do later.
	Up bool
	// Notify, unless nil, is told what Event says, first and after changes, on a
	// goroutine of the device. Close waits for it. Whoever acts upon it later should ask
	// Event then: Configure may have come between.
	Notify func(vnic.SegmentEvent)
}

// Validate reports every fault of c.
func (c Config) Validate() error {
	var errs []error
	if n := c.Name; n == "" || len(n) >= unix.IFNAMSIZ || n == "." || n == ".." || strings.ContainsAny(n, "/:% \t\n\x00") {
		errs = append(errs, fmt.Errorf("name %q: want 1 to %d characters without '/', ':', '%%' or space", n, unix.IFNAMSIZ-1))
	}
	if d := c.Device; d.MTU < minMTU || d.MTU > maxMTU || d.MaxMTU < d.MTU || d.MaxMTU > maxMTU {
		errs = append(errs, fmt.Errorf("MTU %d of at most %d: want %d to %d", d.MTU, d.MaxMTU, minMTU, maxMTU))
	}
	if c.Device.MAC[0]&1 != 0 {
		errs = append(errs, fmt.Errorf("MAC %x is a group's", c.Device.MAC))
	}
	if c.QueueLen < 0 {
		errs = append(errs, fmt.Errorf("queue length %d is negative", c.QueueLen))
	}
	return errors.Join(errs...)
}

const (
	minMTU = 68    // RFC 791: every module forwards as much
	maxMTU = 65521 // of the kernel's driver
)

// Counters are what was not carried, by reason, and what had to be mended.
type Counters struct {
	NotDelivered atomic.Uint64 // to the host: refused by the kernel, as while the interface is down
	MTURestored  atomic.Uint64 // somebody set the MTU above what the VESW carries
}

// Device is a TAP interface: a vnic.Segment. Its methods TryReadBatch, WriteBatch and WriteFrames
// belong to one goroutine, a lane; any goroutine may call the others.
type Device struct {
	Counters Counters

	cfg    Config
	file   *os.File // not known to the runtime's poller: the lane watches it
	fd     int
	conn   syscall.RawConn
	takes  ether.Features
	nl     *netlink.Handle
	dumps  map[int]*nl.SocketHandle // for what netlink.Handle cannot ask
	index  int
	events *os.File // rtnetlink

	state   atomic.Pointer[state]
	closed  atomic.Bool
	watcher chan struct{} // closed when the watcher has ended
	cancel  context.CancelFunc

	mu      sync.Mutex // guards what follows, and orders changes of the interface
	want    vnic.Device
	named   bool // a MAC was configured
	problem string

	lane
}

var _ vnic.Segment = (*Device)(nil)

// Open makes the interface in the network namespace of the calling thread. On
// failure nothing is left of it.
func Open(cfg Config) (*Device, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("make interface: %w", err)
	}
	d, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("make interface %s: %w", cfg.Name, err)
	}
	return d, nil
}

func open(cfg Config) (_ *Device, err error) {
	d := &Device{cfg: cfg, watcher: make(chan struct{})}
	if d.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", err)
	}
	defer func() {
		if err != nil {
			d.release()
		}
	}()
	sock, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", err)
	}
	d.dumps = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: sock}}
	// Bound before there is anything to miss.
	if d.events, err = subscribe(); err != nil {
		return nil, err
	}
	if err = d.create(); err != nil {
		return nil, err
	}
	link, err := d.nl.LinkByName(cfg.Name)
	if err != nil {
		return nil, fmt.Errorf("find it: %w", err)
	}
	d.index = link.Attrs().Index
	if cfg.QueueLen > 0 {
		if err := d.nl.LinkSetTxQLen(link, cfg.QueueLen); err != nil {
			return nil, explain("set queue length", err)
		}
	}
	d.announce()
	// The state at first is empty: everything is a change.
	d.state.Store(&state{})
	if err := d.apply(cfg.Device, link.Attrs()); err != nil {
		return nil, err
	}
	if cfg.Up {
		if err := d.nl.LinkSetUp(link); err != nil {
			return nil, explain("bring up", err)
		}
	}
	if err := d.refresh(); err != nil {
		return nil, err
	}
	d.lane.init()
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	go d.watch(ctx)
	return d, nil
}

// Offloads of a TAP device that x/sys does not name (linux/if_tun.h).
const (
	tunFUSO4 = 0x20
	tunFUSO6 = 0x40
)

// create makes the device.
func (d *Device) create() error {
	const path = "/dev/net/tun"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return explain("open "+path, err)
	}
	// What blocks is left alone by the runtime's poller, which would otherwise be
	// woken for each frame, beside the lane. It does not block for long.
	d.fd, d.file = fd, os.NewFile(uintptr(fd), path)
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("make it non-blocking: %w", err)
	}
	if d.conn, err = d.file.SyscallConn(); err != nil {
		return err
	}
	req, err := unix.NewIfreq(d.cfg.Name)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return explain("create it", err)
	}
	// No carrier before Configure says so.
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETCARRIER, 0); err != nil {
		return explain("turn carrier off", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETLE, 1); err != nil {
		return explain("set the byte order of offloads", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, ether.OffloadLen); err != nil {
		return explain("set the length of offloads", err)
	}
	const tcp = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN
	d.takes = ether.FeatureCsum | ether.FeatureTSO4 | ether.FeatureTSO6 | ether.FeatureECN
	err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcp|tunFUSO4|tunFUSO6)
	switch {
	case err == nil:
		d.takes |= ether.FeatureUSO4 | ether.FeatureUSO6
	case errors.Is(err, unix.EINVAL): // segments of datagrams came with Linux 6.2
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcp)
	}
	if err != nil {
		return explain("enable offloads", err)
	}
	return nil
}

// announce has the kernel tell the neighbours when the MAC changes or the interface comes
// up: a VESW's manager may give it another.
func (d *Device) announce() {
	for _, path := range []string{"/proc/sys/net/ipv4/conf/%s/arp_notify", "/proc/sys/net/ipv6/conf/%s/ndisc_notify"} {
		path = fmt.Sprintf(path, d.cfg.Name)
		err := os.WriteFile(path, []byte("1"), 0)
		if err != nil && !(errors.Is(err, os.ErrNotExist) && strings.Contains(path, "ipv6")) { // a host without IPv6
			d.problem = "neighbours are not told of another MAC: " + err.Error()
		}
	}
}

// release closes what is open.
func (d *Device) release() error {
	var err error
	if d.file != nil {
		err = d.file.Close()
	}
	if d.events != nil {
		d.events.Close()
	}
	for _, s := range d.dumps {
		s.Close()
	}
	d.nl.Close()
	return err
}

// Close removes the interface and waits for the watcher.
func (d *Device) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	d.cancel()
	<-d.watcher
	d.mu.Lock() // whoever changes the interface is done
	defer d.mu.Unlock()
	return d.release()
}

// Name is the interface's.
func (d *Device) Name() string { return d.cfg.Name }

// Index is the interface's, by which the kernel knows it.
func (d *Device) Index() int { return d.index }

// Takes returns what the kernel takes: all of it, segments of datagrams since Linux 6.2.
func (d *Device) Takes() ether.Features { return d.takes }

// FD is readable while frames wait.
func (d *Device) FD() int { return d.fd }

// Arm does nothing: FD is readable as long as anything waits.
func (d *Device) Arm() (waiting bool) { return false }

// Problem is what could not be done as it should be, or "".
func (d *Device) Problem() string { return d.state.Load().problem }

// Configure makes the interface what dev says, as far as that differs from what it
// said before: what the administrator has changed since stays. A failure is in Problem.
func (d *Device) Configure(dev vnic.Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return
	}
	link, err := d.nl.LinkByIndex(d.index)
	if err == nil {
		err = d.apply(dev, link.Attrs())
	}
	if err != nil {
		d.problem = err.Error()
	} else {
		d.problem = ""
	}
	if err := d.look(); err != nil {
		d.publish(func(s *state) { s.problem = err.Error() })
	}
}

// apply sets what is to be other than it was to be before. at is what the kernel says now.
func (d *Device) apply(dev vnic.Device, at *netlink.LinkAttrs) error {
	last := d.want
	d.want = dev
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: d.index, Name: d.cfg.Name}}
	if dev.MAC != last.MAC && dev.MAC != [6]byte{} {
		d.named = true
		if string(at.HardwareAddr) != string(dev.MAC[:]) {
			if err := d.nl.LinkSetHardwareAddr(link, dev.MAC[:]); err != nil {
				return explain("set MAC", err)
			}
		}
	}
	if mtu := dev.MTU; mtu != last.MTU && mtu != at.MTU || at.MTU > dev.MaxMTU {
		if err := d.nl.LinkSetMTU(link, min(mtu, dev.MaxMTU)); err != nil {
			return explain("set MTU", err)
		}
	}
	if dev.Carrier != last.Carrier {
		on := 0
		if dev.Carrier {
			on = 1
		}
		err := d.control(func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TUNSETCARRIER, on) })
		if err != nil {
			return explain("set carrier", err)
		}
	}
	return nil
}

// control calls f with the descriptor.
func (d *Device) control(f func(fd int) error) error {
	var inner error
	if err := d.conn.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return os.ErrClosed
	}
	return inner
}

// explain says what of making an interface failed, why, and what to do.
func explain(what string, err error) error {
	fix := ""
	switch {
	case strings.HasPrefix(what, "open") && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO)):
		fix = "the kernel's TUN driver is missing. fix: modprobe tun; in a container add --device /dev/net/tun"
	case strings.HasPrefix(what, "open") && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)):
		fix = "not allowed. fix: chmod 666 /dev/net/tun; in a container add --device /dev/net/tun"
	case errors.Is(err, unix.EPERM):
		fix = "it needs CAP_NET_ADMIN. fix: run as root, or setcap cap_net_admin+ep on the program"
	case errors.Is(err, unix.EBUSY):
		fix = "an interface of that name exists. fix: ip link delete it, or choose another name"
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w: %s", what, err, fix)
}
