// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
	"weft/internal/verbs/hca"
)

// Of the log of clients' mistakes: see package session.
const (
	lineBurst  = 20
	linePeriod = time.Second
)

// TestShortageIsReported: a refusal is a counter, a line in the log, and a state
// with a fix.
func TestShortageIsReported(t *testing.T) {
	old := hca.DefaultLimits
	t.Cleanup(func() { hca.DefaultLimits = old })
	hca.DefaultLimits.Sessions = 2
	r := run(t, nil)
	r.client(t, vhosttest.Options{})
	r.client(t, vhosttest.Options{})
	f, err := vhosttest.Dial(r.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Conn.CloseWrite()
	eventually(t, "the refusal is counted", func() bool { return r.counter(api.ScopeNode, "refused_sessions") == 1 })
	eventually(t, "the refusal is logged", func() bool {
		return r.logs.count("refused",
			"every session of the node is in use", "fix=") == 1
	})
	for _, d := range r.status().Degraded {
		if d.What == "quota_sessions" && strings.Contains(d.Why, "every session") && d.Fix != "" {
			return
		}
	}
	t.Errorf("status does not tell: %+v", r.status().Degraded)
}

// TestLogStaysSmall: a client that misbehaves in a loop is counted each time
// and logged a few times.
func TestLogStaysSmall(t *testing.T) {
	r := run(t, nil)
	const n = 10 * lineBurst
	start := time.Now()
	for range n {
		f, err := vhosttest.Dial(r.socket())
		if err != nil {
			t.Fatal(err)
		}
		f.Send(abi.ReqGetFeatures, 0x17, nil)
		f.Recv(abi.ReqGetFeatures) // returns at the end of the connection
		f.Close()
	}
	eventually(t, "all are counted", func() bool { return r.counter(api.ScopeNode, "session_end_bad_header") == n })
	got, most := r.logs.count("session ended"), lineBurst+int(time.Since(start)/linePeriod)+1
	if got < lineBurst || got > most {
		t.Errorf("%d lines for %d sessions, want %d to %d", got, n, lineBurst, most)
	}
}
