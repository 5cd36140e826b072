// SPDX-License-Identifier: Apache-2.0

// Package netstack is IP stacks in the process, for users without privilege: of an IPoIB link (Device) and of a VESW
// port (Ether).
//
// What comes in: packets or frames of the fabric, connections of the host's programs to forwarded ports and to the
// SOCKS proxy, and packets of the node's own parts. What goes out: packets to the fabric, each with its next hop, or
// frames, and connections to the host's services. Package node opens one per link or port that has no interface of the
// host; ipoib.Link, or a port's lane, reads and writes it. A Device must never resolve a neighbour: its answers would
// have the wrong form, and are dropped below it (docs/notes/ipoib.md). An Ether resolves its own.
//
// The stack is gVisor's; none of its types leaves this package.
package netstack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	gvlog "gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/stack/gro"

	"weft/internal/service/ipoib"
)

const (
	// BatchSize is the number of packets that one read may produce.
	BatchSize = ipoib.BatchSize
	// maxIn and maxInBytes bound the packets that wait for the stack. Packets beyond them are dropped, as by any
	// interface.
	maxIn      = 4096
	maxInBytes = 16 << 20
	// Buffers of a TCP connection in each direction: fabrics are fast.
	tcpBuffer, maxTCPBuffer = 1 << 20, 8 << 20

	nic = tcpip.NICID(1)
)

// The stack logs errors of peers, which it counts too.
func init() { gvlog.SetTarget(silent{}) }

type silent struct{}

func (silent) Emit(int, gvlog.Level, time.Time, string, ...any) {}

// Config configures the stack.
type Config struct {
	Name string
	MTU  int // of IP packets; below 1280 there is no IPv6
	// LinkLocal is the link-local IPv6 address, if any.
	LinkLocal netip.Addr
	Addrs     []netip.Prefix
	Routes    []Route
	// Notify, unless nil, is called with addresses, prefixes and MTU, first and after changes, on a goroutine of the
	// device. Close waits for it.
	Notify func(ipoib.BackendEvent)
}

// Route is a way to a prefix by a gateway.
type Route struct {
	Dst netip.Prefix
	Via netip.Addr
}

// Validate reports every fault of c.
func (c Config) Validate() error {
	var errs []error
	if c.MTU < header.IPv4MinimumMTU || c.MTU > ipoib.MaxPacket {
		errs = append(errs, fmt.Errorf("MTU %d: want %d to %d", c.MTU, header.IPv4MinimumMTU, ipoib.MaxPacket))
	}
	if c.LinkLocal.IsValid() && (!c.LinkLocal.Is6() || !c.LinkLocal.IsLinkLocalUnicast() || c.LinkLocal.Zone() != "") {
		errs = append(errs, fmt.Errorf("%s is not a link-local IPv6 address", c.LinkLocal))
	}
	for _, a := range c.Addrs {
		if !a.IsValid() || a.Addr().IsMulticast() || a.Addr().IsUnspecified() || a.Addr().Is4In6() {
			errs = append(errs, fmt.Errorf("%s cannot be an interface's address", a))
		}
	}
	for _, r := range c.Routes {
		if !r.Dst.IsValid() || r.Dst != r.Dst.Masked() || !r.Via.IsValid() || r.Via.Is4() != r.Dst.Addr().Is4() {
			errs = append(errs, fmt.Errorf("route %s via %s: want a prefix without host bits and a gateway of its family", r.Dst, r.Via))
		}
	}
	return errors.Join(errs...)
}

// Counters are packets that were not carried, by reason.
type Counters struct {
	NoCarrier atomic.Uint64 // from the stack, while the link had no carrier
	TooBig    atomic.Uint64 // from the stack: longer than the MTU, and not TCP
	NotIP     atomic.Uint64 // to the stack: neither IPv4 nor IPv6
	InFull    atomic.Uint64 // to the stack, which had too many to handle
}

// Device is a stack: an ipoib.Backend. One goroutine may call ReadBatch, one
// WriteBatch, and any the others.
type Device struct {
	Counters Counters

	host
	cfg    Config
	ep     *endpoint
	in     *inbox
	wg     sync.WaitGroup // own goroutines
	tell   chan struct{}
	rejoin atomic.Bool // there is a carrier again

	// Of the reader.
	taken [32]*stack.PacketBuffer
	first int // of taken, next to be sent
	count int
	seg   segmenter
}

var _ ipoib.Backend = (*Device)(nil)

// Open makes a stack. Its carrier is off.
func Open(cfg Config) (*Device, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("make stack %s: %w", cfg.Name, err)
	}
	d := &Device{cfg: cfg, tell: make(chan struct{}, 1), in: newInbox()}
	d.ep = newEndpoint(cfg.MTU, &d.Counters.NoCarrier)
	p := plan{name: cfg.Name, v6: cfg.MTU >= header.IPv6MinimumMTU, linkLocal: cfg.LinkLocal, addrs: cfg.Addrs,
		routes: cfg.Routes}
	if err := d.host.open(p, d.ep); err != nil {
		d.ep.shut()
		return nil, fmt.Errorf("make stack %s: %w", cfg.Name, err)
	}
	d.wg.Add(2)
	go func() { defer d.wg.Done(); d.deliver() }()
	go func() { defer d.wg.Done(); d.follow() }()
	return d, nil
}

// Close ends the services, connections and goroutines of the device and waits
// for them. A ReadBatch in progress returns os.ErrClosed.
func (d *Device) Close() error {
	d.host.close(d.ep, func() {
		d.in.close()
		d.wg.Wait()
	})
	return nil
}

// Name is the link's.
func (d *Device) Name() string { return d.cfg.Name }

// ReadBatch waits for packets from the stack and writes each to bufs[i] from
// offset on, its length to sizes[i], and to hops[i] the address to resolve for
// it: a gateway, or the packet's own destination. Each buffer has room for the
// MTU after offset. After Close it returns os.ErrClosed.
func (d *Device) ReadBatch(bufs [][]byte, sizes []int, hops []netip.Addr, offset int) (n int, err error) {
	room := ipoib.MaxPacket
	for _, b := range bufs {
		room = min(room, len(b)-offset)
	}
	if len(bufs) == 0 || len(sizes) < len(bufs) || len(hops) < len(bufs) || room < header.IPv4MinimumMTU {
		return 0, fmt.Errorf("read %s: %d buffers, %d sizes, %d hops, room for %d octets", d.cfg.Name, len(bufs),
			len(sizes), len(hops), room)
	}
	for n < len(bufs) {
		if d.seg.pkt == nil {
			if d.first == d.count {
				if n > 0 {
					return n, nil
				}
				d.first, d.count = 0, d.ep.take(d.taken[:])
				if d.count == 0 {
					return 0, os.ErrClosed
				}
			}
			p := d.taken[d.first]
			d.taken[d.first] = nil
			d.first++
			if !d.seg.start(p, min(room, int(d.ep.MTU()))) {
				d.Counters.TooBig.Add(1)
				continue
			}
		}
		hops[n] = d.seg.hop
		sizes[n] = d.seg.next(bufs[n][offset:])
		n++
	}
	return n, nil
}

// WriteBatch passes packets, each bufs[i][offset:], to the stack, which handles them on a goroutine of its own. They
// are copied; one kind of ICMP error is changed.
func (d *Device) WriteBatch(bufs [][]byte, offset int) error {
	if !d.in.begin() {
		return os.ErrClosed
	}
	defer d.in.end()
	for _, b := range bufs {
		b = b[offset:]
		var proto tcpip.NetworkProtocolNumber
		switch {
		case len(b) > 0 && b[0]>>4 == 4:
			proto = ipv4.ProtocolNumber
		case len(b) > 0 && b[0]>>4 == 6:
			proto = ipv6.ProtocolNumber
			understandable(b)
		default:
			d.Counters.NotIP.Add(1)
			continue
		}
		p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
		p.NetworkProtocolNumber = proto
		if !d.in.put(p) {
			p.DecRef()
			d.Counters.InFull.Add(1)
		}
	}
	return nil
}

// understandable changes "address unreachable" (RFC 4443 §3.1, code 3) to "no route to destination" (code 0): the stack
// ignores the former, and a connection to an address without a neighbour would wait for its timeout.
func understandable(p []byte) {
	const nextHeader, icmp, kind, code, sum = 6, 58, 40, 41, 42
	if len(p) < header.IPv6MinimumSize+header.ICMPv6MinimumSize || p[nextHeader] != icmp ||
		p[kind] != uint8(header.ICMPv6DstUnreachable) ||
		p[code] != uint8(header.ICMPv6AddressUnreachable) {
		return
	}
	// The sum loses the code, so that its complement gains it (RFC 1624).
	old := binary.BigEndian.Uint16(p[sum:])
	binary.BigEndian.PutUint16(p[sum:], checksum.Combine(old, uint16(p[code])))
	p[code] = uint8(header.ICMPv6NetworkUnreachable)
}

// deliver passes the packets that were written to the stack, segments of a connection joined.
func (d *Device) deliver() {
	var merge gro.GRO
	merge.Init(true)
	merge.Dispatcher = d.ep
	d.in.each(merge.Enqueue, merge.Flush)
}

// follow applies changes of carrier and MTU, which may wait.
func (d *Device) follow() {
	var told int
	for {
		if d.rejoin.Swap(false) {
			d.rejoinGroups()
		}
		if mtu := int(d.ep.MTU()); mtu != told && d.cfg.Notify != nil {
			told = mtu
			d.cfg.Notify(ipoib.BackendEvent{Addrs: d.addrs(), OnLink: d.onLink(), MTU: mtu, Up: true})
		}
		select {
		case <-d.tell:
		case <-d.ctx.Done():
			return
		}
	}
}

func (d *Device) changed() {
	select {
	case d.tell <- struct{}{}:
	default: // one waits
	}
}

// SetCarrier has packets pass, or drops them.
func (d *Device) SetCarrier(on bool) error {
	d.ep.setCarrier(on)
	if on {
		d.rejoin.Store(true)
		d.changed()
	}
	return nil
}

// SetMTU changes the MTU. Connections that exist follow it. Whether there is
// IPv6 does not change.
func (d *Device) SetMTU(mtu int) error {
	c := d.cfg
	if c.MTU = mtu; c.Validate() != nil {
		return fmt.Errorf("MTU of %s: %w", d.cfg.Name, c.Validate())
	}
	d.ep.SetMTU(uint32(mtu))
	d.changed()
	return nil
}
