// SPDX-License-Identifier: Apache-2.0

// Package problem holds the error value that people read: what failed, why, and the command that
// fixes it.
//
// What comes in: the three parts, and the cause if another layer reported it; what goes out: an
// error with the parts in fields and one line of text. Every package that talks to people makes
// problems; the control interface passes the parts on. Nothing takes the text apart again.
package problem

import "errors"

// Error is a failure as people read it: "what: why. fix: command". Why and Fix may be empty.
// The parts are lower case, without a full stop at the end.
type Error struct {
	What string // what failed: "cannot add the IP link ib0_1_7fff"
	Why  string // the reason
	Fix  string // a command or an action that removes the reason
	Err  error  // the cause, if another layer reported it; not part of the text
}

// New returns an Error without a cause.
func New(what, why, fix string) *Error { return &Error{What: what, Why: why, Fix: fix} }

// Error returns the one line.
func (e *Error) Error() string { return Text(e.What, e.Why, e.Fix) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Problem returns e: *Error is a Problem.
func (e *Error) Problem() *Error { return e }

// Problem is an error with the three parts. Error types that add something, such as a code,
// implement it so that Of finds their parts.
type Problem interface {
	error
	Problem() *Error
}

// Of returns the parts of err: those of the first Problem in its tree, or the whole text of err as
// the reason of what. Of(what, nil) is nil.
func Of(what string, err error) *Error {
	if err == nil {
		return nil
	}
	var p Problem
	if errors.As(err, &p) {
		return p.Problem()
	}
	return &Error{What: what, Why: err.Error(), Err: err}
}

// Text joins the parts to one line.
func Text(what, why, fix string) string {
	s := what
	if why != "" {
		if s != "" {
			s += ": "
		}
		s += why
	}
	if fix != "" {
		s += ". fix: " + fix
	}
	return s
}
