// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/proto/condtest"
)

// held is a connection that reads nothing after stop is closed.
type held struct {
	net.Conn
	stop, end chan struct{}
	once      sync.Once
}

func (h *held) Read(b []byte) (int, error) {
	select {
	case <-h.stop:
		<-h.end
		return 0, net.ErrClosed
	default:
		return h.Conn.Read(b)
	}
}

func (h *held) Close() error {
	h.once.Do(func() { close(h.end) })
	return h.Conn.Close()
}

// deaf returns a client of a member that reads no answer once stop is closed.
func (f *fabric) deaf(ca *authority, by, name string, stop chan struct{}) *clientv3.Client {
	f.Helper()
	return f.raw(ca, by, name, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.configs[name].Advertise)
		if err != nil {
			return nil, err
		}
		return &held{Conn: c, stop: stop, end: make(chan struct{})}, nil
	}))
}

// TestAnswersStalled: a member has connections that take no answers, as of a host that was stopped. Its other calls are
// refused once too many answers wait, and not any more when those connections are closed.
func TestAnswersStalled(t *testing.T) {
	ca := newAuthority(t)
	f := newFabric(t)
	f.security = func(name string) *etcd.Security { return ca.security(t, name) }
	f.open("a")
	f.roles("a:voter")
	f.put("a", "subnet/intent", "all")
	ctx, end := context.WithTimeout(t.Context(), patience)
	defer end()
	own := f.raw(ca, "m1", "a")
	if _, err := own.Put(ctx, "weft/node/m1", string(bytes.Repeat([]byte("x"), ownOctets))); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	stalled := f.deaf(ca, "m1", "a", stop)
	close(stop)
	get := clientv3.OpGet("weft/node/m1")
	var err error
	for err == nil {
		call, giveUp := context.WithTimeout(ctx, 50*time.Millisecond) // the answer waits
		_, _ = stalled.Txn(call).Then(get, get, get, get).Commit()
		giveUp()
		_, err = own.Get(ctx, "weft/node/m1")
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Fatal(err)
	}
	f.until("the calls are taken again", func() bool {
		_, err := own.Get(ctx, "weft/node/m1")
		return err == nil
	})
}

// heap is how many octets are in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestAnswersNotRead: a member without a role sends requests with long answers, of each kind, and reads no answer. The
// voter keeps few of them, and another member's changes go on.
func TestAnswersNotRead(t *testing.T) {
	const bound = 64 << 20
	ca := newAuthority(t)
	f := newFabricAlone(t)
	f.security = func(name string) *etcd.Security { return ca.security(t, name) }
	f.open("a")
	f.roles("a:voter")
	f.put("a", "subnet/intent", "all")
	rounds := 1
	if condtest.Soak() {
		rounds = 20
	}
	ctx, end := context.WithTimeout(t.Context(), time.Duration(7*rounds)*patience) // for each of the attacks
	defer end()
	own := f.raw(ca, "m1", "a")
	const versions = 40
	var first int64
	for range versions { // the history of the key is long
		r, err := own.Put(ctx, "weft/node/m1", string(bytes.Repeat([]byte("x"), ownOctets)))
		if err != nil {
			t.Fatal(err)
		}
		if first == 0 {
			first = r.Header.Revision
		}
	}
	get := clientv3.OpGet("weft/node/m1")
	ops := func(n int) []clientv3.Op { return slices.Repeat([]clientv3.Op{get}, n) }
	var streamNo atomic.Int64
	attacks := map[string]func(*clientv3.Client){
		"transactions": func(c *clientv3.Client) { _, _ = c.Txn(ctx).Then(ops(127)...).Commit() },
		"small ones":   func(c *clientv3.Client) { _, _ = c.Txn(ctx).Then(ops(4)...).Commit() },
		"nested ones": func(c *clientv3.Client) {
			_, _ = c.Txn(ctx).Then(clientv3.OpTxn(nil, ops(64), nil), clientv3.OpTxn(nil, ops(63), nil)).Commit()
		},
		"reads": func(c *clientv3.Client) { _, _ = c.Get(ctx, "weft/node/m1") },
		"watches": func(c *clientv3.Client) {
			for range c.Watch(ctx, "weft/node/m1", clientv3.WithRev(first)) {
			}
		},
		"watches of earlier values": func(c *clientv3.Client) {
			for range c.Watch(ctx, "weft/node/m1", clientv3.WithRev(first), clientv3.WithPrevKV()) {
			}
		},
		// The client has a stream for each set of metadata.
		"watches of their own streams": func(c *clientv3.Client) {
			of := metadata.AppendToOutgoingContext(ctx, "stream", fmt.Sprint(streamNo.Add(1)))
			for range c.Watch(of, "weft/node/m1", clientv3.WithRev(first)) {
			}
		},
	}
	honest := connect(t, etcd.ClientConfig{Endpoints: []string{"https://" + f.configs["a"].Advertise},
		TLS: etcd.Named(ca.client(t, "m2", false))})
	base := heap()
	for range rounds {
		for name, attack := range attacks {
			stop := make(chan struct{})
			var under sync.WaitGroup
			var clients []*clientv3.Client
			for range 8 {
				clients = append(clients, f.deaf(ca, "m1", "a", stop))
			}
			close(stop)
			for _, c := range clients {
				for range 10 {
					under.Go(func() { attack(c) })
				}
			}
			var worst time.Duration
			most := uint64(0)
			for n := range 3 {
				began := time.Now()
				if _, err := store.Put(ctx, honest, "node/m2", fmt.Append(nil, n)); err != nil {
					t.Errorf("%s: a change of another member: %v", name, err)
				}
				worst = max(worst, time.Since(began))
				most = max(most, heap())
			}
			t.Logf("%s: %d MiB more, changes of another member within %v", name, (int64(most)-int64(base))>>20,
				worst.Round(time.Millisecond))
			if most > base+bound {
				t.Errorf("%s: the heap grew by %d MiB, at most %d are expected", name, (most-base)>>20, bound>>20)
			}
			for _, c := range clients {
				_ = c.Close()
			}
			under.Wait()
		}
	}
	if c := f.members["a"].Arrivals().RefusedCalls.Load(); c == 0 {
		t.Error("no call was refused")
	}
	// One that reads its answers has them, however long they are together.
	for n := range 200 {
		if _, err := own.Get(ctx, "weft/node/m1"); err != nil {
			t.Fatal(n, err)
		}
	}
	_, err := own.Txn(ctx).Then(ops(5)...).Commit()
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("five values in a transaction: %v", err)
	}
}
