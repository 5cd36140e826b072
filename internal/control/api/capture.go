// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// CaptureSpec says what to capture: packets of queue pairs, as a capture file.
type CaptureSpec struct {
	// Device narrows it to one device; empty: all.
	Device string `json:"device"`
	// QPs narrows it to packets from or to one of these queue pairs; empty: all.
	QPs []uint32 `json:"qps"`
	// Count ends it after so many packets, DurationNS after so long; 0: never.
	Count      uint64        `json:"count"`
	DurationNS time.Duration `json:"duration_ns"`
	// SnapLen is how many bytes of a packet are kept; 0: all.
	SnapLen int `json:"snaplen"`
	// IPoIB takes what IP links send and receive, as datagrams of theirs.
	IPoIB bool `json:"ipoib"`
}

// maxSnapLen is more than any packet.
const maxSnapLen = 65535

// Validate reports everything that is wrong with s, joined.
func (s *CaptureSpec) Validate() error {
	var errs []error
	for _, q := range s.QPs {
		if q >= 1<<24 {
			errs = append(errs, fmt.Errorf("qp must be a number of 24 bits, not %d", q))
		}
	}
	if s.SnapLen < 0 || s.SnapLen > maxSnapLen {
		errs = append(errs, fmt.Errorf("snaplen must be 0 (all) to %d bytes, not %d", maxSnapLen, s.SnapLen))
	}
	if s.DurationNS < 0 {
		errs = append(errs, fmt.Errorf("duration must not be negative, not %v", s.DurationNS))
	}
	return errors.Join(errs...)
}

// Capture is a capture under way, or one that has ended.
type Capture struct {
	ID int `json:"id"`
	CaptureSpec
	Packets uint64 `json:"packets"` // in the file
	Dropped uint64 `json:"dropped"` // for want of room: the file could not be written fast enough
}

// Captures is the part of a Backend that captures packets. The spec was checked.
type Captures interface {
	// Capture calls started once and then write with pieces of a capture file,
	// until ctx or the capture ends, and returns what it has come to. An error
	// before started is the answer to the request.
	Capture(ctx context.Context, spec CaptureSpec, started func(Capture) error, write func([]byte) error) (Capture, error)
	Captures(ctx context.Context) ([]Capture, error)
	StopCapture(ctx context.Context, id int) error
}

// Headers of the answer to a capture: what began, and behind the file what it has
// come to.
const (
	captureHeader = "Weft-Capture"
	captureEnd    = "Weft-Capture-End"
)

func serveCaptures(mux *http.ServeMux, b Captures) {
	mux.Handle("GET /"+Version+"/captures", handler{"cannot list captures", ReadAccess, func(r *http.Request) (any, error) {
		c, err := b.Captures(r.Context())
		return captureLists(c), err
	}})
	mux.Handle("DELETE /"+Version+"/captures/{id}", handler{"cannot end the capture", FullAccess, func(r *http.Request) (any, error) {
		id, err := strconv.Atoi(r.PathValue("id"))
		if err != nil {
			return nil, &Error{Code: CodeInvalid, Why: fmt.Sprintf("%q is not a capture's number", r.PathValue("id"))}
		}
		return struct{}{}, b.StopCapture(r.Context(), id)
	}})
	mux.HandleFunc("POST /"+Version+"/captures", func(w http.ResponseWriter, r *http.Request) {
		begun := false
		h := handler{"cannot capture", FullAccess, func(r *http.Request) (any, error) {
			var spec CaptureSpec
			if err := decodeValid(r.Body, &spec, spec.Validate); err != nil {
				return nil, err
			}
			return nil, stream(w, r, b, spec, &begun)
		}}
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		if _, err := h.serve(r); err != nil && !begun {
			h.answer(w, nil, err)
		}
	})
}

// stream answers with a capture file that ends when the capture does. Whoever reads it slowly
// may: the node goes on without waiting.
func stream(w http.ResponseWriter, r *http.Request, b Captures, spec CaptureSpec, begun *bool) error {
	c := http.NewResponseController(w)
	if err := errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{})); err != nil {
		return err
	}
	end, err := b.Capture(r.Context(), spec, func(now Capture) error {
		*begun = true
		h := w.Header()
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Trailer", captureEnd)
		h.Set(captureHeader, now.text())
		w.WriteHeader(http.StatusOK)
		return c.Flush()
	}, func(p []byte) error {
		if _, err := w.Write(p); err != nil {
			return err
		}
		return c.Flush()
	})
	if *begun && err == nil {
		w.Header().Set(captureEnd, end.text())
	}
	return err
}

func (c Capture) text() string {
	b, _ := json.Marshal(c.withLists()) // numbers and names: cannot fail
	return string(b)
}

func (c Capture) withLists() Capture {
	c.QPs = list(c.QPs)
	return c
}

func captureLists(c []Capture) []Capture { return each(c, Capture.withLists) }

// Captures returns the captures under way.
func (c *Client) Captures(ctx context.Context) (list []Capture, err error) {
	err = c.do(ctx, "cannot list captures", "GET", "/captures", nil, &list)
	return list, err
}

// StopCapture ends a capture: its file is whole.
func (c *Client) StopCapture(ctx context.Context, id int) error {
	return c.do(ctx, "cannot end the capture", "DELETE", "/captures/"+strconv.Itoa(id), nil, nil)
}

// Capture writes a capture file to w until the capture ends, or ctx does: then
// all that was captured until then is in the file. started is called when the
// capture runs. It returns what was captured. Unlike other calls it takes as long as
// it takes.
func (c *Client) Capture(ctx context.Context, spec CaptureSpec, started func(Capture), w io.Writer) (end Capture, err error) {
	const what = "cannot capture"
	body, err := json.Marshal(spec)
	if err != nil {
		return end, asError(what, err)
	}
	rctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	req, err := http.NewRequestWithContext(rctx, "POST", "http://weft/"+Version+"/captures", bytes.NewReader(body))
	if err != nil {
		return end, asError(what, err)
	}
	patience := time.AfterFunc(c.timeout, cancel) // until it runs
	resp, err := c.http.Do(req)
	if !patience.Stop() && err != nil {
		err = context.DeadlineExceeded
	}
	if err != nil {
		return end, c.failed(what, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, maxRequest))
		return end, c.refused(what, resp.Status, b)
	}
	var now Capture
	if err := json.Unmarshal([]byte(resp.Header.Get(captureHeader)), &now); err != nil {
		return end, asError(what, fmt.Errorf("the node's answer is not valid: %w", err))
	}
	started(now)
	stop := context.AfterFunc(ctx, func() {
		if c.StopCapture(rctx, now.ID) != nil {
			cancel()
		}
	})
	defer stop()
	to := &output{w: w}
	if _, err := io.Copy(to, resp.Body); to.err != nil {
		return end, to.err
	} else if err != nil {
		return end, c.failed("the capture broke off", err)
	}
	if err := json.Unmarshal([]byte(resp.Trailer.Get(captureEnd)), &end); err != nil {
		return end, &Error{Code: CodeInternal, What: "the capture broke off", Why: "the node ended it without a word", err: err}
	}
	return end, nil
}

// output remembers what writing failed with.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (n int, err error) {
	n, err = o.w.Write(p)
	o.err = err
	return n, err
}
