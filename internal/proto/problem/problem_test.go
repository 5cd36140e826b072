// SPDX-License-Identifier: Apache-2.0

package problem

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

func TestText(t *testing.T) {
	for _, c := range []struct{ what, why, fix, want string }{
		{"cannot start", "port 4791 is in use", "weft up --roce-port 4793",
			"cannot start: port 4791 is in use. fix: weft up --roce-port 4793"},
		{"cannot start", "", "weft up", "cannot start. fix: weft up"},
		{"cannot start", "", "", "cannot start"},
		{"", "the store is full", "weft store defrag", "the store is full. fix: weft store defrag"},
	} {
		if got := New(c.what, c.why, c.fix).Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// coded is an error type of another package that adds a code.
type coded struct {
	parts Error
	code  int
}

func (c *coded) Error() string   { return c.parts.Error() }
func (c *coded) Problem() *Error { return &c.parts }

func TestOf(t *testing.T) {
	if Of("x", nil) != nil {
		t.Error("nil has parts")
	}
	inner := New("cannot open", "it is busy", "wait")
	if got := Of("x", fmt.Errorf("link 3: %w", inner)); got != inner {
		t.Errorf("got %v", got)
	}
	if got := Of("x", fmt.Errorf("link 3: %w", &coded{*inner, 7})); got.Fix != "wait" {
		t.Errorf("got %+v", got)
	}
	if got := Of("cannot read", io.EOF); got.Error() != "cannot read: EOF" || !errors.Is(got, io.EOF) {
		t.Errorf("got %v", got)
	}
}
