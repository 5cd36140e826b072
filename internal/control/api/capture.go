// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"time"
)

// CaptureSpec selects what to capture: packets of queue pairs, as a capture file.
type CaptureSpec struct {
	// Device narrows it to one device; empty: all.
	Device string `json:"device"`
	// QPs narrows it to packets from or to one of these queue pairs; empty: all.
	QPs []uint32 `json:"qps" order:"value"`
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
	ID int `json:"id" order:"1"`
	CaptureSpec
	Packets uint64 `json:"packets"` // in the file
	Dropped uint64 `json:"dropped"` // for lack of room: the file could not be written fast enough
}

// CaptureFunc captures packets. It calls started once and then write with pieces of a capture file, until ctx or the
// capture ends, and returns the capture as it ended. An error before started is the answer to the request.
type CaptureFunc = func(ctx context.Context, spec CaptureSpec, started func(Capture) error,
	write func([]byte) error) (Capture, error)

// Headers of the answer to a capture: what began, and behind the file what it has
// come to.
const (
	captureHeader = "Weft-Capture"
	captureEnd    = "Weft-Capture-End"
)

// HandleCapture registers f as what answers Client.Capture. The spec it gets is valid.
func HandleCapture(mux *http.ServeMux, f CaptureFunc) {
	op := startCapture
	mux.HandleFunc(op.Method+" /"+Version+op.Path, func(w http.ResponseWriter, r *http.Request) {
		begun := false
		h := handler{what: op.What, need: op.Access, call: func(r *http.Request) (any, error) {
			spec, err := op.decode(r)
			if err != nil {
				return nil, err
			}
			return nil, stream(w, r, f, spec, &begun)
		}}
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		if _, err := h.serve(r); err != nil && !begun {
			h.answer(w, nil, err)
		}
	})
}

// stream answers with a capture file that ends when the capture does. A slow reader does not delay the node.
func stream(w http.ResponseWriter, r *http.Request, f CaptureFunc, spec CaptureSpec, begun *bool) error {
	c := http.NewResponseController(w)
	if err := errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{})); err != nil {
		return err
	}
	end, err := f(r.Context(), spec, func(now Capture) error {
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
	noNilLists(reflect.ValueOf(&c).Elem())
	b, _ := json.Marshal(c) // numbers and names: cannot fail
	return string(b)
}

// Capture writes a capture file to w until the capture or ctx ends: then the file has all that was captured until then.
// started is called when the capture runs. It returns the capture as it ended. Unlike other calls it has no time limit.
func (c *Client) Capture(ctx context.Context, spec CaptureSpec, started func(Capture), w io.Writer) (end Capture,
	err error) {
	what := startCapture.What
	path, body, err := startCapture.encode(spec)
	if err != nil {
		return end, asError(what, err)
	}
	rctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	req, err := http.NewRequestWithContext(rctx, startCapture.Method, "http://weft/"+Version+path, body)
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
		return end, refusal(what, resp.Status, b)
	}
	var now Capture
	if err := json.Unmarshal([]byte(resp.Header.Get(captureHeader)), &now); err != nil {
		return end, asError(what, fmt.Errorf("the node's answer is not valid: %w", err))
	}
	started(now)
	stop := context.AfterFunc(ctx, func() {
		if Do(rctx, c, StopCapture, now.ID) != nil {
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
		return end, &Error{Code: CodeInternal, What: "the capture broke off", Why: "the node ended it without a word",
			err: err}
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
