// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/pkt"
)

// Switch is the switch between the node's InfiniBand ports. What goes from one
// of them to another without becoming packets is judged as packets would be.
type Switch interface {
	// Table returns the state of the switch: immutable, and another one after
	// every change.
	Table() *vswitch.Table
	// Route returns what the switch does, by table t, with packets of a path and key.
	Route(t *vswitch.Table, p *ib.Path, key ib.PKey) vswitch.Refusal
	// Refused counts packets that were dropped for it.
	Refused(why vswitch.Refusal, packets uint32)
}

// passage is what the switch said of the packets of a queue pair last, and what
// it went by.
type passage struct {
	table *vswitch.Table
	path  *ib.Path
	key   ib.PKey
	why   vswitch.Refusal
}

// passes reports whether the switch lets a run go to a port of this node, or into
// a group; else it is counted. The switch is asked anew only where its state, the
// path or the key is another than the last time. Runs to other nodes are judged
// by the link.
func (l *Lane) passes(q *QP, r *pkt.Burst) bool {
	group := r.Path.DLID.IsMulticast()
	if !r.Path.Local && !group {
		return true
	}
	t, v := l.sw.Table(), &q.passed
	if v.table != t || v.path != r.Path || v.key != r.PKey {
		*v = passage{t, r.Path, r.PKey, l.sw.Route(t, r.Path, r.PKey)}
	}
	// A group has members here that the switch does not know of, those of the
	// sender's own port; but nobody gets what must not enter the switch.
	if v.why == vswitch.OK || group && v.why != vswitch.PKeyIn {
		return true
	}
	l.sw.Refused(v.why, r.Count)
	return false
}
