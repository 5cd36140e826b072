// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"weft/internal/device/vhost/vhosttest"
	"weft/internal/host/rundir"
	"weft/internal/proto/ib"
)

// TestTreeCounters: the files of counters of a port follow its queue pairs, and keep what those counted that were
// destroyed.
func TestTreeCounters(t *testing.T) {
	r := run(t, nil)
	port := filepath.Join(r.cfg.Dir, rundir.TreeDir, "sys/class/infiniband", r.cfg.Device, "ports/1")
	value := func(name string) uint64 {
		b, err := os.ReadFile(filepath.Join(port, name))
		if err != nil {
			return 0 // the tree was exchanged
		}
		v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := value("hw_counters/lifespan"); v != 1000 {
		t.Errorf("lifespan %d", v)
	}
	a, b := r.client(t, vhosttest.Options{}), r.client(t, vhosttest.Options{})
	pair(t, ib.RC, a, b)
	mustWrite(t, a, b, 1, 4096)
	const packets, words = 4 + 1, 4096 / 4 // with an acknowledgement
	done := func() bool {
		return value("counters/port_xmit_packets") == packets && value("counters/port_rcv_packets") == packets &&
			value("counters/port_xmit_data") == words && value("counters/port_rcv_data") == words &&
			value("hw_counters/sent_pkts") == packets && value("hw_counters/rcvd_pkts") == packets
	}
	eventually(t, "the files have what was sent", done)
	if err := a.qp.Destroy(); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if err := r.node.refreshCounters(); err != nil {
		t.Fatal(err)
	}
	if !done() {
		t.Errorf("queue pairs that ended took their counts along: %d packets", value("hw_counters/sent_pkts"))
	}
}
