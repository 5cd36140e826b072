// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
)

// renew renews the certificate of a member by way of a voter, and reports the CAs of the fabric.
func (l *lab) renew(h, by *host) {
	l.t.Helper()
	x, err := by.Renew(l.t.Context(), h.cert)
	h.cert = parse(l.t, x.Certificate, err)
	r := l.roster(h)
	var epochs []uint32
	for _, c := range r.CAs {
		epochs = append(epochs, c.Epoch)
	}
	if err := h.Report(l.t.Context(), member.Report{Incarnation: 1, Clock: l.now, CAs: epochs,
		Signed: r.SignedBy(h.cert)}); err != nil {
		l.t.Fatal(err)
	}
}

// TestRemovalWhileDiffering: the records of two members have certificates from before a rotation, as a restore of a
// backup leaves them. A removal and a rotation are refused, since both members would be out; status names them. When
// they have renewed their certificates, a removal puts no other member out.
func TestRemovalWhileDiffering(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	a.patience = 0
	all := []*host{a, l.join(a, 2, "b1"), l.join(a, 3, "c1"), l.join(a, 4, "d1")}
	for _, h := range all {
		l.renew(h, a)
	}
	l.settle(a)
	old := map[string][]byte{}
	for n := 2; n <= 3; n++ {
		e, err := l.store.Get(t.Context(), recordKey(guid(n)))
		if err != nil {
			t.Fatal(err)
		}
		old[e.Key] = e.Value
	}
	if err := a.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		l.now = l.now.Add(time.Second)
		for _, h := range all {
			l.renew(h, a)
		}
		l.settle(a)
	}
	for k, v := range old {
		m, err := member.Decode[member.Record](v)
		if err != nil {
			t.Fatal(err)
		}
		m.Epochs = []uint32{2}
		w := put(k, m)
		if w.err != nil {
			t.Fatal(w.err)
		}
		if _, err := store.Put(t.Context(), l.store, k, w.op.Value); err != nil {
			t.Fatal(err)
		}
	}
	const who = "b1, c1 would be out as well: the certificates in use there are not those in the records. " +
		"fix: repeat this when weft status here does not name b1; if it stays: weft down; weft up --detach on b1, " +
		"or weft member remove --force b1"
	if _, err := a.Remove(t.Context(), "d1", "root", true); err == nil || !strings.Contains(err.Error(), who) {
		t.Errorf("removed: %v", err)
	}
	if err := a.Rotate(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot replace the CA: "+who) {
		t.Errorf("rotated: %v", err)
	}
	problems := func() (text string) {
		_, list, err := a.Members(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			text += p.Error() + "\n"
		}
		return text
	}
	if got := problems(); got != "" {
		t.Errorf("named at once: %s", got)
	}
	l.now = l.now.Add(differsAfter)
	if got := problems(); strings.Count(got, "is not the one in its record") != 2 || !strings.Contains(got, "b1") ||
		!strings.Contains(got, "weft member remove --force c1") {
		t.Errorf("named: %s", got)
	}
	for _, h := range all[1:3] {
		l.renew(h, a)
	}
	if got := problems(); got != "" {
		t.Errorf("still named: %s", got)
	}
	if _, err := a.Remove(t.Context(), "d1", "root", true); err != nil {
		t.Fatal(err)
	}
	for _, h := range all[:3] {
		if _, v, p := l.roster(a).Admit(h.cert, l.now); v != member.Admitted {
			t.Errorf("out: %v", p)
		}
	}
}

// TestRemovalOfDiffering: of two members that never agree with their records each can be removed.
func TestRemovalOfDiffering(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	a.patience = 0
	l.renew(a, a)
	for n, name := range map[int]string{2: "b1", 3: "c1"} {
		h := l.join(a, n, name)
		if err := h.Report(t.Context(), member.Report{Incarnation: 1, Clock: l.now}); err != nil {
			t.Fatal(err)
		}
	}
	l.settle(a)
	for _, name := range []string{"b1", "c1"} {
		if _, err := a.Remove(t.Context(), name, "root", true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		l.renew(a, a)
	}
}

// unsteady is a store whose connection ends in the middle of a reading, as that of a member with a certificate that
// has been replaced does.
type unsteady struct {
	store.Store
	left atomic.Int32 // readings that fail
}

func (u *unsteady) List(ctx context.Context, tree string) (store.Listing, error) {
	if u.left.Add(-1) >= 0 {
		return store.Listing{}, store.ErrUnavailable
	}
	return u.Store.List(ctx, tree)
}

// TestFollowAgain: a roster that could not be read is read again, also if no change follows.
func TestFollowAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.found(1, "a1")
		u := &unsteady{Store: l.store}
		u.left.Store(2)
		h := New(Config{Store: u, Now: func() time.Time { return start }, GUID: guid(1)})
		ctx, stop := context.WithCancel(t.Context())
		seen, failed := 0, 0
		done := make(chan error)
		go func() {
			done <- h.Follow(ctx, func(*member.Roster) { seen++ }, func(error) { failed++ })
		}()
		time.Sleep(10 * readAgain)
		synctest.Wait()
		if seen != 1 || failed != 2 {
			t.Errorf("read %d times, failed %d times", seen, failed)
		}
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
