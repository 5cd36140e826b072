// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"maps"
	"slices"
	"syscall"

	"weft/internal/ib"
)

// GroupKey names a multicast group within one function.
type GroupKey struct {
	Function uint16
	MGID     ib.GID
}

// Attachment is one queue pair in a group, and where it is.
type Attachment struct {
	Function uint16
	Lane     int
	QPN      ib.QPN
	MLID     ib.LID
}

// Groups say who of the node is in which multicast group. They are immutable:
// what replicates packets holds on to one while it works.
type Groups struct {
	// ByMLID are the functions that have a queue pair attached to an MLID, in
	// ascending order.
	ByMLID map[ib.LID][]uint16
	// ByMGID are the queue pairs attached to a group, in the order in which
	// they were attached.
	ByMGID map[GroupKey][]Attachment
	total  int
}

// Groups returns the node's multicast groups as they are now.
func (f *Functions) Groups() *Groups { return f.groups.Load() }

// MaxAttachments bounds the memberships of all queue pairs of a node together,
// MaxGroupAttachments those in one group of one function.
const (
	MaxAttachments      = 8192
	MaxGroupAttachments = 4096
)

// group is one membership of a queue pair.
type group struct {
	mgid ib.GID
	mlid ib.LID
}

// AttachMulticast makes the queue pair a member of a group (IBA volume 1,
// 11.3.1). Only datagram queue pairs of InfiniBand ports can be, of MGIDs and
// MLIDs of the multicast ranges: others are EINVAL, and EOPNOTSUPP on Ethernet
// ports. To be a member already is no error; ENOMEM when there are too many.
func (q *QP) AttachMulticast(mgid ib.GID, mlid ib.LID) error {
	g := group{mgid, mlid}
	switch {
	case !q.s.a.Port().native():
		return syscall.EOPNOTSUPP
	case q.cfg.Type != ib.UD || mgid[0] != 0xff || !mlid.IsMulticast():
		return syscall.EINVAL
	case slices.Contains(q.groups, g):
		return nil
	}
	if !q.s.lane.all.edit(func(n *Groups) bool {
		k := GroupKey{q.s.a.num, mgid}
		if n.total >= MaxAttachments || len(n.ByMGID[k]) >= MaxGroupAttachments {
			return false
		}
		n.total++
		n.ByMGID[k] = append(slices.Clip(n.ByMGID[k]), q.attachment(mlid))
		if fs := n.ByMLID[mlid]; !slices.Contains(fs, k.Function) {
			fs = append(slices.Clip(fs), k.Function)
			slices.Sort(fs)
			n.ByMLID[mlid] = fs
		}
		return true
	}) {
		return syscall.ENOMEM
	}
	q.groups = append(q.groups, g)
	return nil
}

func (q *QP) attachment(mlid ib.LID) Attachment {
	return Attachment{Function: q.s.a.num, Lane: q.s.lane.ID, QPN: q.num, MLID: mlid}
}

// DetachMulticast ends a membership. One that does not exist is EINVAL.
func (q *QP) DetachMulticast(mgid ib.GID, mlid ib.LID) error {
	i := slices.Index(q.groups, group{mgid, mlid})
	if i < 0 {
		return syscall.EINVAL
	}
	q.groups = slices.Delete(q.groups, i, i+1)
	q.leave([]group{{mgid, mlid}})
	return nil
}

// leave takes the queue pair out of the node's tables for groups.
func (q *QP) leave(groups []group) {
	q.s.lane.all.edit(func(n *Groups) bool {
		fn := q.s.a.num
		for _, g := range groups {
			k, a := GroupKey{fn, g.mgid}, q.attachment(g.mlid)
			list := slices.DeleteFunc(slices.Clone(n.ByMGID[k]), func(o Attachment) bool { return o == a })
			n.total -= len(n.ByMGID[k]) - len(list)
			if n.ByMGID[k] = list; len(list) == 0 {
				delete(n.ByMGID, k)
			}
			if n.has(fn, g.mlid) {
				continue
			}
			fs := slices.DeleteFunc(slices.Clone(n.ByMLID[g.mlid]), func(f uint16) bool { return f == fn })
			if n.ByMLID[g.mlid] = fs; len(fs) == 0 {
				delete(n.ByMLID, g.mlid)
			}
		}
		return true
	})
}

// has reports whether a queue pair of function fn is attached to mlid.
func (n *Groups) has(fn uint16, mlid ib.LID) bool {
	for k, list := range n.ByMGID {
		if k.Function == fn && slices.ContainsFunc(list, func(a Attachment) bool { return a.MLID == mlid }) {
			return true
		}
	}
	return false
}

// edit publishes changed groups; change works on a copy of the maps and must
// not write to the slices in them. Lanes call it at the same time, which is rare:
// one that came too late does its work again. It returns what change did, and
// publishes nothing where that is false.
func (f *Functions) edit(change func(n *Groups) bool) bool {
	for {
		old := f.groups.Load()
		n := &Groups{ByMLID: maps.Clone(old.ByMLID), ByMGID: maps.Clone(old.ByMGID), total: old.total}
		if !change(n) {
			return false
		}
		if f.groups.CompareAndSwap(old, n) {
			return true
		}
	}
}
