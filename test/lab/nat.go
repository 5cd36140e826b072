// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// NAT is a translation of IPv4 addresses and ports between hosts inside and the network outside, of the strictest kind
// (RFC 4787: mapping and filtering depend on address and port): each flow that begins inside has an outer port of its
// own, and only what answers a flow passes inwards. Its calls must not overlap.
type NAT struct {
	inner netip.Prefix // of hosts inside
	outer netip.Addr   // that the network sees
	next  uint16       // outer port
	out   map[natFlow]uint16
	in    map[natFlow]netip.AddrPort
	// Unsolicited counts packets from outside that answer nothing.
	Unsolicited int
}

// natFlow is a flow: from and to as they are inside (out), or the peer and the outer address (in).
type natFlow struct {
	proto    byte
	from, to netip.AddrPort
}

// NewNAT returns a translation without flows.
func NewNAT(inner netip.Prefix, outer netip.Addr) *NAT {
	return &NAT{inner: inner, outer: outer, next: 30000, out: map[natFlow]uint16{}, in: map[natFlow]netip.AddrPort{}}
}

// Forget ends all flows of UDP, as a restart of the router does: the next datagram from inside gets another port.
func (n *NAT) Forget() {
	for f := range n.out {
		if f.proto == unix.IPPROTO_UDP {
			delete(n.out, f)
		}
	}
	for f := range n.in {
		if f.proto == unix.IPPROTO_UDP {
			delete(n.in, f)
		}
	}
}

// Translate rewrites an IPv4 packet in place, and reports whether it passes.
func (n *NAT) Translate(p []byte) bool {
	if len(p) < 20 || p[0]>>4 != 4 {
		return false
	}
	head, proto := int(p[0]&15)*4, p[9]
	// A fragment has no ports; nothing under test sends one.
	fragment := binary.BigEndian.Uint16(p[6:])&0x3fff != 0
	sum := map[byte]int{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6}[proto]
	if fragment || sum == 0 || head < 20 || len(p) < head+sum+2 {
		return false
	}
	l4 := p[head:]
	from := netip.AddrPortFrom(netip.AddrFrom4([4]byte(p[12:])), binary.BigEndian.Uint16(l4))
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte(p[16:])), binary.BigEndian.Uint16(l4[2:]))
	switch {
	case n.inner.Contains(from.Addr()) && !n.inner.Contains(to.Addr()):
		f := natFlow{proto, from, to}
		port, known := n.out[f]
		if !known {
			port = n.next
			n.next++
			n.out[f], n.in[natFlow{proto, to, netip.AddrPortFrom(n.outer, port)}] = port, from
		}
		copy(p[12:], n.outer.AsSlice())
		binary.BigEndian.PutUint16(l4, port)
	case to.Addr() == n.outer:
		host, known := n.in[natFlow{proto, from, to}]
		if !known {
			n.Unsolicited++
			return false
		}
		copy(p[16:], host.Addr().AsSlice())
		binary.BigEndian.PutUint16(l4[2:], host.Port())
	default:
		return false
	}
	binary.BigEndian.PutUint16(p[10:], 0)
	binary.BigEndian.PutUint16(p[10:], ^onesSum(0, p[:head]))
	binary.BigEndian.PutUint16(l4[sum:], 0)
	pseudo := ^onesSum(int(onesSum(int(proto)+len(l4), p[12:20])), l4)
	if pseudo == 0 && proto == unix.IPPROTO_UDP {
		pseudo = 0xffff
	}
	binary.BigEndian.PutUint16(l4[sum:], pseudo)
	return true
}

// onesSum adds 16-bit words by ones' complement (RFC 1071).
func onesSum(start int, b []byte) uint16 {
	s := uint32(start)
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// ServeNAT translates what the kernel routes to a TUN device that exists, and gives it back to the kernel, which routes
// it on. It prints "nat ready", and after SIGUSR1, which has it forget the flows of UDP, "forgotten, N unsolicited". It
// ends with the process.
func ServeNAT(device string, n *NAT, log io.Writer) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the TUN driver: %w", err)
	}
	ifr, err := unix.NewIfreq(device)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return fmt.Errorf("attach to %s: %w", device, err)
	}
	var mu sync.Mutex // guards n
	forget := make(chan os.Signal, 1)
	signal.Notify(forget, syscall.SIGUSR1)
	go func() {
		for range forget {
			mu.Lock()
			n.Forget()
			fmt.Fprintf(log, "forgotten, %d unsolicited\n", n.Unsolicited)
			mu.Unlock()
		}
	}()
	fmt.Fprintln(log, "nat ready")
	for b := make([]byte, 1<<16); ; {
		k, err := unix.Read(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", device, err)
		}
		mu.Lock()
		passes := n.Translate(b[:k])
		mu.Unlock()
		if !passes {
			continue
		}
		if _, err := unix.Write(fd, b[:k]); err != nil && err != unix.EINTR {
			return fmt.Errorf("write %s: %w", device, err)
		}
	}
}
