// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/node/lane"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// writeUndelivered has a client write to another from a page that comes only
// when deliver is called.
func (r *running) writeUndelivered(t *testing.T) (a, b *client, deliver func()) {
	t.Helper()
	a, b = r.client(t, vhosttest.Options{ProcMem: true}), r.client(t, vhosttest.Options{})
	pair(t, ib.RC, a, b)
	at, deliver := vhosttest.Undelivered(t, 1<<16)
	m, err := a.RegMR(a.pd, at, 1<<16, ib.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	s := abi.Send{WRID: 1, Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
	s.SetRDMA(b.at, b.mr.RKey)
	if err := a.qp.PostSend(s, []ib.SGE{{Addr: at, Len: 6000, LKey: m.LKey}}, nil); err != nil {
		t.Fatal(err)
	}
	return a, b, deliver
}

// TestStuckMemory: a copy that waits for a client's page holds up its lane, and nothing can end the
// wait. The status names the client, once.
func TestStuckMemory(t *testing.T) {
	t.Parallel()
	r := run(t, nil)
	a, b, deliver := r.writeUndelivered(t)
	told := map[string]string{}
	eventually(t, "the status shows it", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		st, err := api.Get(ctx, r.cli, api.GetStatus)
		if err != nil {
			t.Fatalf("the node does not answer: %v", err)
		}
		for _, d := range st.Degraded {
			told[d.What] = d.Why + d.Fix
		}
		return told["stuck_memory"] != "" && told["stuck_lane"] != ""
	})
	if !strings.Contains(told["stuck_memory"], "kill -9") {
		t.Errorf("no fix: %v", told)
	}
	var e *api.Error
	if _, err := r.node.lanes.PortCounters(r.node.adapter.Number()); !errors.Is(err, lane.ErrStuck) {
		t.Errorf("the counters of a port: %v", err)
	}
	if _, err := api.Get(context.Background(), r.cli, api.ListCounters); !errors.As(err, &e) || e.Fix != "weft status" {
		t.Errorf("the counters: %v", err)
	}
	if _, err := a.Recv(abi.ReqGetStatus); !vhosttest.Closed(err) {
		t.Errorf("the session goes on: %v", err)
	}
	deliver()
	eventually(t, "the session ends", func() bool { return r.node.funcs.ends()["stuck_memory"] == 1 })
	eventually(t, "all is well again", func() bool {
		for _, d := range r.status().Degraded {
			if strings.HasPrefix(d.What, "stuck_") {
				return false
			}
		}
		return true
	})
	c := r.client(t, vhosttest.Options{})
	if err := b.qp.To(ib.Reset); err != nil {
		t.Fatal(err)
	}
	pair(t, ib.RC, b, c)
	mustWrite(t, b, c, 3, 700)
}

// TestEndWhileStuck: a lane that waits for a client's page does not keep the node alive, and the error
// names the client.
func TestEndWhileStuck(t *testing.T) {
	t.Parallel()
	r := run(t, nil)
	_, _, deliver := r.writeUndelivered(t)
	l := r.node.lanes.First()
	eventually(t, "the lane is stuck", l.Stuck)
	r.stop()
	var err error
	select {
	case err = <-r.done:
	case <-time.After(limit):
		t.Fatal("the node does not end")
	}
	var e *api.Error
	if !errors.As(err, &e) || !strings.Contains(e.Why, fmt.Sprintf("pid %d", os.Getpid())) || e.Fix == "" {
		t.Errorf("the node ended with %v", err)
	}
	if l.Ended() {
		t.Error("the lane had ended: this tests nothing")
	}
	deliver()
	<-l.Done() // what is left of the node ends as well
	r.done <- nil
}
