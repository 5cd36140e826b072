// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"

	"weft/internal/proto/problem"
)

// Kinds of failures, for errors.Is.
var (
	ErrNotFound    = errors.New("not found")
	ErrConflict    = errors.New("conflict")    // concurrent change: read again, then decide
	ErrFenced      = errors.New("fenced")      // the caller's term or lease is over: stop writing
	ErrUnavailable = errors.New("unavailable") // no answer: try again later; a write may have been done
	ErrFull        = errors.New("full")        // nothing can be put until something is deleted
	ErrInvalid     = errors.New("invalid")     // the call can never work
)

// Error is a failure in the form people read: "what: why. fix: command".
type Error struct {
	Kind error  // one of the above
	Key  string // that it is about, if it is about one
	What string
	Why  string
	Fix  string
	Err  error // the cause, if another layer reported it
}

func (e *Error) Error() string { return problem.Text(e.What, e.Why, e.Fix) }

// Problem implements problem.Problem.
func (e *Error) Problem() *problem.Error {
	return &problem.Error{What: e.What, Why: e.Why, Fix: e.Fix, Err: e}
}

// Unwrap returns kind and cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

func isConflict(err error) bool { return errors.Is(err, ErrConflict) }

// NotFound is the error of a store about a key that is not there.
func NotFound(key string) error {
	return &Error{Kind: ErrNotFound, Key: key, What: "cannot find " + key, Why: "the store has no such key",
		Fix: "weft store list shows the keys"}
}

// Conflict is the error of a store about a condition that is false: found is
// the revision of the key, 0 when it is absent.
func Conflict(c Cond, found Rev) error {
	e := &Error{Kind: ErrConflict, Key: c.Key, What: "cannot write " + c.Key,
		Fix: "read it again, then repeat the command"}
	switch {
	case found == 0:
		e.Why = "it is not there"
	case c.Test == IsAbsent:
		e.Why = "it is already there"
	default:
		e.Why = fmt.Sprintf("it was changed meanwhile (revision %d, expected %d)", found, c.Rev)
	}
	return e
}

// TermOver is the error of a store about a fence that does not hold.
func TermOver(f Fence) error {
	return &Error{Kind: ErrFenced, Key: f.Key, What: "cannot write as the master of " + f.Key,
		Why: fmt.Sprintf("the term that began at revision %d is over", f.Created),
		Fix: "weft sm status names the master of now"}
}

// LeaseEnded is the error of a store about a lease that is not there any more.
func LeaseEnded(id LeaseID) error {
	return &Error{Kind: ErrFenced, What: "cannot write with a lease", Why: fmt.Sprintf("lease %x has ended", int64(id)),
		Fix: "weft store status shows whether the store was out of reach"}
}

// Closed is the error of a client after its Close.
func Closed() error {
	return &Error{Kind: ErrUnavailable, What: "cannot use the store", Why: "it was closed",
		Fix: "weft up starts the node again"}
}

func invalid(what, format string, args ...any) error {
	return &Error{Kind: ErrInvalid, What: what, Why: fmt.Sprintf(format, args...),
		Fix: "weft store --help lists the bounds"}
}
