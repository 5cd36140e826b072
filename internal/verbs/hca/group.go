// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"maps"
	"slices"
	"syscall"

	"weft/internal/proto/ib"
	"weft/internal/verbs/hca/replicate"
)

// Groups are the memberships of the node's queue pairs in multicast groups. They are immutable: the replication engine
// keeps one snapshot while it works. Functions are, by MLID, those to which the node's switch forwards it; Attached the
// queue pairs in the order in which they were attached.
type Groups struct {
	replicate.Groups
	total int // attachments
}

// IPGroups joins groups where the addresses of Ethernet ports are held: IGMP and MLD. It is safe for concurrent use.
type IPGroups interface {
	// Join makes the port of a function receive the packets of a group, until
	// as many calls of Leave. An error is a syscall.Errno.
	Join(function uint16, group ib.GID) error
	Leave(function uint16, group ib.GID)
}

// SetIPGroups gives the node a way to join groups of Ethernet ports; without one
// they reach this node only. It is called before lanes run.
func (f *Functions) SetIPGroups(g IPGroups) { f.ip = g }

// SetMulticastForwarding sets to which functions the node's switch forwards each multicast LID. The map and the slices
// in it, in ascending order, are f's from then on.
func (f *Functions) SetMulticastForwarding(functions map[ib.LID][]uint16) {
	f.edit(func(n *Groups) bool {
		n.Functions = functions
		return true
	})
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
// 11.3.1). Only datagram queue pairs can be, of MGIDs and MLIDs of the multicast ranges: others are EINVAL. On an
// Ethernet port the group is that of an IP address, which IPGroups joins, and the MLID is ignored. It is no error where
// the queue pair is a member already; ENOMEM when there are too many.
func (q *QP) AttachMulticast(mgid ib.GID, mlid ib.LID) error {
	g, native := q.group(mgid, mlid), q.s.a.Port().native()
	switch {
	case q.cfg.Type != ib.UD, native && (mgid[0] != 0xff || !mlid.IsMulticast()), !native && !mgid.IsMulticast():
		return syscall.EINVAL
	case slices.Contains(q.groups, g):
		return nil
	}
	all := q.s.lane.all
	if !native && all.ip != nil {
		if err := all.ip.Join(q.s.a.num, mgid); err != nil {
			return err
		}
	}
	if !all.edit(func(n *Groups) bool {
		k := replicate.GroupKey{Function: q.s.a.num, MGID: mgid}
		if n.total >= MaxAttachments || len(n.Attached[k]) >= MaxGroupAttachments {
			return false
		}
		n.total++
		n.Attached = maps.Clone(n.Attached)
		n.Attached[k] = append(slices.Clip(n.Attached[k]), q.dest(g.mlid))
		return true
	}) {
		if !native && all.ip != nil {
			all.ip.Leave(q.s.a.num, mgid)
		}
		return syscall.ENOMEM
	}
	q.groups = append(q.groups, g)
	return nil
}

// group is the membership that attaching to (mgid, mlid) makes.
func (q *QP) group(mgid ib.GID, mlid ib.LID) group {
	if !q.s.a.Port().native() {
		mlid = 0
	}
	return group{mgid, mlid}
}

func (q *QP) dest(mlid ib.LID) replicate.Dest {
	return replicate.Dest{Function: q.s.a.num, Lane: uint8(q.s.lane.ID), QPN: q.num, MLID: mlid}
}

// DetachMulticast ends a membership. One that does not exist is EINVAL. No copy arrives after it.
func (q *QP) DetachMulticast(mgid ib.GID, mlid ib.LID) error {
	g := q.group(mgid, mlid)
	i := slices.Index(q.groups, g)
	if i < 0 {
		return syscall.EINVAL
	}
	q.groups = slices.Delete(q.groups, i, i+1)
	q.leaveGroups([]group{g})
	return nil
}

// leaveGroups removes the queue pair from the node's tables for groups.
func (q *QP) leaveGroups(groups []group) {
	all := q.s.lane.all
	all.edit(func(n *Groups) bool {
		n.Attached = maps.Clone(n.Attached)
		for _, g := range groups {
			k, d := replicate.GroupKey{Function: q.s.a.num, MGID: g.mgid}, q.dest(g.mlid)
			list := slices.DeleteFunc(slices.Clone(n.Attached[k]), func(o replicate.Dest) bool { return o == d })
			n.total -= len(n.Attached[k]) - len(list)
			if n.Attached[k] = list; len(list) == 0 {
				delete(n.Attached, k)
			}
		}
		return true
	})
	for _, g := range groups {
		if g.mlid == 0 && all.ip != nil {
			all.ip.Leave(q.s.a.num, g.mgid)
		}
	}
}

// edit publishes changed groups; change works on a copy and must not write to
// the maps and slices in it. Lanes call it at the same time, which is rare: one
// that came too late does its work again. It returns what change did, and
// publishes nothing where that is false.
func (f *Functions) edit(change func(n *Groups) bool) bool {
	for {
		old := f.groups.Load()
		n := *old
		if !change(&n) {
			return false
		}
		if f.groups.CompareAndSwap(old, &n) {
			return true
		}
	}
}
