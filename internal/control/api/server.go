// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"
)

// maxRequest bounds a request's body: a fault is the largest.
const maxRequest = 64 << 10

// Backend is the node as the control interface sees it. Calls come from any
// goroutine, several at once; each must return soon after ctx is done. What
// it returns belongs to the caller: snapshots, never live state. An *Error is
// passed on as it is.
type Backend interface {
	Status(ctx context.Context) (Status, error)
	Devices(ctx context.Context) ([]Device, error)
	Resources(ctx context.Context) (Resources, error)
	Counters(ctx context.Context) ([]Counter, error)
	Groups(ctx context.Context) ([]Group, error)
	Faults
	Captures
	// Use tells that a program is about to connect: a node that ends by itself
	// waits its whole time from now on. Once it ends, CodeNotReady is the answer.
	Use(ctx context.Context) error
	Functions
	Fabric
	IPoIB
	VESWs
	VESWInterfaces
	VMs
	// Shutdown asks the node to end and returns before it has.
	Shutdown(ctx context.Context) error
}

// Faults is the part of a Backend that injects faults. The spec was checked.
type Faults interface {
	Faults(ctx context.Context) ([]Fault, error)
	AddFault(ctx context.Context, spec FaultSpec) (Fault, error)
	DelFault(ctx context.Context, id int) error
}

// Functions is the part of a Backend that adds, deletes and changes devices.
// What it is given was checked.
type Functions interface {
	Functions(ctx context.Context) ([]Function, error)
	AddFunction(ctx context.Context, f NewFunction) (Function, error)
	SetFunction(ctx context.Context, name string, c FunctionChange) (Function, error)
	DelFunction(ctx context.Context, name string) error
}

// Access is what a peer may do.
type Access int

// Access levels.
const (
	NoAccess Access = iota
	ReadAccess
	FullAccess
)

// Server answers the control interface of one Backend.
type Server struct {
	http  http.Server
	allow func(net.Conn) (Access, error)
}

type accessKey struct{}

// NewServer returns a server for b. allow is asked once per connection what
// its peer may do; NoAccess comes with an error, which is the answer.
func NewServer(b Backend, allow func(net.Conn) (Access, error), log *slog.Logger) *Server {
	s := &Server{allow: allow}
	mux := http.NewServeMux()
	get := func(path, what string, f func(ctx context.Context) (any, error)) {
		mux.Handle("GET /"+Version+path, handler{what, ReadAccess, func(r *http.Request) (any, error) { return f(r.Context()) }})
	}
	get("/status", "cannot read the status", func(ctx context.Context) (any, error) {
		s, err := b.Status(ctx)
		return s.withLists(), err
	})
	get("/devices", "cannot list devices", func(ctx context.Context) (any, error) {
		d, err := b.Devices(ctx)
		return withLists(d), err
	})
	get("/resources", "cannot list resources", func(ctx context.Context) (any, error) {
		r, err := b.Resources(ctx)
		return r.withLists(), err
	})
	get("/counters", "cannot read counters", func(ctx context.Context) (any, error) {
		c, err := b.Counters(ctx)
		return list(c), err
	})
	get("/groups", "cannot list multicast groups", func(ctx context.Context) (any, error) {
		g, err := b.Groups(ctx)
		return groupLists(g), err
	})
	get("/faults", "cannot list faults", func(ctx context.Context) (any, error) {
		f, err := b.Faults(ctx)
		return list(f), err
	})
	mux.Handle("POST /"+Version+"/faults", handler{"cannot add the fault", FullAccess, func(r *http.Request) (any, error) {
		var spec FaultSpec
		if err := decodeStrict(r.Body, &spec); err != nil {
			return nil, &Error{Code: CodeInvalid, Why: err.Error()}
		}
		if err := spec.Validate(); err != nil {
			return nil, &Error{Code: CodeInvalid, Why: err.Error()}
		}
		return b.AddFault(r.Context(), spec)
	}})
	mux.Handle("DELETE /"+Version+"/faults/{id}", handler{"cannot delete the fault", FullAccess, func(r *http.Request) (any, error) {
		id, err := strconv.Atoi(r.PathValue("id"))
		if err != nil {
			return nil, &Error{Code: CodeInvalid, Why: fmt.Sprintf("%q is not a fault's number", r.PathValue("id"))}
		}
		return struct{}{}, b.DelFault(r.Context(), id)
	}})
	mux.Handle("POST /"+Version+"/use", handler{"cannot use the node", ReadAccess, func(r *http.Request) (any, error) {
		return struct{}{}, b.Use(r.Context())
	}})
	get("/functions", "cannot list devices", func(ctx context.Context) (any, error) {
		f, err := b.Functions(ctx)
		return list(f), err
	})
	mux.Handle("POST /"+Version+"/functions", handler{"cannot add the device", FullAccess, func(r *http.Request) (any, error) {
		var f NewFunction
		if err := decodeValid(r.Body, &f, f.Validate); err != nil {
			return nil, err
		}
		return b.AddFunction(r.Context(), f)
	}})
	mux.Handle("PATCH /"+Version+"/functions/{name}", handler{"cannot change the device", FullAccess, func(r *http.Request) (any, error) {
		var c FunctionChange
		if err := decodeValid(r.Body, &c, c.Validate); err != nil {
			return nil, err
		}
		return b.SetFunction(r.Context(), r.PathValue("name"), c)
	}})
	mux.Handle("DELETE /"+Version+"/functions/{name}", handler{"cannot delete the device", FullAccess, func(r *http.Request) (any, error) {
		return struct{}{}, b.DelFunction(r.Context(), r.PathValue("name"))
	}})
	mux.Handle("POST /"+Version+"/shutdown", handler{"cannot stop the node", FullAccess, func(r *http.Request) (any, error) {
		return struct{}{}, b.Shutdown(r.Context())
	}})
	serveCaptures(mux, b)
	serveFabric(mux, b)
	serveIPoIB(mux, b)
	serveVESWs(mux, b)
	serveVESWInterfaces(mux, b)
	serveVMs(mux, b)
	mux.Handle("/", handler{"cannot answer", ReadAccess, func(r *http.Request) (any, error) {
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
			return context.WithValue(ctx, accessKey{}, grant{a, err})
		},
	}
	return s
}

type grant struct {
	access Access
	err    error
}

// Serve answers on l until Close or Shutdown and always returns a non-nil
// error, http.ErrServerClosed after those two.
func (s *Server) Serve(l net.Listener) error { return s.http.Serve(l) }

// Shutdown stops listening and waits for the requests under way.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.Shutdown(ctx) }

// Close stops at once.
func (s *Server) Close() error { return s.http.Close() }

// handler is one operation: what it is called in errors, who may use it, and
// the call. The answer is encoded before the first byte is written.
type handler struct {
	what string
	need Access
	call func(r *http.Request) (any, error)
}

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
	v, err := h.serve(r)
	h.answer(w, v, err)
}

func (h handler) answer(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	if err != nil {
		e := *asError(h.what, err)
		if e.What == "" {
			e.What = h.what
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
		e := Error{Code: CodeRefused, Why: "this user may only read", Fix: "run the command as the node's user or as root"}
		if g.err != nil {
			e.Why = g.err.Error()
			var known *Error
			if errors.As(g.err, &known) {
				e = *known
			}
		}
		return nil, &e
	}
	return h.call(r)
}

// decodeValid is decodeStrict of something that must be valid.
func decodeValid(r io.Reader, v any, validate func() error) error {
	err := decodeStrict(r, v)
	if err == nil {
		err = validate()
	}
	if err != nil {
		return &Error{Code: CodeInvalid, Why: err.Error()}
	}
	return nil
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
