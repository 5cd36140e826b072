// SPDX-License-Identifier: Apache-2.0

// Package nstest gives tests network namespaces of their own.
//
// What comes in: functions that a test calls in a namespace. What goes out: their errors. Tests of kernel interfaces
// call it; the product never does.
package nstest

import (
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/proto/condtest"
)

// Namespace is a network namespace, and the thread that is in it.
type Namespace struct {
	T     testing.TB
	calls chan func()
	fd    int
}

// New makes a namespace with its loopback interface up. It ends with the test. Without the privilege, or without the
// TUN driver, the test is skipped; with REQUIRE_E2E=1 it fails.
func New(t testing.TB) *Namespace {
	t.Helper()
	s := &Namespace{T: t, calls: make(chan func())}
	made := make(chan error)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			s.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		made <- err
		if err != nil {
			return
		}
		for f := range s.calls {
			f()
		}
	}()
	if err := <-made; err != nil {
		condtest.Lacks(t, "a network namespace needs CAP_SYS_ADMIN: %v", err)
	}
	t.Cleanup(func() {
		close(s.calls)
		<-ended
		unix.Close(s.fd)
	})
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		condtest.Lacks(t, "no TUN driver: %v", err)
	}
	s.Must(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	return s
}

// FD is a descriptor of the namespace.
func (s *Namespace) FD() int { return s.fd }

// Do calls f in the namespace.
func (s *Namespace) Do(f func()) {
	done := make(chan struct{})
	s.calls <- func() { defer close(done); f() }
	<-done
}

// Must calls f in the namespace, and ends the test if it fails.
func (s *Namespace) Must(f func() error) {
	s.T.Helper()
	var err error
	s.Do(func() { err = f() })
	if err != nil {
		s.T.Fatal(err)
	}
}
