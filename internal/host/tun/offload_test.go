// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/proto/condtest"
	"weft/internal/proto/ether"
)

// TestSegmentsOfUDP: datagrams that a program lets the kernel cut (UDP_SEGMENT) leave the stack in one
// piece, arrive as they were sent, and are few packets for the other stack; its program is not
// involved.
func TestSegmentsOfUDP(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b netip.Prefix
	}{
		{"IPv4", prefix("10.20.0.1/24"), prefix("10.20.0.2/24")},
		{"IPv6", prefix("2001:db8::1/64"), prefix("2001:db8::2/64")},
	} {
		t.Run(c.name, func(t *testing.T) { testSegmentsOfUDP(t, c.a, c.b) })
	}
}

func testSegmentsOfUDP(t *testing.T, a, b netip.Prefix) {
	const mtu, size, tail, count = 2044, 1000, 7, 41
	sa, sb := newSpace(t), newSpace(t)
	cfg := Config{Name: "ib0_1_14", MTU: mtu, Up: true, Addrs: []netip.Prefix{a}}
	da := sa.open(cfg)
	cfg.Addrs = []netip.Prefix{b}
	db := sb.open(cfg)
	if da.q.joins&ether.FeatureUSO4 == 0 {
		condtest.Lacks(t, "this kernel (before 6.2) has no segments of UDP for a TUN device")
	}
	if err := errors.Join(da.SetCarrier(true), db.SetCarrier(true)); err != nil {
		t.Fatal(err)
	}
	join(t, da, db, mtu)

	var in *net.UDPConn
	sb.Must(func() (err error) {
		in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(b.Addr(), 0)))
		return err
	})
	defer in.Close()
	to := in.LocalAddr().(*net.UDPAddr).AddrPort()
	out := sa.dialUDP(to)
	raw, err := out.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT,
			size)
	}); errors.Join(e, err) != nil {
		t.Fatal(errors.Join(e, err))
	}
	sent := make([]byte, (count-1)*size+tail)
	for i := range sent {
		sent[i] = byte(i>>9 ^ i)
	}
	packets := func(s *space, d *Device) (n uint64) {
		s.Must(func() error {
			l, err := netlink.LinkByIndex(d.Index())
			if err == nil {
				n = l.Attrs().Statistics.RxPackets + l.Attrs().Statistics.TxPackets
			}
			return err
		})
		return n
	}
	buf := make([]byte, 65536)
	end := time.Now().Add(patience)
	for round := uint32(1); ; round++ { // the kernel drops packets until it has noted the carrier
		if time.Now().After(end) {
			t.Fatal("not all datagrams arrive at once, as few packets")
		}
		for p := range slices.Chunk(sent, size) {
			binary.BigEndian.PutUint32(p, round)
		}
		leave, arrive := packets(sa, da), packets(sb, db)
		if _, err := out.Write(sent); err != nil {
			t.Fatal(err)
		}
		var got [][]byte
		for len(got) < count {
			if err := in.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			n, err := in.Read(buf)
			if err != nil {
				break
			}
			if n >= 4 && binary.BigEndian.Uint32(buf) == round { // what was late before
				got = append(got, slices.Clone(buf[:n]))
			}
		}
		if len(got) < count {
			continue
		}
		if !slices.EqualFunc(got, slices.Collect(slices.Chunk(sent, size)), bytes.Equal) {
			t.Fatalf("%d datagrams arrived in other pieces, or changed", len(got))
		}
		// What the stacks say to each other counts, too.
		if l, r := packets(sa, da)-leave, packets(sb, db)-arrive; l < count/2 && r < count/2 {
			return
		}
	}
}
