// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
	"weft/internal/proto/condtest"
)

// TestRotate: the CA, the certificates and the M_Key of a fabric are replaced while its members run, and a token from
// before lets no one in. Members go on: each is admitted by the other all the time.
func TestRotate(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	a := newHost(t, t.TempDir(), 1, freePort(t), s.Open(), c)
	a.start(t)
	made, err := a.createToken(t.Context(), api.NewToken{Uses: 2})
	if err != nil {
		t.Fatal(err)
	}
	spec := JoinSpec{Dir: t.TempDir(), GUID: guid(2), Host: "127.0.0.1:" + port(a.cfg.Port), Port: freePort(t),
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
	spec.Dir, spec.GUID, spec.Name, spec.Port = t.TempDir(), guid(3), "c1", freePort(t)
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
	a := newHost(t, t.TempDir(), 1, freePort(t), s.Open(), &clockwork{})
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
