// SPDX-License-Identifier: Apache-2.0

package node

import (
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// enable lets the port of a function come up, or takes it down: queue pairs
// stay, packets do not move.
func (n *Node) enable(f *function, on bool) {
	n.edits.Lock()
	defer n.edits.Unlock()
	n.funcs.disable(f, !on)
	n.power(f)
}

// enableAdapter is enable for the whole adapter: every function's port goes
// down, and those that are enabled themselves come up again with it.
func (n *Node) enableAdapter(on bool) {
	n.edits.Lock()
	defer n.edits.Unlock()
	n.funcs.disableAdapter(!on)
	n.power(n.funcs.all()...)
}

// power makes the ports of functions what was decided for them; edits is held.
func (n *Node) power(list ...*function) {
	var plugged [2][]*hca.Adapter // off, on
	for _, f := range list {
		disabled, adapterOff := n.funcs.off(f)
		down := disabled || adapterOff
		if f.down == down {
			continue
		}
		f.down = down
		if f.st == nil && f.a.Port().Link != ib.LinkInfiniBand || n.board == nil {
			n.tree.setDown(f.a, down)
		} else if down {
			plugged[0] = append(plugged[0], f.a)
		} else {
			plugged[1] = append(plugged[1], f.a)
		}
	}
	for i, list := range plugged {
		if len(list) > 0 {
			n.board.Power(list, i == 1)
		}
	}
}
