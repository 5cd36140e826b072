// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// setPort stores the attributes of the port and looks up the partition: the full
// member's key where the table has both.
func (l *Link) setPort(p Port) {
	p.PKeys = slices.Clone(p.PKeys)
	l.port, l.index = p, -1
	for i, k := range p.PKeys {
		if (k^l.cfg.PKey)&0x7fff != 0 || k == 0 {
			continue
		}
		if l.index < 0 || k.IsFull() && !p.PKeys[l.index].IsFull() {
			l.index = i
		}
	}
	if l.index >= 0 {
		l.pkey = p.PKeys[l.index]
	}
}

// SetPort tells what the port is like now. events are those that its attributes do
// not show, EventReregister above all; others are found by comparing.
func (l *Link) SetPort(now mono.Time, p Port, events ...ib.Event) {
	if l.state == Absent || l.state == Destroyed {
		return
	}
	old, index := l.port, l.index
	l.setPort(p)
	was, is := old.State == ib.PortActive, p.State == ib.PortActive
	if l.state == Creating {
		l.create(now)
		l.flush(now)
		return
	}
	if l.index >= 0 && l.index != index {
		l.endConns(now) // theirs has another index
		if err := l.al.SetPKeyIndex(uint16(l.index)); err != nil {
			l.log(now, "P_Key index", "P_Key index %d: %v", l.index, err)
			l.recover(now)
		}
	}
	moved := p.LID != old.LID || p.LMC != old.LMC || p.GID != old.GID
	if p.GID != old.GID {
		l.setHW()
		l.setLink(now)
	}
	switch {
	case was && !is, is && moved, index >= 0 && l.index < 0:
		l.portLost(now)
	case is && slices.Contains(events, ib.EventReregister):
		l.reregister(now)
	}
	news := is && !was || moved || p.SMLID != old.SMLID || p.MTU != old.MTU || p.Rate != old.Rate || !slices.Equal(p.PKeys, old.PKeys) ||
		slices.Contains(events, ib.EventReregister) || slices.Contains(events, ib.EventSMChange)
	if is && news && l.index >= 0 {
		l.hurry(now)
	}
	l.follow(now)
	l.flush(now)
}

// portLost forgets what the subnet gave this port: groups have to be joined
// anew and paths asked for. Nothing is left by request: either nobody hears it
// or the subnet manager knows.
func (l *Link) portLost(now mono.Time) {
	l.dropMemberships(now, false)
	l.broadcast.up = false
	l.follow(now)
	l.flushShadow(now)
}

// reregister follows the subnet manager's wish that clients register anew: it
// may have lost what they registered. Carrier stays; frames for groups wait
// until they are joined again, broadcast first, and each path is asked for before
// its next use.
func (l *Link) reregister(now mono.Time) {
	l.dropMemberships(now, true)
	l.invalidatePaths()
}

// Notice tells of a trap of the subnet that is about a GID: 64 and 65 that a
// port appeared or vanished, 66 and 67 that a group did.
func (l *Link) Notice(now mono.Time, trap mad.TrapNumber, gid ib.GID) {
	if l.state <= Creating || l.state == Destroyed {
		return
	}
	switch trap {
	case mad.TrapGIDInService:
		l.retryPath(now, gid)
	case mad.TrapGIDOutOfService:
		l.invalidateGID(gid)
		l.eng.Forget(now, gid)
	case mad.TrapGroupCreated:
		l.groupCreated(now, gid)
	case mad.TrapGroupDeleted:
		l.groupDeleted(now, gid)
	}
	l.flush(now)
}

// SetAddrs tells the device's addresses with their prefixes, and the prefixes
// reached without a gateway.
func (l *Link) SetAddrs(now mono.Time, addrs, onLink []netip.Prefix) {
	l.addrs, l.onLink = slices.Clone(addrs), slices.Clone(onLink)
	l.eng.SetAddrs(now, l.addrs)
	l.flush(now)
}

// MTUChanged tells that the device's MTU was changed from outside, which is not for
// others to do: it is set back.
func (l *Link) MTUChanged(now mono.Time, mtu int) {
	if l.registered && mtu != l.mtu {
		l.dev.SetMTU(l.mtu)
	}
}

// QPError tells that the queue pair is in error: it is made to work again.
func (l *Link) QPError(now mono.Time) {
	if l.state > Creating && l.state != Destroyed {
		l.log(now, "queue pair", "the queue pair failed; it is reset")
		l.recover(now)
		l.flush(now)
	}
}
