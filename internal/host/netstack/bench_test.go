// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"io"
	"net/netip"
	"testing"
)

// Two stacks joined by nothing but copying: what a link between them cannot
// exceed.

func BenchmarkTCP(b *testing.B) {
	x, y := pair(b, 2044)
	at := netip.MustParseAddrPort("10.20.0.2:7")
	l := must(y.ListenTCP(at))(b)
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
	c := must(x.DialTCP(within(b), at))(b)
	buf := make([]byte, 128<<10)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		b.Fatal(err)
	}
	if n := <-got; n != int64(b.N)*int64(len(buf)) {
		b.Errorf("%d octets arrived", n)
	}
	c.Close()
}

// BenchmarkRoundTrip is an echo request of 64 octets and its answer.
func BenchmarkRoundTrip(b *testing.B) {
	x, _ := pair(b, 2044)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.Ping(within(b), addr("10.20.0.2"), 56); err != nil {
			b.Fatal(err)
		}
	}
}
