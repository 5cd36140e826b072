// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/pkt"
)

// Switch is the switch between the node's InfiniBand ports. What goes from one of them to another without becoming
// packets is forwarded or dropped as packets would be.
type Switch interface {
	// Table returns the state of the switch: immutable, and another one after every change.
	Table() *vswitch.Table
	// Route returns what the switch does, by table t, with packets of a path and key.
	Route(t *vswitch.Table, p *ib.Path, key ib.PKey) vswitch.Refusal
	// Refused counts packets that were dropped for a reason.
	Refused(why vswitch.Refusal, packets uint32)
}

// switchVerdict is what the switch does with the packets of a queue pair, and for which table, path and key.
type switchVerdict struct {
	table *vswitch.Table
	path  *ib.Path
	key   ib.PKey
	why   vswitch.Refusal
}

// switchAllows reports whether the switch forwards a burst to a port of this node, or into a group; else it is counted.
// The verdict is computed again only where the table, the path or the key has changed. Bursts to other nodes are
// checked by the link.
func (l *Lane) switchAllows(q *QP, r *pkt.Burst) bool {
	group := r.Path.DLID.IsMulticast()
	if !r.Path.Local && !group {
		return true
	}
	t, v := l.sw.Table(), &q.verdict
	if v.table != t || v.path != r.Path || v.key != r.PKey {
		*v = switchVerdict{t, r.Path, r.PKey, l.sw.Route(t, r.Path, r.PKey)}
	}
	// A group has members here that the switch's table does not list, those of the sender's own port; but none of them
	// receives what must not enter the switch.
	if v.why == vswitch.OK || group && v.why != vswitch.PKeyIn {
		return true
	}
	l.sw.Refused(v.why, r.Count)
	return false
}
