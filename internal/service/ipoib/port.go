// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// SetPort sets the attributes of the port. events are those that the attributes do not show, EventReregister above all;
// others are found by comparison.
func (l *Link) SetPort(now mono.Time, p Port, events ...ib.Event) {
	if l.state == Absent || l.state == Destroyed {
		return
	}
	old, index := l.attr.port, l.attr.index
	l.attr.setPort(p)
	if l.state == Creating {
		l.create(now)
		l.qp.flush(now)
		return
	}
	if l.attr.index >= 0 && l.attr.index != index {
		l.changePKeyIndex(now)
	}
	moved := p.LID != old.LID || p.LMC != old.LMC || p.GID != old.GID
	if moved {
		l.setHW()
	}
	if p.GID != old.GID {
		l.configureEngine(now)
	}
	wasActive, active := old.State == ib.PortActive, p.State == ib.PortActive
	switch {
	case wasActive && !active, active && moved, index >= 0 && l.attr.index < 0:
		l.portLost(now)
	case active && slices.Contains(events, ib.EventReregister):
		l.reregister()
	}
	changed := active && !wasActive || moved || p.SMLID != old.SMLID || p.MTU != old.MTU || p.Rate != old.Rate ||
		!slices.Equal(p.PKeys, old.PKeys) ||
		slices.Contains(events, ib.EventReregister) || slices.Contains(events, ib.EventSMChange)
	if active && changed && l.attr.index >= 0 {
		l.groups.retryAll(now)
	}
	l.updateCarrier(now)
	l.qp.flush(now)
}

// changePKeyIndex follows the partition to another index of the P_Key table. Connections have the old index, and end.
func (l *Link) changePKeyIndex(now mono.Time) {
	if l.conns != nil {
		l.conns.EndAll(now)
	}
	if err := l.access.Service.SetPKeyIndex(uint16(l.attr.index)); err != nil {
		l.report.Logf(now, "P_Key index", "P_Key index %d: %v", l.attr.index, err)
		l.qp.reset(now)
	}
}

// portLost forgets what the subnet gave this port: groups have to be joined anew, and paths queried. Nothing is left by
// request: either no manager receives it, or the manager knows.
func (l *Link) portLost(now mono.Time) {
	l.groups.reset(false)
	l.updateCarrier(now)
	l.shadow.flush(now)
}

// reregister follows the subnet manager's request that clients register anew: it may have lost what they registered.
// The carrier stays; frames for groups wait until they are joined again, broadcast first, and each path is queried
// before its next use.
func (l *Link) reregister() {
	l.groups.reset(true)
	l.shadow.invalidatePaths()
}

// Notice reports a trap of the subnet about a GID: 64 and 65, that a port appeared or vanished, 66 and 67, that a group
// did.
func (l *Link) Notice(now mono.Time, trap mad.TrapNumber, gid ib.GID) {
	if l.state <= Creating || l.state == Destroyed {
		return
	}
	switch trap {
	case mad.TrapGIDInService:
		l.shadow.retryPath(now, gid)
	case mad.TrapGIDOutOfService:
		l.shadow.invalidatePath(gid)
		l.engine.Forget(now, gid)
	case mad.TrapGroupCreated:
		l.groups.created(now, gid)
	case mad.TrapGroupDeleted:
		l.groups.deleted(now, gid)
	}
	l.qp.flush(now)
}

// SetAddrs sets the device's addresses, each with its prefix, and the prefixes reached without a gateway.
func (l *Link) SetAddrs(now mono.Time, addrs, onLink []netip.Prefix) {
	l.addrs = addresses{slices.Clone(addrs), slices.Clone(onLink)}
	l.engine.SetAddrs(now, l.addrs.own)
	l.qp.flush(now)
}

// MTUChanged reports that the device's MTU was changed from outside. It is set back: the MTU is the group's.
func (l *Link) MTUChanged(now mono.Time, mtu int) {
	if l.attr.registered && mtu != l.attr.mtu {
		l.device.SetMTU(l.attr.mtu)
	}
}

// QPError reports that the queue pair is in ERR: it is reset.
func (l *Link) QPError(now mono.Time) {
	if l.state > Creating && l.state != Destroyed {
		l.report.Logf(now, "queue pair", "the queue pair failed; it is reset")
		l.qp.reset(now)
		l.qp.flush(now)
	}
}
