// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"slices"
	"testing"
	"time"

	"weft/internal/mgmt/agent"
	"weft/internal/mgmt/sm"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/test/simfab/subnet"
)

// The keys of tests.
const (
	red  = 0x1122334455667788
	blue = 0x99aabbccddeeff00
)

// keyed is an intent with a key, as nodes have it.
func keyed(key uint64) sm.Intent {
	return sm.Intent{MKey: sm.MKey{All: key}, MKeyProtect: 1, MKeyLease: 60}
}

// own is an intent by which each port has a key of its own.
func own(secret byte) sm.Intent {
	return sm.Intent{MKey: sm.MKey{Secret: [32]byte{secret}}, MKeyProtect: 1, MKeyLease: 60}
}

// after is an intent with earlier keys.
func after(in sm.Intent, before ...uint64) sm.Intent {
	for _, k := range before {
		in.MKeysBefore = append(in.MKeysBefore, sm.MKey{All: k})
	}
	return in
}

// eachKind runs a test with one key for all ports, and with a key for each.
func eachKind(t *testing.T, f func(t *testing.T, in sm.Intent)) {
	t.Run("one key", func(t *testing.T) { f(t, keyed(red)) })
	t.Run("own keys", func(t *testing.T) { f(t, own(1)) })
}

// TestMKeyOfPorts: the keys of ports differ, are never 0, follow from secret and GUID alone, and a key for all ports is
// none of them.
func TestMKeyOfPorts(t *testing.T) {
	k := own(1).MKey
	seen := map[uint64]bool{k.ForAll().All: true, 0: true}
	for g := range ib.GUID(1000) {
		if g == 0 {
			continue
		}
		if v := k.Of(g); seen[v] || v != k.Of(g) || v == own(2).MKey.Of(g) {
			t.Fatalf("GUID %v: key %#x", g, v)
		} else {
			seen[v] = true
		}
	}
	// HMAC-SHA256 with the key 01 00…00 of "MKey", 00 and the GUID, its first eight octets (openssl dgst -mac HMAC).
	if v := k.Of(0x1122334455667788); v != 0x17912e786888064e {
		t.Errorf("%#x", v)
	}
	if one := (sm.MKey{All: red}); one.Of(5) != red || one.ForAll() != one || !(sm.MKey{}).ForAll().IsNone() ||
		(sm.MKey{}).Of(5) != 0 {
		t.Error("one key for all, or none")
	}
}

// guardedBy fails unless every port with a LID has the key of i.
func guardedBy(t *testing.T, s *small, i sm.Intent) {
	t.Helper()
	for _, n := range s.Nodes() {
		if p := n.Agent.Port(n.End()); p.MKey != i.MKey.Of(n.PortGUID()) || p.MKeyProtectBits != i.MKeyProtect ||
			p.MKeyLeasePeriod != i.MKeyLease {
			t.Errorf("%s: key %#x, protection %d, lease %d", n.Name, p.MKey, p.MKeyProtectBits, p.MKeyLeasePeriod)
		}
	}
}

// send sends a request of a program at n along a directed route and returns its answer.
func send(s *small, n *subnet.Node, method mad.Method, attr mad.AttributeID, mod uint32, key uint64, data []byte,
	path ...uint8) (answer *mad.SMP) {
	p := mad.SMP{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSubnDR, ClassVersion: 1, Method: method,
		AttributeID:       attr,
		AttributeModifier: mod, TransactionID: 99}, MKey: key, DrSLID: ib.LIDPermissive, DrDLID: ib.LIDPermissive,
		HopCount: uint8(len(path))}
	copy(p.InitialPath[1:], path)
	copy(p.Data[:], data)
	d := mad.Datagram{SLID: ib.LIDPermissive, DLID: ib.LIDPermissive}
	p.Append(d.Data[:0])
	s.Trace = func(_ *subnet.Node, _ uint8, d *mad.Datagram) {
		var p mad.SMP
		if p.Parse(d.Data[:]); p.TransactionID == 99 && p.D && p.HopPointer <= 1 {
			answer = &p
		}
	}
	n.Send(&d)
	s.Run(time.Millisecond)
	s.Trace = nil
	return answer
}

// TestMKeyGuards: ports have the key from their first configuration. Every host may read; a host without the key can
// neither change anything nor read the key, and the lease does not end while the manager runs, however often such a
// host tries.
func TestMKeyGuards(t *testing.T) {
	eachKind(t, func(t *testing.T, in sm.Intent) {
		s := newSmall(1)
		m := s.Attach(s.c1, sm.Config{}, in, sm.Observations{})
		settle(t, s.Fabric, m, time.Second)
		guardedBy(t, s, in)
		a := send(s, s.c2, mad.MethodGet, mad.AttrPortInfo, 0, 0, nil, 1)
		var i mad.PortInfo
		if a == nil {
			t.Fatal("reading is refused")
		}
		if i.Parse(a.Data[:]); i.MKey != 0 || i.LID != s.s1.Agent.LID() {
			t.Errorf("%+v", i)
		}
		i.LID = 77
		for range 150 {
			if a := send(s, s.c2, mad.MethodSet, mad.AttrPortInfo, 0, blue, i.Append(nil), 1); a != nil {
				t.Fatal("a Set with another key was answered")
			}
			send(s, s.c2, mad.MethodSet, mad.AttrPortInfo, 1, blue, i.Append(nil), 1, 8, 1)
			s.Run(time.Second)
		}
		guardedBy(t, s, in)
		if p := s.s1.Agent.Port(0); p.LID == 77 || p.MKeyViolations != 150 || s.s1.Agent.Stats.DropMKey != 150 {
			t.Errorf("LID %d, %d violations, %+v", p.LID, p.MKeyViolations, s.s1.Agent.Stats)
		}
		if v := s.c3.Agent.Port(1).MKeyViolations; v != 150 {
			t.Errorf("%d violations at the adapter", v)
		}
		c := m.Status().Counters
		if c["m_key_violations"] == 0 || c["traps"] < c["m_key_violations"] {
			t.Errorf("%v", c)
		}
	})
}

// TestMKeyAfterRestart gives nodes that were started anew the key again.
func TestMKeyAfterRestart(t *testing.T) {
	eachKind(t, func(t *testing.T, in sm.Intent) {
		s := newSmall(1)
		m := s.Attach(s.c1, sm.Config{}, in, sm.Observations{})
		settle(t, s.Fabric, m, time.Second)
		s.Cut(s.s1, 8)
		s.Cut(s.s2, 1)
		s.s2.Agent = agent.New(s.s2.Agent.Config(), s.s2, nil)
		s.c3.Agent = agent.New(s.c3.Agent.Config(), s.c3, nil)
		s.Link(s.s1, 8, s.s2, 7)
		s.Link(s.c3, 1, s.s2, 1)
		settle(t, s.Fabric, m, time.Second)
		guardedBy(t, s, in)
		// The renewal of the lease detects a port that was reset without a change of its link.
		*s.c2.Agent.Port(1) = func(i mad.PortInfo) mad.PortInfo {
			i.MKey, i.MKeyProtectBits = 0,
				0
			return i
		}(*s.c2.Agent.Port(1))
		settle(t, s.Fabric, m, 30*time.Second)
		guardedBy(t, s, in)
	})
}

// TestMKeyTakeover replaces the manager by one with the key, and by one without: that reports the problem, changes
// nothing, and takes over after the lease has ended.
func TestMKeyTakeover(t *testing.T) {
	for name, c := range map[string]struct {
		in     sm.Intent
		lapses bool
	}{
		"same":                 {keyed(red), false},
		"known before":         {after(keyed(blue), 5, red), false},
		"another":              {keyed(blue), true},
		"none":                 {sm.Intent{}, true},
		"own keys, one before": {after(own(1), 5, red), false},
		"own keys":             {own(1), true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSmall(1)
			m := s.Attach(s.c1, sm.Config{}, keyed(red), sm.Observations{})
			settle(t, s.Fabric, m, time.Second)
			was := lids(s.Fabric)
			s.Detach(s.c1)
			m = s.Attach(s.c2, sm.Config{}, c.in, sm.Observations{})
			if c.lapses {
				at := s.Now
				if !s.Until(10*time.Second, func() bool {
					return hasProblem(m, "host3", "guarded by another M_Key") &&
						hasProblem(m, "sw1", "it lapses 1m0s after")
				}) {
					t.Fatalf("%+v", m.Status())
				}
				m.SetGroups(s.Now, []sm.Group{{MLID: 0xc000, Members: []ib.GUID{s.c2.PortGUID(), s.c3.PortGUID()}}})
				s.Poke(s.c2)
				if !s.Until(4*time.Second, func() bool {
					l := m.Status().Sweeps
					return slices.ContainsFunc(l, func(r sm.SweepRecord) bool {
						return r.Kind == "groups" &&
							r.Took < 10*time.Millisecond
					})
				}) {
					t.Errorf("groups wait for switches that do not obey: %+v", m.Status().Sweeps)
				}
				s.Run(40 * time.Second)
				guardedBy(t, s, keyed(red))
				if !s.Until(40*time.Second, func() bool { return len(m.Status().Problems) == 0 }) {
					t.Fatalf("%+v", m.Status())
				}
				if took := s.Now.Sub(at); took < 60*time.Second {
					t.Errorf("took over after %v", took)
				}
			} else {
				settle(t, s.Fabric, m, 2*time.Second)
			}
			if p := m.Status().Problems; len(p) != 0 {
				t.Errorf("%+v", p)
			}
			guardedBy(t, s, c.in)
			for n, l := range was {
				if lids(s.Fabric)[n] != l {
					t.Errorf("%s: LID %d, was %d", n, lids(s.Fabric)[n], l)
				}
			}
			if s.c3.Agent.Port(1).MasterSMLID != s.c2.Agent.LID() {
				t.Error("the new master is not known")
			}
		})
	}
}

// TestMKeyChanges gives a running subnet a key, another, one with more protection, and none.
func TestMKeyChanges(t *testing.T) {
	s := newSmall(1)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	for _, in := range []sm.Intent{keyed(red), keyed(blue), own(1), own(2), keyed(red),
		{MKey: sm.MKey{All: blue}, MKeyProtect: 3, MKeyLease: 20},
		{MKey: sm.MKey{All: red}, MKeyProtect: 2, MKeyLease: 20}, {}} {
		if err := m.SetIntent(s.Now, in); err != nil {
			t.Fatal(err)
		}
		s.Poke(s.c1)
		settle(t, s.Fabric, m, time.Minute)
		guardedBy(t, s, in)
		if p := m.Status().Problems; len(p) != 0 {
			t.Errorf("%+v", p)
		}
	}
}

// TestMKeyOfManagers: orders to a manager bear the key of its subnet, answers never do.
func TestMKeyOfManagers(t *testing.T) {
	eachKind(t, func(t *testing.T, in sm.Intent) {
		s := newSmall(1)
		s.Attach(s.c3, sm.Config{Priority: 5}, in, sm.Observations{})
		m := s.Attach(s.c1, sm.Config{Priority: 1}, in, sm.Observations{})
		elected(t, s, 10*time.Second, s.c3, s.c1)
		i := mad.SMInfo{GUID: s.c3.PortGUID(), Priority: 15, State: mad.SMMaster}
		order := func(key uint64) *mad.SMP {
			return send(s, s.c2, mad.MethodSet, mad.AttrSMInfo, mad.SMDisable, key, i.Append(nil), 1, 1)
		}
		if a := order(0); a != nil || m.State() != mad.SMStandby || m.Status().Counters["drop_m_key"] != 1 {
			t.Errorf("%+v: %+v", a, m.Status())
		}
		if a := send(s, s.c2, mad.MethodGet, mad.AttrSMInfo, 0, 0, nil, 1, 1); a == nil || a.MKey != 0 {
			t.Errorf("%+v", a)
		}
		if a := order(in.MKey.Of(s.c1.PortGUID())); a == nil || a.MKey != 0 || m.State() != mad.SMNotActive {
			t.Errorf("%+v: %+v", a, m.Status())
		}
	})
}

// TestMKeyHandover hands a guarded subnet over to a manager with the same key, and to one
// without: that has to wait for the lease.
func TestMKeyHandover(t *testing.T) {
	eachKind(t, func(t *testing.T, in sm.Intent) {
		s := newSmall(1)
		a := s.Attach(s.c1, sm.Config{Priority: 1}, in, sm.Observations{})
		settle(t, s.Fabric, a, time.Second)
		s.Attach(s.c2, sm.Config{Priority: 2}, in, sm.Observations{})
		elected(t, s, 5*time.Second, s.c2, s.c1)
		c := s.Attach(s.c3, sm.Config{Priority: 3}, sm.Intent{}, sm.Observations{})
		if !s.Until(10*time.Second, func() bool {
			return c.State() == mad.SMMaster &&
				hasProblem(c, "host1", "another M_Key")
		}) {
			t.Fatalf("%+v", c.Status())
		}
		guardedBy(t, s, in)
		elected(t, s, 2*time.Minute, s.c3, s.c1, s.c2)
		guardedBy(t, s, sm.Intent{})
	})
}
