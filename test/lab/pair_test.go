// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"testing"
	"time"
)

// TestLastAckLost: of all ways in which pairs fail only the one is the wire's.
func TestLastAckLost(t *testing.T) {
	const (
		well   = "echo 2000 iters in 0.10 seconds = 50.00 usec/iter"
		gaveUp = "echo 'Failed status transport retry counter exceeded (12) for wr_id 2'; exit 1"
	)
	for _, c := range []struct {
		name, one, other string
		want             bool
	}{
		{"the acknowledgement was lost", gaveUp, well, true},
		{"both well", well, well, false},
		{"both gave up", gaveUp, gaveUp, false},
		{"another status", "echo 'Failed status remote access error (10) for wr_id 2'; exit 1", well, false},
		{"a receive", "echo 'Failed status transport retry counter exceeded (12) for wr_id 1'; exit 1", well, false},
		{"more than that", "echo 'Failed to modify QP to RTS'; " + gaveUp, well, false},
		{"wrong contents", "echo invalid data in page 1; " + gaveUp, well, false},
		{"another exit status", "echo 'Failed status transport retry counter exceeded (12) for wr_id 2'; exit 2",
			well, false},
		{"a signal", "echo 'Failed status transport retry counter exceeded (12) for wr_id 2'; kill -TERM $$", well,
			false},
		{"nothing said", "exit 1", well, false},
	} {
		for i, scripts := range [][2]string{{c.one, c.other}, {c.other, c.one}} {
			var p Pair
			for j, to := range []**Proc{&p.Server, &p.Client} {
				x, err := Start(Cmd{Args: []string{"sh", "-c", scripts[j]}})
				if err != nil {
					t.Fatal(err)
				}
				*to = x
			}
			p.Wait(time.Minute)
			if got := p.LastAckLost(); got != c.want {
				t.Errorf("%s, %d: %v", c.name, i, got)
			}
		}
	}
	x, err := Start(Cmd{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Kill()
	if (Pair{Server: x}).LastAckLost() || (Pair{Server: x, Client: x}).LastAckLost() {
		t.Error("a pair that has not ended")
	}
}
