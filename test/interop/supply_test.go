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

// machineOfRow is a guest as supply handles it.
type machineOfRow interface {
	Usable() bool
	Done() <-chan struct{}
	Died() bool
	Console() string
	Close()
}

// supply gives each row a guest that works. It boots a fresh one when the guest of the row before has died or has been
// left in the middle of a script, however often that happens. Not for concurrent use.
type supply struct {
	boot     func() (machineOfRow, error)
	patience time.Duration // how long a kernel that fails may take until its guest has ended; 0: dyingTime
	guest    machineOfRow  // nil: none
	deaths   int           // guests that died of their own kernel
}

// repeats is how often a row is run again after its guest died, each time with a fresh guest.
const repeats = 2

// dyingTime is how long a kernel that has failed may take to print why and to end its machine.
const dyingTime = 3 * time.Second

// ready makes sure that there is a guest that works.
func (s *supply) ready() (err error) {
	if s.guest != nil && s.guest.Usable() {
		return nil
	}
	s.close()
	g, err := s.boot()
	if err != nil {
		return fmt.Errorf("fresh guest: %w", err)
	}
	s.guest = g
	return nil
}

func (s *supply) close() {
	if s.guest != nil {
		s.guest.Close()
		s.guest = nil
	}
}

// run runs one row, which returns what is wrong. A row runs again, with a fresh guest, after its guest has died; if that
// one dies too, and the next, the row fails with the report of the kernel.
func (s *supply) run(t testing.TB, row func() error) error {
	t.Helper()
	for try := 0; ; try++ {
		if err := s.ready(); err != nil {
			return err
		}
		err := row()
		if err == nil || !s.died() {
			return err
		}
		s.deaths++
		oops := guest.Oops(s.guest.Console())
		if try == repeats {
			return fmt.Errorf("each of %d guests died of its kernel: %w\n%s", repeats+1, err, oops)
		}
		t.Logf("the guest's kernel has died, number %d: once more with a fresh guest:\n%s", s.deaths, oops)
	}
}

// died reports whether the guest has ended by itself. A kernel that has just failed ends a moment later.
func (s *supply) died() bool {
	patience := s.patience
	if patience == 0 {
		patience = dyingTime
	}
	select {
	case <-s.guest.Done():
	case <-time.After(patience):
	}
	return s.guest.Died()
}

// fakeMachine dies when a row calls kill.
type fakeMachine struct {
	name         int
	end          chan struct{}
	dead, unread bool
	closed       bool
}

func (m *fakeMachine) Usable() bool          { return !m.dead && !m.unread }
func (m *fakeMachine) Done() <-chan struct{} { return m.end }
func (m *fakeMachine) Died() bool            { return m.dead }
func (m *fakeMachine) Console() string       { return "boot\nBUG: fault\nRIP\n" }
func (m *fakeMachine) Close()                { m.closed = true }
func (m *fakeMachine) kill() error {
	m.dead = true
	close(m.end)
	return guest.ErrDied
}

// TestSupply: a row fails alone if its guest always dies, with what the kernel printed. All others get a guest that
// works.
func TestSupply(t *testing.T) {
	var booted []*fakeMachine
	s := supply{patience: time.Millisecond, boot: func() (machineOfRow, error) {
		m := &fakeMachine{name: len(booted), end: make(chan struct{})}
		booted = append(booted, m)
		return m, nil
	}}
	now := func() *fakeMachine { return s.guest.(*fakeMachine) }
	always := func() error { return now().kill() }
	passes := func() error { return nil }
	fails := func() error { return errors.New("wrong") }
	times := 0
	twice := func() error {
		if times++; times <= repeats {
			return now().kill()
		}
		return nil
	}
	leaves := func() error { now().unread = true; return errors.New("not in time") }
	for i, step := range []struct {
		row    func() error
		want   string // part of the error, or nothing
		booted int    // afterwards
	}{
		{passes, "", 1}, {passes, "", 1},
		{always, "BUG: fault\nRIP", 3},
		{passes, "", 4},
		{always, "each of 3 guests died", 6},
		{always, "each of 3 guests died", 9},
		{fails, "wrong", 10}, {passes, "", 10},
		{twice, "", 12}, {passes, "", 12},
		{leaves, "not in time", 12}, {passes, "", 13},
	} {
		err := s.run(t, step.row)
		if (err == nil) != (step.want == "") || err != nil && !strings.Contains(err.Error(), step.want) {
			t.Errorf("row %d: %v, want %q", i, err, step.want)
		}
		if len(booted) != step.booted {
			t.Errorf("row %d: %d guests booted, want %d", i, len(booted), step.booted)
		}
	}
	s.close()
	for _, m := range booted {
		if !m.closed {
			t.Errorf("guest %d was not closed", m.name)
		}
	}
	// A guest that does not boot fails its row; the next row tries again.
	dead := 0
	s = supply{boot: func() (machineOfRow, error) { dead++; return nil, errors.New("no room") }}
	for range 2 {
		if err := s.run(t, passes); err == nil || !strings.Contains(err.Error(), "no room") {
			t.Errorf("%v", err)
		}
	}
	if dead != 2 {
		t.Errorf("%d attempts to boot, want 2", dead)
	}
}
