// SPDX-License-Identifier: Apache-2.0

package node

import (
	"weft/internal/hca"
	"weft/internal/ib"
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
	for _, f := range n.functions() {
		n.power(f)
	}
}

// power makes the port of a function what was decided for it; edits is held.
func (n *Node) power(f *function) {
	n.mu.Lock()
	down := f.disabled || n.adapterOff
	n.mu.Unlock()
	if f.down == down {
		return
	}
	f.down = down
	if f.a.Port().Link == ib.LinkInfiniBand && n.board != nil {
		n.board.power(f.a, !down)
		return
	}
	n.ports.Lock()
	defer n.ports.Unlock()
	old := f.a.Port()
	p := *old
	p.State, p.Phys = ib.PortDown, ib.PhysDisabled
	if !down {
		p.State, p.Phys = ib.PortActive, ib.PhysLinkUp
		if p.Link == ib.LinkInfiniBand {
			p.State = ib.PortInit
		}
	}
	f.a.SetPort(&p)
	n.tell(f.a, p.Changes(old))
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
