// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"weft/test/interop/guest"
)

// panicScript ends the kernel of a guest, a moment later.
const panicScript = "(usleep 300000; echo c >/proc/sysrq-trigger) >/dev/null 2>&1 &"

// dies expects that what ran while a guest's kernel died ended with it: what it returned, and when it began.
func dies(g *guest.Guest, began time.Time, err error) error {
	const soon = time.Minute
	if took := time.Since(began); took > soon {
		return fmt.Errorf("%v after the kernel's end, more than %v: %w", took, soon, err)
	}
	select {
	case <-g.Done():
	case <-time.After(soon):
	}
	if err == nil || !g.Died() || !strings.Contains(guest.Oops(g.Console()), "sysrq: Trigger a crash") {
		return fmt.Errorf("died %v, %q: %w", g.Died(), guest.Oops(g.Console()), err)
	}
	return nil
}

// kernelDies ends the guest's kernel below a row, in each of the ways in which a row waits for its guest. The row ends
// at once and runs again with a fresh guest, and passes with the last.
func (b *bench) kernelDies(t *testing.T) {
	var dead []*guest.Guest
	ways := []func() error{
		func() error { // a script in the guest
			out, err := b.guest.Run(panicScript+" sleep 1000", 20*time.Minute)
			if !errors.Is(err, guest.ErrDied) {
				err = fmt.Errorf("not the guest's end: %v\n%s", err, out)
			}
			return err
		},
		func() error { // a program of the node's, which does not look at the guest
			if out, err := b.guest.Run(panicScript, time.Minute); err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
			_, err := b.beside(b.node.Program("sleep", "1000"), 20*time.Minute)
			return err
		},
	}
	b.run(t, "the row runs again", func(t *testing.T) error {
		if n := len(dead); n < len(ways) {
			dead = append(dead, b.guest)
			began := time.Now()
			err := ways[n]()
			if wrong := dies(b.guest, began, err); wrong != nil {
				t.Error(wrong)
			}
			return err
		}
		for _, g := range dead {
			if g == b.guest {
				return errors.New("a dead guest came again")
			}
		}
		return nil
	})
	if len(dead) != len(ways) {
		t.Errorf("%d guests died, want %d", len(dead), len(ways))
	}
}
