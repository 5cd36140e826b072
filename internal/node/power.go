// SPDX-License-Identifier: Apache-2.0

package node

import (
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// enable lets the port of a function come up, or takes it down: queue pairs
// stay, packets do not move.
func (n *Node) enable(f *function, on bool) {
	n.edits.Lock()
	defer n.edits.Unlock()
	n.mu.Lock()
	f.disabled = !on
	n.mu.Unlock()
	n.power(f)
}

// enableAdapter is enable for the whole adapter: every function's port goes
// down, and those that are enabled themselves come up again with it.
func (n *Node) enableAdapter(on bool) {
	n.edits.Lock()
	defer n.edits.Unlock()
	n.mu.Lock()
	n.adapterOff = !on
	n.mu.Unlock()
	n.power(n.functions()...)
}

// power makes the ports of functions what was decided for them; edits is held.
func (n *Node) power(list ...*function) {
	var plugged [2][]*hca.Adapter // off, on
	for _, f := range list {
		n.mu.Lock()
		down := f.disabled || n.adapterOff
		n.mu.Unlock()
		if f.down == down {
			continue
		}
		f.down = down
		if f.st == nil && f.a.Port().Link != ib.LinkInfiniBand || n.board == nil {
			n.setDown(f.a, down)
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

// setDown changes the state of a port that no agent has.
func (n *Node) setDown(a *hca.Adapter, down bool) {
	n.ports.Lock()
	defer n.ports.Unlock()
	old := a.Port()
	p := *old
	p.State, p.Phys = ib.PortDown, ib.PhysDisabled
	if !down {
		p.State, p.Phys = ib.PortActive, ib.PhysLinkUp
		if p.Link == ib.LinkInfiniBand {
			p.State = ib.PortInit
		}
	}
	a.SetPort(&p)
	n.notify(subnet.PortChange{Adapter: a, Events: p.Changes(old)})
}

// off reports whether somebody disabled the function, and whether the whole
// adapter.
func (f *function) off() (function, adapter bool) {
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	return f.disabled, f.n.adapterOff
}

// adapterIsOff reports whether somebody disabled the adapter.
func (n *Node) adapterIsOff() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.adapterOff
}

// virtual reports whether the function is not the physical function's.
func virtual(a *hca.Adapter) bool { return a.Number() >= virtualFunctions }

// physical names a device of the physical function, for commands.
func (n *Node) physical() string {
	if n.function(firstNative) != nil {
		return firstNative
	}
	return n.cfg.Device
}
