// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/fabric/trunk"
	"weft/internal/fabric/trunk/seal"
	"weft/internal/proto/condtest"
)

// datagram is a captured one, decoded by docs/notes/trunk.md and not by package trunk.
type datagram struct {
	srcPort uint16
	kind    byte
	index   uint32
	stream  byte
	number  uint64
	body    []byte // with the tag
}

// tap listens to an interface.
func tap(t *testing.T, lo netlink.Link) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: lo.Attrs().Index}); err != nil {
		t.Fatal(err)
	}
	return fd
}

// next returns the next captured datagram. Every frame must fit the MTU, not
// be a fragment of IP, and forbid that one is made of it.
func next(t *testing.T, fd, mtu int) (d datagram) {
	t.Helper()
	be := binary.BigEndian
	buf := make([]byte, 64<<10)
	for {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatalf("nothing more on the wire: %v", err)
		}
		if from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING {
			continue // each frame passes a loopback interface out and in
		}
		p := buf[14:n]
		if len(p) > mtu {
			t.Fatalf("a frame of %d octets on an MTU of %d", len(p), mtu)
		}
		var udp []byte
		switch be.Uint16(buf[12:]) {
		case unix.ETH_P_IP:
			if be.Uint16(p[6:]) != 0x4000 || p[9] != unix.IPPROTO_UDP {
				t.Fatalf("flags and offset %04x, protocol %d", be.Uint16(p[6:]), p[9])
			}
			udp = p[20:]
		case unix.ETH_P_IPV6:
			if p[6] != unix.IPPROTO_UDP {
				continue // neighbour discovery
			}
			udp = p[40:]
		default:
			continue
		}
		p = bytes.Clone(udp[8:be.Uint16(udp[4:])])
		if len(p) < 16 || p[0] != 0x57 || p[1]>>4 != 2 || p[3] != 0 {
			t.Fatalf("not a datagram of version 2: % x", p)
		}
		return datagram{srcPort: be.Uint16(udp), kind: p[1] & 15, index: be.Uint32(p[4:]), stream: p[8],
			number: be.Uint64(p[8:]) & (1<<56 - 1), body: p[16:]}
	}
}

// TestCapture reads what is on the wire and puts the packets together by the
// document, where they are authenticated and not encrypted.
func TestCapture(t *testing.T) {
	const mtu, tag = 1500, 16
	for _, host := range []string{"127.0.0.1", "::1"} {
		for _, noGSO := range []bool{false, true} {
			inNamespace(t, fmt.Sprintf("%s/noGSO=%v", host, noGSO), mtu, true, func(t *testing.T, lo netlink.Link) {
				fd := tap(t, lo)
				a, b := pairMode(t, host, seal.Authenticate)
				a.noGSO = noGSO
				want := packets(slices.Concat(lengths, slices.Repeat([]int{4178}, 25))...)
				a.send(want...)
				var got [][]byte
				var controls [2]uint64
				var kinds [6]int
				var index [2]uint32
				parts := map[uint64][]byte{}
				missing := map[uint64]int{}
				number := uint64(0)
				for len(got) < len(want) {
					d := next(t, fd, mtu)
					from := 0
					if d.srcPort == portB {
						from = 1
					}
					kinds[d.kind]++
					if d.kind > 2 {
						continue // of a handshake
					}
					if index[from] == 0 {
						index[from] = d.index
					}
					if d.index != index[from] || d.index == 0 {
						t.Fatalf("index %08x, before %08x", d.index, index[from])
					}
					if d.kind == 2 {
						if controls[from]++; d.stream != 64 || d.number != controls[from] || len(d.body) < 12+tag {
							t.Fatalf("control datagram %+v", d)
						}
						continue
					}
					if number++; d.number != number || d.stream != 5 {
						t.Fatalf("stream %d, number %d, want 5, %d", d.stream, d.number, number)
					}
					d.body = d.body[:len(d.body)-tag]
					if d.kind == 0 {
						for b := d.body; len(b) > 0; {
							n := int(binary.BigEndian.Uint16(b))
							got = append(got, b[2:2+n])
							b = b[2+n:]
						}
						continue
					}
					i, n, l := int(d.body[0]), int(d.body[1]), int(binary.BigEndian.Uint16(d.body[2:]))
					s := (l + n - 1) / n
					id := d.number - uint64(i)
					if len(d.body) != 4+s {
						t.Fatalf("fragment %d of %d of %d octets has %d", i, n, l, len(d.body)-4)
					}
					if parts[id] == nil {
						parts[id], missing[id] = make([]byte, n*s), n
					}
					copy(parts[id][i*s:], d.body[4:])
					if missing[id]--; missing[id] == 0 {
						got = append(got, parts[id][:l])
						if bytes.ContainsFunc(parts[id][l:], func(r rune) bool { return r != 0 }) {
							t.Error("what is behind the packet's end is not 0")
						}
					}
				}
				equal(t, got, want)
				if controls[0] < 2 || controls[1] < 2 || kinds[3] < 5 || kinds[4] < 1 || kinds[5] < 2 {
					t.Errorf("%d control datagrams, by kind %d", controls, kinds)
				}
				await(t, "packets", func() bool { return len(b.got) >= len(want) }, a, b)
				equal(t, b.got, want)
			})
		}
	}
}

// TestNothingReadable captures an encrypted trunk: no part of a packet is on the wire.
func TestNothingReadable(t *testing.T) {
	inNamespace(t, "lo", 1500, true, func(t *testing.T, lo netlink.Link) {
		fd := tap(t, lo)
		a, b := pair(t, "127.0.0.1")
		secret := []byte("a secret of sixteen octets, and more")
		for _, n := range []int{1, 20, 100, 400} {
			a.send(bytes.Repeat(secret, n))
		}
		await(t, "packets", func() bool { return len(b.got) == 4 }, a, b)
		for data := 0; data < 14; {
			d := next(t, fd, 1500)
			if d.kind < 2 {
				data++
			}
			for i := range len(secret) - 8 {
				if bytes.Contains(d.body, secret[i:i+8]) {
					t.Fatalf("readable: %q", d.body)
				}
			}
		}
	})
}

// TestFullSocket fills the socket behind a slow interface: nothing blocks,
// nothing is lost before the buffer is full, then by name.
func TestFullSocket(t *testing.T) {
	for _, noGSO := range []bool{false, true} {
		inNamespace(t, fmt.Sprintf("noGSO=%v", noGSO), 1500, false, func(t *testing.T, lo netlink.Link) {
			a, b := pair(t, "127.0.0.1")
			tbf := &netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index,
				Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
				Rate: 8 << 20, Limit: 64 << 20, Buffer: 128 << 10}
			if err := netlink.QdiscAdd(tbf); err != nil {
				condtest.Lacks(t, "needs the token bucket filter (sch_tbf) in the kernel: %v", err)
			}
			if err := unix.SetsockoptInt(a.Link.fd[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 128<<10); err != nil {
				t.Fatal(err)
			}
			a.noGSO = noGSO
			p := random(4178)
			sent := 0
			start := time.Now()
			for ; sent < 10000; sent++ {
				r := a.Reserve(0, len(p))
				if r == nil {
					break
				}
				copy(r, p)
				a.Commit(a.now(), len(p))
				a.Flush(a.now())
			}
			c := a.Sender.Counters(0)
			if !a.Blocked() || c.Blocked == 0 || c.Drops[trunk.DropFull] != 1 || sent == 10000 {
				t.Fatalf("%d packets in %v: %+v", sent, time.Since(start), c)
			}
			await(t, "what was committed", func() bool { a.Flush(a.now()); return len(b.got) >= sent }, a, b)
			for i := range b.got {
				if !bytes.Equal(b.got[i], p) {
					t.Fatalf("packet %d differs", i)
				}
			}
			if s, c := b.Status(0), a.Sender.Counters(0); s.Lost != 0 || a.Blocked() || c.Packets != uint64(sent) ||
				len(b.got) != sent {
				t.Errorf("%d packets came of %d: %+v, %+v", len(b.got), sent, s, c)
			}
		})
	}
}
