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
	// Faults of the trunks: the sender has packets only while there is a rule, or
	// packets are held.
	trunks  *udp.Sender // nil: there are no trunks
	packets *fault.Packets
}

func newNetLink(l *roce.Link) *netLink { return &netLink{Stage: fault.New(l), roce: l} }

// addToTrunks adds a rule to the lane's way into the trunks.
func (l *netLink) addToTrunks(r fault.Rule) {
	l.packets.Add(r)
	l.trunks.Inject(l.packets)
}

// removeFromTrunks ends a rule, and with the last one the stage.
func (l *netLink) removeFromTrunks(id int) {
	if l.packets != nil && l.packets.Remove(id) && len(l.packets.Rules()) == 0 && l.packets.Held() == 0 {
		l.trunks.Inject(nil)
	}
}

// Recv implements wire.
func (l *netLink) Recv() (runs []pkt.Run, more bool) { return l.roce.Recv() }
