// SPDX-License-Identifier: Apache-2.0

package vesw

import (
	"net/netip"
	"slices"
	"syscall"

	"weft/internal/fabric/link/neighbour"
	"weft/internal/fabric/link/roceframe"
	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/service/vnic"
	"weft/internal/verbs/hca"
)

// GuestPort is the Ethernet port of a function that a guest owns: the network card of a virtual machine with a RoCE
// half. The guest's driver chooses the addresses of the port (ADD_GID of the virtio-net RoCE RFC). RoCEv2 packets to
// them pass the port's link to the queue pairs of the guest; all other frames pass the rings of the guest. The port of
// the function in the fabric stays as it is, and carries the frames.
//
// Lane 0 owns all fields that change, and calls all methods unless they say otherwise.
type GuestPort struct {
	h       *Host
	a       *hca.Adapter
	notify  func(events []ib.Event)
	link    *roceframe.Link // of station
	station *station
	ask     *neighbour.Resolver // of destinations for which the driver stated no MAC
	gids    []hca.GIDEntry      // by the driver's index
	at      *guestSegment       // nil: the port is in no virtual Ethernet switch
	dev     vnic.Device         // as the segment is configured
	halted  bool                // the device of the guest is stopped (Halt)
	// answering is set while the resolver reports a result: the data path is in the midst of a batch.
	answering bool
	pushing   bool // frames of the link leave in the midst of a queue pair's turn
}

// NewGuestPort makes the Ethernet port of a guest, without a function yet. notify gets the events of the port, on the
// lane.
func (h *Host) NewGuestPort(notify func(a *hca.Adapter, events []ib.Event)) *GuestPort {
	p := &GuestPort{h: h}
	p.notify = func(events []ib.Event) { notify(p.a, events) }
	p.ask = neighbour.New([6]byte{}, func(ip netip.Addr, mac [6]byte, ok bool) {
		p.answering = true
		p.link.Resolved(h.cfg.Now(), ip, mac, ok)
		p.answering = false
	})
	return p
}

// Begin gives the port its function, which has its number, before the function is plugged in. Any goroutine but a lane
// may call it.
func (p *GuestPort) Begin(a *hca.Adapter) error {
	h := p.h
	p.makeLink(a)
	if err := h.addStation(p.station); err != nil {
		return err
	}
	h.mu.Lock()
	h.guests[a.Name] = p
	h.mu.Unlock()
	return nil
}

// makeLink makes the link of the port with a function.
func (p *GuestPort) makeLink(a *hca.Adapter) {
	p.a = a
	p.station = p.h.newStation(a, roceframe.Config{Shared: true, Resolve: p.resolve, Push: p.push},
		func() (*lanePort, uint16) {
			if p.at == nil || p.at.port.seg != vnic.Segment(p.at) {
				return nil, 0
			}
			return p.at.port, p.at.vesw
		})
	p.link = p.station.link
}

// Remove undoes Begin, after the function was unplugged. Any goroutine but a lane may call it.
func (p *GuestPort) Remove() {
	h := p.h
	h.mu.Lock()
	delete(h.guests, p.a.Name)
	h.mu.Unlock()
	h.removeStation(p.station)
}

// guestPort returns the Ethernet port of the guest with a card's name, nil if the card has none. Any goroutine may call
// it.
func (h *Host) guestPort(card string) *GuestPort {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.guests[card]
}

// Link returns the link of the port.
func (p *GuestPort) Link() *roceframe.Link { return p.link }

// Resolver returns the counters of the resolution of destinations.
func (p *GuestPort) Resolver() neighbour.Counters { return p.ask.Counters() }

// Port returns the port as the guest sees it. It may be called before Begin, on any goroutine.
func (p *GuestPort) Port() *hca.Port {
	v := p.h.ethernetPort(&p.dev, p.at != nil && !p.halted)
	v.GIDs = slices.Clone(p.gids)
	return v
}

// SetGID makes gid the address of the port with an index, or removes that address if gid is zero. EADDRINUSE: another
// port of this node in the same virtual Ethernet switch has the address.
func (p *GuestPort) SetGID(index uint32, gid ib.GID) error {
	if !gid.IsZero() && p.at != nil && p.h.addressInUse(gid, p.at.vesw, p) {
		return syscall.EADDRINUSE
	}
	for uint32(len(p.gids)) <= index {
		p.gids = append(p.gids, hca.GIDEntry{})
	}
	p.gids[index].GID = gid
	p.publish()
	return nil
}

// ClearGIDs removes all addresses: the guest's driver is gone.
func (p *GuestPort) ClearGIDs() {
	p.gids = nil
	p.ask.Reset() // an address may be another station's by now
	p.link.Reset()
	p.publish()
}

// Halt takes the port down while the device of the guest is stopped, and lets it come up again.
func (p *GuestPort) Halt(on bool) {
	p.halted = on
	p.publish()
}

// publish makes the port of the function what the guest and the virtual Ethernet switch have made it.
func (p *GuestPort) publish() {
	v := p.Port()
	events := v.Changes(p.a.Port())
	p.a.SetPort(v)
	gids := make([]ib.GID, len(v.GIDs))
	for i := range v.GIDs {
		gids[i] = v.GIDs[i].GID
	}
	p.link.SetPort(p.dev.MAC, gids)
	p.ask.SetMAC(p.dev.MAC)
	if len(events) > 0 {
		p.notify(events)
	}
}

// resolve is the link's Config.Resolve. The question comes from an address of the port in the same network, as far as
// the addresses tell: they have no prefix.
func (p *GuestPort) resolve(ip netip.Addr) bool {
	if p.at == nil {
		return false
	}
	var from netip.Addr
	for _, e := range p.gids {
		a := e.GID.Addr()
		if e.GID.IsZero() || a.Is4() != ip.Is4() {
			continue
		}
		fits := a.IsLinkLocalUnicast() == ip.IsLinkLocalUnicast()
		if !from.IsValid() || fits && from.IsLinkLocalUnicast() != ip.IsLinkLocalUnicast() {
			from = a
		}
	}
	return from.IsValid() && p.ask.Ask(p.h.cfg.Now(), from, ip)
}

// push sends the frames that wait in the link, and no others: it is called while a queue pair sends, and commands of the
// guest, which come with its frames, may end that queue pair. A result of the resolver arrives in the midst of a batch of
// the data path, which must not begin another one: the frames then wait for the next turn.
func (p *GuestPort) push(now mono.Time) {
	if p.answering || p.at == nil || p.at.port.seg != vnic.Segment(p.at) {
		return
	}
	p.pushing = true
	defer func() { p.pushing = false }() // a fault of memory may unwind the lane
	p.h.data.pull(now, p.at.port)
}

// addressInUse reports whether a port of a virtual Ethernet switch on this node, other than except, has an address.
// Lane 0 calls it.
func (h *Host) addressInUse(gid ib.GID, vesw uint16, except *GuestPort) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.guests {
		if p != except && p.at != nil && p.at.vesw == vesw && p.a.Port().Lookup(gid) >= 0 {
			return true
		}
	}
	for _, p := range h.devices {
		if p.on != nil && p.on.vesw == vesw && p.a.Port().Lookup(gid) >= 0 {
			return true
		}
	}
	return false
}

// guestSegment is a GuestPort at work for a vport.
type guestSegment struct {
	vnic.Segment // the rings of the guest
	control      vnic.SegmentControl
	p            *GuestPort
	port         *lanePort
	vesw         uint16

	separator

	questions [maxQuestions][neighbour.MaxFrame]byte // frames of the resolver
}

// maxQuestions is how many questions for neighbours leave in a batch.
const maxQuestions = 4

var (
	_ vnic.Segment        = (*guestSegment)(nil)
	_ vnic.SegmentControl = (*guestSegment)(nil)
)

// open puts the port to work for a vport of its function, with the rings of its guest. The port's worker calls it.
func (p *GuestPort) open(s *slot, d vnic.Device, rings vnic.OpenSegment) (vnic.OpenSegment, error) {
	g := &guestSegment{Segment: rings.Segment, control: rings.Control, p: p, port: s.port, vesw: s.vesw}
	if err := p.h.first.Do(func() {
		p.at, p.dev = g, d
		p.yieldAddresses()
		p.publish()
	}); err != nil {
		rings.Control.Close()
		return vnic.OpenSegment{}, err
	}
	return vnic.OpenSegment{Segment: g, Control: g}, nil
}

// yieldAddresses removes the addresses that another port of the virtual Ethernet switch on this node has: it was in the
// switch first. The driver gets an event.
func (p *GuestPort) yieldAddresses() {
	for i := range p.gids {
		if g := p.gids[i].GID; !g.IsZero() && p.h.addressInUse(g, p.at.vesw, p) {
			p.gids[i].GID = ib.GID{}
			p.h.cfg.Log.Warn("a guest loses an address: another port of its VESW has it", "vm", p.a.Name, "address", g.Addr())
		}
	}
}

// Configure implements vnic.SegmentControl. The port's worker calls it.
func (g *guestSegment) Configure(d vnic.Device) {
	g.control.Configure(d)
	g.p.h.first.Do(func() {
		if g.p.at == g {
			g.p.dev = d
			g.p.publish()
		}
	})
}

// Close implements vnic.SegmentControl. The card, its guest and the guest's addresses stay; the port goes down.
func (g *guestSegment) Close() error {
	g.p.h.first.Do(func() {
		if g.p.at == g {
			g.p.at = nil
			g.p.publish()
			g.p.link.Reset()
			g.p.ask.Reset()
		}
	})
	return g.control.Close()
}

// Deadline implements timedSegment.
func (g *guestSegment) Deadline() mono.Time { return g.p.ask.Deadline() }

// TryReadBatch implements vnic.Segment. Half of the batch is for RoCEv2 at most while the guest has frames, so that
// neither waits for the other.
func (g *guestSegment) TryReadBatch(frames [][]byte, off []ether.Offload) (n int, err error) {
	if g.p.pushing {
		return g.p.link.Read(frames, off), nil
	}
	if due := g.p.ask.Deadline(); due != 0 {
		now := g.p.h.cfg.Now()
		for n < min(maxQuestions, len(frames)/4) {
			f, ok := g.p.ask.Next(now, g.questions[n][:])
			if !ok {
				break
			}
			frames[n], off[n] = f, ether.Offload{}
			n++
		}
	}
	n += g.p.link.Read(frames[n:(len(frames)+1)/2], off[n:])
	m, err := g.Segment.TryReadBatch(frames[n:], off[n:])
	if err != nil {
		return 0, err
	}
	return n + m, nil
}

// Arm implements vnic.Segment.
func (g *guestSegment) Arm() bool { return g.Segment.Arm() || g.p.link.Pending() }

// WriteBatch implements vnic.Segment.
func (g *guestSegment) WriteBatch(frames [][]byte, off []ether.Offload) (dropped int) {
	n := g.separate(g.p.link, frames, off)
	if n == len(frames) {
		return 0
	}
	now := g.p.h.cfg.Now()
	for _, f := range frames[n:] {
		g.p.ask.Frame(now, f)
	}
	return g.Segment.WriteBatch(frames[n:], off[n:])
}
