// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// Two stacks of the kernel, joined by nothing but copying between their
// devices: what a link over them cannot exceed.

func benchPair(b *testing.B) (sa, sb *space) {
	const mtu = 2044
	sa, sb = newSpace(b), newSpace(b)
	cfg := Config{Name: "ib0_1_14", MTU: mtu, QueueLen: 512, Up: true}
	cfg.Addrs = []netip.Prefix{prefix("10.20.0.1/24")}
	da := sa.open(cfg)
	cfg.Addrs = []netip.Prefix{prefix("10.20.0.2/24")}
	db := sb.open(cfg)
	if err := errors.Join(da.SetCarrier(true), db.SetCarrier(true)); err != nil {
		b.Fatal(err)
	}
	join(b, da, db, mtu)
	return sa, sb
}

func BenchmarkTCP(b *testing.B) {
	sa, sb := benchPair(b)
	var l net.Listener
	sb.Must(func() (err error) { l, err = net.Listen("tcp", "10.20.0.2:0"); return err })
	defer l.Close()
	got := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- 0
			return
		}
		n, _ := io.Copy(io.Discard, c)
		c.Close()
		got <- n
	}()
	var c net.Conn
	sa.Must(func() (err error) {
		c, err = new(net.Dialer).DialContext(context.Background(), "tcp", l.Addr().String())
		return err
	})
	buf := make([]byte, 128<<10)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	c.Close()
	if n := <-got; n != int64(b.N)*int64(len(buf)) {
		b.Errorf("%d octets arrived", n)
	}
}

// BenchmarkRoundTrip is a datagram of 64 octets there and back.
func BenchmarkRoundTrip(b *testing.B) {
	sa, sb := benchPair(b)
	var l net.PacketConn
	sb.Must(func() (err error) { l, err = net.ListenPacket("udp", "10.20.0.2:0"); return err })
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 100)
		for {
			n, from, err := l.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = l.WriteTo(buf[:n], from)
		}
	}()
	defer func() { l.Close(); <-done }()
	c := sa.dialUDP(l.LocalAddr().(*net.UDPAddr).AddrPort())
	buf := make([]byte, 64)
	for { // the kernel drops packets until it has noted the carrier
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := c.Read(buf); err == nil {
			break
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := c.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
}
