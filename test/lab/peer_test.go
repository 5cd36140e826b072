// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestPeerEnds: a program that waits for a peer is ended soon after the peer, with what that printed; one that ends by
// itself is left to it.
func TestPeerEnds(t *testing.T) {
	start := func(script string) *Proc {
		t.Helper()
		p, err := Start(Cmd{Args: []string{"sh", "-c", script}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		return p
	}
	peer := start("echo the last line; exit 3")
	<-peer.Done()
	if err := start("sleep 1000").WaitBeside(peer, time.Second); !errors.Is(err, ErrPeerEnded) ||
		!strings.Contains(err.Error(), "the last line") {
		t.Errorf("beside one that has ended: %v", err)
	}
	if err := start("sleep 0.2").WaitBeside(peer, time.Minute); err != nil {
		t.Errorf("one that ends by itself: %v", err)
	}
	if err := start("sleep 1000").WaitBeside(start("sleep 1000"), 100*time.Millisecond); !errors.Is(err, ErrTimeout) ||
		errors.Is(err, ErrPeerEnded) {
		t.Errorf("beside one that lives: %v", err)
	}
	of, err := Start(Cmd{Args: []string{"sleep", "1000"}, Peers: []Peer{start("sleep 1000"), peer}})
	if err != nil {
		t.Fatal(err)
	}
	if err := of.Wait(time.Second); !errors.Is(err, ErrPeerEnded) || !errors.Is(err, ErrTimeout) {
		t.Errorf("one of two that has ended: %v", err)
	}
	if out, err := RunBeside(start("sleep 1000"), Cmd{Args: []string{"echo", "well"}}, time.Minute); err != nil ||
		out != "well\n" {
		t.Errorf("%v: %q", err, out)
	}
}

// TestUntil: a wait ends when what it waits for is true, when its check fails, and at once when a peer has ended, after
// which the check counts once more.
func TestUntil(t *testing.T) {
	start := func(script string) *Proc {
		t.Helper()
		p, err := Start(Cmd{Args: []string{"sh", "-c", script}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		return p
	}
	never := func() (bool, error) { return false, nil }
	living, failing := start("sleep 1000"), start("echo the last line; sleep 0.2; exit 3")
	began := time.Now()
	if err := Until("it comes true", time.Hour, never, living, failing); err == nil ||
		!strings.Contains(err.Error(), "it comes true") || !strings.Contains(err.Error(), "the last line") ||
		!strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("beside one that ends: %v", err)
	}
	if _, err := living.Expect("anything", time.Millisecond); err == nil || !strings.Contains(err.Error(), "not within") {
		t.Errorf("in vain: %v", err)
	}
	if line, err := failing.Expect("last", time.Hour); err != nil || line != "the last line" {
		t.Errorf("of one that has ended: %q, %v", line, err)
	}
	if err := failing.Listening(1, time.Hour); err == nil {
		t.Error("one that has ended listens")
	}
	if err := Until("", time.Hour, func() (bool, error) { return false, errors.ErrUnsupported }); !errors.Is(err,
		errors.ErrUnsupported) {
		t.Errorf("a check that fails: %v", err)
	}
	if took := time.Since(began); took > 5*time.Minute {
		t.Errorf("it took %v", took)
	}
}
