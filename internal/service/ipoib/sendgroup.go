// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// groupcast sends a frame to a group. One that is not joined yet makes it wait,
// one that the link does not know is joined as a sender.
func (l *Link) groupcast(now mono.Time, mgid ib.GID, frame []byte) {
	g := l.groups[mgid]
	if g == nil {
		if g = l.groupOf(mgid); g == nil {
			l.txDrop(DropMcastNotJoined)
			return
		}
	}
	g.used = now
	switch {
	case g.ah != nil:
		l.transmit(frame, g.dest())
		return
	case g.absent > now:
		l.elsewhere(now, g, frame)
		return
	case len(g.queue) >= groupFrames || !l.charge(len(frame)):
		l.c.Net.TxWindowErrors++
		l.txDrop(DropQueueFull)
		return
	}
	if g != l.broadcast && len(g.ips) == 0 {
		g.sendOnly = true
	}
	g.queue = append(g.queue, slices.Clone(frame))
	l.advance(now, g)
}

// allRouters is the group whose members pass packets on to other links, by the
// packet's IP version.
func allRouters(p []byte) netip.Addr {
	if p[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte{224, 0, 0, 2})
	}
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 15: 2})
}

// leavesLink reports whether the IP group that a packet goes to reaches beyond
// the link.
func leavesLink(p []byte) bool {
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		return p[16]>>4 == 0xe && !(p[16] == 224 && p[17] == 0 && p[18] == 0)
	case len(p) >= 40 && p[0]>>4 == 6:
		return p[24] == 0xff && p[25]&0xf > 2
	}
	return false
}

// elsewhere sends a frame for a group that does not exist to the routers, if
// it may leave the link (RFC 4391, 7).
func (l *Link) elsewhere(now mono.Time, g *group, frame []byte) {
	if p := frame[Headroom:]; leavesLink(p) {
		if r := l.mgidOf(allRouters(p)); r != g.mgid {
			l.groupcast(now, r, frame)
			return
		}
	}
	l.txDrop(DropMcastNotJoined)
	l.eng.Undeliverable(now, frame)
}

// sendOnlyFailed ends the try to join a group as a sender. Silence is met with one
// more; then, and where there is no such group, the frames go elsewhere and the
// group stays in the table, not joined, for a while.
func (l *Link) sendOnlyFailed(now mono.Time, g *group, a *answer, why string) {
	g.reason = why
	if a.silent && g.failures < 2 {
		l.advance(now, g)
		return
	}
	if !a.silent {
		g.reason = "no such group"
	}
	g.failures = 0
	g.absent = now.Add(absentFor)
	l.timers.set(&g.timer, g.absent)
	queue := g.queue
	g.queue = nil
	for _, f := range queue {
		l.pending -= len(f)
		l.elsewhere(now, g, f)
	}
	g.sendOnly = false
}

// groupCreated follows trap 66: what waits for the group is tried at once.
func (l *Link) groupCreated(now mono.Time, mgid ib.GID) {
	if g := l.groups[mgid]; g != nil && g.have == 0 {
		l.timers.stop(&g.timer)
		g.absent, g.backoff = 0, 0
		l.advance(now, g)
		l.follow(now)
	}
}

// groupDeleted follows trap 67: its MLID must not be used any more.
func (l *Link) groupDeleted(now mono.Time, mgid ib.GID) {
	g := l.groups[mgid]
	if g == nil || g.have == 0 {
		return
	}
	l.forgetQuery(g)
	g.have = 0
	l.release(g.ah)
	g.ah = nil
	l.detach(g)
	l.c.Driver.Rejoins++
	if g == l.broadcast {
		g.up = false
	}
	l.advance(now, g)
	l.follow(now)
}

// sweepGroups leaves groups that nothing was sent to for long.
func (l *Link) sweepGroups(now mono.Time) {
	for _, g := range l.sortedGroups() {
		if g.sendOnly && now.Sub(g.used) > sendOnlyIdle && g.have&mad.JoinFull == 0 {
			g.sendOnly = false
			l.timers.stop(&g.timer)
			l.advance(now, g)
		}
	}
}
