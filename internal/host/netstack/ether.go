// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"weft/internal/proto/ether"
	"weft/internal/service/vnic"
)

const (
	// etherBatch is the number of frames that one TryReadBatch gives at most.
	etherBatch = 32
	// takesEther are the offloads that the stack accepts: it cannot split datagrams.
	takesEther = ether.FeatureCsum | ether.FeatureTSO4 | ether.FeatureTSO6 | ether.FeatureECN
)

// EtherConfig configures the stack of a VESW port.
type EtherConfig struct {
	Name string
	// MTU is the requested MTU; the interface gets at most that of the VESW (Device.MaxMTU). 0 means
	// the MTU of the VESW.
	MTU    int
	Device vnic.Device // how it begins
	// Addrs are its addresses; the link-local one of IPv6 is made of the first MAC. Duplicate address detection is off.
	Addrs  []netip.Prefix
	Routes []Route
	// Wake wakes the lane: frames wait to be read. It is called from any goroutine, after Arm.
	Wake func()
	// Notify, unless nil, is called with the contents of Event, first and after changes, on a goroutine of the device.
	// Close waits for it.
	Notify func(vnic.SegmentEvent)
}

// Validate reports every fault of c.
func (c EtherConfig) Validate() error {
	var errs []error
	if c.Wake == nil {
		errs = append(errs, errors.New("no function to wake the lane"))
	}
	if c.MTU != 0 && (c.MTU < header.IPv4MinimumMTU || c.MTU > ether.MaxIP) {
		errs = append(errs, fmt.Errorf("MTU %d: want %d to %d", c.MTU, header.IPv4MinimumMTU, ether.MaxIP))
	}
	if c.Device.MTU < header.IPv4MinimumMTU {
		errs = append(errs, fmt.Errorf("MTU %d of the port: want at least %d", c.Device.MTU, header.IPv4MinimumMTU))
	}
	// The other settings do not depend on the link.
	of := Config{MTU: header.IPv4MinimumMTU, Addrs: c.Addrs, Routes: c.Routes}
	return errors.Join(append(errs, of.Validate())...)
}

// EtherCounters are frames that were not carried, by reason.
type EtherCounters struct {
	NoCarrier atomic.Uint64 // from the stack, while the port had no carrier
	InFull    atomic.Uint64 // to the stack, which had too many to handle
	OtherHost atomic.Uint64 // to the stack, for another's address
	Long      atomic.Uint64 // from the stack, beyond what a frame can be
}

// Ether is an IP stack with an Ethernet interface, which finds its neighbours itself: a vnic.Segment for users
// without privilege. Its methods TryReadBatch, WriteBatch, WriteFrames and Arm belong to one goroutine, a lane; any
// goroutine may call the others.
type Ether struct {
	Counters EtherCounters

	host
	cfg  EtherConfig
	ep   *endpoint
	in   *inbox
	wg   sync.WaitGroup // own goroutines
	tell chan struct{}
	mac  atomic.Uint64 // as a little-endian number

	mu     sync.Mutex // guards what follows
	dev    vnic.Device
	again  bool // carrier or MAC changed: groups and addresses must be announced
	linked bool // there is a link-local address

	// Of the lane.
	taken [etherBatch]*stack.PacketBuffer
	bufs  [etherBatch][]byte
	one   [1][]byte
}

var (
	_ vnic.Segment        = (*Ether)(nil)
	_ vnic.SegmentControl = (*Ether)(nil)
)

// OpenEther makes a stack.
func OpenEther(cfg EtherConfig) (*Ether, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("make stack %s: %w", cfg.Name, err)
	}
	d := &Ether{cfg: cfg, tell: make(chan struct{}, 1), in: newInbox(), dev: cfg.Device}
	d.ep = newEndpoint(cfg.mtu(cfg.Device)+header.EthernetMinimumSize, &d.Counters.NoCarrier)
	d.ep.wake = cfg.Wake
	// Until the port has a MAC, the stack has one that no station has.
	d.setMAC(cfg.Device.MAC)
	p := plan{name: cfg.Name, v6: cfg.mtu(cfg.Device) >= header.IPv6MinimumMTU, addrs: cfg.Addrs, routes: cfg.Routes}
	if err := d.host.open(p, ethernet.New(d.ep), arp.NewProtocol); err != nil {
		d.ep.shut()
		return nil, fmt.Errorf("make stack %s: %w", cfg.Name, err)
	}
	d.linkLocal(cfg.Device.MAC)
	d.ep.setCarrier(cfg.Device.Carrier)
	d.again = cfg.Device.Carrier
	d.wg.Add(2)
	go func() { defer d.wg.Done(); d.in.each(d.deliver, func() {}) }()
	go func() { defer d.wg.Done(); d.follow() }()
	return d, nil
}

// mtu is the MTU of the interface for a port's configuration.
func (c EtherConfig) mtu(dev vnic.Device) int {
	if c.MTU != 0 {
		return min(c.MTU, max(dev.MTU, dev.MaxMTU))
	}
	return max(dev.MTU, dev.MaxMTU)
}

func (d *Ether) setMAC(mac [6]byte) {
	d.ep.SetLinkAddress(tcpip.LinkAddress(mac[:]))
	d.mac.Store(number(mac[:]))
}

// number is a MAC as a little-endian number.
func number(mac []byte) uint64 {
	return uint64(binary.LittleEndian.Uint32(mac)) | uint64(binary.LittleEndian.Uint16(mac[4:]))<<32
}

// linkLocal gives the stack the address that RFC 4291 (appendix A) makes of the first MAC.
func (d *Ether) linkLocal(mac [6]byte) {
	if d.linked || mac == [6]byte{} || !d.plan.v6 {
		return
	}
	d.linked = true
	a := netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3],
		mac[4], mac[5]}), 64)
	if d.addAddr(a) == nil { // otherwise it is one of those that were given
		d.addRoute(a.Masked(), netip.Addr{})
	}
}

// Close ends the services, connections and goroutines of the device and waits
// for them.
func (d *Ether) Close() error {
	d.host.close(d.ep, func() {
		d.in.close()
		d.wg.Wait()
	})
	return nil
}

// Name is the interface's.
func (d *Ether) Name() string { return d.cfg.Name }

// FD is of vnic.Segment: there is none, EtherConfig.Wake is called.
func (d *Ether) FD() int { return -1 }

// Arm is of vnic.Segment.
func (d *Ether) Arm() (waiting bool) { return d.ep.arm() }

// Takes is of vnic.Segment.
func (d *Ether) Takes() ether.Features { return takesEther }

// TryReadBatch is of vnic.Segment.
func (d *Ether) TryReadBatch(frames [][]byte, off []ether.Offload) (int, error) {
	k, open := d.ep.tryTake(d.taken[:min(len(frames), len(off), etherBatch)])
	if !open {
		return 0, os.ErrClosed
	}
	n := 0
	for i, p := range d.taken[:k] {
		d.taken[i] = nil
		if p.Size() > ether.MaxFrame {
			d.Counters.Long.Add(1)
			p.DecRef()
			continue
		}
		if d.bufs[n] == nil {
			d.bufs[n] = make([]byte, ether.MaxFrame)
		}
		size := 0
		for _, s := range p.AsSlices() {
			size += copy(d.bufs[n][size:], s)
		}
		frames[n], off[n] = d.bufs[n][:size:size], offload(p)
		p.DecRef()
		n++
	}
	return n, nil
}

// offload describes the work that the stack has left to the link.
func offload(p *stack.PacketBuffer) (o ether.Offload) {
	g := p.GSOOptions
	if g.Type == stack.GSONone || !g.NeedsCsum {
		return o
	}
	o = ether.Offload{Flags: ether.NeedsCsum, CsumStart: uint16(len(p.LinkHeader().Slice())) + g.L3HdrLen,
		CsumOffset: g.CsumOffset}
	if p.Data().Size() > int(g.MSS) {
		o.GSO, o.GSOSize, o.HdrLen = ether.GSOTCPv4, g.MSS, uint16(p.HeaderSize())
		if g.Type == stack.GSOTCPv6 {
			o.GSO = ether.GSOTCPv6
		}
	}
	return o
}

// WriteBatch is of vnic.Segment. The stack handles frames on a goroutine of its own.
func (d *Ether) WriteBatch(frames [][]byte, off []ether.Offload) (dropped int) {
	if !d.in.begin() {
		return len(frames)
	}
	defer d.in.end()
	for i, f := range frames {
		d.one[0] = f
		if !d.put(ether.Frame{Parts: d.one[:], Len: len(f), Off: off[i]}) {
			dropped++
		}
	}
	return dropped
}

// WriteFrames is WriteBatch for frames in pieces.
func (d *Ether) WriteFrames(frames []ether.Frame) (dropped int) {
	if !d.in.begin() {
		return len(frames)
	}
	defer d.in.end()
	for i := range frames {
		if !d.put(frames[i]) {
			dropped++
		}
	}
	return dropped
}

// put copies a frame to the inbox, unless it is for another. It reports whether there was room.
func (d *Ether) put(f ether.Frame) bool {
	if f.Len < ether.HeaderLen || f.Len > ether.MaxFrame || len(f.Parts[0]) < ether.HeaderLen {
		return true // no frame at all: nothing is lost
	}
	if dst := f.Parts[0][:6]; dst[0]&1 == 0 && number(dst) != d.mac.Load() {
		d.Counters.OtherHost.Add(1)
		return true
	}
	v := buffer.NewViewSize(f.Len)
	to := v.AsSlice()
	for _, p := range f.Parts {
		to = to[copy(to, p):]
	}
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(v)})
	// Sums that are not complete never left the node, or belong to a segment that was verified frame by frame.
	p.RXChecksumValidated = f.Off.Flags != 0
	if !d.in.put(p) {
		p.DecRef()
		d.Counters.InFull.Add(1)
		return false
	}
	return true
}

func (d *Ether) deliver(p *stack.PacketBuffer) {
	if f, ok := p.Data().PullUp(header.EthernetMinimumSize + header.ARPSize); ok {
		d.heard(f)
	}
	d.ep.DeliverNetworkPacket(0, p)
}

// Configure is of vnic.SegmentControl.
func (d *Ether) Configure(dev vnic.Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.dev
	d.dev = dev
	if dev.MAC != last.MAC && dev.MAC != [6]byte{} {
		d.setMAC(dev.MAC)
		d.linkLocal(dev.MAC)
		d.again = true
	}
	d.ep.SetMTU(uint32(d.cfg.mtu(dev) + header.EthernetMinimumSize))
	d.ep.setCarrier(dev.Carrier)
	d.again = d.again || dev.Carrier && !last.Carrier
	d.changed()
}

func (d *Ether) changed() {
	select {
	case d.tell <- struct{}{}:
	default: // one waits
	}
}

// Event is the state of the interface, which Notify reports.
func (d *Ether) Event() vnic.SegmentEvent {
	d.mu.Lock()
	e := vnic.SegmentEvent{Up: true, MTU: d.cfg.mtu(d.dev), MAC: d.dev.MAC}
	d.mu.Unlock()
	e.Multicast = append(e.Multicast, [6]byte{1, 0, 0x5e, 0, 0, 1}) // RFC 1112 §6.4: all hosts
	add := func(a netip.Addr) {
		b := a.As16()
		mac := [6]byte{0x33, 0x33, b[12], b[13], b[14], b[15]} // RFC 2464 §7
		if a.Is4() {
			mac = [6]byte{1, 0, 0x5e, b[13] & 0x7f, b[14], b[15]}
		}
		e.Multicast = append(e.Multicast, mac)
	}
	if d.plan.v6 {
		add(netip.IPv6LinkLocalAllNodes())
		for _, a := range d.stack.AllAddresses()[nic] {
			if ip := a.AddressWithPrefix.Address; ip.Len() == 16 { // RFC 4291 §2.7.1: solicited-node groups
				b := ip.As16()
				add(netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 0xff, b[13], b[14], b[15]}))
			}
		}
	}
	d.groups.Lock()
	for a := range d.groups.joined {
		add(a)
	}
	d.groups.Unlock()
	slices.SortFunc(e.Multicast, func(a, b [6]byte) int { return slices.Compare(a[:], b[:]) })
	e.Multicast = slices.Compact(e.Multicast)
	return e
}

// JoinGroup makes the stack a member of a group, and reports it to routers by IGMP or MLD, and to Notify. Calls are
// counted.
func (d *Ether) JoinGroup(group netip.Addr) error {
	defer d.changed()
	return d.host.JoinGroup(group)
}

// LeaveGroup undoes one JoinGroup.
func (d *Ether) LeaveGroup(group netip.Addr) error {
	defer d.changed()
	return d.host.LeaveGroup(group)
}

// follow applies changes, which may wait.
func (d *Ether) follow() {
	var told vnic.SegmentEvent
	for first := true; ; first = false {
		d.mu.Lock()
		again := d.again && d.dev.Carrier
		if again {
			d.again = false
		}
		d.mu.Unlock()
		if again {
			d.rejoinGroups()
			d.announce()
		}
		e := d.Event()
		same := !first && e.MTU == told.MTU && e.MAC == told.MAC && slices.Equal(e.Multicast, told.Multicast)
		if told = e; !same && d.cfg.Notify != nil {
			d.cfg.Notify(e)
		}
		select {
		case <-d.tell:
		case <-d.ctx.Done():
			return
		}
	}
}

// Resolve finds the MAC of an address on the link, or of the gateway to it, by ARP or Neighbor Discovery. EHOSTUNREACH:
// there was no answer.
func (d *Ether) Resolve(ctx context.Context, ip netip.Addr) (mac [6]byte, err error) {
	type result = stack.LinkResolutionResult
	got := make(chan result, 1)
	if err := d.resolve(ip, func(r result) { got <- r }); err != nil {
		return mac, fmt.Errorf("resolve %s: %w", ip, err)
	}
	select {
	case r := <-got:
		if r.Err != nil {
			return mac, fmt.Errorf("resolve %s: %w", ip, named(errors.New(r.Err.String())))
		}
		copy(mac[:], r.LinkAddress)
		return mac, nil
	case <-ctx.Done():
		return mac, fmt.Errorf("resolve %s: %w", ip, ctx.Err())
	case <-d.ctx.Done():
		return mac, fmt.Errorf("resolve %s: %w", ip, os.ErrClosed)
	}
}

// Seek is Resolve for callers that do not wait for the answer: found is called once with it, unless Seek returns an
// error, on any goroutine, and must not call the stack. Seek itself may wait for the lane to read frames.
func (d *Ether) Seek(ip netip.Addr, found func(mac [6]byte, ok bool)) error {
	return d.resolve(ip, func(r stack.LinkResolutionResult) {
		var mac [6]byte
		copy(mac[:], r.LinkAddress)
		found(mac, r.Err == nil && len(r.LinkAddress) == len(mac))
	})
}

func (d *Ether) resolve(ip netip.Addr, then func(stack.LinkResolutionResult)) error {
	f, proto := full(netip.AddrPortFrom(ip, 0))
	r, terr := d.stack.FindRoute(nic, tcpip.Address{}, f.Addr, proto, false)
	if terr != nil {
		return named(errors.New(terr.String()))
	}
	defer r.Release()
	hop := r.NextHop()
	if hop.Len() == 0 {
		hop = f.Addr
	}
	switch terr := d.stack.GetLinkAddress(nic, hop, r.LocalAddress(), proto, then).(type) {
	case nil, *tcpip.ErrWouldBlock:
		return nil
	default:
		return named(errors.New(terr.String()))
	}
}
