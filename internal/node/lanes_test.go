// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/host/hostnet"
	"weft/internal/host/rundir"
	"weft/internal/proto/abi"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
)

// TestNothingIsWrittenAfterDeregistration: when DEREG_MR is answered, no lane
// writes to the memory any more, whatever is on its way.
func TestNothingIsWrittenAfterDeregistration(t *testing.T) {
	for _, lanes := range []int{1, 2} {
		r := run(t, func(cfg *config.Config) { cfg.Lanes = lanes })
		a, b := r.client(t, vhosttest.Options{}), r.client(t, vhosttest.Options{})
		refused := 0
		for i := 0; i < 60 && refused < 10; i++ {
			pair(t, ib.RC, a, b)
			m, err := a.RegMR(a.pd, a.at, uint64(len(a.buf)), ib.LocalWrite|ib.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			const posted = 50
			for j := range posted {
				s := abi.Send{WRID: uint64(j), Opcode: uint8(ib.WRWrite)}
				if j == posted-1 {
					s.Flags = ib.Signaled
				}
				s.SetRDMA(a.at, m.RKey)
				if err := b.qp.PostSend(s, []ib.SGE{{Addr: b.at, Len: 60000, LKey: b.mr.LKey}}, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := a.DeregMR(m.MRN); err != nil {
				t.Fatal(err)
			}
			for j := range a.buf {
				a.buf[j] = 0x5a
			}
			for {
				list, err := b.cq.Wait(1)
				if err != nil {
					t.Fatal(err)
				}
				if list[0].Status != 0 {
					refused++
				}
				if list[0].WRID == posted-1 {
					break
				}
			}
			if k := slices.IndexFunc(a.buf, func(c byte) bool { return c != 0x5a }); k >= 0 {
				t.Fatalf("%d lanes, %d: byte %d was written after the answer", lanes, i, k)
			}
			for _, c := range []*client{a, b} {
				if err := c.qp.Destroy(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if refused == 0 {
			t.Errorf("%d lanes: every write was there before its region went: the test shows nothing", lanes)
		}
	}
}

// TestAddressesChanged: clients hear of it, new entries can be used, old ones
// stay where they are, and the files for programs follow.
func TestAddressesChanged(t *testing.T) {
	dir, err := os.MkdirTemp("", "weft")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cfg := config.Default()
	cfg.Fabric = false // tests of the subnet say so
	cfg.Dir, cfg.RoCEPort, cfg.Lanes = dir, condtest.Port(t), 2
	rd, err := rundir.Acquire(dir, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	ctx, stop := context.WithCancelCause(context.Background())
	n := &Node{cfg: cfg, log: slog.New(slog.DiscardHandler), dir: rd, base: time.Now().Add(-time.Second), stop: stop}
	if err := n.open(); err != nil {
		t.Fatal(err)
	}
	n.restore(ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		err := n.serve(ctx, func() { close(ready) })
		n.close()
		ended <- err
	}()
	<-ready
	defer func() {
		stop(errEnd)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	r := &running{t: t, cfg: cfg, cli: api.NewClient(filepath.Join(dir, rundir.ControlSock), nil)}
	defer r.cli.Close()

	a, b := r.client(t, vhosttest.Options{}), r.client(t, vhosttest.Options{})
	events, err := a.CreateEVQ(t)
	if err != nil {
		t.Fatal(err)
	}
	pair(t, ib.RC, a, b)
	t2 := *n.table.Load()
	fresh := ib.GID{10: 0xff, 11: 0xff, 12: 203, 14: 113, 15: 9}
	t2.Entries = append(slices.Clone(t2.Entries), hostnet.Entry{GID: fresh, Interface: "lo", IfIndex: 1})
	at := uint32(len(t2.Entries) - 1)
	if g, err := a.GID(at); err != nil || g.Valid != 0 {
		t.Fatalf("%+v, %v", g, err)
	}
	n.addressesChanged(&t2)
	if e, err := events.Next(); err != nil || e.Type != uint32(ib.EventGIDChange) || e.Object != 1 {
		t.Errorf("%+v, %v", e, err)
	}
	if g, err := a.GID(at); err != nil || g.Valid != 1 || g.GID != fresh || g.IfIndex != 1 {
		t.Errorf("%+v, %v", g, err)
	}
	if g, err := a.GID(uint32(a.slot)); err != nil || g.GID != a.gid {
		t.Errorf("an old entry moved: %+v, %v", g, err)
	}
	if s := r.status(); s.Devices[0].GIDs < 2 {
		t.Errorf("%+v", s.Devices)
	}
	gids, err := filepath.Glob(filepath.Join(dir, rundir.TreeDir, "sys/class/infiniband", cfg.Device, "ports/1/gids/*"))
	if err != nil || !slices.ContainsFunc(gids, func(f string) bool {
		text, err := os.ReadFile(f)
		return err == nil && string(text) == fresh.String()+"\n"
	}) {
		t.Errorf("no file has %v: %v, %v", fresh, len(gids), err)
	}
	mustWrite(t, a, b, 1, 1000) // what is connected stays so
}
