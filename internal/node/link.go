// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"

	"weft/internal/fabric/link/fabric"
	"weft/internal/fabric/link/fault"
	"weft/internal/fabric/link/roce"
	"weft/internal/fabric/link/roceframe"
	"weft/internal/fabric/link/udp"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// netLink is a lane's way to other nodes: RoCEv2 behind a stage that injects
// the faults a user asked for. It belongs to the lane.
type netLink struct {
	*fault.Stage
	exits  *exits
	roce   *roce.Link
	fabric *fabric.Link // nil: the node is in no subnet
	// Faults of the trunks: the stages are in the way only while there is a rule,
	// or something is held.
	trunks  *udp.Sender // nil: there are no trunks
	packets *fault.Packets
	// Of lane 0, which says hello.
	greeter *udp.Link
	hellos  *fault.Packets
}

func newNetLink(l *roce.Link) *netLink {
	e := &exits{roce: l}
	return &netLink{Stage: fault.New(e), exits: e, roce: l}
}

// exits are the links of Ethernet ports: that of the host's addresses, and, of lane 0, those of functions in virtual Ethernet
// switches.
type exits struct {
	roce     *roce.Link
	frames   []exit
	turn     int    // which of them Recv asks first, len(frames): roce
	dropGone uint64 // packets of functions that are there no more
}

type exit struct {
	function uint16
	link     *roceframe.Link
}

var _ fault.Link = (*exits)(nil)

func (e *exits) add(function uint16, l *roceframe.Link) {
	e.frames = append(e.frames, exit{function, l})
}

func (e *exits) remove(function uint16) {
	e.frames = slices.DeleteFunc(e.frames, func(x exit) bool { return x.function == function })
	e.turn = 0
}

// at returns the link of a function's port in a switch, nil where there is none.
func (e *exits) at(function uint16) *roceframe.Link {
	for i := range e.frames {
		if e.frames[i].function == function {
			return e.frames[i].link
		}
	}
	return nil
}

// Send implements fault.Link.
func (e *exits) Send(now mono.Time, r *pkt.Burst, b *mem.Batch) mem.Result {
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
func (e *exits) SendCorrupt(now mono.Time, r *pkt.Burst, b *mem.Batch, bit uint32) mem.Result {
	if r.Path.Function == 0 {
		return e.roce.SendCorrupt(now, r, b, bit)
	}
	if l := e.at(r.Path.Function); l != nil {
		return l.SendCorrupt(now, r, b, bit)
	}
	e.dropGone += uint64(r.Count)
	return mem.OK
}

// Blocked implements fault.Link for the host's link: the others wait for the switch's.
func (e *exits) Blocked() bool { return e.roce.Blocked() }

// Flush implements fault.Link.
func (e *exits) Flush(now mono.Time) {
	e.roce.Flush(now)
	for i := range e.frames {
		e.frames[i].link.Flush(now)
	}
}

// recv returns what came by one of the links, each in its turn.
func (e *exits) recv() (runs []pkt.Burst, more bool) {
	for range e.frames {
		at := e.turn
		if e.turn++; at >= len(e.frames) {
			e.turn = 0
			break
		}
		if runs := e.frames[at].link.Recv(); runs != nil {
			return runs, true
		}
	}
	runs, more = e.roce.Recv()
	return runs, more || e.waits()
}

// waits reports whether runs of functions in virtual Ethernet switches are there.
func (e *exits) waits() bool {
	for i := range e.frames {
		if e.frames[i].link.Received() {
			return true
		}
	}
	return false
}

// addToTrunks adds a rule to the lane's way into the trunks.
func (l *netLink) addToTrunks(r fault.Rule) {
	l.packets.Add(r)
	l.trunks.Inject(l.packets)
	if l.greeter != nil {
		l.hellos.Add(r)
		l.greeter.Inject(l.hellos)
	}
}

// removeFromTrunks ends a rule, and with the last one the stages.
func (l *netLink) removeFromTrunks(id int) {
	if ended(l.packets, id) {
		l.trunks.Inject(nil)
	}
	if ended(l.hellos, id) {
		l.greeter.Inject(nil)
	}
}

// ended removes a rule and reports whether the stage has nothing left to do.
func ended(s *fault.Packets, id int) bool {
	return s != nil && s.Remove(id) && len(s.Rules()) == 0 && s.Held() == 0
}

// trunkRules are the rules of the lane's way into the trunks.
func (l *netLink) trunkRules() (list []fault.Status) {
	for _, s := range []*fault.Packets{l.packets, l.hellos} {
		if s != nil {
			list = append(list, s.Rules()...)
		}
	}
	return list
}

// Recv implements socketLink.
func (l *netLink) Recv() (runs []pkt.Burst, more bool) { return l.exits.recv() }
