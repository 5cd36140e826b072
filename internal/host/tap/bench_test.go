// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"context"
	"io"
	"net"
	"testing"
)

// BenchmarkTCP is two stacks of the kernel, joined by nothing but a cable between their
// devices: what a VESW over them cannot exceed.
func BenchmarkTCP(b *testing.B) {
	for _, c := range []struct {
		name  string
		whole bool
	}{{"whole", true}, {"cut", false}} {
		b.Run(c.name, func(b *testing.B) {
			sa, sb := newSpace(b), newSpace(b)
			da, db := sa.open(base), sb.open(other())
			(&cable{whole: c.whole, mtu: 1500}).plug(b, da, db)
			sa.addr(da, "10.20.0.1/24")
			sb.addr(db, "10.20.0.2/24")
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
			var conn net.Conn
			sa.Must(func() (err error) {
				conn, err = new(net.Dialer).DialContext(context.Background(), "tcp", l.Addr().String())
				return err
			})
			buf := make([]byte, 128<<10)
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				if _, err := conn.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
			conn.Close()
			if n := <-got; n != int64(b.N)*int64(len(buf)) {
				b.Errorf("%d octets arrived", n)
			}
		})
	}
}
