// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/proto/abi"
)

// TestNoticeLost: a channel ends when its program cannot be notified, so that the program does not wait for the event.
func TestNoticeLost(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	file := os.NewFile(uintptr(fds[0]), "channel")
	defer file.Close()
	f := &channel{}
	if f.raw, err = file.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	read := func() (int, error) { return unix.Read(fds[1], make([]byte, 64)) }
	f.Notice()
	if n, err := read(); n != abi.CMNoticeSize || err != nil {
		t.Fatalf("a notice: %d octets, %v", n, err)
	}
	for unix.Sendto(fds[0], []byte{0}, unix.MSG_DONTWAIT, nil) == nil {
	}
	f.Notice()
	for {
		n, err := read()
		if err != nil {
			t.Fatalf("no end: %v", err)
		}
		if n == 0 {
			return
		}
	}
}
