// SPDX-License-Identifier: Apache-2.0

package udpsock

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPortOwner covers sockets of the kernel, which no process holds.
func TestPortOwner(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "thread-self/net/udp")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	const udp = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n" +
		" 1201: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 0 2 0000000000000000 0\n"
	if err := os.WriteFile(file, []byte(udp), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := PortOwner(dir, 4791); !strings.Contains(got, "soft-RoCE") {
		t.Errorf("got %q", got)
	}
	if got := PortOwner(dir, 4792); got != "" {
		t.Errorf("a free port is held by %q", got)
	}
}

// TestCmsg writes control messages into dirty memory, reads them back, and
// cuts them off everywhere.
func TestCmsg(t *testing.T) {
	b := bytes.Repeat([]byte{0xa5}, 128)
	body, off := PutCmsg(b, 0, unix.IPPROTO_IP, unix.IP_TOS, 1)
	body[0] = 7
	end := PutSegment(b, off, 1452)
	if off != 24 || end != off+SegmentLen {
		t.Fatalf("control messages end at %d and %d, want 24 and %d", off, end, 24+SegmentLen)
	}
	for n := range end + 1 {
		level, typ, body, rest, ok := NextCmsg(b[:n])
		if ok != (n >= 17) {
			t.Fatalf("first of %d bytes: %v", n, ok)
		}
		if !ok {
			continue
		}
		if level != unix.IPPROTO_IP || typ != unix.IP_TOS || !bytes.Equal(body, []byte{7}) ||
			len(rest) != max(n-off, 0) {
			t.Fatalf("of %d bytes: level %d, type %d, body %x, %d bytes left", n, level, typ, body, len(rest))
		}
		level, typ, body, rest, ok = NextCmsg(rest)
		if ok != (n >= off+18) {
			t.Fatalf("second of %d bytes: %v", n, ok)
		}
		if ok && (level != unix.IPPROTO_UDP || typ != unix.UDP_SEGMENT || ne.Uint16(body) != 1452 || len(body) != 2 ||
			len(rest) != 0) {
			t.Fatalf("of %d bytes: level %d, type %d, body %x, %d bytes left", n, level, typ, body, len(rest))
		}
	}
}

// TestOpenBeside: two sockets send from one port; the first one receives everything, and a third cannot have the port.
func TestOpenBeside(t *testing.T) {
	for _, v4 := range []bool{true, false} {
		var opts []Option
		to := func(port int) unix.Sockaddr { return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}} }
		if !v4 {
			opts = []Option{Opt(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1, "keep IPv4 off")}
			to = func(port int) unix.Sockaddr { return &unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}} }
		}
		open := func(port int) int {
			t.Helper()
			fd, err := Open(v4, uint16(port), opts)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Close(fd) })
			return fd
		}
		portOf := func(a unix.Sockaddr, err error) int {
			switch a := a.(type) {
			case *unix.SockaddrInet4:
				return a.Port
			case *unix.SockaddrInet6:
				return a.Port
			}
			t.Fatalf("%v %v", a, err)
			return 0
		}
		main := open(0)
		port := portOf(unix.Getsockname(main))
		beside, err := OpenBeside(main, v4, uint16(port), opts)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(beside)
		if fd, err := Open(v4, uint16(port), opts); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("a third socket: %d %v", fd, err)
		}
		// Without the choice of the socket, about half of the senders would reach the other one.
		b := make([]byte, 8)
		for i := range 64 {
			s := open(0)
			if err := unix.Sendto(s, []byte{byte(i)}, 0, to(port)); err != nil {
				t.Fatal(err)
			}
			if n, _, err := unix.Recvfrom(main, b, 0); n != 1 || err != nil || b[0] != byte(i) {
				t.Fatalf("IPv4 %v, sender %d: %d octets, %v", v4, i, n, err)
			}
			if n, _, err := unix.Recvfrom(beside, b, 0); !errors.Is(err, unix.EAGAIN) {
				t.Fatalf("the other socket has received %d octets, %v", n, err)
			}
			if err := unix.Sendto(beside, []byte{1}, 0, to(portOf(unix.Getsockname(s)))); err != nil {
				t.Fatal(err)
			}
			n, from, err := unix.Recvfrom(s, b, 0)
			if n != 1 || err != nil || portOf(from, nil) != port {
				t.Fatalf("%d octets, %v, from port %d, not %d", n, err, portOf(from, nil), port)
			}
		}
	}
}

// FuzzNextCmsg walks arbitrary bytes: bodies never overlap or leave the input.
func FuzzNextCmsg(f *testing.F) {
	b := make([]byte, 64)
	f.Add(b[:PutSegment(b, 0, 1024)])
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		for {
			_, _, body, rest, ok := NextCmsg(b)
			if !ok {
				return
			}
			if len(body)+cmsgHdrLen+len(rest) > len(b) || len(rest) >= len(b) {
				t.Fatalf("%d bytes give a body of %d and leave %d", len(b), len(body), len(rest))
			}
			b = rest
		}
	})
}
