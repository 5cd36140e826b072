// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"weft/internal/control/api"
)

// codeError carries an exit code besides the message.
type codeError struct {
	code int
	err  error // nil: the message was printed already
}

func (e *codeError) Error() string { return e.err.Error() }
func (e *codeError) Unwrap() error { return e.err }

// usage returns an error for a wrong command line.
func usage(fix, format string, args ...any) error {
	return &codeError{ExitUsage, &api.Error{Code: api.CodeInvalid, What: fmt.Sprintf(format, args...), Fix: fix}}
}
