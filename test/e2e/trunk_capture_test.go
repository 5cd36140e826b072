// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	trunks "weft/internal/fabric/trunk"
)

// TestTrunkReadable captures a cable while ibv_rc_pingpong sends its buffer, all octets 0x7b, through the trunk on it.
// The buffer is readable on a plain trunk, and nowhere on an encrypted one.
func TestTrunkReadable(t *testing.T) {
	t.Parallel()
	needs(t, "dumpcap", "ibv_rc_pingpong")
	pattern := bytes.Repeat([]byte{0x7b}, 16)
	const messages, size = 100, 3000
	for _, c := range []struct {
		security string
		flags    []string
		readable bool
	}{
		{"encrypt", nil, false},
		{"none", []string{"--trunk-security", "none"}, true},
	} {
		t.Run(c.security, func(t *testing.T) {
			s := openSubnet(t, false, c.flags...)
			if k := s.trunkTo(0, 1); k.Security != c.security {
				t.Fatalf("the trunk has %q", k.Security)
			}
			capture, err := s.Capture(0, 1, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer capture.Kill()
			s.between(0, 1, native).pair(t, cmLimit, "ibv_rc_pingpong", "-s", fmt.Sprint(size), "-m", "1024",
				"-n", fmt.Sprint(messages))
			if err := capture.Await(2 * messages * size); err != nil {
				t.Fatal(err)
			}
			data, octets, found := 0, 0, 0
			if err := capture.Datagrams(func(_ time.Time, d []byte) error {
				var h trunks.Header
				if n, why := h.Parse(d); why == trunks.OK && h.Kind != trunks.Control {
					data++
					octets += len(d) - n
				}
				if bytes.Contains(d, pattern) {
					found++
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if octets < messages*size {
				t.Fatalf("%d datagrams of packets with %d octets were captured", data, octets)
			}
			if c.readable && found < messages/2 || !c.readable && found != 0 {
				t.Errorf("%d of %d datagrams show the buffer", found, data)
			}
			t.Logf("%d of %d datagrams, of %d octets, show the buffer", found, data, octets)
		})
	}
}
