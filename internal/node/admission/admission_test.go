// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"testing"

	"weft/internal/control/api"
)

// TestGate: a drained host refuses with a code on which no client waits, the reason, and the command that ends the
// drain.
func TestGate(t *testing.T) {
	var g Gate
	if err := g.Admit(); err != nil {
		t.Errorf("at first: %v", err)
	}
	for range 2 {
		g.Close("b1")
		var e *api.Error
		if err := g.Admit(); !errors.As(err, &e) || e.Code != api.CodeDrained || e.Fix != "weft member undrain b1" ||
			e.Why == "" {
			t.Errorf("closed: %v", err)
		}
		e.What = "cannot add IP links" // an error belongs to the requester
		if err := g.Admit(); errors.Is(err, e) || err.(*api.Error).What != "" {
			t.Errorf("closed: %v", err)
		}
		g.Open()
		if err := g.Admit(); err != nil {
			t.Errorf("open: %v", err)
		}
	}
}
