// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft/internal/proto/condtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	headroom = 44
	patience = time.Minute
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func open(t testing.TB, cfg Config) *Device {
	t.Helper()
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	if err := d.SetCarrier(true); err != nil {
		t.Fatal(err)
	}
	return d
}

// config is of host n, of both families.
func config(n, mtu int) Config {
	return Config{Name: fmt.Sprintf("ib%d_1_7fff", n), MTU: mtu, LinkLocal: addr(fmt.Sprintf("fe80::%d", n)),
		Addrs: []netip.Prefix{prefix(fmt.Sprintf("10.20.0.%d/24", n)), prefix(fmt.Sprintf("2001:db8:20::%d/64", n))}}
}

// cable carries packets from one device to another and shows them to see,
// which may drop them by returning false.
func cable(t testing.TB, from, to *Device, mtu int, see func(p []byte, hop netip.Addr) bool) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		bufs, sizes, hops := buffers(headroom + mtu)
		var out [][]byte
		for {
			n, err := from.ReadBatch(bufs, sizes, hops, headroom)
			if err != nil {
				if !errors.Is(err, os.ErrClosed) {
					t.Error(err)
				}
				return
			}
			out = out[:0]
			for i := range n {
				if sizes[i] > mtu {
					t.Errorf("a packet of %d octets", sizes[i])
				}
				p := bufs[i][:headroom+sizes[i]]
				if see == nil || see(p[headroom:], hops[i]) {
					out = append(out, p)
				}
			}
			if to != nil && to.WriteBatch(out, headroom) != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		from.Close()
		<-done
	})
}

func buffers(size int) ([][]byte, []int, []netip.Addr) {
	bufs := make([][]byte, BatchSize)
	for i := range bufs {
		bufs[i] = make([]byte, size)
	}
	return bufs, make([]int, BatchSize), make([]netip.Addr, BatchSize)
}

// pair is two stacks, 10.20.0.1 and 10.20.0.2, joined.
func pair(t testing.TB, mtu int) (a, b *Device) {
	t.Helper()
	a, b = open(t, config(1, mtu)), open(t, config(2, mtu))
	cable(t, a, b, mtu, nil)
	cable(t, b, a, mtu, nil)
	return a, b
}

// log collects packets.
type log struct {
	sync.Mutex
	packets [][]byte
	hops    []netip.Addr
}

func (l *log) see(p []byte, hop netip.Addr) bool {
	l.Lock()
	defer l.Unlock()
	l.packets, l.hops = append(l.packets, slices.Clone(p)), append(l.hops, hop)
	return true
}

// find waits for a packet that ok accepts.
func (l *log) find(t *testing.T, what string, ok func(p []byte, hop netip.Addr) bool) {
	t.Helper()
	condtest.Until(t, what, func() bool {
		l.Lock()
		defer l.Unlock()
		for i, p := range l.packets {
			if ok(p, l.hops[i]) {
				return true
			}
		}
		return false
	})
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}
