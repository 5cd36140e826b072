// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"net/http"

	"weft/internal/proto/problem"
)

// Code is the kind of a failure.
type Code string

// Codes.
const (
	CodeInvalid  Code = "invalid"   // the request can never work
	CodeConflict Code = "conflict"  // the host or the node does not permit it now: a name is taken, a privilege is missing
	CodeNotFound Code = "not_found" // it names something that does not exist
	CodeRefused  Code = "refused"   // the caller may not
	CodeNotReady Code = "not_ready" // the node is starting or ending
	CodeDrained  Code = "drained"   // the host accepts nothing new until its drain ends: to wait does not help
	CodeNoNode   Code = "no_node"   // no node runs there; made by the client only
	CodeNoAnswer Code = "no_answer" // a node is there but does not answer; made by the client only
	// CodeNotMaster: only the node of the master can answer.
	CodeNotMaster Code = "not_master"
	// CodeContact: the change takes contact away, which the request does not confirm. Error.Lost is what.
	CodeContact Code = "contact"
	// CodeNotApplied: the change is stored, and a part of the subnet is not as it states.
	CodeNotApplied Code = "not_applied"
	CodeInternal   Code = "internal"
)

// Error is a failure in the form people read: "what: why. fix: command".
// A node returns one where the kind or the fix is known; any other error
// is CodeInternal.
type Error struct {
	Code Code   `json:"code"`
	What string `json:"what"`
	Why  string `json:"why"`
	Fix  string `json:"fix"`
	// Lost is what a change would take away, of CodeContact.
	Lost *LostContact `json:"lost,omitempty"`
	err  error
}

func (e *Error) Error() string { return problem.Text(e.What, e.Why, e.Fix) }

// Problem implements problem.Problem.
func (e *Error) Problem() *problem.Error {
	return &problem.Error{What: e.What, Why: e.Why, Fix: e.Fix, Err: e}
}

// Unwrap returns the cause on the side where it happened.
func (e *Error) Unwrap() error { return e.err }

// httpStatus maps codes to statuses; the client decides by the code alone.
func (e *Error) httpStatus() int {
	switch e.Code {
	case CodeInvalid:
		return http.StatusBadRequest
	case CodeNotFound:
		return http.StatusNotFound
	case CodeRefused:
		return http.StatusForbidden
	case CodeNotMaster, CodeConflict, CodeContact, CodeDrained:
		return http.StatusConflict
	case CodeNotReady:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// asError returns err as an *Error, wrapping what is none.
func asError(what string, err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: CodeInternal, What: what, Why: err.Error(), err: err}
}
