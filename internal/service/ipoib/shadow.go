// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// Bounds of what waits for one address vector.
const (
	entryFrames = 64
	entryBytes  = 128 << 10
	maxEntryIPs = 64 // addresses that one hardware address is known to have
)

// touchEvery is how often using an entry is noted, at most.
const touchEvery = mono.Time(time.Second)

// entry is one of the shadow table: a hardware address, and how to send to it.
type entry struct {
	hw       wire.HWAddr // without flags
	flags    uint8
	resolved bool // else PATHRECORD_PENDING
	ah       *address
	path     *path
	gen      uint32 // counts address vectors
	queue    [][]byte
	queued   int // octets
	ips      []netip.Addr
	used     mono.Time
	src      *source // that the entry counts for, nil: the link itself
	// Of connected mode: no connection is asked for until hold, after so many refusals in turn, and the node listens at the
	// other service ID.
	hold       mono.Time
	refusals   uint8
	oldService bool

	newer, older *entry // by use
}

// path is how packets travel to a GID. P_Key and traffic class are the link's.
type path struct {
	gid     ib.GID
	rec     mad.PathRecord // of the last answer
	valid   bool           // rec may be used for further entries
	local   bool           // to the link's own port
	q       *query
	waits   bool      // to be asked for
	src     *source   // that it is, or waits to be, asked for
	checked mono.Time // when it was asked for because of the sender's LID
	entries []*entry
}

// shadow is the shadow table and the path cache behind it.
type shadow struct {
	entries        map[wire.HWAddr]*entry
	byIP           map[netip.Addr]*entry
	paths          map[ib.GID]*path
	newest, oldest *entry
	frameLimit     int // of a queue
	asking         int // queries under way
	shares
}

func (s *shadow) init() {
	s.entries, s.byIP, s.paths = map[wire.HWAddr]*entry{}, map[netip.Addr]*entry{}, map[ib.GID]*path{}
	s.sources = map[ib.LID]*source{}
	s.frameLimit = entryFrames
}

// link and unlink keep the order of use.
func (s *shadow) link(e *entry) {
	e.older, e.newer = s.newest, nil
	if s.newest != nil {
		s.newest.newer = e
	}
	if s.newest = e; s.oldest == nil {
		s.oldest = e
	}
}

func (s *shadow) unlink(e *entry) {
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		s.newest = e.older
	}
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		s.oldest = e.newer
	}
	e.newer, e.older = nil, nil
}

// touch notes that a frame went to e, which may have been deleted since.
func (l *Link) touch(e *entry, now mono.Time) {
	if now-e.used < touchEvery || e.path == nil {
		return
	}
	e.used = now
	l.unlink(e)
	l.link(e)
}

// entryOf returns the entry of a hardware address and makes it if need be. It
// is nil where none can be: for what is no node's address, for want of a path
// that is known at once to fail, or where who has it be made has too many.
func (l *Link) entryOf(now mono.Time, hw wire.HWAddr) *entry {
	key := hw.Key()
	if e := l.entries[key]; e != nil {
		e.flags = hw.Flags()
		return e
	}
	if !hw.Unicast() {
		return nil
	}
	e := &entry{hw: key, flags: hw.Flags(), used: now}
	if !l.admit(e) {
		return nil
	}
	if len(l.entries) >= l.p.MaxNeigh {
		l.c.Driver.ShadowPurged++
		l.remove(now, l.oldest, DropQueueFull)
	}
	l.entries[key] = e
	l.link(e)
	l.c.Driver.ShadowCreated++
	l.pathFor(now, e)
	if e.path == nil {
		return nil
	}
	return e
}

// pathFor attaches a new entry to the path of its GID: it is resolved where that
// is valid, and otherwise waits for the query that is under way or begins.
func (l *Link) pathFor(now mono.Time, e *entry) {
	gid := e.hw.GID()
	p := l.paths[gid]
	if p == nil {
		p = &path{gid: gid}
		l.paths[gid] = p
	}
	e.path = p
	p.entries = append(p.entries, e)
	if gid == l.port.GID {
		p.rec = l.localPath()
		p.valid, p.local = true, true
	}
	if !p.valid {
		l.askPath(now, p)
		return
	}
	l.resolve(now, e)
}

// localPath is the path to the link's own port, for which nobody needs to be
// asked.
func (l *Link) localPath() mad.PathRecord {
	return mad.PathRecord{DGID: l.port.GID, SGID: l.port.GID, DLID: l.port.LID, SLID: l.port.LID, Reversible: true, NumbPath: 1,
		PKey: l.pkey, SL: l.broadcast.rec.SL, MTUSelector: mad.SelectExactly, MTU: l.port.MTU, RateSelector: mad.SelectExactly,
		Rate: l.port.Rate, LifeSelector: mad.SelectExactly, TClass: l.broadcast.rec.TClass}
}

// resolve gives e an address vector of its path's record, and sends what
// waits. Without one the entry is deleted.
func (l *Link) resolve(now mono.Time, e *entry) {
	r := &e.path.rec
	bits := uint8(r.SLID) & (1<<l.port.LMC - 1)
	gid := e.hw.GID()
	global := r.HopLimit > 0 || gid.Prefix() != l.port.GID.Prefix()
	ah, err := l.newAddress(&AH{DLID: r.DLID, SL: r.SL, Rate: l.staticRate(r.Rate), SrcPathBits: bits, Global: global, DGID: gid,
		FlowLabel: r.FlowLabel, HopLimit: r.HopLimit, TClass: r.TClass})
	if err != nil {
		l.log(now, "address vector", "address vector to %v: %v", gid, err)
		l.remove(now, e, DropNoPath)
		return
	}
	l.release(e.ah)
	e.ah = ah
	e.gen++
	e.resolved = true
	queue := e.queue
	e.queue, e.queued = nil, 0
	for _, f := range queue {
		l.pending -= len(f)
		l.toNode(now, e, f)
	}
	for _, ip := range e.ips {
		l.found(ip, e)
	}
}

func (e *entry) dest() dest { return dest{ah: e.ah, qpn: e.hw.QPN(), entry: e} }

// remove deletes an entry: its frames are dropped, those who wait for it are
// told. What is posted keeps its address vector.
func (l *Link) remove(now mono.Time, e *entry, why Drop) {
	if e.path == nil {
		return
	}
	l.disown(e)
	p := e.path
	e.path = nil
	p.entries = slices.DeleteFunc(p.entries, func(x *entry) bool { return x == e })
	if len(p.entries) == 0 {
		l.forgetPath(p)
		l.askNext(now)
	}
	delete(l.entries, e.hw)
	l.unlink(e)
	for _, f := range e.queue {
		l.pending -= len(f)
		l.txDrop(why)
	}
	e.queue, e.queued = nil, 0
	pending := !e.resolved
	e.resolved = false
	for _, ip := range e.ips {
		if l.byIP[ip] == e {
			delete(l.byIP, ip)
		}
		if pending {
			l.notFound(ip, ErrNoNode)
		}
	}
	l.release(e.ah)
	e.ah = nil
}

// purge deletes a resolved entry, and has the next for its GID ask anew.
func (l *Link) purge(now mono.Time, e *entry) {
	l.c.Driver.ShadowPurged++
	e.path.valid = false
	l.remove(now, e, DropNoPath)
}

// unicast sends a frame to a hardware address.
func (l *Link) unicast(now mono.Time, hw wire.HWAddr, frame []byte) {
	e := l.entries[hw.Key()]
	if e == nil {
		if e = l.entryOf(now, hw); e == nil {
			l.txDrop(DropNoPath)
			return
		}
	}
	if l.from == 0 && (e.src != nil || e.path.waits) {
		l.adopt(now, e)
	}
	if e.resolved && !e.path.valid && l.stale(e) {
		// An event made the path invalid: what follows waits for a new one.
		e.resolved = false
		l.askPath(now, e.path)
	}
	if e.resolved {
		l.toNode(now, e, frame)
		return
	}
	if len(e.queue) >= l.frameLimit || e.queued+len(frame) > l.byteLimit() || !l.charge(len(frame)) {
		l.c.Net.TxWindowErrors++
		l.txDrop(DropQueueFull)
		return
	}
	e.queue = append(e.queue, slices.Clone(frame))
	e.queued += len(frame)
}

// byteLimit bounds what waits for an entry.
func (l *Link) byteLimit() int {
	if l.connsOpen {
		return connBytes
	}
	return entryBytes
}

// stale reports whether e must not be used until its path was asked for again.
func (l *Link) stale(e *entry) bool { return e.path.rec.DLID == 0 }

// askPath queries the path of a GID, unless that is under way. When many are, of all or
// of who has it asked for, it waits its turn.
func (l *Link) askPath(now mono.Time, p *path) {
	if p.q != nil || p.waits {
		return
	}
	if x := l.source(); l.mayAskFor(x) {
		l.query(now, x, p)
	} else {
		l.enqueue(x, p)
	}
}

// query begins the query of a path for x.
func (l *Link) query(now mono.Time, x *source, p *path) {
	p.src = x
	x.asking++
	l.asking++
	rec := mad.PathRecord{DGID: p.gid, SGID: l.port.GID, TClass: l.broadcast.rec.TClass, NumbPath: 1, PKey: l.pkey | 0x8000}
	p.q = &query{method: mad.MethodGet, attr: mad.AttrPathRecord, record: rec.Append(nil), tries: pathTries, wait: pathWait, limit: pathWaitMax,
		mask: mad.CompPathDGID | mad.CompPathSGID | mad.CompPathTClass | mad.CompPathNumbPath | mad.CompPathPKey,
		done: func(now mono.Time, a answer) { l.pathAnswer(now, p, &a) }}
	l.c.Driver.PathQueries++
	l.debug(now, DebugPath, "path to %v: asking", p.gid)
	l.ask(now, p.q)
}

// Path queries: 100, 200, 400 and 400 ms, 1.1 s in all.
const (
	pathTries   = 4
	pathWait    = 100 * time.Millisecond
	pathWaitMax = 400 * time.Millisecond
)

// pathAnswer ends a query of a path. All entries of the GID get a new address
// vector; without a path they are deleted, so that the next frame asks again. Silence says nothing of
// the path: an entry that has an address vector keeps it, and streams go on while there is no manager.
func (l *Link) pathAnswer(now mono.Time, p *path, a *answer) {
	l.answered(p)
	var rec mad.PathRecord
	why := a.String()
	ok := a.ok()
	if ok {
		if err := rec.Parse(a.record); err != nil {
			ok, why = false, err.Error()
		} else if !rec.DLID.IsUnicast() || rec.SL > 15 {
			ok, why = false, "a path that is none"
		}
	}
	if !ok {
		l.c.Driver.PathFailures++
		p.valid = p.valid && a.silent
		if len(p.entries) > 0 {
			l.log(now, "path", "path to %v: %s", p.gid, why)
		}
		for _, e := range slices.Clone(p.entries) {
			if !e.resolved || !a.silent {
				l.remove(now, e, DropNoPath)
			}
		}
	} else {
		p.rec, p.valid = rec, true
		for _, e := range slices.Clone(p.entries) {
			l.resolve(now, e)
		}
	}
	l.askNext(now)
}

// answered ends the query of a path.
func (l *Link) answered(p *path) {
	p.q = nil
	l.asking--
	p.src.asking--
	l.retire(p.src)
}

// forgetPath drops a path, and what was asked about it.
func (l *Link) forgetPath(p *path) {
	if p.q != nil {
		l.forget(p.q)
		l.answered(p)
	}
	p.waits = false
	delete(l.paths, p.gid)
}

// invalidate has a path asked for again before its next use.
func (p *path) invalidate() { p.valid, p.rec = false, mad.PathRecord{} }

// invalidatePaths does so with all.
func (l *Link) invalidatePaths() {
	for _, p := range l.paths {
		p.invalidate()
	}
}

// invalidateGID does so with that of one GID.
func (l *Link) invalidateGID(gid ib.GID) {
	if p := l.paths[gid]; p != nil {
		p.invalidate()
	}
}

// heardFrom compares the LID that a question or announcement came from with the path to
// its sender: a port that moved is asked for again, in the background. Ports
// may have several LIDs, so that is done once in a while only.
func (l *Link) heardFrom(now mono.Time, src wire.HWAddr, lid ib.LID) {
	if p := l.paths[src.GID()]; p != nil && p.valid && !p.local && p.rec.DLID != lid && now.Sub(p.checked) > time.Second {
		p.checked = now
		l.askPath(now, p)
	}
}

// retryPath asks again for a path that is being waited for.
func (l *Link) retryPath(now mono.Time, gid ib.GID) {
	if p := l.paths[gid]; p != nil && p.q != nil {
		l.forget(p.q)
		l.answered(p)
		l.askPath(now, p)
	}
}

// flushShadow deletes all entries and paths.
func (l *Link) flushShadow(now mono.Time) {
	l.dropLines()
	for l.oldest != nil {
		l.remove(now, l.oldest, DropLinkDown)
	}
}

// sweepShadow deletes entries that nothing was sent to for long: the net below purging
// by what the link sends.
func (l *Link) sweepShadow(now mono.Time) {
	for e := l.oldest; e != nil && now.Sub(e.used) > l.p.ShadowIdle; {
		next := e.newer
		if e.resolved {
			l.c.Driver.ShadowPurged++
			l.remove(now, e, DropNoPath)
		}
		e = next
	}
}

// learned notes that an IP address is at a hardware address.
func (l *Link) learned(now mono.Time, ip netip.Addr, hw wire.HWAddr) *entry {
	e := l.entryOf(now, hw)
	if old := l.byIP[ip]; old != nil && old != e {
		delete(l.byIP, ip)
		old.ips = slices.DeleteFunc(old.ips, func(a netip.Addr) bool { return a == ip })
	}
	if e == nil || l.byIP[ip] == e {
		return e
	}
	if len(e.ips) == maxEntryIPs {
		delete(l.byIP, e.ips[0])
		l.notFound(e.ips[0], ErrNoNode)
		e.ips = slices.Delete(e.ips, 0, 1)
	}
	e.ips = append(e.ips, ip)
	l.byIP[ip] = e
	return e
}

// asked follows a question for an IP address that goes out: one to a group purges what
// was known, one to a single node refreshes it in the background.
func (l *Link) asked(now mono.Time, ip netip.Addr, dst wire.HWAddr) {
	if !dst.IsGroup() {
		if e := l.entries[dst.Key()]; e != nil && e.resolved && !e.path.local && e.path.q == nil {
			l.c.Driver.ShadowRefreshed++
			l.askPath(now, e.path)
		}
		return
	}
	if e := l.byIP[ip]; e != nil && e.resolved {
		l.purge(now, e)
	}
}
