// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft/internal/control/api"
	"weft/internal/node/lane"
	"weft/internal/proto/ib"
	"weft/internal/proto/pcapng"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/hca/capture"
)

const (
	maxCaptures  = 4
	captureBytes = 32 << 20 // of one capture, for what waits to be written
	// capturePause is how long packets wait at most where there are few of them.
	capturePause = 20 * time.Millisecond
)

// captures are those under way. Lanes have a tap while there are any.
type captures struct {
	taps sync.Mutex // held while lanes get theirs; before mu
	mu   sync.Mutex
	list []*capturing
	last int
	// showing is how many datagrams are on their way to the tap of lane 0; see Mirror.
	showing atomic.Int32
	end     chan struct{} // closed when the node ends
	lanes   func() *lane.Group
}

// Active reports whether there is a capture.
func (c *captures) Active() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.list) > 0
}

// maxShowing bounds the datagrams that wait for a lane that is stuck.
const maxShowing = 1024

// Mirror copies to captures, on lane 0, a datagram to or from queue pair 0 or 1 of function r.Path.Function's port that does not
// pass a lane: one that the port sends, or else receives. number, where it is not nil, gives it its packet sequence number on the
// lane. The burst is the lane's from then on. It never waits: captures count as dropped what the lane has not handled.
func (c *captures) Mirror(r *pkt.Burst, sent bool, number func(*pkt.Burst)) {
	l := c.lanes().First()
	if c.showing.Add(1) > maxShowing {
		c.showing.Add(-1)
		c.missed(r, sent)
		return
	}
	l.Post(func() {
		c.showing.Add(-1)
		if number != nil {
			number(r)
		}
		l.HCA.MirrorManagement(r, sent)
	})
}

// missed counts a datagram that was not shown.
func (c *captures) missed(r *pkt.Burst, sent bool) {
	qpn := r.DestQPN
	if sent {
		qpn = r.SrcQPN
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.list {
		k.c.Missed(r.Path.Function, qpn, r.Path.Native())
	}
}

// capturing is one capture; its goroutine is that of the request.
type capturing struct {
	id   int
	spec api.CaptureSpec
	c    *capture.Capture
	stop context.CancelFunc
	// Of the goroutine, but for state.
	mu      sync.Mutex
	packets uint64
}

func (c *capturing) state() api.Capture {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := api.Capture{ID: c.id, CaptureSpec: c.spec, Packets: c.packets}
	for i := range c.c.Interfaces() {
		s.Dropped += c.c.Counts(i).Dropped
	}
	return s
}

// Captures implements api.Backend.
func (n *Node) Captures(context.Context) (list []api.Capture, err error) {
	n.captures.mu.Lock()
	defer n.captures.mu.Unlock()
	for _, c := range n.captures.list {
		list = append(list, c.state())
	}
	return list, nil
}

// StopCapture implements api.Backend.
func (n *Node) StopCapture(_ context.Context, id int) error {
	n.captures.mu.Lock()
	defer n.captures.mu.Unlock()
	for _, c := range n.captures.list {
		if c.id == id {
			c.stop()
			return nil
		}
	}
	return &api.Error{Code: api.CodeNotFound, Why: fmt.Sprintf("there is no capture %d", id), Fix: "weft status"}
}

// Capture implements api.Backend.
func (n *Node) Capture(ctx context.Context, spec api.CaptureSpec, started func(api.Capture) error, write func([]byte) error) (api.Capture, error) {
	cfg, err := n.captureConfig(ctx, spec)
	if err != nil {
		return api.Capture{}, err
	}
	gone := ctx // whoever asked for it
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c := &capturing{spec: spec, c: capture.New(cfg), stop: stop}
	if err := n.addCapture(c); err != nil {
		return api.Capture{}, err
	}
	defer n.removeCapture(c)
	if spec.DurationNS > 0 {
		defer time.AfterFunc(spec.DurationNS, stop).Stop()
	}
	if err := started(c.state()); err != nil {
		return api.Capture{}, err
	}
	w, err := pcapng.NewWriter(writerFunc(write), "weft", c.c.Interfaces()...)
	if err != nil {
		return api.Capture{}, err
	}
	tick := time.NewTicker(capturePause)
	defer tick.Stop()
	for on := true; on && err == nil; {
		select {
		case <-ctx.Done():
			n.removeCapture(c)
			on = false // what came until then is taken
		case <-n.captures.end:
			on = false
		case <-c.c.Wake():
		case <-tick.C:
		}
		if gone.Err() != nil {
			return api.Capture{}, gone.Err()
		}
		b, full := c.take()
		if len(b) > 0 {
			err = w.Blocks(b)
		}
		on = on && !full
	}
	now := time.Now()
	for i := range c.c.Interfaces() {
		k := c.c.Counts(i)
		if err == nil {
			err = w.Statistics(i, now, k.Seen, k.Dropped)
		}
	}
	return c.state(), err
}

// take returns what is to be written, and whether that is all that was asked for.
func (c *capturing) take() (b []byte, full bool) {
	b = c.c.Take()
	c.mu.Lock()
	defer c.mu.Unlock()
	for rest := b; len(rest) > 0; {
		if c.spec.Count > 0 && c.packets == c.spec.Count {
			return b[:len(b)-len(rest)], true
		}
		_, rest, _ = pcapng.Next(rest)
		c.packets++
	}
	return b, c.spec.Count > 0 && c.packets == c.spec.Count
}

type writerFunc func([]byte) error

func (f writerFunc) Write(p []byte) (int, error) {
	if err := f(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// captureConfig finds what a capture is of.
func (n *Node) captureConfig(ctx context.Context, spec api.CaptureSpec) (capture.Config, error) {
	cfg := capture.Config{Lanes: len(n.lanes.All()), RingBytes: captureBytes, SnapLen: spec.SnapLen, Port: uint16(n.cfg.RoCEPort), Clock: time.Now, Later: spec.Device == ""}
	for cfg.RingBytes*cfg.Lanes > captureBytes {
		cfg.RingBytes /= 2
	}
	for _, q := range spec.QPs {
		cfg.QPs = append(cfg.QPs, ib.QPN(q))
	}
	numbers := map[string]uint16{}
	for _, f := range n.functions() {
		native := f.a.Port().Link == ib.LinkInfiniBand
		if spec.Device != "" && spec.Device != f.a.Name || spec.IPoIB && !native {
			continue
		}
		num := f.a.Number()
		numbers[f.a.Name] = num
		cfg.Functions = append(cfg.Functions, make([]capture.Function, max(0, int(num)+1-len(cfg.Functions)))...)
		cfg.Functions[num] = capture.Function{Name: f.a.Name, Native: native}
	}
	if n.function(spec.Device) == nil && spec.Device != "" {
		return cfg, &api.Error{Code: api.CodeNotFound, What: "cannot capture", Why: fmt.Sprintf("there is no device %q", spec.Device), Fix: "weft dev"}
	}
	if !spec.IPoIB {
		return cfg, nil
	}
	cfg.Later = false
	links, err := n.ipLinks(ctx)
	if err != nil {
		return cfg, err
	}
	for _, l := range links {
		if f, ok := numbers[l.Device]; ok && l.QPN != 0 {
			cfg.IPoIB = append(cfg.IPoIB, capture.Link{Function: f, QPN: ib.QPN(l.QPN)})
		}
	}
	if cfg.IPoIB == nil {
		return cfg, &api.Error{Code: api.CodeNotFound, What: "cannot capture", Why: "there is no IP link", Fix: "weft ipoib"}
	}
	return cfg, nil
}

func (n *Node) addCapture(c *capturing) error {
	n.captures.mu.Lock()
	full := len(n.captures.list) == maxCaptures
	if !full {
		n.captures.last++
		c.id = n.captures.last
		n.captures.list = append(n.captures.list, c)
	}
	n.captures.mu.Unlock()
	if full {
		return &api.Error{Code: api.CodeRefused, What: "cannot capture", Why: fmt.Sprintf("%d captures run, which is the most", maxCaptures), Fix: "end one (weft status)"}
	}
	if err := n.setTaps(); err != nil {
		n.removeCapture(c)
		return err
	}
	n.log.Info("a capture begins: matching queue pairs of this node reach each other by the packet path", "id", c.id, "spec", c.spec)
	return nil
}

// removeCapture returns when no lane knows the capture any more, but for one that is
// stuck.
func (n *Node) removeCapture(c *capturing) {
	n.captures.mu.Lock()
	i := slices.Index(n.captures.list, c)
	if i >= 0 {
		n.captures.list = slices.Delete(n.captures.list, i, i+1)
	}
	n.captures.mu.Unlock()
	if i >= 0 {
		n.setTaps() // fails where the lane has ended, or does not come back, which the status says
	}
}

// setTaps gives the lanes taps for the captures under way.
func (n *Node) setTaps() (err error) {
	n.captures.taps.Lock()
	defer n.captures.taps.Unlock()
	n.captures.mu.Lock()
	var list []*capture.Capture
	for _, c := range n.captures.list {
		list = append(list, c.c)
	}
	n.captures.mu.Unlock()
	for i, l := range n.lanes.All() {
		var t hca.Tap
		if len(list) > 0 {
			t = capture.NewTap(i, list)
		}
		err = errors.Join(err, l.Query(func() { l.HCA.SetTap(t) }))
	}
	return err
}
