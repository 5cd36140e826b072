// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/proto/mono"
)

// TestShortSleeps: a lane keeps its P while it sleeps only after some short sleeps in a row.
func TestShortSleeps(t *testing.T) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(epfd)
	fd, err := unix.Eventfd(1, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		t.Fatal(err)
	}
	l := &Lane{epfd: epfd, holdsP: true, clock: func() mono.Time { return 1 }}
	for i := range shortSleeps {
		if l.short != i {
			t.Errorf("after %d short sleeps: %d", i, l.short)
		}
		if n := l.wait(true); n != 1 {
			t.Fatalf("%d events", n)
		}
	}
	if l.wait(false); l.short != shortSleeps {
		t.Errorf("a look without a sleep counts: %d", l.short)
	}
	if l.slept(shortSleep * time.Millisecond); l.short != 0 {
		t.Errorf("after a long sleep: %d", l.short)
	}
}
