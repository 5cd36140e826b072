// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeCaptures writes pieces until it is stopped.
type fakeCaptures struct {
	mu   sync.Mutex
	stop func()
	left chan error // what its caller's context ended with
}

const piece = "a piece of a file\n"

func (f *fakeCaptures) Captures(context.Context) ([]Capture, error) {
	return []Capture{{ID: 3}}, nil
}

func (f *fakeCaptures) StopCapture(_ context.Context, id int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id != 3 || f.stop == nil {
		return &Error{Code: CodeNotFound, Why: "there is no such capture"}
	}
	f.stop()
	return nil
}

func (f *fakeCaptures) Capture(ctx context.Context, spec CaptureSpec, started func(Capture) error,
	write func([]byte) error) (c Capture, err error) {
	if spec.Device == "none" {
		return c, &Error{Code: CodeNotFound, Why: "there is no device"}
	}
	stopped, stop := context.WithCancel(ctx)
	defer stop()
	f.mu.Lock()
	f.stop = stop
	f.mu.Unlock()
	c = Capture{ID: 3, CaptureSpec: spec}
	if err := started(c); err != nil {
		return c, err
	}
	for stopped.Err() == nil && (spec.Count == 0 || c.Packets < spec.Count) {
		if err := write([]byte(piece)); err != nil {
			break
		}
		c.Packets++
	}
	if f.left != nil && ctx.Err() != nil {
		f.left <- ctx.Err()
	}
	c.Dropped = 7
	return c, ctx.Err()
}

func TestCaptureRoundTrip(t *testing.T) {
	b := &fake{}
	c := client(t, serve(t, b, FullAccess, nil))
	spec := CaptureSpec{Device: "weft0", QPs: []uint32{17, 18}, Count: 1000, SnapLen: 64, DurationNS: time.Hour}
	var file bytes.Buffer
	var first Capture
	end, err := c.Capture(t.Context(), spec, func(now Capture) { first = now }, &file)
	if err != nil || first.ID != 3 || first.Device != "weft0" || len(first.QPs) != 2 || end.Packets != 1000 ||
		end.Dropped != 7 || end.SnapLen != 64 {
		t.Errorf("%v: %+v, %+v", err, first, end)
	}
	if file.String() != strings.Repeat(piece, 1000) {
		t.Errorf("%d bytes", file.Len())
	}
	list, err := Get(t.Context(), c, ListCaptures)
	if err != nil || len(list) != 1 || list[0].ID != 3 || list[0].QPs == nil {
		t.Errorf("%v: %+v", err, list)
	}
}

// TestCaptureEnds: the file is complete when its reader ends the capture, and the node is notified
// when the reader disconnects.
func TestCaptureEnds(t *testing.T) {
	b := &fake{}
	b.left = make(chan error, 1)
	c := client(t, serve(t, b, FullAccess, nil))
	ctx, cancel := context.WithCancel(t.Context())
	var file bytes.Buffer
	end, err := c.Capture(ctx, CaptureSpec{}, func(Capture) { cancel() }, &file)
	if err != nil || uint64(file.Len()) != end.Packets*uint64(len(piece)) || end.Dropped != 7 {
		t.Errorf("%v: %+v and %d bytes", err, end, file.Len())
	}
	gone := errors.New("gone")
	if _, err := c.Capture(t.Context(), CaptureSpec{}, func(Capture) {},
		writeFunc(func([]byte) error { return gone })); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	if err := <-b.left; !errors.Is(err, context.Canceled) {
		t.Errorf("the node was told %v", err)
	}
}

type writeFunc func([]byte) error

func (f writeFunc) Write(p []byte) (int, error) { return len(p), f(p) }

func TestCaptureRefused(t *testing.T) {
	c := client(t, serve(t, &fake{}, FullAccess, nil))
	for _, x := range []struct {
		spec CaptureSpec
		code Code
	}{
		{CaptureSpec{Device: "none"}, CodeNotFound},
		{CaptureSpec{QPs: []uint32{1 << 24}}, CodeInvalid},
		{CaptureSpec{SnapLen: -1}, CodeInvalid},
		{CaptureSpec{SnapLen: 1 << 16}, CodeInvalid},
		{CaptureSpec{DurationNS: -1}, CodeInvalid},
	} {
		var e *Error
		if _, err := c.Capture(t.Context(), x.spec, func(Capture) { t.Error("started") }, io.Discard); !errors.As(err,
			&e) || e.Code != x.code || e.What == "" {
			t.Errorf("%+v: %v", x.spec, err)
		}
	}
	reader := client(t, serve(t, &fake{}, ReadAccess, nil))
	var e *Error
	if _, err := reader.Capture(t.Context(), CaptureSpec{}, func(Capture) {}, io.Discard); !errors.As(err, &e) ||
		e.Code != CodeRefused {
		t.Errorf("who may only read captures: %v", err)
	}
	if err := Do(t.Context(), c, StopCapture, 9); !errors.As(err, &e) || e.Code != CodeNotFound {
		t.Errorf("%v", err)
	}
}
