// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Right is what a member needs for a request.
type Right struct {
	Change bool   // false for requests that only read
	Reads  string // Op.Reads
}

// Forwarded is a request for an operation of the master, as one node passes it on to another.
type Forwarded struct {
	Method string
	URI    string // path and query
	Body   []byte // nil: none
	Right
	Caller  Caller
	Confirm string // Confirmed
}

// Answer is what the master answered.
type Answer struct {
	Status int // of HTTP
	Body   []byte
}

// UnreachedError is why a request was not sent to another node.
type UnreachedError struct{ Err error }

func (e *UnreachedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *UnreachedError) Unwrap() error { return e.Err }

// Forwarder passes requests for operations of the master on.
type Forwarder interface {
	// Forward has the master do what is requested. With here true this node does it itself. An error is this node's
	// refusal. It may be called on any goroutine, and returns soon after ctx is done.
	Forward(ctx context.Context, r *Forwarded) (a *Answer, here bool, err error)
}

// forward passes the request on. It returns false where this node handles it.
func (h handler) forward(r *http.Request, f Forwarder) (a *Answer, elsewhere bool, err error) {
	var body []byte
	if r.Body != nil {
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, true, &Error{Code: CodeInvalid, Why: err.Error()}
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	a, here, err := f.Forward(r.Context(), &Forwarded{Method: r.Method, URI: r.URL.RequestURI(), Body: body,
		Right: h.right(), Caller: CallerOf(r.Context()), Confirm: Confirmed(r.Context())})
	return a, !here, err
}

// right is what a member needs for the operation.
func (h handler) right() Right { return Right{h.need > ReadAccess, h.reads} }

// Via does op where f decides: on the node of the master, or with here on this one. It is for what a node itself needs
// of the master, in the name of the caller of ctx.
func Via[In, Out any](ctx context.Context, f Forwarder, op Op[In, Out], in In,
	here func(context.Context, In) (Out, error)) (out Out, err error) {
	path, body, err := op.encode(in)
	if err != nil {
		return out, err
	}
	r := &Forwarded{Method: op.Method, URI: "/" + Version + path, Right: Right{op.Access > ReadAccess, op.Reads},
		Caller: CallerOf(ctx).named(), Confirm: Confirmed(ctx)}
	if body != nil {
		if r.Body, err = io.ReadAll(body); err != nil {
			return out, err
		}
	}
	a, own, err := f.Forward(ctx, r)
	switch {
	case err != nil:
		return out, err
	case own:
		return here(ctx, in)
	case a.Status != http.StatusOK:
		return out, refusal(op.What, strconv.Itoa(a.Status), a.Body)
	}
	if err := json.Unmarshal(a.Body, &out); err != nil {
		return out, fmt.Errorf("the answer of the node of the master is not valid: %w", err)
	}
	return out, nil
}

// NewRequest makes the HTTP request of a forwarded one. base is the scheme and the host.
func (r *Forwarded) NewRequest(ctx context.Context, base string) (*http.Request, error) {
	q, err := http.NewRequestWithContext(ctx, r.Method, base+r.URI, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	q.Header.Set(headerUID, strconv.Itoa(r.Caller.UID))
	if r.Caller.User != "" {
		q.Header.Set(headerUser, r.Caller.User)
	}
	if r.Confirm != "" {
		q.Header.Set(headerConfirm, r.Confirm)
	}
	return q, nil
}

// Identify returns the member that made a request, by its certificate alone: its name and GUID. An error is the answer.
// need is what the member needs for it.
type Identify func(r *http.Request, need Right) (Caller, error)

// ForMembers returns a handler of the operations of the master that were registered in mux, for requests that other
// members forward. Every other operation is refused, and no request is forwarded again.
func ForMembers(mux *http.ServeMux, identify Identify) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(context.WithValue(r.Context(), accessKey{}, grant{access: FullAccess, identify: identify}))
		mux.ServeHTTP(w, r)
	})
}

// remote returns the caller of a request that another member forwarded: the member by its certificate, the user by what
// the member states.
func (h handler) remote(r *http.Request, identify Identify) (Caller, error) {
	c, err := identify(r, h.right()) // first: what strangers send is counted
	switch {
	case err != nil:
		return c, err
	case !h.master:
		return Caller{}, &Error{Code: CodeRefused, Why: "the operation is for users of the node itself",
			Fix: "run the command on that host"}
	}
	c.UID, c.User = -1, ""
	if n, err := strconv.Atoi(r.Header.Get(headerUID)); err == nil && n >= 0 {
		c.UID = n
	}
	if s := r.Header.Get(headerUser); len(s) <= maxCallerUser && utf8.ValidString(s) &&
		!strings.ContainsFunc(s, func(x rune) bool { return !unicode.IsPrint(x) || x == ' ' }) {
		c.User = s
	}
	return c, nil
}
