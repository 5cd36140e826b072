// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"log/slog"
	"testing"

	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/cm"
	"weft/internal/service/rdmacm"
)

// noLinks is a node without IP links.
type noLinks struct{ Links }

func (noLinks) BroadcastGID(string) (ib.GID, bool) { return ib.GID{}, false }

// TestCMGroupsRejoin proves that a program which joins a group again at once stays in it: a leave that
// the subnet administration was too busy for is not repeated. Requests of a removed port end with it.
func TestCMGroupsRejoin(t *testing.T) {
	s := New(Config{})
	s.rooms.Links = noLinks{}
	c := newGroupTable(s)
	const f = 3
	c.users[f] = subnet.New(subnet.Config{Log: slog.New(slog.DiscardHandler), SwitchPorts: 2}).OpenUser(f, nil, nil)
	g := &rdmacm.Group{Function: f, MGID: ib.GID{0: 0xff, 15: 1}, Addr: &cm.Address{Function: f, SGID: ib.GID{15: 9}}}
	joined := 0
	join := func() func(mono.Time) {
		return c.join(1, g, func(_ mono.Time, _ cm.Path, _ ib.QKey, err error) {
			if err != nil {
				t.Error(err)
			}
			joined++
		})
	}
	// only returns the one request under way, which has this method.
	only := func(m mad.Method) uint32 {
		t.Helper()
		if len(c.asks) != 1 {
			t.Fatalf("%d requests, want one", len(c.asks))
		}
		for id, a := range c.asks {
			if a.m.Method != m {
				t.Fatalf("method %#x, want %#x", a.m.Method, m)
			}
			return id
		}
		return 0
	}
	answer := func(id uint32, status mad.Status) {
		m := mad.SA{SAHeader: mad.SAHeader{Header: mad.Header{Status: status}}}
		(&mad.MCMemberRecord{MGID: g.MGID}).Append(m.Data[:0])
		c.answered(1, id, &m)
	}
	for range 2 {
		leave := join()
		answer(only(mad.MethodGet), mad.StatusOK)
		answer(only(mad.MethodSet), mad.StatusOK)
		if len(c.asks) != 0 {
			t.Fatalf("%d requests after a join", len(c.asks))
		}
		leave(1)
		answer(only(mad.MethodDelete), mad.StatusBusy)
		only(mad.MethodDelete)
	}
	if joined != 2 {
		t.Fatalf("joined %d times", joined)
	}
	c.remove(f)
	if len(c.asks) != 0 || len(c.users) != 0 {
		t.Errorf("%d requests from a port that is gone, %d users", len(c.asks), len(c.users))
	}
}
