// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/ipoib/stats"
)

// send sends a frame to a group. It waits for a group that is not joined yet; a group that the link does not know is
// joined as a sender.
func (t *groups) send(now mono.Time, mgid ib.GID, frame []byte) {
	g := t.table[mgid]
	if g == nil {
		if g = t.groupOf(mgid); g == nil {
			t.stats.TxDrop(stats.DropMcastNotJoined)
			return
		}
	}
	g.used = now
	switch {
	case g.ah != nil:
		t.sender.send(frame, g.dest())
		return
	case g.state == groupAbsent:
		t.sendToRouters(now, g, frame)
		return
	case len(g.queue) >= groupFrames || !t.budget.Reserve(len(frame)):
		t.stats.Net.TxWindowErrors++
		t.stats.TxDrop(stats.DropQueueFull)
		return
	}
	if g != t.broadcast && len(g.ips) == 0 {
		g.sendOnly = true
	}
	g.queue = append(g.queue, slices.Clone(frame))
	t.advance(now, g)
}

// allRouters is the group of the routers of the link, by the IP version of a packet.
func allRouters(p []byte) netip.Addr {
	if p[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte{224, 0, 0, 2})
	}
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 15: 2})
}

// leavesLink reports whether the IP group of a packet reaches beyond the link.
func leavesLink(p []byte) bool {
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		return p[16]>>4 == 0xe && !(p[16] == 224 && p[17] == 0 && p[18] == 0)
	case len(p) >= 40 && p[0]>>4 == 6:
		return p[24] == 0xff && p[25]&0xf > 2
	}
	return false
}

// sendToRouters sends a frame of a group that does not exist to the routers, if it may leave the link (RFC 4391, 7).
func (t *groups) sendToRouters(now mono.Time, g *group, frame []byte) {
	if p := frame[Headroom:]; leavesLink(p) {
		if r := t.mgidOf(allRouters(p)); r != g.mgid {
			t.send(now, r, frame)
			return
		}
	}
	t.stats.TxDrop(stats.DropMcastNotJoined)
	t.link.undeliverable(now, frame)
}

// sendOnlyFailed ends the attempt to join a group as a sender. After silence another attempt follows. Then, or where
// there is no such group, the frames go to the routers, and the group is absent for a while.
func (t *groups) sendOnlyFailed(now mono.Time, g *group, a *answer, why string) {
	g.reason = why
	if a.silent && g.failures < 2 {
		g.transition(groupJoinRetried)
		t.advance(now, g)
		return
	}
	if !a.silent {
		g.reason = "no such group"
	}
	g.failures = 0
	g.transition(groupNotFound)
	t.timers.Set(&g.timer, now.Add(absentFor))
	queue := g.queue
	g.queue = nil
	for _, f := range queue {
		t.budget.Release(len(f))
		t.sendToRouters(now, g, f)
	}
	g.sendOnly = false
}

// created follows trap 66, the creation of a group: a join that would follow later is sent at once.
func (t *groups) created(now mono.Time, mgid ib.GID) {
	if g := t.table[mgid]; g != nil && g.granted == 0 {
		t.stopTimer(g)
		g.backoff = 0
		t.advance(now, g)
		t.link.updateCarrier(now)
	}
}

// deleted follows trap 67, the deletion of a group: its MLID must not be used any more.
func (t *groups) deleted(now mono.Time, mgid ib.GID) {
	g := t.table[mgid]
	if g == nil || g.granted == 0 {
		return
	}
	t.cancelRequest(g)
	g.granted = 0
	g.transition(groupDeleted)
	t.releaseVector(g)
	t.detach(g)
	t.stats.Driver.Rejoins++
	if g == t.broadcast {
		t.up = false
	}
	t.advance(now, g)
	t.link.updateCarrier(now)
}

// leaveIdle leaves groups to which nothing was sent for long.
func (t *groups) leaveIdle(now mono.Time) {
	for _, g := range t.sorted() {
		if g.sendOnly && now.Sub(g.used) > sendOnlyIdle && g.granted&mad.JoinFull == 0 {
			g.sendOnly = false
			t.stopTimer(g)
			t.advance(now, g)
		}
	}
}
