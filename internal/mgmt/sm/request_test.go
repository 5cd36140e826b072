// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// TestAnswersOfOthers: an answer that did not take the route of its request is none, whatever else is right.
func TestAnswersOfOthers(t *testing.T) {
	for _, c := range []struct {
		name string
		lid  ib.LID // of the request; 0: it has a directed route
		edit func(s *mad.SMP, slid *ib.LID)
		good bool
	}{
		{"directed", 0, func(*mad.SMP, *ib.LID) {}, true},
		{"another route", 0, func(s *mad.SMP, _ *ib.LID) { s.InitialPath[2] = 9 }, false},
		{"another length", 0, func(s *mad.SMP, _ *ib.LID) { s.HopCount++ }, false},
		{"whose last part is by LID", 0, func(s *mad.SMP, _ *ib.LID) { s.DrSLID = 3 }, false},
		{"request", 0, func(s *mad.SMP, _ *ib.LID) { s.D = false }, false},
		{"by LID, to a directed one", 0, func(s *mad.SMP, _ *ib.LID) { s.MgmtClass = mad.ClassSubnLID }, false},
		{"by LID", 7, func(*mad.SMP, *ib.LID) {}, true},
		{"by another LID", 7, func(_ *mad.SMP, slid *ib.LID) { *slid = 8 }, false},
		{"directed, to one by LID", 7, func(s *mad.SMP, _ *ib.LID) { s.MgmtClass = mad.ClassSubnDR }, false},
	} {
		b := base{cfg: Config{TIDs: 5, Outstanding: 1}}
		q := requests{base: &b}
		answers := 0
		r := q.add(mad.MethodGet, mad.AttrPortInfo, 1, []uint8{1, 2, 3},
			func(mono.Time, *request, *mad.SMP) { answers++ })
		r.lid = c.lid
		q.orders++ // that finish takes back
		var d mad.Datagram
		if !q.transmit(1, &d) {
			t.Fatal("nothing is sent")
		}
		var s mad.SMP
		s.Parse(d.Data[:])
		s.Reply(mad.StatusOK)
		slid := d.DLID
		c.edit(&s, &slid)
		if q.answered(2, &s, slid); (answers == 1) != c.good || (q.Stray == 0) != c.good {
			t.Errorf("%s: %d answers, %d stray", c.name, answers, q.Stray)
		}
	}
}
