// SPDX-License-Identifier: Apache-2.0

// Package tun is the IP interface of an IPoIB link as a Linux TUN device.
//
// What comes in: packets of the host's IP stack, super-packets split to the MTU, each with its next hop; addresses,
// routes and the state of the interface as the administrator changes them, from rtnetlink. What goes out: packets from
// the fabric, segments of a flow merged again. Package node opens one per link; ipoib.Link reads and writes it. It must
// never answer or make a packet, and leaves nothing behind: the interface, its addresses and routes end with the
// descriptor.
//
// On such a device the kernel runs neither ARP nor Neighbor Discovery, omits gateways from what it sends, and joins no
// group by itself (docs/notes/ipoib.md). The caller runs the former with the addresses of State; Device.ReadBatch
// supplies the gateways.
package tun

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/host/ifdev"
	"weft/internal/service/ipoib"
)

const (
	// BatchSize is the number of packets that ReadBatch may produce.
	BatchSize = ipoib.BatchSize
	// maxSegments is the number of packets that one super-packet may become, a limit of the interface. A read so has
	// room for several.
	maxSegments = 64
	// minMTU6 is the MTU below which the kernel has no IPv6 on an interface (RFC 8200 §5).
	minMTU6 = 1280
)

// Config configures the interface.
type Config struct {
	Name string // at most 15 characters
	MTU  int    // of IP packets
	// QueueLen is how many packets may wait to be read (the tx_queue_len of the interface); 0 means the kernel's
	// default.
	QueueLen int
	// InfiniBand makes the interface one of type 32 (ARPHRD_INFINIBAND). Its hardware address still has length 0.
	InfiniBand bool
	// LinkLocal is the link-local IPv6 address of the interface; if zero, the kernel generates one.
	LinkLocal netip.Addr
	// Addrs and Routes are set each time the interface comes up. Up brings it up at once. ip(8) may add others.
	Addrs  []netip.Prefix
	Routes []Route
	Up     bool
	// Notify, unless nil, is called with the contents of State, first and after changes, on a goroutine of the device.
	// Close waits for it.
	Notify func(ipoib.BackendEvent)
}

// Validate reports every fault of c.
func (c Config) Validate() error {
	var errs []error
	errs = append(errs, ifdev.ValidateName(c.Name))
	if c.MTU < 68 || c.MTU > 65535 { // RFC 791: every module forwards 68
		errs = append(errs, fmt.Errorf("MTU %d: want 68 to 65535", c.MTU))
	}
	if c.QueueLen < 0 {
		errs = append(errs, fmt.Errorf("queue length %d is negative", c.QueueLen))
	}
	if l := c.LinkLocal; l.IsValid() && (!l.Is6() || !l.IsLinkLocalUnicast() || l.Zone() != "") {
		errs = append(errs, fmt.Errorf("%s is not a link-local IPv6 address", c.LinkLocal))
	}
	for _, a := range c.Addrs {
		if !a.IsValid() || a.Addr().IsMulticast() || a.Addr().IsUnspecified() {
			errs = append(errs, fmt.Errorf("%s cannot be an interface's address", a))
		}
	}
	for _, r := range c.Routes {
		if !r.Dst.IsValid() || r.Dst != r.Dst.Masked() || len(r.Via) > 1 {
			errs = append(errs,
				fmt.Errorf("route %s via %v: want a prefix without host bits, and at most one gateway", r.Dst, r.Via))
		}
	}
	return errors.Join(errs...)
}

// Counters are packets that were not carried, by reason, and repairs of the interface.
type Counters struct {
	TooManySegments atomic.Uint64 // from the stack: super-packets cut off for lack of buffers
	Unusable        atomic.Uint64 // from the stack: longer than the caller's buffers, or an offload that is not enabled
	NotIP           atomic.Uint64 // from the stack: neither IPv4 nor IPv6
	NotDelivered    atomic.Uint64 // to the stack: refused by the kernel, as while the interface is down
	MTURestored     atomic.Uint64 // the MTU was changed from outside, and set again
	Reconfigured    atomic.Uint64 // the interface came up again, and its addresses and routes were set again
}

// Device is a TUN interface: an ipoib.Backend. One goroutine may call ReadBatch or TryReadBatch, one WriteBatch, and
// any the others.
type Device struct {
	*ifdev.Interface
	Counters Counters

	cfg Config
	q   queue

	state   atomic.Pointer[State]
	removed atomic.Bool

	mu      sync.Mutex // guards what follows, and orders changes of the interface
	mtu     int        // the MTU that the interface must have
	ready   bool       // up since addresses were last set
	ready6  bool       // and with an MTU that allows IPv6
	problem string

	notified *State // of the goroutine that calls Config.Notify: the last one

	lastTable *Routes // of the reader, as the rest: NextHop of lastDst is lastHop
	lastDst   netip.Addr
	lastHop   netip.Addr
}

var _ ipoib.Backend = (*Device)(nil)

// Open makes the interface in the network namespace of the calling thread, without carrier. On failure nothing is left
// of it.
func Open(cfg Config) (*Device, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("make interface: %w", err)
	}
	i, err := ifdev.New(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_NEXTHOP) // since Linux 5.3: nexthop objects change under routes without a notification for each
	if err != nil {
		return nil, fmt.Errorf("make interface %s: %w", cfg.Name, err)
	}
	d := &Device{Interface: i, cfg: cfg, mtu: cfg.MTU}
	if err := d.open(); err != nil {
		d.Close()
		return nil, fmt.Errorf("make interface %s: %w", cfg.Name, err)
	}
	d.Follow(ifdev.Pace{Gap: gap, Concerns: d.concerns}, d.follow, func(err error) {
		d.publish(func(s *State) { s.Problem = "changes of the interface are not followed: " + err.Error() })
		d.notify()
	})
	return d, nil
}

func (d *Device) open() error {
	cfg := d.cfg
	fd, features, err := ifdev.CreateTUN(cfg.Name, ifdev.TUN, func(fd int) error {
		if !cfg.InfiniBand {
			return nil
		}
		if err := unix.IoctlSetInt(fd, unix.TUNSETLINK, unix.ARPHRD_INFINIBAND); err != nil {
			return ifdev.TUN.Explain("set device type 32", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err = d.q.init(fd, features); err != nil {
		return err
	}
	if _, err = d.Find(cfg.Name); err != nil {
		return err
	}
	if err = d.Mark(); err != nil {
		return err
	}
	// No step needs to be undone: the interface ends with the descriptor.
	link := d.Link()
	steps := []struct {
		what string
		skip bool
		do   func() error
	}{
		{"set MTU", false, func() error { return d.Netlink.LinkSetMTU(link, cfg.MTU) }},
		{"limit segments", false, func() error { return d.Netlink.LinkSetGSOMaxSegs(link, maxSegments) }},
		{"set queue length", cfg.QueueLen == 0, func() error { return d.Netlink.LinkSetTxQLen(link, cfg.QueueLen) }},
		{"turn the kernel's link-local address off", false, d.disableLinkLocal},
		{"bring up", !cfg.Up, func() error { return d.Netlink.LinkSetUp(link) }},
	}
	for _, s := range steps {
		if s.skip {
			continue
		}
		if err := s.do(); err != nil {
			return ifdev.TUN.Explain(s.what, err)
		}
	}
	return d.refresh(true)
}

// Close removes the interface and waits for the goroutine that follows it. A ReadBatch in progress returns
// os.ErrClosed.
func (d *Device) Close() error {
	return d.Interface.Close(func() error {
		d.mu.Lock() // no change of the interface is in progress
		defer d.mu.Unlock()
		return d.q.close()
	})
}

// ended is the error of a device that no longer works, for a read or write that failed with err. A
// descriptor of a removed interface fails in several ways, depending on the layer that detects it
// first; the kernel reports the case.
func (d *Device) ended(err error) error {
	removed := d.removed.Load() || errors.Is(err, os.ErrClosed)
	if !removed {
		state := d.q.control(func(fd int) error {
			req, err := unix.NewIfreq("")
			if err != nil {
				return err
			}
			return unix.IoctlIfreq(fd, unix.TUNGETIFF, req)
		})
		removed = errors.Is(state, unix.EBADFD)
	}
	switch {
	case d.Closed():
		return os.ErrClosed
	case removed:
		return ifdev.ErrRemoved
	}
	return err
}

// ReadBatch waits for packets from the IP stack and writes each to bufs[i] from offset on, its length to sizes[i], and
// to hops[i] the address to resolve for it: a gateway, or the packet's own destination. All slices have at least
// BatchSize elements, and each buffer room for the MTU after offset. It returns at least one packet, or an error after
// which there are no more: os.ErrClosed, ifdev.ErrRemoved, or the kernel's.
func (d *Device) ReadBatch(bufs [][]byte, sizes []int, hops []netip.Addr, offset int) (int, error) {
	for {
		if n, _, err := d.TryReadBatch(bufs, sizes, hops, offset); n > 0 || err != nil {
			return n, err
		}
		d.q.await()
	}
}

// TryReadBatch is ReadBatch that does not wait: it returns 0 where no packet waits, or only refused ones. more reports
// that it stopped before all were read.
func (d *Device) TryReadBatch(bufs [][]byte, sizes []int, hops []netip.Addr, offset int) (n int, more bool, err error) {
	if len(bufs) < BatchSize || len(sizes) < len(bufs) || len(hops) < len(bufs) {
		return 0, false, fmt.Errorf("read %s: %d buffers, %d sizes, %d hops: want %d of each", d.cfg.Name, len(bufs),
			len(sizes), len(hops), BatchSize)
	}
	if n, more, err = d.fill(bufs, sizes, hops, offset); n > 0 && err != nil {
		return n, true, nil // the next read fails too
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
	// Bounded: a flood of refused packets must not keep the caller.
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

// Control calls f with the device's descriptor, which is readable while packets wait.
func (d *Device) Control(f func(fd int) error) error { return d.q.control(f) }

// WriteBatch writes packets to the IP stack, each bufs[i][offset:]. Segments of a connection are joined. Packets that
// the kernel refuses are counted; an error means that no later write succeeds.
func (d *Device) WriteBatch(bufs [][]byte, offset int) error {
	for len(bufs) > 0 {
		n := min(len(bufs), BatchSize)
		refused, err := d.q.write(bufs[:n], offset)
		d.Counters.NotDelivered.Add(uint64(refused))
		if err != nil {
			return d.ended(err)
		}
		bufs = bufs[n:]
	}
	return nil
}

// SetCarrier sets the interface's carrier.
func (d *Device) SetCarrier(on bool) error {
	if err := d.q.control(func(fd int) error { return ifdev.SetCarrier(fd, on) }); err != nil {
		return fmt.Errorf("carrier of %s: %w", d.cfg.Name, d.ended(err))
	}
	return nil
}

// SetMTU changes the MTU. A later change from outside is set back to it. Below 1280 the kernel has no IPv6 on the
// interface, and removes addresses and routes of that family; those of Config come back with a larger MTU.
func (d *Device) SetMTU(mtu int) error {
	c := d.cfg
	if c.MTU = mtu; c.Validate() != nil {
		return fmt.Errorf("MTU of %s: %w", d.cfg.Name, c.Validate())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Closed() {
		return fmt.Errorf("MTU of %s: %w", d.cfg.Name, os.ErrClosed)
	}
	if err := d.Netlink.LinkSetMTU(d.Link(), mtu); err != nil {
		return ifdev.TUN.Explain("MTU of "+d.cfg.Name, err)
	}
	d.mtu = mtu
	return nil
}
