// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/connected"
	"weft/internal/service/ipoib/stats"
)

// Bounds of an entry.
const (
	entryFrames = 64
	entryBytes  = 128 << 10 // of frames that wait; connected.QueueBytes in connected mode
	maxEntryIPs = 64        // IP addresses at one hardware address
)

// touchEvery is how often the use of an entry is noted, at most.
const touchEvery = mono.Time(time.Second)

// entryState is the state of an entry.
type entryState uint8

const (
	// entryPending (PATHRECORD_PENDING): frames wait, bounded; a query of the path is queued or under way. A record
	// resolves the entry; a refusal, silence or the end of the carrier removes it.
	entryPending entryState = iota
	// entryResolved: there is an address vector, and frames are sent. An invalid path makes it pending with the next
	// frame; a purge, disuse, a full table, a refused query or the end of the carrier removes it.
	entryResolved
	// entryRemoved: it is not in the table; posted work requests may still refer to it.
	entryRemoved
)

var entryStateNames = [...]string{"PATHRECORD_PENDING", "RESOLVED", "REMOVED"}

// entryEvent changes the state of an entry.
type entryEvent uint8

const (
	entryVectorMade entryEvent = iota // the path is valid, and an address vector exists
	entryPathStale                    // the path must be queried before the next frame
	entryRemove                       // the entry leaves the table
)

// entry is an entry of the shadow table: a hardware address and how to send to it.
type entry struct {
	hw     wire.HWAddr // without flags
	flags  uint8       // of the hardware address
	state  entryState
	ah     *address
	path   *path
	gen    uint32 // counts address vectors
	queue  [][]byte
	queued int // octets
	ips    []netip.Addr
	used   mono.Time
	// account is of the port that caused the entry by its frames, as long as the link itself sends nothing to
	// it; nil: it counts for no port.
	account  *account
	attempts connected.Attempts

	newer, older *entry // by use
}

// transition changes the state of an entry by an event. A removed entry stays removed.
func (e *entry) transition(ev entryEvent) {
	switch {
	case e.state == entryRemoved:
	case ev == entryVectorMade:
		e.state = entryResolved
	case ev == entryPathStale:
		e.state = entryPending
	case ev == entryRemove:
		e.state = entryRemoved
	}
}

// usable reports whether frames may be sent to an entry.
func (e *entry) usable() bool { return e.state == entryResolved && e.path.usable() }

func (e *entry) dest() dest { return dest{ah: e.ah, qpn: e.hw.QPN(), entry: e} }

// shadowLink is what the shadow table needs of its link.
type shadowLink interface {
	// sendTo sends a frame to a neighbour with a resolved entry.
	sendTo(now mono.Time, e *entry, frame []byte)
	// probe queries the hardware address of an IP address again.
	probe(now mono.Time, ip netip.Addr)
}

// shadow is the shadow table and the path cache behind it. It implements connected.Neighbours.
type shadow struct {
	p       *Params
	attr    *attributes
	stats   *stats.Recorder
	report  *reporter
	sa      *transactions
	vectors *vectorSet
	budget  *frameBudget
	waiters *pathWaiters
	link    shadowLink

	entries        map[wire.HWAddr]*entry
	byIP           map[netip.Addr]*entry
	paths          map[ib.GID]*path
	newest, oldest *entry
	frameLimit     int // of the queue of an entry
	byteLimit      int
	quotas
}

func (t *shadow) init() {
	t.entries, t.byIP, t.paths = map[wire.HWAddr]*entry{}, map[netip.Addr]*entry{}, map[ib.GID]*path{}
	t.ports = map[ib.LID]*account{}
	t.frameLimit, t.byteLimit = entryFrames, entryBytes
	if t.p.Mode == Connected {
		t.byteLimit = connected.QueueBytes
	}
}

// insert and unlink keep the entries in the order of use.
func (t *shadow) insert(e *entry) {
	e.older, e.newer = t.newest, nil
	if t.newest != nil {
		t.newest.newer = e
	}
	if t.newest = e; t.oldest == nil {
		t.oldest = e
	}
}

func (t *shadow) unlink(e *entry) {
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		t.newest = e.older
	}
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		t.oldest = e.newer
	}
	e.newer, e.older = nil, nil
}

// touch notes that a frame was sent to e, which may have been removed since.
func (t *shadow) touch(e *entry, now mono.Time) {
	if now-e.used < touchEvery || e.state == entryRemoved {
		return
	}
	e.used = now
	t.unlink(e)
	t.insert(e)
}

// entryOf returns the entry of a hardware address and makes it if need be. It is nil where none can be made: for an
// address that is not a node's, without a path where that is known at once, and for a port that has too many.
func (t *shadow) entryOf(now mono.Time, hw wire.HWAddr) *entry {
	key := hw.Key()
	if e := t.entries[key]; e != nil {
		e.flags = hw.Flags()
		return e
	}
	if !hw.Unicast() {
		return nil
	}
	e := &entry{hw: key, flags: hw.Flags(), used: now}
	if !t.admit(e) {
		return nil
	}
	if len(t.entries) >= t.p.MaxNeigh {
		t.stats.Driver.ShadowPurged++
		t.remove(now, t.oldest, stats.DropQueueFull)
	}
	t.entries[key] = e
	t.insert(e)
	t.stats.Driver.ShadowCreated++
	e.path = t.pathOf(key.GID())
	e.path.entries = append(e.path.entries, e)
	if e.path.state == pathValid {
		t.resolve(now, e)
	} else {
		t.queryPath(now, e.path)
	}
	if e.state == entryRemoved {
		return nil
	}
	return e
}

// admit counts a new entry for the port that causes it; false where that has too many.
func (t *shadow) admit(e *entry) bool {
	if t.requester == 0 {
		return true
	}
	a := t.account()
	if a.entries >= min(maxPortEntries, max(1, t.p.MaxNeigh/4)) {
		t.stats.Driver.ShadowRefusedShare++
		return false
	}
	a.entries++
	e.account = a
	return true
}

// disown ends that an entry counts for a port.
func (t *shadow) disown(e *entry) {
	if a := e.account; a != nil {
		e.account = nil
		a.entries--
		t.retire(a)
	}
}

// adopt makes an entry the link's own, which sends to it; its query does not wait behind those of a port.
func (t *shadow) adopt(now mono.Time, e *entry) {
	t.disown(e)
	if p := e.path; p.request == requestQueued && p.account != &t.own {
		p.transition(pathCancelled)
		t.queryPath(now, p)
	}
}

// resolve makes the address vector of an entry by the record of its path, and sends the frames that wait. Without an
// address vector the entry is removed.
func (t *shadow) resolve(now mono.Time, e *entry) {
	r := &e.path.rec
	port := &t.attr.port
	bits := uint8(r.SLID) & (1<<port.LMC - 1)
	gid := e.hw.GID()
	global := r.HopLimit > 0 || gid.Prefix() != port.GID.Prefix()
	ah, err := t.vectors.make(&AH{DLID: r.DLID, SL: r.SL, Rate: t.attr.staticRate(r.Rate), SrcPathBits: bits,
		Global: global, DGID: gid, FlowLabel: r.FlowLabel, HopLimit: r.HopLimit, TClass: r.TClass})
	if err != nil {
		t.report.Logf(now, "address vector", "address vector to %v: %v", gid, err)
		t.remove(now, e, stats.DropNoPath)
		return
	}
	t.vectors.release(e.ah)
	e.ah = ah
	e.gen++
	e.transition(entryVectorMade)
	queue := e.queue
	e.queue, e.queued = nil, 0
	for _, f := range queue {
		t.budget.Release(len(f))
		t.link.sendTo(now, e, f)
	}
	for _, ip := range e.ips {
		t.waiters.found(ip, e.path)
	}
}

// remove removes an entry: its frames are dropped, and requests for its path fail. Posted work keeps its address
// vector.
func (t *shadow) remove(now mono.Time, e *entry, why stats.Drop) {
	if e.state == entryRemoved {
		return
	}
	t.disown(e)
	p, pending := e.path, e.state == entryPending
	e.transition(entryRemove)
	e.path = nil
	p.entries = slices.DeleteFunc(p.entries, func(x *entry) bool { return x == e })
	if len(p.entries) == 0 {
		t.dropPath(p)
		t.nextQueries(now)
	}
	delete(t.entries, e.hw)
	t.unlink(e)
	for _, f := range e.queue {
		t.budget.Release(len(f))
		t.stats.TxDrop(why)
	}
	e.queue, e.queued = nil, 0
	for _, ip := range e.ips {
		if t.byIP[ip] == e {
			delete(t.byIP, ip)
		}
		if pending {
			t.waiters.failed(ip, ErrNoNode)
		}
	}
	t.vectors.release(e.ah)
	e.ah = nil
}

// purge removes a resolved entry; the next one for its GID queries the path.
func (t *shadow) purge(now mono.Time, e *entry) {
	t.stats.Driver.ShadowPurged++
	e.path.transition(pathPurged)
	t.remove(now, e, stats.DropNoPath)
}

// purgeMatching purges the resolved entry of a hardware address, or all with an address of zeros. It returns how many
// there were.
func (t *shadow) purgeMatching(now mono.Time, hw wire.HWAddr) (n int) {
	for e := t.oldest; e != nil; {
		next := e.newer
		if e.state == entryResolved && (hw.IsZero() || e.hw == hw.Key()) {
			t.purge(now, e)
			n++
		}
		e = next
	}
	return n
}

// destination returns the resolved entry for a frame to a hardware address. nil: the frame waits there for the path, or
// was dropped.
func (t *shadow) destination(now mono.Time, hw wire.HWAddr, frame []byte) *entry {
	e := t.entries[hw.Key()]
	if e == nil {
		if e = t.entryOf(now, hw); e == nil {
			t.stats.TxDrop(stats.DropNoPath)
			return nil
		}
	}
	if t.requester == 0 && (e.account != nil || e.path.request == requestQueued) {
		t.adopt(now, e)
	}
	if e.state == entryResolved {
		if e.path.usable() {
			return e
		}
		// An event made the path invalid: what follows waits for a new one.
		e.transition(entryPathStale)
		t.queryPath(now, e.path)
	}
	t.enqueueFrame(e, frame)
	return nil
}

// enqueueFrame keeps a copy of a frame until its entry is resolved.
func (t *shadow) enqueueFrame(e *entry, frame []byte) {
	if len(e.queue) >= t.frameLimit || e.queued+len(frame) > t.byteLimit || !t.budget.Reserve(len(frame)) {
		t.stats.Net.TxWindowErrors++
		t.stats.TxDrop(stats.DropQueueFull)
		return
	}
	e.queue = append(e.queue, slices.Clone(frame))
	e.queued += len(frame)
}

// checkSource compares the LID that a request or announcement came from with the path to its sender: where they differ
// the port may have moved, and its path is queried in the background.
func (t *shadow) checkSource(now mono.Time, src wire.HWAddr, lid ib.LID) {
	p := t.paths[src.GID()]
	if p != nil && p.state == pathValid && !t.isLocal(p) && p.rec.DLID != lid && now.Sub(p.checked) > recheckEvery {
		p.checked = now
		t.queryPath(now, p)
	}
}

// flush removes all entries and paths.
func (t *shadow) flush(now mono.Time) {
	t.dropLines()
	for t.oldest != nil {
		t.remove(now, t.oldest, stats.DropLinkDown)
	}
}

// removeIdle removes entries to which nothing was sent for long. The questions that the link sends purge most of them
// before (noteRequest).
func (t *shadow) removeIdle(now mono.Time) {
	for e := t.oldest; e != nil && now.Sub(e.used) > t.p.ShadowIdle; {
		next := e.newer
		if e.state == entryResolved {
			t.stats.Driver.ShadowPurged++
			t.remove(now, e, stats.DropNoPath)
		}
		e = next
	}
}

// learn notes that an IP address is at a hardware address, and returns the entry of that; nil where there can be none.
func (t *shadow) learn(now mono.Time, ip netip.Addr, hw wire.HWAddr) *entry {
	e := t.entryOf(now, hw)
	if old := t.byIP[ip]; old != nil && old != e {
		delete(t.byIP, ip)
		old.ips = slices.DeleteFunc(old.ips, func(a netip.Addr) bool { return a == ip })
	}
	if e == nil || t.byIP[ip] == e {
		return e
	}
	if len(e.ips) == maxEntryIPs {
		delete(t.byIP, e.ips[0])
		t.waiters.failed(e.ips[0], ErrNoNode)
		e.ips = slices.Delete(e.ips, 0, 1)
	}
	e.ips = append(e.ips, ip)
	t.byIP[ip] = e
	return e
}

// noteRequest follows an ARP request or solicitation for an IP address that the link sends: one to a group purges the
// entry that had the address, one to a single node queries its path in the background.
func (t *shadow) noteRequest(now mono.Time, ip netip.Addr, dst wire.HWAddr) {
	if !dst.IsGroup() {
		if e := t.entries[dst.Key()]; e != nil && e.state == entryResolved && !t.isLocal(e.path) &&
			e.path.request != requestSent {
			t.stats.Driver.ShadowRefreshed++
			t.queryPath(now, e.path)
		}
		return
	}
	if e := t.byIP[ip]; e != nil && e.state == entryResolved {
		t.purge(now, e)
	}
}

// Attempts implements connected.Neighbours.
func (t *shadow) Attempts(hw wire.HWAddr) *connected.Attempts {
	if e := t.entries[hw]; e != nil {
		return &e.attempts
	}
	return nil
}

// Touch implements connected.Neighbours.
func (t *shadow) Touch(now mono.Time, hw wire.HWAddr) {
	if e := t.entries[hw]; e != nil {
		t.touch(e, now)
	}
}

// PathLID implements connected.Neighbours.
func (t *shadow) PathLID(gid ib.GID) (ib.LID, bool) {
	if p := t.paths[gid]; p != nil && p.state == pathValid {
		return p.rec.DLID, true
	}
	return 0, false
}

// VerifyPath implements connected.Neighbours.
func (t *shadow) VerifyPath(now mono.Time, hw wire.HWAddr, lid ib.LID) {
	t.requester = lid
	p := t.paths[hw.GID()]
	switch {
	case p == nil:
		t.entryOf(now, wire.MakeHWAddr(wire.HWFlagRC, hw.QPN(), hw.GID()))
	case now.Sub(p.checked) > recheckEvery:
		p.checked = now
		t.queryPath(now, p)
	}
	t.requester = 0
}

// Rediscover implements connected.Neighbours.
func (t *shadow) Rediscover(now mono.Time, hw wire.HWAddr) {
	e := t.entries[hw]
	if e == nil {
		return
	}
	ips := slices.Clone(e.ips)
	if e.state == entryResolved {
		t.purge(now, e)
	}
	for _, ip := range ips {
		t.link.probe(now, ip)
	}
}
