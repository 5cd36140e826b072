// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"slices"

	"weft/internal/fabric/link/fabric"
	"weft/internal/fabric/link/fault"
	"weft/internal/fabric/link/roce"
	"weft/internal/fabric/link/roceframe"
	"weft/internal/fabric/link/udp"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca"
)

// Link is a lane's way to other nodes: RoCEv2 behind a stage that injects faults. It belongs to the lane, but for
// RoCE.ICRC, RoCE.Join and RoCE.Leave.
type Link struct {
	*fault.Stage
	RoCE     *roce.Link
	Fabric   *fabric.Link // nil: the node is in no subnet
	ethernet *etherLinks
	// Faults of the trunks: the stages are in the way only while there is a rule, or a packet is held.
	trunks  *udp.Sender // nil: there are no trunks
	packets *fault.Packets
	// Of lane 0, which sends the hellos of trunks.
	trunk  *udp.Link
	hellos *fault.Packets
	// Faults of packets between queue pairs of the node: the stage is in the way only while there is a rule.
	within *fault.Stage
	hca    *hca.Lane
}

func newLink(l *roce.Link) *Link {
	e := &etherLinks{roce: l}
	return &Link{Stage: fault.New(e), ethernet: e, RoCE: l}
}

// setHCA sets the adapter's lane. Its packets within the node can then pass the fault stage.
func (l *Link) setHCA(h *hca.Lane) { l.hca, l.within = h, fault.New(&h.Within) }

// OpenWithin puts the stage in the way of packets within the node. Every lane does so before one of them gets a rule:
// the answers to a queue pair may pass the stage of another lane, and be lost there.
func (l *Link) OpenWithin(now mono.Time) { l.hca.Within.SetStage(now, l.within) }

// AddWithin adds a rule for packets within the node.
func (l *Link) AddWithin(r fault.Rule) { l.within.Add(r) }

// RemoveWithin ends a rule. CloseWithin follows when every lane has done so.
func (l *Link) RemoveWithin(id int) { l.within.Remove(id) }

// CloseWithin takes the stage out of the way where no rule is left.
func (l *Link) CloseWithin(now mono.Time) {
	if len(l.within.Rules()) == 0 {
		l.hca.Within.SetStage(now, nil)
	}
}

// RulesWithin are the rules for packets within the node.
func (l *Link) RulesWithin() []fault.Status { return l.within.Rules() }

// SetTrunks gives the link its way into the trunks to peers, before the lane runs. hellos is the link that sends
// hellos, nil but on lane 0.
func (l *Link) SetTrunks(s *udp.Sender, hellos *udp.Link, peers []ib.GID) {
	l.trunks, l.packets = s, fault.NewPackets(peers)
	if hellos != nil {
		l.trunk, l.hellos = hellos, fault.NewDatagrams(peers)
	}
}

// SetTrunkPeer sets the address of a peer for faults; it runs on the lane.
func (l *Link) SetTrunkPeer(peer int, at ib.GID) {
	for _, s := range []*fault.Packets{l.packets, l.hellos} {
		if s != nil {
			s.SetPeer(peer, at)
		}
	}
}

// AddEthernet adds the link of a function's port in a virtual Ethernet switch. Lane 0 has those links.
func (l *Link) AddEthernet(function uint16, port *roceframe.Link) {
	l.ethernet.frames = append(l.ethernet.frames, etherLink{function, port})
}

// RemoveEthernet undoes AddEthernet.
func (l *Link) RemoveEthernet(function uint16) { l.ethernet.remove(function) }

// EachEthernet calls f with the links that AddEthernet added.
func (l *Link) EachEthernet(f func(function uint16, port *roceframe.Link)) {
	for _, e := range l.ethernet.frames {
		f(e.function, e.link)
	}
}

// etherLinks are the links of Ethernet ports: that of the host's addresses, and, of lane 0, those of functions in
// virtual Ethernet switches.
type etherLinks struct {
	roce     *roce.Link
	frames   []etherLink
	turn     int    // the link that Recv reads first, len(frames): roce
	dropGone uint64 // packets of functions that were removed
}

type etherLink struct {
	function uint16
	link     *roceframe.Link
}

var _ fault.Link = (*etherLinks)(nil)

func (e *etherLinks) remove(function uint16) {
	e.frames = slices.DeleteFunc(e.frames, func(x etherLink) bool { return x.function == function })
	e.turn = 0
}

// at returns the link of a function's port in a switch, nil where there is none.
func (e *etherLinks) at(function uint16) *roceframe.Link {
	for i := range e.frames {
		if e.frames[i].function == function {
			return e.frames[i].link
		}
	}
	return nil
}

// Send implements fault.Link.
func (e *etherLinks) Send(now mono.Time, r *pkt.Burst, b *mem.Batch) mem.Result {
	if r.Path.Function == 0 {
		return e.roce.Send(now, r, b)
	}
	if l := e.at(r.Path.Function); l != nil {
		return l.Send(now, r, b)
	}
	e.dropGone += uint64(r.Count)
	return mem.OK
}

// SendCorrupt implements fault.Link.
func (e *etherLinks) SendCorrupt(now mono.Time, r *pkt.Burst, b *mem.Batch, bit uint32) mem.Result {
	if r.Path.Function == 0 {
		return e.roce.SendCorrupt(now, r, b, bit)
	}
	if l := e.at(r.Path.Function); l != nil {
		return l.SendCorrupt(now, r, b, bit)
	}
	e.dropGone += uint64(r.Count)
	return mem.OK
}

// Blocked implements fault.Link for the host's link: frames of the others wait in the switch.
func (e *etherLinks) Blocked() bool { return e.roce.Blocked() }

// Flush implements fault.Link.
func (e *etherLinks) Flush(now mono.Time) {
	e.roce.Flush(now)
	for i := range e.frames {
		e.frames[i].link.Flush(now)
	}
}

// recv returns the bursts that one of the links received, each in its turn.
func (e *etherLinks) recv() (bursts []pkt.Burst, more bool) {
	for range e.frames {
		at := e.turn
		if e.turn++; at >= len(e.frames) {
			e.turn = 0
			break
		}
		if bursts := e.frames[at].link.Recv(); bursts != nil {
			return bursts, true
		}
	}
	bursts, more = e.roce.Recv()
	return bursts, more || e.pending()
}

// pending reports whether bursts of functions in virtual Ethernet switches wait.
func (e *etherLinks) pending() bool {
	for i := range e.frames {
		if e.frames[i].link.Received() {
			return true
		}
	}
	return false
}

// AddToTrunks adds a rule to the lane's way into the trunks.
func (l *Link) AddToTrunks(r fault.Rule) {
	l.packets.Add(r)
	l.trunks.Inject(l.packets)
	if l.trunk != nil {
		l.hellos.Add(r)
		l.trunk.Inject(l.hellos)
	}
}

// RemoveFromTrunks ends a rule, and with the last one the stages.
func (l *Link) RemoveFromTrunks(id int) {
	if removeRule(l.packets, id) {
		l.trunks.Inject(nil)
	}
	if removeRule(l.hellos, id) {
		l.trunk.Inject(nil)
	}
}

// removeRule removes a rule and reports whether the stage has nothing left to do.
func removeRule(s *fault.Packets, id int) bool {
	return s != nil && s.Remove(id) && len(s.Rules()) == 0 && s.Held() == 0
}

// TrunkRules are the rules of the lane's way into the trunks.
func (l *Link) TrunkRules() (list []fault.Status) {
	for _, s := range []*fault.Packets{l.packets, l.hellos} {
		if s != nil {
			list = append(list, s.Rules()...)
		}
	}
	return list
}

// Recv implements socketLink.
func (l *Link) Recv() (bursts []pkt.Burst, more bool) { return l.ethernet.recv() }
