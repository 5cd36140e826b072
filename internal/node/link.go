// SPDX-License-Identifier: Apache-2.0

package node

import (
	"weft/internal/link/fabric"
	"weft/internal/link/fault"
	"weft/internal/link/roce"
	"weft/internal/link/udp"
	"weft/internal/pkt"
)

// netLink is a lane's way to other nodes: RoCEv2 behind a stage that injects
// the faults a user asked for. It belongs to the lane.
type netLink struct {
	*fault.Stage
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

func newNetLink(l *roce.Link) *netLink { return &netLink{Stage: fault.New(l), roce: l} }

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
func (l *netLink) Recv() (runs []pkt.Run, more bool) { return l.roce.Recv() }
