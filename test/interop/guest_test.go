// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"weft/test/interop/guest"
)

// TestGuestDies: what waits for a guest ends at once when its kernel panics, with what the console shows.
func TestGuestDies(t *testing.T) {
	image, err := guest.Build(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, reboot := range []bool{false, true} {
		g, err := guest.Start(context.Background(), guest.Config{Image: image, Reboot: reboot, MemMB: 384})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		const limit = 20 * time.Minute
		began := time.Now()
		_, err = g.Run("echo c >/proc/sysrq-trigger; sleep 1000", limit)
		if !errors.Is(err, guest.ErrDied) || !strings.Contains(err.Error(), "Kernel panic") || !g.Died() {
			t.Errorf("reboot %v: died %v: %v", reboot, g.Died(), err)
		}
		if took := time.Since(began); took > limit/2 {
			t.Errorf("it took %v", took)
		}
	}
}
