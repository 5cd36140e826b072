// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// asks counts the requests that contain all of words.
func (s *subnet) asks(words ...string) (n int) {
	for _, a := range s.asked {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(a, w) }) {
			n++
		}
	}
	return n
}

// groupText sends a packet of A's IP stack to a group.
func (n *node) groupText(group string, text string) {
	n.send(ipA, netip.MustParseAddr(group), text)
	n.s.step()
}

// TestSARecords: the requests that a link makes are those of vectors SA-1 to SA-5.
func TestSARecords(t *testing.T) {
	s, a := one(t)
	a.start()
	a.l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom(ipA, 24)}, nil)
	s.run(time.Second)
	group := netip.MustParseAddr("239.1.2.3")
	a.l.JoinGroup(s.now, group)
	s.step()
	a.l.LeaveGroup(s.now, group)
	s.step()
	a.l.p.SendOnly = SendOnlyCreate
	a.groupText("239.1.2.3", "x")
	a.xmitText(hwB, "x")
	for id, v := range vectors(t, "SA-") {
		if id == "SA-6" {
			continue // the answer
		}
		var in, out struct {
			Method, Attr string
			CompMask     string `json:"comp_mask"`
			Attribute    string `json:"attribute_hex"`
		}
		v.read(t, &in, &out)
		if !slices.ContainsFunc(s.requests, func(r SARequest) bool {
			return fmt.Sprintf("0x%016x", uint64(r.Mask)) == out.CompMask &&
				hex.EncodeToString(r.Record) == out.Attribute &&
				(in.Method == "" || fmt.Sprintf("0x%02x", uint8(r.Method)) == in.Method) &&
				(in.Attr == "" || fmt.Sprintf("0x%04x", uint16(r.Attr)) == in.Attr)
		}) {
			t.Errorf("%s: %s: no such request", id, v.Desc)
		}
	}
}

// TestJoinBackoff: a request is repeated every mcast_timeout, mcast_retry_cnt times;
// then after 1, 2, 4, 8, 16 and 16 s and a random part of a quarter of a second (S-15).
func TestJoinBackoff(t *testing.T) {
	s, a := one(t, "mcast_timeout=500", "mcast_retry_cnt=2")
	s.silent = true
	a.start()
	s.run(2 * time.Minute)
	if a.l.reason != "broadcast group: SA timeout" {
		t.Errorf("reason %q", a.l.reason)
	}
	if n := s.asks("join"); n != 3*len(a.askedAt(3)) {
		t.Errorf("%d requests", n)
	}
	want := []time.Duration{1, 2, 4, 8, 16, 16, 16}
	at := a.askedAt(3)
	for i := range want {
		if i+1 >= len(at) {
			t.Fatalf("only %d attempts", len(at))
		}
		gap := at[i+1].Sub(at[i]) - 3*500*time.Millisecond
		if gap < want[i]*time.Second || gap >= want[i]*time.Second+time.Second/4 {
			t.Errorf("pause %d: %v, want %vs", i, gap, int(want[i]))
		}
	}
	s.silent = false
	a.event(nil, ib.EventSMChange)
	s.step()
	if !a.carrier {
		t.Errorf("no carrier at once after the manager changed: %s", a.reason)
	}
	if a.l.groups.broadcast.backoff != 0 {
		t.Error("the pause is not reset")
	}
}

// askedAt are the times of every n-th request.
func (n *node) askedAt(every int) (at []mono.Time) {
	for i, t := range n.s.askedTimes {
		if i%every == 0 {
			at = append(at, t)
		}
	}
	return at
}

// TestH62_DynamicAndConfigured: in the dynamic mode a partition without a broadcast
// group gets no device, and none is created; the configured list may create it.
func TestH62_DynamicAndConfigured(t *testing.T) {
	t.Run("dynamic", func(t *testing.T) {
		s, a := one(t)
		clear(s.groups)
		a.start()
		s.run(time.Minute)
		if a.registered || len(s.groups) != 0 ||
			a.l.reason != "broadcast group: absent, and none is made without create=1" {
			t.Errorf("registered %v, %d groups, reason %q", a.registered, len(s.groups), a.l.reason)
		}
		for _, r := range s.requests {
			if r.Mask != 0x10083 {
				t.Errorf("asked with mask %#x", uint64(r.Mask))
			}
		}
		// The group appears: trap 66 has the link join at once.
		g := s.permanent(testPKey)
		a.l.Notice(s.now, mad.TrapGroupCreated, g.rec.MGID)
		s.step()
		if !a.carrier {
			t.Errorf("no carrier after the group was created: %s", a.reason)
		}
	})
	t.Run("configured", func(t *testing.T) {
		s, a := one(t, "pkeys=0x8014", "create=1")
		clear(s.groups)
		a.start()
		s.run(time.Second)
		g := s.groups[wire.BroadcastGID(testPKey, 2)]
		if !a.carrier || g == nil || g.rec.QKey != createQKey || g.rec.PKey != testPKey {
			t.Errorf("carrier %v, reason %q, group %+v", a.carrier, a.reason, g)
		}
	})
	t.Run("configured without create", func(t *testing.T) {
		s, a := one(t, "pkeys=0x8014")
		clear(s.groups)
		a.start()
		s.run(time.Minute)
		if a.registered || len(s.groups) != 0 {
			t.Errorf("registered %v, %d groups", a.registered, len(s.groups))
		}
	})
}

// TestRefusalsAreExplained: the report of a refused join has the reason, field by field (S-15).
func TestRefusalsAreExplained(t *testing.T) {
	for want, prepare := range map[string]func(s *subnet, a *node, g *saGroup){
		"MTU too large: group 4096, port 2048": func(s *subnet, a *node, g *saGroup) {
			g.rec.MTU,
				a.port.MTU = ib.MTU4096, ib.MTU2048
		},
		"rate too low: group 40 Gb/sec, port 10 Gb/sec": func(s *subnet, a *node, g *saGroup) {
			g.rec.Rate,
				a.port.Rate = ib.Rate40, ib.Rate10
		},
		"not in partition": func(s *subnet, a *node,
			g *saGroup) {
			s.refuse = mad.StatusSADenied
		},
		"no resources": func(s *subnet, a *node,
			g *saGroup) {
			s.refuse = mad.StatusSANoResources
		},
		"absent, and none is made without create=1": func(s *subnet, a *node,
			g *saGroup) {
			delete(s.groups, g.rec.MGID)
		},
		"SA timeout": func(s *subnet, a *node, g *saGroup) { s.silent = true },
		"no SA at the manager's port": func(s *subnet, a *node,
			g *saGroup) {
			s.refuse = mad.StatusBadMethodAttr
		},
		"joining the broadcast group": func(s *subnet, a *node, g *saGroup) { s.delay = time.Hour },
		"port is Initialize":          func(s *subnet, a *node, g *saGroup) { a.port.State = ib.PortInit },
		"P_Key 0x8014 is not in the port's table": func(s *subnet, a *node,
			g *saGroup) {
			a.port.PKeys = []ib.PKey{0xffff}
		},
	} {
		s, a := one(t, "mcast_retry_cnt=0", "mcast_timeout=60000")
		prepare(s, a, s.groups[wire.BroadcastGID(testPKey, 2)])
		if s.silent || s.refuse == mad.StatusBadMethodAttr {
			a.l.p.McastWait = time.Second
		}
		a.start()
		s.run(1500 * time.Millisecond)
		if got := strings.TrimPrefix(a.l.Info().Reason, "broadcast group: "); got != want || a.l.attr.carrier {
			t.Errorf("reason %q, want %q", got, want)
		}
		// No busy loop, whatever the reason.
		if s.run(time.Minute); len(s.asked) > 20 {
			t.Errorf("%s: %d requests in a minute", want, len(s.asked))
		}
	}
}

// TestBroadcastFirst: nothing else is joined until the broadcast group is
// attached, and no more than a few groups at a time.
func TestBroadcastFirst(t *testing.T) {
	s, a := one(t)
	s.delay = 100 * time.Millisecond
	a.start()
	for i := range 100 {
		a.l.JoinGroup(s.now, netip.AddrFrom4([4]byte{239, 1, 0, byte(i)}))
	}
	s.step()
	if len(s.asked) != 1 || s.asks("ffff:ffff 1") != 1 {
		t.Errorf("first asked %v", s.asked)
	}
	s.run(150 * time.Millisecond)
	if a.l.groups.joins != maxJoins {
		t.Errorf("%d joins at a time", a.l.groups.joins)
	}
	s.run(2 * time.Second)
	if len(a.attached) != 103 {
		t.Errorf("%d groups attached", len(a.attached))
	}
}

// TestLeaveWaitsForJoin: a leave that comes while the join is under way follows it,
// and a join that comes while the leave is under way follows that.
func TestLeaveWaitsForJoin(t *testing.T) {
	s, a := alone(t)
	s.delay = 100 * time.Millisecond
	g := netip.MustParseAddr("239.1.2.3")
	mgid := a.l.groups.mgidOf(g)
	a.l.JoinGroup(s.now, g)
	s.run(10 * time.Millisecond)
	a.l.LeaveGroup(s.now, g)
	s.run(10 * time.Millisecond)
	if s.asks("leave") != 0 {
		t.Error("left before the join was answered")
	}
	s.run(time.Second)
	if s.groups[mgid] != nil || a.l.groups.table[mgid] != nil || a.attached[mgid] != 0 {
		t.Errorf("asked %v, attached %v", s.asked, a.attached)
	}
	s.asked = nil
	a.l.JoinGroup(s.now, g)
	s.run(150 * time.Millisecond)
	a.l.LeaveGroup(s.now, g)
	s.run(10 * time.Millisecond)
	a.l.JoinGroup(s.now, g)
	s.run(time.Second)
	want := []string{fmt.Sprintf("%s join %v 1", a.name, mgid), fmt.Sprintf("%s leave %v 1", a.name, mgid),
		fmt.Sprintf("%s join %v 1", a.name, mgid)}
	if d := cmp.Diff(want, s.asked); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if a.attached[mgid] != s.groups[mgid].rec.MLID {
		t.Errorf("attached at %#x, group at %#x", a.attached[mgid], s.groups[mgid].rec.MLID)
	}
	// Counted: two joins need two leaves.
	a.l.JoinGroup(s.now, g)
	a.l.LeaveGroup(s.now, g)
	if s.run(time.Second); a.attached[mgid] == 0 {
		t.Error("left although one join is not undone")
	}
	if a.l.LeaveGroup(s.now, g) != nil || a.l.LeaveGroup(s.now, g) != ErrInvalid ||
		a.l.JoinGroup(s.now, ipB) != ErrInvalid {
		t.Error("joining and leaving is not counted")
	}
}

// TestSendOnly: RFC 4391's order for sending to groups that are not joined.
func TestSendOnly(t *testing.T) {
	listen := func(s *subnet, group string) ib.GID {
		mgid := wire.GroupGID(netip.MustParseAddr(group), testPKey, 2)
		g := s.permanent(testPKey ^ 0x7000)
		delete(s.groups, g.rec.MGID)
		g.rec.MGID, g.rec.PKey, g.permanent = mgid, testPKey, false
		g.members[gidB] = mad.JoinFull
		s.groups[mgid] = g
		return mgid
	}
	t.Run("member", func(t *testing.T) {
		s, a := alone(t)
		a.l.JoinGroup(s.now, netip.MustParseAddr("239.1.2.3"))
		s.step()
		s.asked = nil
		a.groupText("239.1.2.3", "x")
		if len(s.asked) != 0 || !slices.Contains(a.sentTexts(nil), "x") {
			t.Errorf("asked %v, sent %v", s.asked, a.sentTexts(nil))
		}
	})
	t.Run("the group exists", func(t *testing.T) {
		s, a := alone(t)
		mgid := listen(s, "239.1.2.3")
		a.groupText("239.1.2.3", "x")
		if s.groups[mgid].members[gidA] != mad.JoinSendOnlyNon || !slices.Contains(a.sentTexts(nil), "x") ||
			a.attached[mgid] != 0 {
			t.Errorf("members %v, sent %v", s.groups[mgid].members, a.sentTexts(nil))
		}
		if a.counter("mcast_sendonly") != 1 {
			t.Error("not counted")
		}
		// A real join replaces it.
		a.l.JoinGroup(s.now, netip.MustParseAddr("239.1.2.3"))
		s.step()
		if s.groups[mgid].members[gidA] != mad.JoinFull || a.attached[mgid] == 0 {
			t.Errorf("members %v, attached %v", s.groups[mgid].members, a.attached)
		}
		a.l.LeaveGroup(s.now, netip.MustParseAddr("239.1.2.3"))
		s.step()
		if s.groups[mgid].members[gidA]&mad.JoinFull != 0 || a.attached[mgid] != 0 {
			t.Errorf("members %v, attached %v", s.groups[mgid].members, a.attached)
		}
	})
	t.Run("idle", func(t *testing.T) {
		s, a := alone(t)
		mgid := listen(s, "239.1.2.3")
		a.groupText("239.1.2.3", "x")
		s.run(sendOnlyIdle + idleSweep)
		if s.groups[mgid].members[gidA] != 0 || a.l.groups.table[mgid] != nil {
			t.Errorf("members %v", s.groups[mgid].members)
		}
	})
	t.Run("routers", func(t *testing.T) {
		s, a := alone(t)
		routers := listen(s, "224.0.0.2")
		a.groupText("239.1.2.3", "x")
		last := a.sent[len(a.sent)-1]
		if last.ah.DGID != routers || last.ah.DLID != s.groups[routers].rec.MLID {
			t.Errorf("went to %v", last.ah.DGID)
		}
		// The group stays in the table for a while, not joined; trap 66 ends that.
		s.asked = nil
		a.groupText("239.1.2.3", "y")
		if len(s.asked) != 0 || a.counter("drop_mcast_not_joined") != 0 {
			t.Errorf("asked %v", s.asked)
		}
		mgid := listen(s, "239.1.2.3")
		a.l.Notice(s.now, mad.TrapGroupCreated, mgid)
		a.groupText("239.1.2.3", "z")
		if last := a.sent[len(a.sent)-1]; last.ah.DGID != mgid {
			t.Errorf("went to %v after the group was created", last.ah.DGID)
		}
		delete(s.groups, mgid)
		a.l.Notice(s.now, mad.TrapGroupDeleted, mgid)
		n := len(a.sent)
		a.groupText("239.1.2.3", "w")
		for _, f := range a.sent[n:] {
			if f.ah.DGID == mgid {
				t.Error("sent to a group that is gone")
			}
		}
	})
	t.Run("nobody", func(t *testing.T) {
		s, a := alone(t)
		for range 100 {
			a.groupText("239.1.2.3", "x") // beyond the link, but there is no router
			a.groupText("224.0.0.99", "x")
		}
		if n := a.counter("drop_mcast_not_joined"); n != 200 || len(a.sent) != 0 || len(s.groups) != 4 {
			t.Errorf("%d drops, sent %v, %d groups", n, a.sentTexts(nil), len(s.groups))
		}
		if len(s.asked) > 4 {
			t.Errorf("asked %d times: %v", len(s.asked), s.asked)
		}
	})
	t.Run("silence", func(t *testing.T) {
		s, a := alone(t, "mcast_retry_cnt=0")
		s.silent = true
		for range 100 {
			a.groupText("224.0.0.99", "x")
		}
		if n := a.counter("tx_window_errors"); n != 100-groupFrames {
			t.Errorf("%d frames beyond the bound", n)
		}
		s.run(3 * time.Second)
		if n := a.counter("drop_mcast_not_joined"); n != groupFrames || s.asks("join") != 2 {
			t.Errorf("%d drops, asked %v", n, s.asked)
		}
	})
	t.Run("created", func(t *testing.T) {
		s, a := alone(t, "sendonly=create")
		a.groupText("239.1.2.3", "x")
		if g := s.groups[a.l.groups.mgidOf(netip.MustParseAddr("239.1.2.3"))]; g == nil ||
			g.members[gidA] != mad.JoinSendOnlyFull || len(a.sent) != 1 {
			t.Errorf("group %+v, sent %v", g, a.sentTexts(nil))
		}
	})
}

// TestThousandGroups: joining and leaving many groups leaves the subnet
// administration as it was (S-07).
func TestThousandGroups(t *testing.T) {
	s, a := alone(t)
	before := len(s.groups)
	s.delay = time.Millisecond
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{239, 2, byte(i >> 8), byte(i)}) }
	for range 2 {
		for i := range 1000 {
			if err := a.l.JoinGroup(s.now, addr(i)); err != nil {
				t.Fatal(err)
			}
		}
		s.run(5 * time.Second)
		if len(s.groups) != before+1000 || len(a.attached) != before+1000 {
			t.Fatalf("%d groups, %d attached", len(s.groups), len(a.attached))
		}
		for i := range 1000 {
			a.l.LeaveGroup(s.now, addr(i))
		}
		s.run(5 * time.Second)
		if len(s.groups) != before || len(a.attached) != before || len(a.l.groups.table) != before {
			t.Fatalf("%d groups, %d attached, %d known are left", len(s.groups), len(a.attached), len(a.l.groups.table))
		}
	}
	for i := range maxGroups + 10 {
		a.l.JoinGroup(s.now, netip.AddrFrom4([4]byte{239, 3, byte(i >> 8), byte(i)}))
	}
	s.run(time.Minute)
	if len(a.l.groups.table) != maxGroups {
		t.Errorf("%d groups", len(a.l.groups.table))
	}
}

// TestH16_MTU: the MTU is the group's less the encapsulation header, follows it
// when it changes, and is never above the port's.
func TestH16_MTU(t *testing.T) {
	for id, v := range vectors(t, "MTU-") {
		var in struct {
			MTU ib.MTU `json:"mtu_enum"`
		}
		var out struct {
			IPMTU  int  `json:"ip_mtu"`
			Buffer int  `json:"rx_buffer"`
			IPv6   bool `json:"ipv6_allowed"`
		}
		v.read(t, &in, &out)
		s, a := one(t)
		s.groups[wire.BroadcastGID(testPKey, 2)].rec.MTU = in.MTU
		a.start()
		s.run(time.Second)
		if a.info.MTU != out.IPMTU || a.l.Info().MTU != out.IPMTU || int(a.recvq[0].Len) != out.Buffer ||
			a.info.LinkLocal.IsValid() != out.IPv6 {
			t.Errorf("%s: device %+v, receive buffers of %d", id, a.info, a.recvq[0].Len)
		}
	}
	s, a, b := two(t)
	s.groups[wire.BroadcastGID(testPKey, 2)].rec.MTU = ib.MTU4096
	for _, n := range s.nodes {
		n.event(nil, ib.EventReregister)
	}
	s.run(time.Second)
	if a.mtu != 4092 || b.mtu != 4092 {
		t.Errorf("the group grew, MTU is %d", a.mtu)
	}
	a.send(ipA, ipB, strings.Repeat("x", 4092-20))
	s.run(time.Second)
	if got := b.texts(); len(got) != 1 || len(got[0]) != 4072 {
		t.Errorf("%d packets arrived", len(got))
	}
	a.got = nil
	a.send(ipA, ipB, strings.Repeat("x", 4092-19))
	if a.counter("drop_too_big") != 1 || a.counter("tx_errors") != 1 || a.counter("tx_dropped") != 1 {
		t.Error("a packet beyond the MTU is not counted")
	}
	if len(a.got) != 1 || a.got[0][20] != 3 || a.got[0][21] != 4 {
		t.Errorf("no ICMP error: %x", a.got)
	}
	t.Run("port", func(t *testing.T) {
		s, a := one(t)
		a.port.MTU = ib.MTU1024
		s.groups[wire.BroadcastGID(testPKey, 2)].rec.MTU = ib.MTU1024
		a.start()
		s.run(time.Second)
		if a.info.MTU != 1020 {
			t.Errorf("MTU %d", a.info.MTU)
		}
	})
}

// TestLeaveMoreThanThereIs: what the administration refuses to end together, since it has but a part of it, ends all
// the same, also where the link does.
func TestLeaveMoreThanThereIs(t *testing.T) {
	for _, stop := range []bool{false, true} {
		s, a := alone(t)
		group := netip.MustParseAddr("239.1.1.2")
		if err := a.l.JoinGroup(s.now, group); err != nil {
			t.Fatal(err)
		}
		s.run(time.Second)
		mgid := a.l.groups.mgidOf(group)
		a.l.groups.table[mgid].requested |= mad.JoinSendOnlyNon // as if the answer to such a join had been lost
		if stop {
			a.l.Stop(s.now)
		} else if err := a.l.LeaveGroup(s.now, group); err != nil {
			t.Fatal(err)
		}
		s.run(5 * time.Second)
		if g := s.groups[mgid]; g != nil {
			t.Errorf("stop %v: the group has members %v", stop, g.members)
		}
		if stop {
			a.gone()
		}
	}
}

// TestLeaveAfterRefusedRepetition: a join that was granted too late, and refused when repeated, is
// left in any case: the administration may have it.
func TestLeaveAfterRefusedRepetition(t *testing.T) {
	s, a := alone(t)
	group := netip.MustParseAddr("239.1.1.2")
	s.delay = 10 * time.Second
	if err := a.l.JoinGroup(s.now, group); err != nil {
		t.Fatal(err)
	}
	s.run(time.Second / 2)
	s.delay, s.refuse = 0, mad.StatusSANoResources
	s.run(time.Second)
	if err := a.l.LeaveGroup(s.now, group); err != nil {
		t.Fatal(err)
	}
	s.run(5 * time.Second)
	if g := s.groups[a.l.groups.mgidOf(group)]; g != nil {
		t.Errorf("the group has members %v", g.members)
	}
}
