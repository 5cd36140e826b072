// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/condtest"
	"weft/internal/proto/mono"
)

// TestCloseEndsHandshakes: a link that is closed while handshakes go on leaves no goroutine of theirs.
func TestCloseEndsHandshakes(t *testing.T) {
	running := func() int {
		all := make([]byte, 1<<20)
		return strings.Count(string(all[:runtime.Stack(all, true)]), "quicWaitForSignal")
	}
	before, start := running(), time.Now()
	ca, cb := unopened("127.0.0.1")
	var links []*Link
	for _, c := range []Config{ca, cb} {
		l, err := Open(c)
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, l)
	}
	for turn := 0; running() == before; turn++ {
		if time.Since(start) > 20*time.Second {
			t.Fatal("no handshake begins")
		}
		l, now := links[turn%2], mono.Time(time.Since(start))+1
		l.Recv(now, func(int, []byte) {})
		if l.Deadline().Due(now) {
			l.Tick(now)
		}
	}
	for _, l := range links {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	condtest.Until(t, "the goroutines of handshakes end", func() bool { return running() == before },
		func() any { return running() })
}
