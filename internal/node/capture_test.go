// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"weft/internal/api"
	"weft/internal/config"
	"weft/internal/ib"
	"weft/internal/vhost/vhosttest"
)

// capturing starts a capture and returns when it runs; end stops it and returns what it
// has come to.
func (r *running) capturing(spec api.CaptureSpec, w io.Writer) (id int, end func() api.Capture) {
	r.t.Helper()
	ctx, stop := context.WithCancel(r.t.Context())
	r.t.Cleanup(stop)
	started := make(chan int, 1)
	var c api.Capture
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err = r.cli.Capture(ctx, spec, func(now api.Capture) { started <- now.ID }, w)
	}()
	select {
	case id = <-started:
	case <-done:
		r.t.Fatal(err)
	}
	return id, func() api.Capture {
		r.t.Helper()
		if spec.Count == 0 && spec.DurationNS == 0 {
			stop()
		}
		<-done
		if err != nil {
			r.t.Error(err)
		}
		return c
	}
}

// inFile counts those of a file, by another's reader.
func inFile(t *testing.T, file *bytes.Buffer) (n int) {
	t.Helper()
	f, err := pcapgo.NewNgReader(file, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	for ; ; n++ {
		if _, _, err := f.ReadPacketData(); err == io.EOF {
			return n
		} else if err != nil {
			t.Fatalf("packet %d: %v", n, err)
		}
	}
}

// TestCapture: what two sessions exchange is in the file of whoever asked for it, as
// long as they did; the status tells, and the data is right.
func TestCapture(t *testing.T) {
	for _, lanes := range []int{1, 2} {
		r := run(t, func(c *config.Config) { c.Lanes = lanes })
		a, b := r.client(t, vhosttest.Options{ProcMem: true}), r.client(t, vhosttest.Options{})
		pair(t, ib.RC, a, b)
		mustWrite(t, a, b, 1, 100)
		var all, none, few bytes.Buffer
		_, endAll := r.capturing(api.CaptureSpec{Device: r.cfg.Device}, &all)
		_, endNone := r.capturing(api.CaptureSpec{QPs: []uint32{0xffff}}, &none)
		id, endFew := r.capturing(api.CaptureSpec{Count: 5}, &few)
		for i := range 10 {
			mustWrite(t, a, b, byte(i+2), 100) // a WRITE and its acknowledgement
		}
		if s := r.status(); len(s.Captures) != 2 || s.Captures[0].Device != r.cfg.Device || s.Captures[1].QPs[0] != 0xffff {
			eventually(t, "the one that has enough ends", func() bool { return len(r.status().Captures) == 2 })
		}
		if c := endFew(); c.ID != id || c.Packets != 5 || inFile(t, &few) != 5 {
			t.Errorf("%+v", c)
		}
		if c := endAll(); c.Packets != 20 || c.Dropped != 0 || inFile(t, &all) != 20 {
			t.Errorf("%+v", c)
		}
		if c := endNone(); c.Packets != 0 || inFile(t, &none) != 0 {
			t.Errorf("%+v", c)
		}
		if s := r.status(); len(s.Captures) != 0 {
			t.Errorf("%+v", s.Captures)
		}
		mustWrite(t, a, b, 99, 100)
	}
}

// TestCaptureUnread: a file that nobody takes costs packets of the file, and no
// program waits; who has gone is noticed.
func TestCaptureUnread(t *testing.T) {
	t.Parallel()
	r := run(t, nil)
	a, b := r.client(t, vhosttest.Options{}), r.client(t, vhosttest.Options{})
	pair(t, ib.RC, a, b)
	read, write := io.Pipe()
	_, end := r.capturing(api.CaptureSpec{}, write)
	eventually(t, "packets are dropped", func() bool {
		for range 200 {
			mustWrite(t, a, b, 1, 5000)
		}
		return r.status().Captures[0].Dropped > 0
	})
	taken := make(chan struct{})
	go func() { defer close(taken); io.Copy(io.Discard, read) }()
	defer func() { write.Close(); <-taken }()
	if c := end(); c.Packets == 0 || c.Dropped == 0 {
		t.Errorf("%+v", c)
	}
	broken := errors.New("broken")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	_, err := r.cli.Capture(ctx, api.CaptureSpec{}, func(api.Capture) {}, brokenWriter{broken})
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	eventually(t, "the capture ends with its reader", func() bool { return len(r.status().Captures) == 0 })
	mustWrite(t, a, b, 2, 100)
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// TestCaptureRefused: too many, and of what is not there; and one that runs when the
// node ends is whole.
func TestCaptureRefused(t *testing.T) {
	r := run(t, nil)
	for _, x := range []struct {
		spec api.CaptureSpec
		why  string
	}{{api.CaptureSpec{Device: "nowhere"}, "no device"}, {api.CaptureSpec{IPoIB: true}, "no IP link"}} {
		if _, err := r.cli.Capture(t.Context(), x.spec, func(api.Capture) {}, io.Discard); err == nil || !strings.Contains(err.Error(), x.why) || !strings.Contains(err.Error(), "fix: ") {
			t.Errorf("%+v: %v", x.spec, err)
		}
	}
	for range maxCaptures {
		r.capturing(api.CaptureSpec{DurationNS: limit}, io.Discard)
	}
	if _, err := r.cli.Capture(t.Context(), api.CaptureSpec{}, func(api.Capture) {}, io.Discard); err == nil || !strings.Contains(err.Error(), "4 captures run") {
		t.Errorf("one too many: %v", err)
	}
	list, err := r.cli.Captures(t.Context())
	if err != nil || len(list) != maxCaptures {
		t.Fatalf("%v: %+v", err, list)
	}
	if err := r.cli.StopCapture(t.Context(), list[1].ID); err != nil {
		t.Error(err)
	}
	eventually(t, "one has ended", func() bool { return len(r.status().Captures) == maxCaptures-1 })
	if err := r.cli.StopCapture(t.Context(), list[1].ID); err == nil {
		t.Error("ended twice")
	}
	var last bytes.Buffer
	_, end := r.capturing(api.CaptureSpec{DurationNS: limit}, &last)
	if err := r.cli.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	end()
	if inFile(t, &last) != 0 {
		t.Error("packets of nothing")
	}
}
