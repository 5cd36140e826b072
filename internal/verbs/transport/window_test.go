// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/pkt"
)

func TestWindowGrowsFasterBelowThreshold(t *testing.T) {
	w := newWindow(1024, 0, 256<<10)
	if w.size != initialWindow || w.threshold != 256<<10 || w.floor != 4096 {
		t.Fatalf("a fresh window is %+v", w)
	}
	w.grow(8)
	if want := uint32(initialWindow + 8*1024); w.size != want {
		t.Errorf("below the threshold 8 packets make it %d, want %d", w.size, want)
	}
	w.threshold = w.size
	before := w.size
	w.grow(8)
	if want := before + 8*1024*4*1024/before; w.size != want {
		t.Errorf("above the threshold 8 packets make it %d, want %d", w.size, want)
	}
	w.grow(1 << 20)
	if w.size != 256<<10 {
		t.Errorf("it grows to %d, beyond its bound", w.size)
	}
}

func TestWindowCutOncePerRecovery(t *testing.T) {
	w := newWindow(1024, 0, 256<<10)
	w.cut(100, cutPeerDiscards)
	if w.size != initialWindow*3/4 || w.threshold != w.size || !w.recovering {
		t.Fatalf("after a cut: %+v", w)
	}
	w.cut(120, cutPeerDiscards)
	if w.size != initialWindow*3/4 || w.recoveryEnd != 100 {
		t.Errorf("a second loss of the same recovery cut it: %+v", w)
	}
	w.acknowledged(99)
	if !w.recovering {
		t.Error("the recovery ended before its end was acknowledged")
	}
	w.acknowledged(100)
	if w.recovering {
		t.Error("the recovery goes on behind its end")
	}
	w.cut(200, cutPeerKeeps)
	if want := uint32(initialWindow * 3 / 4 * 15 / 16); w.size != want {
		t.Errorf("a cut towards a peer that keeps packets leaves %d, want %d", w.size, want)
	}
}

func TestWindowRecoveryAcrossPSNWrap(t *testing.T) {
	w := newWindow(1024, 0, 256<<10)
	w.cut(5, cutPeerDiscards)
	w.acknowledged(ib.PSN(ib.PSNMask))
	if !w.recovering {
		t.Error("a PSN before the wrap ended the recovery")
	}
	w.acknowledged(6)
	if w.recovering {
		t.Error("a PSN behind the end did not end the recovery")
	}
}

func TestWindowFloor(t *testing.T) {
	w := newWindow(1024, 8192, 256<<10)
	w.collapse(100, cutPeerDiscards)
	if w.size != 8192 || w.threshold != initialWindow*3/4 {
		t.Errorf("a timeout leaves %+v", w)
	}
	w = newWindow(4096, 1, 4096)
	for range 20 {
		w.recovering = false
		w.cut(1, cutPeerDiscards)
		if w.size < w.mtu {
			t.Fatalf("cuts leave %d bytes", w.size)
		}
	}
}

func TestWindowAllowsWholePackets(t *testing.T) {
	w := newWindow(1024, 0, 256<<10)
	for _, c := range []struct{ size, inFlight, want uint64 }{
		{8192, 0, 4096},       // half a window
		{8192, 4096, 4096},    // the other half
		{8192, 7000, 1024},    // what is left, in whole packets
		{8192, 7500, 0},       // less than a packet is left
		{8192, 8192, 0},       // full
		{1024, 0, 1024},       // a packet always
		{5000, 0, 2048},       // half of it, in whole packets
		{5000, 1 << 20, 0},    // far beyond
		{1 << 20, 0, 1 << 19}, // large
	} {
		w.size = uint32(c.size)
		if got := w.allows(c.inFlight); got != c.want {
			t.Errorf("window %d, %d in flight: %d bytes, want %d", c.size, c.inFlight, got, c.want)
		}
	}
}

func TestClosedWindowLimitsNothing(t *testing.T) {
	var w window
	w.grow(10)
	w.cut(1, cutPeerDiscards)
	w.collapse(1, cutPeerDiscards)
	w.acknowledged(1)
	if w != (window{}) {
		t.Errorf("the window of a local path changed: %+v", w)
	}
}

// TestWindowOfLocalPath: on a path within the node the window is on while packets can get lost, and until what was sent
// by then is acknowledged. It never keeps the packet from leaving that requests the acknowledgement of the others.
func TestWindowOfLocalPath(t *testing.T) {
	a, b := pair(t, ib.RC, ib.MTU1024, 16<<10, true)
	w, r := &a.q.req.window, pkt.Burst{}
	if w.mode != windowOff {
		t.Fatalf("mode %d without faults", w.mode)
	}
	a.post(1, ib.WRWrite, ib.Signaled, 0, 200000, 0)
	a.q.Post(2)
	for range 10 { // of 13 bursts; none of these requests an acknowledgement
		if !a.q.Next(2, &r) || r.AckReq {
			t.Fatalf("burst %v", &r.Headers)
		}
		b.q.Handle(2, &r, b.batch)
		b.batch.Flush()
		b.q.Commit(2)
		a.q.Commit(2)
	}
	a.q.SetLossy(3, true)
	if w.mode != windowOn || a.q.req.timers.probeAt.IsZero() {
		t.Fatalf("mode %d, probe at %d", w.mode, a.q.req.timers.probeAt)
	}
	if !a.q.Next(4, &r) || !r.AckReq {
		t.Fatalf("behind them follows %v", &r.Headers)
	}
	a.q.SetLossy(5, false)
	if w.mode != windowClosing {
		t.Errorf("mode %d with packets under way", w.mode)
	}
	b.q.Handle(5, &r, b.batch)
	b.batch.Flush()
	b.q.Commit(5)
	a.q.Commit(5)
	pump(6, a, b)
	if w.mode != windowOff || a.sends != 1 || a.q.Deadline() != 0 {
		t.Errorf("mode %d, %d completions, deadline %d", w.mode, a.sends, a.q.Deadline())
	}
	a.q.SetLossy(7, true)
	a.q.SetLossy(7, false)
	if w.mode != windowOff {
		t.Errorf("mode %d with nothing under way", w.mode)
	}
}
