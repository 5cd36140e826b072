// SPDX-License-Identifier: Apache-2.0

package em

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// slot is a slot of the tables of MACs of a VESW: every member except for the owner has the MAC there, with the LID of
// the owner.
type slot struct {
	mac   MAC
	owner ib.GUID
}

// refusedMAC is a MAC of a member that is not distributed.
type refusedMAC struct {
	mac MAC
	of  ib.GUID
	why string
	by  ib.GUID // its owner
}

// maxRefused is the number of refused MACs that are kept.
const maxRefused = 64

// put fills a slot, or empties it.
func (v *vesw) put(i int, s slot) {
	for len(v.slots) <= i {
		v.slots = append(v.slots, slot{})
	}
	v.slots[i] = s
	v.stamp++
}

// claims reports whether a member may have MACs in tables, and how many.
func (mb *member) claims() (list []MAC, unread bool) {
	if !mb.there() || mb.v.want.NoUserMACs {
		return nil, false
	}
	if !mb.port.uc.read {
		return nil, true
	}
	return mb.port.uc.macs, false
}

// assign assigns a slot to every MAC of a member. A MAC keeps its slot while any member has it, and its owner while
// that member has it: the first member that had it keeps it.
func (v *vesw) assign() {
	m := v.m
	v.refused = nil
	before := v.stamp
	base := map[MAC]ib.GUID{}
	for _, mb := range v.list {
		if mb.there() {
			base[v.base(mb)] = mb.is.Port
		}
	}
	most := int(cmp.Or(v.want.MaxMACs, DefaultMaxMACs))
	type claim struct {
		by []*member
	}
	claims := map[MAC]*claim{}
	unread := map[ib.GUID]bool{}
	var order []MAC
	for _, mb := range v.list {
		list, later := mb.claims()
		if later {
			unread[mb.is.Port] = true
		}
		n := 0
		for _, mac := range list {
			switch owner, taken := base[mac]; {
			case taken && owner == mb.is.Port:
				continue // all members have it
			case taken:
				v.refuse(mac, mb.is.Port, "it is the base MAC of another member", owner)
				continue
			case n == most:
				v.refuse(mac, mb.is.Port, "the member has too many", 0)
				m.Counters.Overflows++
				continue
			}
			n++
			c := claims[mac]
			if c == nil {
				c = &claim{}
				claims[mac] = c
				order = append(order, mac)
			}
			c.by = append(c.by, mb)
		}
	}
	placed := map[MAC]bool{}
	for i, s := range v.slots {
		if s.mac == (MAC{}) {
			continue
		}
		_, isBase := base[s.mac]
		c := claims[s.mac]
		switch {
		case isBase || placed[s.mac]:
			v.put(i, slot{})
			continue
		case unread[s.owner]: // its owner had it before this manager became active
		case c == nil:
			v.put(i, slot{})
			continue
		case !slices.ContainsFunc(c.by, func(mb *member) bool { return mb.is.Port == s.owner }):
			v.put(i, slot{s.mac, c.by[0].is.Port})
		}
		placed[s.mac] = true
		if c != nil {
			v.contest(c.by, s.mac, v.slots[i].owner)
		}
	}
	free := 0
	for _, mac := range order {
		if placed[mac] {
			continue
		}
		for free < len(v.slots) && v.slots[free].mac != (MAC{}) {
			free++
		}
		c := claims[mac]
		if free == mad.VESWMaxMACs {
			v.refuse(mac, c.by[0].is.Port, "the tables are full", 0)
			m.Counters.Overflows++
			continue
		}
		v.put(free, slot{mac, c.by[0].is.Port})
		v.contest(c.by, mac, c.by[0].is.Port)
	}
	for n := len(v.slots); n > 0 && v.slots[n-1].mac == (MAC{}); n-- {
		v.slots = v.slots[:n-1]
	}
	if v.stamp != before {
		m.fabric.Keep()
	}
}

// contest refuses a MAC to all members except for its owner.
func (v *vesw) contest(by []*member, mac MAC, owner ib.GUID) {
	for _, mb := range by {
		if mb.is.Port != owner {
			v.refuse(mac, mb.is.Port, "another member had it first", owner)
			v.m.Counters.Duplicates++
		}
	}
}

func (v *vesw) refuse(mac MAC, of ib.GUID, why string, by ib.GUID) {
	if len(v.refused) < maxRefused {
		v.refused = append(v.refused, refusedMAC{mac, of, why, by})
	}
}

// entry returns the required entry of a slot in the table of a member.
func (mb *member) entry(i int) (e mad.VESWMACEntry) {
	v := mb.v
	if i >= len(v.slots) || v.slots[i].mac == (MAC{}) || v.slots[i].owner == mb.is.Port {
		return e
	}
	o := v.m.ports[v.slots[i].owner]
	if o == nil {
		return e
	}
	return mad.VESWMACEntry{MAC: v.slots[i].mac, Mask: fullMask, DLIDSD: mad.MakeDLIDSD(uint32(o.lid))}
}

var fullMask = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// expected returns the digest of the correct table of a member. It is never 0, which is the digest of an incomplete
// table.
func (mb *member) expected() uint32 {
	if mb.digest != 0 && mb.digestStamp == mb.v.stamp {
		return mb.digest
	}
	h := uint64(14695981039346656037) // FNV-1a
	var b [12]byte
	for i := range mb.v.slots {
		e := mb.entry(i)
		if e.MAC == (MAC{}) {
			continue
		}
		binary.BigEndian.PutUint16(b[:], uint16(i))
		copy(b[2:], e.MAC[:])
		binary.BigEndian.PutUint32(b[8:], e.DLIDSD)
		for _, x := range b {
			h = (h ^ uint64(x)) * 1099511628211
		}
	}
	mb.digest, mb.digestStamp = max(1, uint32(h^h>>32)), mb.v.stamp
	return mb.digest
}

// table is the known state of the table of MACs of a vport.
type table struct {
	has  []mad.VESWMACEntry // up to the last non-empty slot
	sure int                // slots below it are as in has; the others are unknown
	// known is the digest with which has was compared.
	known uint32
	// fresh means that the table was created under this manager.
	fresh bool
}

func (t *table) at(i int) mad.VESWMACEntry {
	if i < len(t.has) {
		return t.has[i]
	}
	return mad.VESWMACEntry{}
}

// next returns the next Set for a table, nil if the table is correct.
func (t *table) next(digest uint32, mb *member) *request {
	want := mb.expected()
	if digest == want {
		if t.known != want { // an earlier manager wrote it, or a Set without an answer was executed
			*t = table{sure: mad.VESWMaxMACs, known: want, fresh: t.fresh}
			for i := range mb.v.slots {
				t.has = append(t.has, mb.entry(i))
			}
		}
		return nil
	}
	if t.sure < mad.VESWMaxMACs { // read unknown slots first, so that no entry that others need is removed
		q := get(mad.AttrVESWMACEntries)
		q.entries.Offset, q.entries.Num = uint16(t.sure), uint16(min(mad.VESWMACsPerMAD, mad.VESWMaxMACs-t.sure))
		return q
	}
	differs := func(from, to int) int {
		for i := from; i < to; i++ {
			if t.at(i) != mb.entry(i) {
				return i
			}
		}
		return -1
	}
	known := max(len(t.has), len(mb.v.slots))
	q := &request{method: mad.MethodSet, attr: mad.AttrVESWMACEntries}
	e := &q.entries
	first, last := differs(0, known), true
	if first >= 0 {
		end := min(first+mad.VESWMACsPerMAD, known)
		for differs(end-1, end) < 0 {
			end--
		}
		last = differs(end, known) < 0
		e.Offset, e.Num = uint16(first), uint16(end-first)
		for i := first; i < end; i++ {
			e.Entries[i-first] = mb.entry(i)
		}
	}
	if last {
		e.Digest = want
	}
	return q
}

// unread reports whether the MACs of a member are still unread after a takeover. Until they are read, and for some
// seconds at most, no entry is removed.
func (v *vesw) unread(now mono.Time) bool {
	if v.patience == 0 {
		v.patience = now.Add(listPatience)
	}
	return v.patience > now && slices.ContainsFunc(v.list, func(mb *member) bool {
		return mb.p != nil && (mb.p.state == agentUnknown || mb.p.state == agentThere && mb.port.troubles == 0 &&
			!mb.port.uc.read)
	})
}

const listPatience = 5 * time.Second

// seed adopts the slots of a table that an earlier manager wrote, if nothing else is known.
func (v *vesw) seed(t *table) {
	if v.recalled {
		return
	}
	placed := map[MAC]bool{}
	for _, s := range v.slots {
		placed[s.mac] = true
	}
	for i, e := range t.has {
		o := v.m.byLID[ib.LID(e.DLID())]
		if e.MAC == ([6]byte{}) || e.IsSource() || e.DLID() > 0xffff || o == nil || v.members[o.guid] == nil ||
			placed[e.MAC] ||
			i < len(v.slots) && v.slots[i].mac != (MAC{}) {
			continue
		}
		v.put(i, slot{e.MAC, o.guid})
		placed[e.MAC] = true
	}
}

// readEntries handles a range of a table.
func (m *Manager) readEntries(now mono.Time, v *vport, q *request, e *mad.VESWMACEntries) {
	t := &v.table
	if e.Offset != q.entries.Offset || e.Num != q.entries.Num || int(e.Offset) != t.sure {
		m.Counters.BadAnswers++
		v.lookAt = now
		m.trouble(now, v, "its agent does not tell its table of MACs")
		return
	}
	t.has = append(t.has, e.Entries[:e.Num]...)
	if t.sure += int(e.Num); t.sure < mad.VESWMaxMACs {
		return
	}
	t.trim()
	if v.member != nil {
		v.member.v.seed(t)
		m.changed(now, v.member.v)
	}
}

// trim removes empty slots at the end.
func (t *table) trim() {
	for n := len(t.has); n > 0 && t.has[n-1].MAC == ([6]byte{}); n-- {
		t.has = t.has[:n-1]
	}
}

// doubt makes slots differ from every required entry.
func (t *table) doubt(first, n int) {
	if n > 0 {
		t.has = append(t.has, make([]mad.VESWMACEntry, max(0, first+n-len(t.has)))...)
	}
	for i := first; i < first+n; i++ {
		t.has[i] = mad.VESWMACEntry{MAC: fullMask}
	}
}

// gotEntries handles the answer to a Get or a Set of a range of a table.
func (m *Manager) gotEntries(now mono.Time, v *vport, q *request, a *mad.VEMA) {
	var e mad.VESWMACEntries
	e.Parse(a.Data[:]) // long enough
	if q.method == mad.MethodGet {
		m.readEntries(now, v, q, &e)
		return
	}
	if e.Offset != q.entries.Offset || e.Num != q.entries.Num || e.Digest != q.entries.Digest ||
		!slices.Equal(e.Entries[:q.entries.Num], q.entries.Entries[:q.entries.Num]) {
		m.Counters.Mismatches++
		v.table = table{}
		v.lookAt = now
		m.trouble(now, v, "its agent does not keep its table of MACs")
		return
	}
	v.info.Port.MACDigest = e.Digest
	t := &v.table
	end := int(e.Offset) + int(e.Num)
	for len(t.has) < end {
		t.has = append(t.has, mad.VESWMACEntry{})
	}
	copy(t.has[e.Offset:end], e.Entries[:e.Num])
	t.trim()
	if v.member != nil && e.Digest != 0 {
		v.troubles, v.restAt, v.why = 0, 0, ""
		v.member.v.check(now)
	}
}

// list is a list of the MACs that the interface of a vport accepts.
type list struct {
	macs   []MAC
	read   bool   // macs is the whole list of gen
	gen    uint16 // counted by the agent
	wanted bool   // it has changed, or may have
	cut    bool   // it is longer

	part     []MAC // of the list in progress
	partGen  uint16
	parts    int
	beganAt  mono.Time
	restarts int
	restAt   mono.Time
	paces    int // consecutive early reads
	readAt   mono.Time
}

// maxList is the largest number of MACs read of a list; no table has room for more.
const maxList = mad.VESWMaxMACs

// maxParts is the largest number of parts; six suffice for maxList.
const maxParts = 32

// gotList handles a part of a list.
func (m *Manager) gotList(now mono.Time, v *vport, l *list, q *request, a *mad.VEMA) {
	var r mad.VESWMACList
	r.Parse(a.Data[:]) // long enough
	if int(r.Num) > len(r.MACs) || r.Start != q.list.Start {
		m.Counters.BadAnswers++
		l.part, l.parts = nil, 0
		l.restAt = now.Add(m.cfg.Poll)
		return
	}
	if len(l.part) > 0 && r.Gen != l.partGen {
		l.part, l.parts = nil, 0
		if l.restarts++; l.restarts > m.cfg.Retries {
			m.Counters.ListsUnstable++
			l.restarts = 0
			l.restAt = now.Add(m.cfg.Poll)
		}
		return // from the start
	}
	l.partGen = r.Gen
	for _, mac := range r.MACs[:r.Num] {
		l.part = append(l.part, MAC(mac))
	}
	if l.parts++; l.parts == 1 {
		l.beganAt = now
	}
	if r.Num > 0 && len(l.part) < int(r.Total) && len(l.part) < maxList && l.parts < maxParts {
		return // the next part
	}
	if l.cut = len(l.part) < int(r.Total) || len(l.part) > maxList; l.cut {
		m.Counters.ListsCut++
	}
	macs := l.part[:min(len(l.part), maxList)]
	l.part, l.parts, l.restarts = nil, 0, 0
	l.gen, l.wanted = r.Gen, false
	// A list that changes all the time is not read all the time.
	if l.readAt != 0 && now.Sub(l.readAt) < 2*double(m.cfg.ListEvery, l.paces, m.cfg.Poll) {
		l.paces++
	} else {
		l.paces = 0
	}
	l.readAt, l.restAt = now, now.Add(max(double(m.cfg.ListEvery, l.paces, m.cfg.Poll), 4*now.Sub(l.beganAt)))
	m.Counters.ListsRead++
	if l == &v.uc {
		n := len(macs)
		macs = slices.DeleteFunc(macs, func(mac MAC) bool { return mac.IsMulticast() || mac == (MAC{}) })
		m.Counters.BadMACs += uint64(n - len(macs))
	}
	slices.SortFunc(macs, func(a, b MAC) int { return slices.Compare(a[:], b[:]) })
	macs = slices.Clip(slices.Compact(macs))
	was := l.read && slices.Equal(macs, l.macs)
	l.read, l.macs = true, macs
	// Readers of VESWPortInfo compare with this generation.
	if l == &v.uc {
		v.info.Port.UcMACsGen = r.Gen
	} else {
		v.info.Port.McMACsGen = r.Gen
	}
	if l == &v.uc && !was && v.member != nil {
		m.changed(now, v.member.v)
	}
}
