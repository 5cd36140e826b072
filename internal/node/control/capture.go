// SPDX-License-Identifier: Apache-2.0

// Package control has the operations of the control interface that belong to no other room of a node:
// captures, injected faults, the resources of programs, and multicast groups.
//
// What comes in: requests of users; what goes out: responses, taps on lanes, rules on links. It reads
// lanes by Query, which gives up while a lane is stuck. No lane may call it, except Captures.Mirror
// and Captures.Active.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
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
	MaxCaptures  = 4
	captureBytes = 32 << 20 // of one capture, for what waits to be written
	// capturePause is how long packets wait at most where there are few of them.
	capturePause = 20 * time.Millisecond
)

// CaptureConfig is what captures need from their node.
type CaptureConfig struct {
	Log  *slog.Logger
	Port uint16 // UDP port of RoCEv2
	// Functions lists the adapters of the node.
	Functions func() []*hca.Adapter
	// IPLinks lists the IP links.
	IPLinks func(context.Context) ([]api.IPLink, error)
}

// Captures are the captures under way. Lanes have a tap while there are any.
type Captures struct {
	cfg   CaptureConfig
	lanes *lane.Group // set once, before the lanes run
	end   chan struct{}

	taps sync.Mutex // held while lanes get their taps; before mu
	mu   sync.Mutex // guards list and last
	list []*capturing
	last int
	// mirrored is how many datagrams are on their way to the tap of lane 0; see Mirror.
	mirrored atomic.Int32
}

// NewCaptures returns captures of lanes that SetLanes names.
func NewCaptures(c CaptureConfig) *Captures { return &Captures{cfg: c, end: make(chan struct{})} }

// SetLanes names the lanes, before they run.
func (c *Captures) SetLanes(g *lane.Group) { c.lanes = g }

// Close ends the captures.
func (c *Captures) Close() { close(c.end) }

// Register registers the operations on captures.
func (c *Captures) Register(mux *http.ServeMux) {
	api.HandleCapture(mux, c.capture)
	api.Handle(mux, api.ListCaptures, api.NoInput(c.List))
	api.Handle(mux, api.StopCapture, api.NoOutput(c.stop))
}

// Active reports whether there is a capture.
func (c *Captures) Active() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.list) > 0
}

// MaxMirrored bounds the datagrams that wait for a lane that is stuck.
const MaxMirrored = 1024

// Mirror copies to captures, on lane 0, a datagram to or from queue pair 0 or 1 of function r.Path.Function's port that
// does not pass a lane: one that the port sends, or else receives. number, where it is not nil, gives it its packet
// sequence number on the lane. The burst is the lane's from then on. It never waits: captures count as dropped what the
// lane has not handled.
func (c *Captures) Mirror(r *pkt.Burst, sent bool, number func(*pkt.Burst)) {
	l := c.lanes.First()
	if c.mirrored.Add(1) > MaxMirrored {
		c.mirrored.Add(-1)
		c.missed(r, sent)
		return
	}
	l.Post(func() {
		c.mirrored.Add(-1)
		if number != nil {
			number(r)
		}
		l.HCA.MirrorManagement(r, sent)
	})
}

// missed counts a datagram that was not mirrored.
func (c *Captures) missed(r *pkt.Burst, sent bool) {
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

// List lists the captures.
func (s *Captures) List(context.Context) (list []api.Capture, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.list {
		list = append(list, c.state())
	}
	return list, nil
}

func (s *Captures) stop(_ context.Context, id int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.list {
		if c.id == id {
			c.stop()
			return nil
		}
	}
	return &api.Error{Code: api.CodeNotFound, Why: fmt.Sprintf("there is no capture %d", id), Fix: "weft status"}
}

func (s *Captures) capture(ctx context.Context, spec api.CaptureSpec, started func(api.Capture) error,
	write func([]byte) error) (api.Capture, error) {
	cfg, err := s.config(ctx, spec)
	if err != nil {
		return api.Capture{}, err
	}
	gone := ctx // of the requester
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c := &capturing{spec: spec, c: capture.New(cfg), stop: stop}
	if err := s.add(c); err != nil {
		return api.Capture{}, err
	}
	defer s.remove(c)
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
			s.remove(c)
			on = false // packets that arrived until then are written
		case <-s.end:
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

// take returns the blocks to write, and whether the capture has as many packets as were requested.
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

// config is the configuration of a capture as it was requested.
func (s *Captures) config(ctx context.Context, spec api.CaptureSpec) (capture.Config, error) {
	cfg := capture.Config{Lanes: len(s.lanes.All()), RingBytes: captureBytes, SnapLen: spec.SnapLen, Port: s.cfg.Port,
		Clock: time.Now, Later: spec.Device == ""}
	for cfg.RingBytes*cfg.Lanes > captureBytes {
		cfg.RingBytes /= 2
	}
	for _, q := range spec.QPs {
		cfg.QPs = append(cfg.QPs, ib.QPN(q))
	}
	numbers := map[string]uint16{}
	known := spec.Device == ""
	for _, a := range s.cfg.Functions() {
		native := a.Port().Link == ib.LinkInfiniBand
		known = known || spec.Device == a.Name
		if spec.Device != "" && spec.Device != a.Name || spec.IPoIB && !native {
			continue
		}
		num := a.Number()
		numbers[a.Name] = num
		cfg.Functions = append(cfg.Functions, make([]capture.Function, max(0, int(num)+1-len(cfg.Functions)))...)
		cfg.Functions[num] = capture.Function{Name: a.Name, Native: native}
	}
	if !known {
		return cfg, &api.Error{Code: api.CodeNotFound, What: "cannot capture",
			Why: fmt.Sprintf("there is no device %q", spec.Device), Fix: "weft dev"}
	}
	if !spec.IPoIB {
		return cfg, nil
	}
	cfg.Later = false
	links, err := s.cfg.IPLinks(ctx)
	if err != nil {
		return cfg, err
	}
	for _, l := range links {
		if f, ok := numbers[l.Device]; ok && l.QPN != 0 {
			cfg.IPoIB = append(cfg.IPoIB, capture.Link{Function: f, QPN: ib.QPN(l.QPN)})
		}
	}
	if cfg.IPoIB == nil {
		return cfg, &api.Error{Code: api.CodeNotFound, What: "cannot capture", Why: "there is no IP link",
			Fix: "weft ipoib"}
	}
	return cfg, nil
}

func (s *Captures) add(c *capturing) error {
	s.mu.Lock()
	full := len(s.list) == MaxCaptures
	if !full {
		s.last++
		c.id = s.last
		s.list = append(s.list, c)
	}
	s.mu.Unlock()
	if full {
		return &api.Error{Code: api.CodeRefused, What: "cannot capture",
			Why: fmt.Sprintf("%d captures run, which is the most", MaxCaptures), Fix: "end one (weft status)"}
	}
	if err := s.setTaps(); err != nil {
		s.remove(c)
		return err
	}
	s.cfg.Log.Info("a capture begins: matching queue pairs of this node reach each other by the packet path", "id",
		c.id, "spec", c.spec)
	return nil
}

// remove removes a capture; when it returns no lane has a tap of it, except one that is stuck.
func (s *Captures) remove(c *capturing) {
	s.mu.Lock()
	i := slices.Index(s.list, c)
	if i >= 0 {
		s.list = slices.Delete(s.list, i, i+1)
	}
	s.mu.Unlock()
	if i >= 0 {
		s.setTaps() // fails where the lane has ended or is stuck, which the status reports
	}
}

// setTaps gives the lanes taps for the captures under way.
func (s *Captures) setTaps() (err error) {
	s.taps.Lock()
	defer s.taps.Unlock()
	s.mu.Lock()
	var list []*capture.Capture
	for _, c := range s.list {
		list = append(list, c.c)
	}
	s.mu.Unlock()
	for i, l := range s.lanes.All() {
		var t hca.Tap
		if len(list) > 0 {
			t = capture.NewTap(i, list)
		}
		err = errors.Join(err, l.Query(func() { l.HCA.SetTap(t) }))
	}
	return err
}
