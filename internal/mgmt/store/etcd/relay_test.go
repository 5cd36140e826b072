// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
)

// TestReplacedClient replaces the client of a node while it counts in the store: no call fails, and no count is lost or
// done twice.
func TestReplacedClient(t *testing.T) {
	s := start(t, etcd.ServerConfig{Dir: quick(t)})
	r := etcd.NewRelay()
	defer r.Close()
	replace := func() {
		c, err := s.Client()
		if err != nil {
			t.Error(err)
		}
		r.Use(c)
	}
	replace()
	const counts = 300
	if _, err := store.Create(t.Context(), r, "count", []byte("0")); err != nil {
		t.Fatal(err)
	}
	var replaced atomic.Int32
	var work sync.WaitGroup
	stop := make(chan struct{})
	work.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			if replaced.Add(1)%2 == 0 {
				r.Use(nil)
			}
			replace()
		}
	})
	defer work.Wait()
	defer close(stop)
	repeated := 0
	for i := 0; i < counts || replaced.Load() < 20; {
		e, err := r.Get(t.Context(), "count")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.List(t.Context(), "tree"); err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(string(e.Value))
		if err != nil || n != i {
			t.Fatalf("the count is %s after %d, %v", e.Value, i, err)
		}
		_, err = r.Txn(t.Context(), store.Txn{If: []store.Cond{store.At(e)},
			Do: []store.Op{store.PutOp("count", strconv.AppendInt(nil, int64(n)+1, 10))}})
		switch {
		case err == nil:
			i++
		case errors.Is(err, store.ErrUnavailable) && strings.Contains(err.Error(), "was replaced meanwhile"):
			// Done by the try before: the caller reads again.
			repeated++
			if e, err := r.Get(t.Context(), "count"); err != nil || string(e.Value) != strconv.Itoa(i+1) {
				t.Fatalf("the count is %s, %v: want %d", e.Value, err, i+1)
			}
			i++
		default:
			t.Fatal(err)
		}
	}
	t.Logf("replaced %d times, %d writes were done by the try before", replaced.Load(), repeated)
}

// TestUncertainWrite: a write without a condition that it makes false is not done again.
func TestUncertainWrite(t *testing.T) {
	r := etcd.NewRelay()
	defer r.Close()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	if _, err := store.Put(ctx, r, "k", nil); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("%v, want unavailable while there is no client", err)
	}
	for _, x := range []struct {
		txn  store.Txn
		once bool
	}{
		{store.Txn{Do: []store.Op{store.PutOp("k", nil)}}, false},
		{store.Txn{If: []store.Cond{store.Present("k")}, Do: []store.Op{store.PutOp("k", nil)}}, false},
		{store.Txn{If: []store.Cond{store.Absent("k")}, Do: []store.Op{store.DeleteOp("k")}}, false},
		{store.Txn{If: []store.Cond{store.At(store.Entry{Key: "other", Rev: 7})},
			Do: []store.Op{store.PutOp("k", nil)}}, false},
		{store.Txn{If: []store.Cond{store.Absent("k")}, Do: []store.Op{store.PutOp("k", nil)}}, true},
		{store.Txn{If: []store.Cond{store.Present("k")}, Do: []store.Op{store.DeleteOp("k")}}, true},
		{store.Txn{If: []store.Cond{store.At(store.Entry{Key: "k", Rev: 7})}, Do: []store.Op{store.PutOp("k", nil)}}, true},
		{store.Txn{If: []store.Cond{store.At(store.Entry{Key: "k", Rev: 7})}, Do: []store.Op{store.DeleteOp("k")}}, true},
	} {
		if once := etcd.DoneOnce(x.txn); once != x.once {
			t.Errorf("%+v is done once: %v", x.txn, once)
		}
	}
}
