// SPDX-License-Identifier: Apache-2.0

// Package tun is the IP interface of an IPoIB link as a Linux TUN device.
//
// What comes in: packets of the host's IP stack, super-packets split to the
// MTU, each with the next hop it is for; addresses, routes and the state of
// the interface as the administrator changes them, from rtnetlink. What goes
// out: packets from the fabric, segments of a flow merged again. Package node
// opens one per link; ipoib.Link reads and writes it. It must never answer or
// make a packet, and leaves nothing behind: with the descriptor goes the
// interface, and with it its addresses and routes.
//
// The kernel runs neither ARP nor Neighbor Discovery on such a device, does
// not show gateways in what it sends, and joins no group by itself
// (docs/notes/ipoib.md): whoever uses this package does the former with the
// addresses of State, and Device.ReadBatch the gateways.
package tun

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/service/ipoib"
)

const (
	// BatchSize is the number of packets that ReadBatch may produce.
	BatchSize = ipoib.BatchSize
	// maxSegments is how many of them one super-packet may have: devices are
	// told so. Several may so be read at a time.
	maxSegments = 64
	// minMTU6 is the MTU below which the kernel has no IPv6 on an interface
	// (RFC 8200 §5).
	minMTU6 = 1280
)

// ErrGone means that somebody removed the interface.
var ErrGone = errors.New("the interface was removed")

// Config says what interface to make.
type Config struct {
	Name string // at most 15 characters
	MTU  int    // of IP packets
	// QueueLen is how many packets may wait to be read (the tx_queue_len of
	// the interface); 0 means the kernel's default.
	QueueLen int
	// InfiniBand makes the interface one of type 32 (ARPHRD_INFINIBAND) to
	// those who ask the kernel. Its hardware address still has no length.
	InfiniBand bool
	// LinkLocal is the link-local IPv6 address of the interface; if zero, the
	// kernel makes one up.
	LinkLocal netip.Addr
	// Addrs and Routes are set whenever the interface comes up, which Up does
	// at once; others may be added by ip(8) at any time.
	Addrs  []netip.Prefix
	Routes []Route
	Up     bool
	// Notify, unless nil, is told what State says, first and after changes, on a
	// goroutine of the device. Close waits for it.
	Notify func(ipoib.BackendEvent)
}

// Validate reports every fault of c.
func (c Config) Validate() error {
	var errs []error
	if n := c.Name; n == "" || len(n) >= unix.IFNAMSIZ || n == "." || n == ".." || strings.ContainsAny(n, "/:% \t\n\x00") {
		errs = append(errs, fmt.Errorf("name %q: want 1 to %d characters without '/', ':', '%%' or space", n, unix.IFNAMSIZ-1))
	}
	if c.MTU < 68 || c.MTU > 65535 { // RFC 791: every module forwards 68
		errs = append(errs, fmt.Errorf("MTU %d: want 68 to 65535", c.MTU))
	}
	if c.QueueLen < 0 {
		errs = append(errs, fmt.Errorf("queue length %d is negative", c.QueueLen))
	}
	if c.LinkLocal.IsValid() && (!c.LinkLocal.Is6() || !c.LinkLocal.IsLinkLocalUnicast() || c.LinkLocal.Zone() != "") {
		errs = append(errs, fmt.Errorf("%s is not a link-local IPv6 address", c.LinkLocal))
	}
	for _, a := range c.Addrs {
		if !a.IsValid() || a.Addr().IsMulticast() || a.Addr().IsUnspecified() {
			errs = append(errs, fmt.Errorf("%s cannot be an interface's address", a))
		}
	}
	for _, r := range c.Routes {
		if !r.Dst.IsValid() || r.Dst != r.Dst.Masked() || len(r.Via) > 1 {
			errs = append(errs, fmt.Errorf("route %s via %v: want a prefix without host bits, and at most one gateway", r.Dst, r.Via))
		}
	}
	return errors.Join(errs...)
}

// Counters are what was not carried, by reason, and what had to be mended.
type Counters struct {
	TooManySegments atomic.Uint64 // from the stack: super-packets cut off for want of buffers
	Unusable        atomic.Uint64 // from the stack: longer than the caller's buffers, or offloaded in a way not asked for
	NotIP           atomic.Uint64 // from the stack: neither IPv4 nor IPv6
	NotDelivered    atomic.Uint64 // to the stack: refused by the kernel, as while the interface is down
	MTURestored     atomic.Uint64 // somebody changed the MTU, and it was set again
	Reconfigured    atomic.Uint64 // the interface came up again, and got its addresses and routes back
}

// Device is a TUN interface: an ipoib.Backend. One goroutine may call ReadBatch or TryReadBatch, one
// WriteBatch, and any the others.
type Device struct {
	Counters Counters

	cfg    Config
	q      queue
	nl     *netlink.Handle
	link   netlink.Link // name and index only
	events *os.File     // rtnetlink

	state   atomic.Pointer[State]
	closed  atomic.Bool
	gone    atomic.Bool
	watcher chan struct{} // closed when the watcher has ended
	cancel  context.CancelFunc

	mu      sync.Mutex // guards what follows, and orders changes of the interface
	mtu     int        // what it shall be
	ready   bool       // up since addresses were last set
	ready6  bool       // and with an MTU that allows IPv6
	problem string

	lastTable *Routes // of the reader, as the rest: NextHop of lastDst is lastHop
	lastDst   netip.Addr
	lastHop   netip.Addr
}

var _ ipoib.Backend = (*Device)(nil)

// Open makes the interface in the network namespace of the calling thread. Its
// carrier is off. On failure nothing is left of it.
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
	d := &Device{cfg: cfg, mtu: cfg.MTU, watcher: make(chan struct{})}
	if d.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", err)
	}
	defer func() {
		if err != nil {
			d.release()
		}
	}()
	// Bound before there is anything to miss.
	if d.events, err = subscribe(); err != nil {
		return nil, err
	}
	fd, udp, err := create(cfg)
	if err != nil {
		return nil, err
	}
	if err = d.q.init(fd, udp); err != nil {
		return nil, err
	}
	if d.link, err = d.nl.LinkByName(cfg.Name); err != nil {
		return nil, fmt.Errorf("find it: %w", err)
	}
	// A step that needs no undoing: all of it goes with the descriptor.
	steps := []struct {
		what string
		do   func() error
	}{
		{"set MTU", func() error { return d.nl.LinkSetMTU(d.link, cfg.MTU) }},
		{"limit segments", func() error { return d.nl.LinkSetGSOMaxSegs(d.link, maxSegments) }},
		{"set queue length", func() error {
			if cfg.QueueLen == 0 {
				return nil
			}
			return d.nl.LinkSetTxQLen(d.link, cfg.QueueLen)
		}},
		{"keep the kernel from making a link-local address", d.noLinkLocal},
		{"bring up", func() error {
			if !cfg.Up {
				return nil
			}
			return d.nl.LinkSetUp(d.link)
		}},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return nil, explain(s.what, err)
		}
	}
	if err := d.refresh(true); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	go d.watch(ctx)
	return d, nil
}

// create makes the device without any address, and tells whether segments of UDP go
// through it whole.
func create(cfg Config) (fd int, udp bool, err error) {
	const path = "/dev/net/tun"
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, false, explain("open "+path, err)
	}
	ok := false
	defer func() {
		if !ok {
			unix.Close(fd)
		}
	}()
	req, err := unix.NewIfreq(cfg.Name)
	if err != nil {
		return -1, false, err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return -1, false, explain("create it", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETLE, 1); err != nil {
		return -1, false, explain("set the byte order of offloads", err)
	}
	const offloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN
	if udp = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads|unix.TUN_F_USO4|unix.TUN_F_USO6) == nil; !udp { // before Linux 6.2
		if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads); err != nil {
			return -1, false, explain("enable offloads", err)
		}
	}
	if cfg.InfiniBand {
		if err := unix.IoctlSetInt(fd, unix.TUNSETLINK, unix.ARPHRD_INFINIBAND); err != nil {
			return -1, false, explain("set device type 32", err)
		}
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETCARRIER, 0); err != nil {
		return -1, false, explain("turn carrier off", err)
	}
	ok = true
	return fd, udp, nil
}

// release closes what is open.
func (d *Device) release() error {
	err := d.q.close()
	if d.events != nil {
		d.events.Close()
	}
	d.nl.Close()
	return err
}

// Close removes the interface and waits for the watcher. A ReadBatch in
// progress returns os.ErrClosed.
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
func (d *Device) Index() int { return d.link.Attrs().Index }

// ended is the error of a device that no longer works, for a read or write
// that failed with err. What the runtime makes of a descriptor whose interface
// was removed depends on who notices first; the kernel is asked.
func (d *Device) ended(err error) error {
	gone := d.gone.Load() || errors.Is(err, os.ErrClosed)
	if !gone {
		asked := d.q.control(func(fd int) error {
			req, err := unix.NewIfreq("")
			if err != nil {
				return err
			}
			return unix.IoctlIfreq(fd, unix.TUNGETIFF, req)
		})
		gone = errors.Is(asked, unix.EBADFD)
	}
	switch {
	case d.closed.Load():
		return os.ErrClosed
	case gone:
		return ErrGone
	}
	return err
}

// ReadBatch waits for packets from the IP stack and writes each to bufs[i]
// from offset on, its length to sizes[i], and to hops[i] the address to
// resolve for it: a gateway, or the packet's own destination. All slices have
// at least BatchSize elements, and each buffer room for the MTU after offset.
// What it returns is at least one packet, or an error after which there are no
// more: os.ErrClosed, ErrGone, or the kernel's.
func (d *Device) ReadBatch(bufs [][]byte, sizes []int, hops []netip.Addr, offset int) (int, error) {
	for {
		if n, _, err := d.TryReadBatch(bufs, sizes, hops, offset); n > 0 || err != nil {
			return n, err
		}
		d.q.await()
	}
}

// TryReadBatch is ReadBatch that does not wait: it returns 0 where nothing is
// there to be read, or nothing but what is refused. more tells that it stopped
// before all was read.
func (d *Device) TryReadBatch(bufs [][]byte, sizes []int, hops []netip.Addr, offset int) (n int, more bool, err error) {
	if len(bufs) < BatchSize || len(sizes) < len(bufs) || len(hops) < len(bufs) {
		return 0, false, fmt.Errorf("read %s: %d buffers, %d sizes, %d hops: want %d of each", d.cfg.Name, len(bufs), len(sizes), len(hops), BatchSize)
	}
	if n, more, err = d.fill(bufs, sizes, hops, offset); n > 0 && err != nil {
		return n, true, nil // the next read fails so too
	} else if err != nil {
		return 0, false, d.ended(err)
	}
	return n, more, nil
}

func (d *Device) fill(bufs [][]byte, sizes []int, hops []netip.Addr, offset int) (n int, more bool, err error) {
	q := &d.q
	q.mu.RLock()
	defer q.mu.RUnlock()
	table := d.state.Load().Routes
	if table != d.lastTable {
		d.lastTable, d.lastDst = table, netip.Addr{}
	}
	// Bounded, lest a flood of what is refused holds the caller.
	for reads := 0; reads < BatchSize && n <= len(bufs)-maxSegments; reads++ {
		p, err := q.read()
		if p == nil || err != nil {
			return n, false, err
		}
		dst, ok := destination(p)
		if !ok {
			d.Counters.NotIP.Add(1)
			continue
		}
		count, good := q.begin(p, len(bufs[n])-offset)
		switch {
		case !good:
			d.Counters.Unusable.Add(1)
			continue
		case count > len(bufs)-n:
			d.Counters.TooManySegments.Add(1)
			continue
		}
		if dst != d.lastDst {
			d.lastDst, d.lastHop = dst, table.NextHop(dst)
		}
		for range count {
			sizes[n] = q.split.Len()
			q.split.Next(bufs[n][offset:])
			hops[n] = d.lastHop
			n++
		}
	}
	return n, true, nil
}

// Control calls f with a descriptor that is readable while packets wait. It is the
// device's.
func (d *Device) Control(f func(fd int) error) error { return d.q.control(f) }

// WriteBatch hands packets to the IP stack, each bufs[i][offset:]. Segments of a
// connection are joined. What the kernel refuses is counted; an error means that
// there will be no more writes.
func (d *Device) WriteBatch(bufs [][]byte, offset int) error {
	for len(bufs) > 0 {
		n := min(len(bufs), BatchSize)
		lost, err := d.q.write(bufs[:n], offset)
		d.Counters.NotDelivered.Add(uint64(lost))
		if err != nil {
			return d.ended(err)
		}
		bufs = bufs[n:]
	}
	return nil
}

// SetCarrier tells the kernel whether the link carries packets.
func (d *Device) SetCarrier(on bool) error {
	v := 0
	if on {
		v = 1
	}
	err := d.q.control(func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TUNSETCARRIER, v) })
	if err != nil {
		return fmt.Errorf("carrier of %s: %w", d.cfg.Name, d.ended(err))
	}
	return nil
}

// SetMTU changes the MTU, and what it is set back to when somebody else
// changes it. Below 1280 the kernel has no IPv6 on the interface, and addresses
// and routes of that family that are not in Config are gone.
func (d *Device) SetMTU(mtu int) error {
	c := d.cfg
	if c.MTU = mtu; c.Validate() != nil {
		return fmt.Errorf("MTU of %s: %w", d.cfg.Name, c.Validate())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return fmt.Errorf("MTU of %s: %w", d.cfg.Name, os.ErrClosed)
	}
	if err := d.nl.LinkSetMTU(d.link, mtu); err != nil {
		return explain("MTU of "+d.cfg.Name, err)
	}
	d.mtu = mtu
	return nil
}
