// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"strings"
	"time"
)

// maxRequest bounds a request's body: a fault is the largest.
const maxRequest = 64 << 10

// Access is what a peer may do.
type Access int

// Access levels.
const (
	NoAccess Access = iota
	ReadAccess
	FullAccess
)

// Server answers the control interface of a node.
type Server struct {
	http  http.Server
	allow func(net.Conn) (Access, error)
	// Forwarder passes requests for operations of the master on; nil: none. It is set before Serve.
	Forwarder Forwarder
}

type accessKey struct{}

// NewServer returns a server for the operations that were registered in mux with Handle. allow returns the access of
// the peer of a connection; it is called once per connection. NoAccess comes with an error, which is the answer.
func NewServer(mux *http.ServeMux, allow func(net.Conn) (Access, error), log *slog.Logger) *Server {
	s := &Server{allow: allow}
	mux.Handle("/", handler{what: "cannot answer", need: ReadAccess, call: func(r *http.Request) (any, error) {
		return nil, &Error{Code: CodeNotFound, Why: "this node does not know " + r.Method + " " + r.URL.Path,
			Fix: "use the weft command of the node's own version"}
	}})
	s.http = http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			a, err := s.allow(c)
			ctx = WithCaller(ctx, localCaller(c))
			return context.WithValue(ctx, accessKey{}, grant{access: a, err: err, forwarder: s.Forwarder})
		},
	}
	return s
}

// grant is what the connection of a request may do.
type grant struct {
	access    Access
	err       error
	forwarder Forwarder // nil: this node handles every request
	identify  Identify  // of a connection with another member; nil: the connection is local
}

// Serve answers on l until Close or Shutdown and always returns a non-nil
// error, http.ErrServerClosed after those two.
func (s *Server) Serve(l net.Listener) error { return s.http.Serve(l) }

// Shutdown stops listening and waits for the requests under way.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.Shutdown(ctx) }

// Close stops at once.
func (s *Server) Close() error { return s.http.Close() }

// handler is an operation: the text that begins its errors, the access that it needs, and the call. The answer is
// encoded before the first byte is written.
type handler struct {
	what  string
	need  Access
	limit int64 // of the body; 0: maxRequest
	// master: it is the master's
	master bool
	reads  string // Op.Reads
	call   func(r *http.Request) (any, error)
	out    reflect.Type // of the answer
}

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, cmp.Or(h.limit, maxRequest))
	v, err := h.serve(r)
	h.answer(w, v, err)
}

func (h handler) answer(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	if a, ok := v.(*Answer); ok && err == nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(a.Status)
		w.Write(a.Body)
		return
	}
	if err != nil {
		e := *asError(h.what, err)
		if e.What == "" {
			e.What = h.what
			e.Why = strings.TrimPrefix(e.Why, h.what+": ") // of an error that names the operation as well
		}
		v, status = e, e.httpStatus()
	}
	body, err := json.Marshal(v)
	if err != nil { // a bug of this program, but not one to die of
		status = http.StatusInternalServerError
		body, _ = json.Marshal(Error{Code: CodeInternal, What: h.what, Why: err.Error()})
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(body, '\n')) // a caller that left is no error
}

func (h handler) serve(r *http.Request) (any, error) {
	g, ok := r.Context().Value(accessKey{}).(grant)
	if !ok || g.err != nil || g.access < h.need {
		e := Error{Code: CodeRefused, Why: "this user may only read",
			Fix: "run the command as the node's user or as root"}
		if g.err != nil {
			e.Why = g.err.Error()
			var known *Error
			if errors.As(g.err, &known) {
				e = *known
			}
		}
		return nil, &e
	}
	ctx := Confirm(r.Context(), r.Header.Get(headerConfirm))
	if g.identify != nil {
		c, err := h.remote(r, g.identify)
		if err != nil {
			return nil, err
		}
		return h.call(r.WithContext(WithCaller(ctx, c)))
	}
	if !h.master {
		return h.call(r.WithContext(ctx))
	}
	if h.need > ReadAccess {
		ctx = WithCaller(ctx, CallerOf(ctx).named())
	}
	r = r.WithContext(ctx)
	if g.forwarder != nil {
		if a, elsewhere, err := h.forward(r, g.forwarder); elsewhere || err != nil {
			return a, err
		}
	}
	return h.call(r)
}

// decodeStrict reads exactly one JSON value without unknown fields.
func decodeStrict(r io.Reader, v any) error {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("the request is not valid: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the request is not valid: more than one value")
	}
	return nil
}
