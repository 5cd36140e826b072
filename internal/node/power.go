// SPDX-License-Identifier: Apache-2.0

package node

import (
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// enable lets the port of a function come up, or takes it down: queue pairs
// stay, packets do not move.
func (e *functionEditor) enable(f *function, on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cfg.Table.disable(f, !on)
	e.power(f)
}

// enableAdapter is enable for the whole adapter: every function's port goes
// down, and those that are enabled themselves come up again with it.
func (e *functionEditor) enableAdapter(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cfg.Table.disableAdapter(!on)
	e.power(e.cfg.Table.all()...)
}

// power makes the ports of functions what was decided for them; mu is held.
func (e *functionEditor) power(list ...*function) {
	var plugged [2][]*hca.Adapter // off, on
	for _, f := range list {
		disabled, adapterOff := e.cfg.Table.off(f)
		down := disabled || adapterOff
		if f.down == down {
			continue
		}
		f.down = down
		if f.st == nil && f.a.Port().Link != ib.LinkInfiniBand || e.board == nil {
			e.cfg.Tree.setDown(f.a, down)
		} else if down {
			plugged[0] = append(plugged[0], f.a)
		} else {
			plugged[1] = append(plugged[1], f.a)
		}
	}
	for i, list := range plugged {
		if len(list) > 0 {
			e.board.Power(list, i == 1)
		}
	}
}
