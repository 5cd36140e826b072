// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"cmp"
	"slices"

	"weft/internal/proto/ib"
)

// lidTable is the assignment of LIDs to ports. Ports that are not in the subnet keep their LIDs.
type lidTable struct {
	by    map[ib.GUID]LIDRecord
	owner map[ib.LID]ib.GUID // every LID in use
}

func (t *lidTable) restore(o Observations) {
	t.by, t.owner = map[ib.GUID]LIDRecord{}, map[ib.LID]ib.GUID{}
	for _, r := range o.LIDs {
		if r.PortGUID != 0 && r.LMC <= 7 && t.isFree(r.LID, r.LMC) {
			t.add(r)
		}
	}
}

// records returns all records in the order of LIDs.
func (t *lidTable) records() []LIDRecord {
	all := make([]LIDRecord, 0, len(t.by))
	for _, r := range t.by {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b LIDRecord) int { return cmp.Compare(a.LID, b.LID) })
	return all
}

func (t *lidTable) of(g ib.GUID) LIDRecord { return t.by[g] }

// isFree reports whether lid is the base of 2^lmc LIDs that are not assigned.
func (t *lidTable) isFree(lid ib.LID, lmc uint8) bool {
	n := 1 << lmc
	if lid == 0 || int(lid)%n != 0 || int(lid)+n > int(ib.LIDMulticastFirst) {
		return false
	}
	for k := range n {
		if _, used := t.owner[lid+ib.LID(k)]; used {
			return false
		}
	}
	return true
}

func (t *lidTable) add(r LIDRecord) {
	t.by[r.PortGUID] = r
	for k := range 1 << r.LMC {
		t.owner[r.LID+ib.LID(k)] = r.PortGUID
	}
}

func (t *lidTable) release(g ib.GUID) {
	r, ok := t.by[g]
	if !ok {
		return
	}
	delete(t.by, g)
	for k := range 1 << r.LMC {
		delete(t.owner, r.LID+ib.LID(k))
	}
}

// lidWant is a port that needs LIDs, and the LID that it reports.
type lidWant struct {
	guid    ib.GUID
	lmc     uint8
	current ib.LID
}

// adopt assigns ports the LIDs that they report, in place of those of the table: a manager that becomes master of a
// working subnet, with an old table of its own, must not renumber it. A LID stays with its owner in the table only
// if that is in want and reports it.
func (t *lidTable) adopt(want []lidWant) (changed bool) {
	has := make(map[ib.GUID]ib.LID, len(want))
	for _, w := range want {
		has[w.guid] = w.current
	}
next:
	for _, w := range want {
		n := 1 << w.lmc
		if r, ok := t.by[w.guid]; ok && r.LID == w.current && r.LMC == w.lmc ||
			w.current == 0 || int(w.current)%n != 0 || int(w.current)+n > int(ib.LIDMulticastFirst) {
			continue
		}
		var owners []ib.GUID
		for k := range n {
			g, used := t.owner[w.current+ib.LID(k)]
			if used && g != w.guid && has[g] == t.by[g].LID {
				continue next
			}
			if used {
				owners = append(owners, g)
			}
		}
		for _, g := range owners {
			t.release(g)
		}
		t.release(w.guid)
		t.add(LIDRecord{PortGUID: w.guid, LID: w.current, LMC: w.lmc})
		changed = true
	}
	return changed
}

// assign assigns LIDs to every port: those it has in the table, else those it reports if they are free, else the
// lowest free ones. If all are in use, ports that are not in want lose theirs. without are the ports for which none
// are left.
func (t *lidTable) assign(want []lidWant) (changed bool, without []ib.GUID) {
	var rest []lidWant
	for _, w := range want {
		if r, ok := t.by[w.guid]; ok && r.LMC == w.lmc {
			continue
		}
		t.release(w.guid)
		rest = append(rest, w)
	}
	if len(rest) == 0 {
		return false, nil
	}
	none := rest[:0:0]
	for _, w := range rest {
		if t.isFree(w.current, w.lmc) {
			t.add(LIDRecord{PortGUID: w.guid, LID: w.current, LMC: w.lmc})
		} else {
			none = append(none, w)
		}
	}
	var next [8]int // by LMC: where to look on
	evicted := false
	for _, w := range none {
		for {
			n := 1 << w.lmc
			l := max(next[w.lmc], n)
			for l+n <= int(ib.LIDMulticastFirst) && !t.isFree(ib.LID(l), w.lmc) {
				l += n
			}
			next[w.lmc] = l
			if l+n <= int(ib.LIDMulticastFirst) {
				t.add(LIDRecord{PortGUID: w.guid, LID: ib.LID(l), LMC: w.lmc})
				break
			}
			if evicted {
				without = append(without, w.guid)
				break
			}
			evicted = true
			next = [8]int{}
			t.evict(want)
		}
	}
	return true, without
}

// evict releases the LIDs of all ports that are not in want.
func (t *lidTable) evict(want []lidWant) {
	here := map[ib.GUID]bool{}
	for _, w := range want {
		here[w.guid] = true
	}
	for g := range t.by {
		if !here[g] {
			t.release(g)
		}
	}
}
