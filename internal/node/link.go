// SPDX-License-Identifier: Apache-2.0

package node

import (
	"weft/internal/link/fabric"
	"weft/internal/link/fault"
	"weft/internal/link/roce"
	"weft/internal/pkt"
)

// netLink is a lane's way to other nodes: RoCEv2 behind a stage that injects
// the faults a user asked for. It belongs to the lane.
type netLink struct {
	*fault.Stage
	roce   *roce.Link
	fabric *fabric.Link // nil: the node is in no subnet
}

func newNetLink(l *roce.Link) *netLink { return &netLink{Stage: fault.New(l), roce: l} }

// Recv implements wire.
func (l *netLink) Recv() (runs []pkt.Run, more bool) { return l.roce.Recv() }
