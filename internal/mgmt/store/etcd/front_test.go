// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"net"
	"sync"
	"testing"
)

// TestFrontCloses ends a listener while connections arrive: close returns when nothing is left of serve.
func TestFrontCloses(t *testing.T) {
	for range 50 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f := newFront(l, nil)
		var work sync.WaitGroup
		work.Go(func() { f.serve() })
		for range 8 {
			work.Go(func() {
				for {
					c, err := net.Dial("tcp", l.Addr().String())
					if err != nil {
						return // it is closed
					}
					c.Close()
				}
			})
		}
		f.close()
		if n := len(f.slots); n != 0 {
			t.Fatalf("%d handshakes go on", n)
		}
		work.Wait()
	}
}
