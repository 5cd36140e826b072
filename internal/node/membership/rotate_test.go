// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
	"weft/internal/proto/condtest"
	"weft/internal/proto/problem"
)

// TestRotate: the CA, the certificates and the M_Key of a fabric are replaced while its members run, and a token from
// before lets no one in. Members go on: each is admitted by the other all the time.
func TestRotate(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s.Open(), c)
	a.start(t)
	made, err := a.createToken(t.Context(), api.NewToken{Uses: 2})
	if err != nil {
		t.Fatal(err)
	}
	spec := JoinSpec{Dir: t.TempDir(), GUID: guid(2), Host: "127.0.0.1:" + port(a.cfg.Port), Port: condtest.Port(t),
		Token: strings.Fields(made.Line)[4], Name: "b1", Now: c.now}
	if _, err := Join(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	b := newHost(t, spec.Dir, 2, spec.Port, s.Open(), c)
	b.start(t)
	hosts := []*host{a, b}
	old := a.Roster().CAs[0].Epoch
	condtest.Until(t, "both follow", func() bool {
		return len(a.Roster().Members) == 2 && len(b.Roster().Members) == 2
	})
	if n := a.Notices(); len(n) != 0 {
		t.Errorf("%+v", n)
	}
	rekeys := a.rekeys
	done, err := a.rotate(t.Context())
	if err != nil || !slices.Equal(done.Replaced, []string{"tokens", "M_Key"}) || a.rekeys != rekeys+1 {
		t.Fatalf("%+v, %v, %d", done, err, a.rekeys)
	}
	spec.Dir, spec.GUID, spec.Name, spec.Port = t.TempDir(), guid(3), "c1", condtest.Port(t)
	if _, err := Join(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "it has no token") &&
		!strings.Contains(err.Error(), "the CA was replaced since") {
		t.Errorf("by a token from before: %v", err)
	}
	condtest.Until(t, "the notice", func() bool { n := b.Notices(); return len(n) == 1 && n[0].What == "ca_rotation" })
	condtest.Until(t, "the end of the old CA", func() bool {
		for _, h := range hosts {
			for _, o := range hosts {
				_, v, p := h.Roster().Admit(o.cert.Load().Leaf, c.now())
				if v != member.Admitted && v != member.Provisional {
					t.Fatalf("%v, %v", v, p)
				}
			}
			h.wake()
			if r := h.Roster(); len(r.CAs) != 1 || r.CAs[0].Epoch != old+1 {
				return false
			}
		}
		return true
	})
	if n := append(a.Notices(), b.Notices()...); len(n) != 0 {
		t.Errorf("%+v", n)
	}
	if made, err = b.createToken(t.Context(), api.NewToken{}); err != nil {
		t.Fatal(err)
	}
	spec.Token, spec.Host = strings.Fields(made.Line)[4], "127.0.0.1:"+port(b.cfg.Port)
	if _, err := Join(t.Context(), spec); err != nil {
		t.Errorf("by a token of the new CA: %v", err)
	}
}

// TestNewerNotice: a member reports that a later weft has written records, as long as there are any.
func TestNewerNotice(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s.Open(), &clockwork{})
	a.start(t)
	if _, err := a.createToken(t.Context(), api.NewToken{}); err != nil {
		t.Fatal(err)
	}
	e, err := s.Get(t.Context(), member.KeyFabric)
	if err != nil {
		t.Fatal(err)
	}
	newer := bytes.Replace(e.Value, []byte(`"version":1`), []byte(`"version":1,"minor":1,"next":{}`), 1)
	for i, b := range [][]byte{newer, e.Value} {
		if _, err := store.Put(t.Context(), s, member.KeyFabric, b); err != nil {
			t.Fatal(err)
		}
		condtest.Until(t, "the notice or its end", func() bool {
			n := a.Notices()
			return i == 1 && len(n) == 0 ||
				i == 0 && len(n) == 1 && n[0].What == "records_newer" && strings.Contains(n[0].Why, member.KeyFabric)
		})
	}
}

// TestRestoredRecord: the store is restored, and the record of a member has an earlier certificate than the member
// uses. The member comes to use the certificate of its record, and reports that; until then it does not report that
// it does.
func TestRestoredRecord(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s.Open(), c)
	a.start(t)
	if _, err := a.createToken(t.Context(), api.NewToken{Uses: 1}); err != nil {
		t.Fatal(err)
	}
	key := member.TreeRecord + "/" + member.GUIDKey(guid(1))
	old, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	made := a.cert.Load().Leaf
	c.move(member.MemberLife/3*2 + time.Hour)
	condtest.Until(t, "the renewal", func() bool { a.wake(); return !a.cert.Load().Leaf.Equal(made) })
	for range 2 { // a restore of a backup that is as old as the first certificate, and then of one without the report
		if _, err := s.Txn(t.Context(), store.Txn{Do: []store.Op{store.PutOp(key, old.Value),
			store.DeleteOp(member.TreeReport + "/" + member.GUIDKey(guid(1))),
			store.PutOp(member.KeyChange, []byte("restored"))}}); err != nil {
			t.Fatal(err)
		}
		condtest.Until(t, "the certificate in use is that of the record", func() bool {
			a.wake()
			e, err := s.Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			m, err := member.Decode[member.Record](e.Value)
			if err != nil {
				t.Fatal(err)
			}
			r, err := a.registry.Reported(t.Context())
			return err == nil && bytes.Equal(m.Certificate, a.cert.Load().Leaf.Raw) && r.Signed == 1 &&
				r.Incarnation != 0
		})
	}
	if list := a.Degraded(); len(list) != 0 {
		t.Errorf("%v", list)
	}
}

// TestMissedRemoval: a member is away from the store while another is removed, and so has no CA that the certificates
// of the others are signed by. It knows a voter by the key that it has in its roster, and gets its certificate and
// the roster from it; from the member that was removed it gets none.
func TestMissedRemoval(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s.Open(), c)
	a.start(t)
	made, err := a.createToken(t.Context(), api.NewToken{Uses: 2})
	if err != nil {
		t.Fatal(err)
	}
	var others []*host
	for n, name := range []string{"b1", "c1"} {
		spec := JoinSpec{Dir: t.TempDir(), GUID: guid(n + 2), Host: "127.0.0.1:" + port(a.cfg.Port), Port: condtest.Port(t),
			Token: strings.Fields(made.Line)[4], Name: name, Now: c.now}
		if _, err := Join(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		others = append(others, newHost(t, spec.Dir, n+2, spec.Port, s.Open(), c))
	}
	away := others[1]
	if err := away.Open(); err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	others[0].start(t)
	condtest.Until(t, "the key of the CA is sealed to b1", func() bool {
		x := a.Roster().ByName("b1")
		return x != nil && len(x.Epochs) == 1 && len(a.Roster().Members) == 3
	})
	before := a.cert.Load().Leaf
	if _, err := a.remove(t.Context(), api.MemberRemoval{Name: "b1", Force: true}); err != nil {
		t.Fatal(err)
	}
	condtest.Until(t, "a certificate of the new CA", func() bool {
		a.wake()
		return !a.cert.Load().Leaf.Equal(before) && a.Roster().SignedBy(a.cert.Load().Leaf) == 2
	})
	w := &worker{m: away.Membership}
	answer, p := w.fetchElsewhere(t.Context(), away.Roster())
	if p != nil {
		t.Fatal(p)
	}
	if err := w.keep(answer); err != nil {
		t.Fatal(err)
	}
	r := away.Roster()
	if len(r.Removed) != 1 || len(r.Members) != 2 || r.SignedBy(away.cert.Load().Leaf) != 2 {
		t.Errorf("%d members, %d removed, signed by %d", len(r.Members), len(r.Removed),
			r.SignedBy(away.cert.Load().Leaf))
	}
	if r.KeyOfVoter(others[0].cert.Load().Leaf, c.now()) || !r.KeyOfVoter(a.cert.Load().Leaf, c.now()) {
		t.Error("the member that was removed counts as a voter, or the other does not")
	}
}

// TestRenewalFaultEnds: a renewal that was tried because the roster had not the certificate in use yet, and failed, is
// no fault any more when the roster has it.
func TestRenewalFaultEnds(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s.Open(), c)
	a.start(t)
	if _, err := a.createToken(t.Context(), api.NewToken{Uses: 1}); err != nil { // which makes the fabric
		t.Fatal(err)
	}
	condtest.Until(t, "the roster has the certificate", func() bool {
		cert := a.cert.Load()
		return cert != nil && !stale(cert.Leaf, a.Roster())
	})
	w := &worker{m: a.Membership, failed: c.now(), failedStale: true}
	a.fault("certificate_renewal", problem.New("cannot renew the certificate", "the store is away", "weft status"))
	w.renew(t.Context())
	if list := a.Degraded(); len(list) != 0 {
		t.Errorf("%v", list)
	}
}

// TestTokenAfterRemoval: a token that is made right after a removal lets a host in at once, though the removal replaced
// the CA and this node has a certificate of the former one for a moment.
func TestTokenAfterRemoval(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s.Open(), c)
	a.start(t)
	for n := 2; n < 4; n++ {
		made, err := a.createToken(t.Context(), api.NewToken{Uses: 1})
		if err != nil {
			t.Fatal(err)
		}
		spec := JoinSpec{Dir: t.TempDir(), GUID: guid(n), Host: "127.0.0.1:" + port(a.cfg.Port), Port: condtest.Port(t),
			Token: strings.Fields(made.Line)[4], Name: "b1", Now: c.now}
		if _, err := Join(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		condtest.Until(t, "the key of the CA is sealed to b1", func() bool {
			a.wake()
			x := a.Roster().ByName("b1")
			return x != nil && len(x.Epochs) == 1
		})
		if _, err := a.remove(t.Context(), api.MemberRemoval{Name: "b1", Force: true}); err != nil {
			t.Fatal(err)
		}
	}
}
