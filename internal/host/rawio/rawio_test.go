// SPDX-License-Identifier: Apache-2.0

package rawio

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPieces(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	if err := unix.SetsockoptInt(fds[1], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		t.Fatal(err)
	}
	from, to := uintptr(fds[0]), uintptr(fds[1])
	buf := bytes.Repeat([]byte{0xa5}, 16)
	if _, err := Read(to, buf); err != unix.EAGAIN {
		t.Errorf("read of nothing: %v", err)
	}
	var v Vector
	var m Message
	control := make([]byte, 64)
	ab, cde := []byte("ab"), []byte("cde")
	send := func() {
		v.Reset()
		v.Add(ab)
		v.Add(nil)
		v.Add(cde)
		if err := v.Write(from); err != 0 {
			t.Fatal(err)
		}
	}
	send()
	if n, err := Read(to, buf[:8]); n != 5 || err != 0 || string(buf) != "abcde"+strings.Repeat("\xa5", 11) {
		t.Errorf("%d, %v: %q", n, err, buf)
	}
	send()
	one, two := bytes.Repeat([]byte{0xa5}, 4), bytes.Repeat([]byte{0xa5}, 4)
	m.Reset()
	m.Add(one[:3])
	m.Add(two[:3])
	n, oob, flags, errno := m.Receive(to, control)
	if n != 5 || oob != unix.CmsgSpace(unix.SizeofUcred) || flags&unix.MSG_TRUNC != 0 || errno != 0 ||
		string(one) != "abc\xa5" || string(two) != "de\xa5\xa5" {
		t.Errorf("%d, %d, %#x, %v: %q %q", n, oob, flags, errno, one, two)
	}
	send()
	m.Reset()
	m.Add(one[:2])
	if n, _, flags, _ := m.Receive(to, control); n != 2 || flags&unix.MSG_TRUNC == 0 {
		t.Errorf("cut: %d, %#x", n, flags)
	}
	if _, _, _, errno := m.Receive(to, control); errno != unix.EAGAIN {
		t.Errorf("receive of nothing: %v", errno)
	}
	if a := testing.AllocsPerRun(100, func() {
		send()
		m.Reset()
		m.Add(one)
		m.Receive(to, control)
	}); a > 0 {
		t.Errorf("%v allocations", a)
	}
}
