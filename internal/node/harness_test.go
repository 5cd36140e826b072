// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/control/metric"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds every wait of these tests. Those that mostly wait are parallel,
// but for what measures time and what has a trunk to another node: that is down
// for a moment when a node gets no processor.
const limit = condtest.Patience

// eventually waits until what happens on other goroutines has happened.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	condtest.Until(t, what, ok)
}

// logs keeps what a node logged.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// count returns how many lines hold all words.
func (l *logs) count(words ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
next:
	for _, line := range strings.Split(l.b.String(), "\n") {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		n++
	}
	return n
}

// running is a node that runs in this process.
type running struct {
	t    testing.TB
	cfg  config.Config
	cli  *api.Client
	logs *logs
	node *Node // only for what no interface of the node shows, and to set up
	stop context.CancelFunc
	done chan error
}

// run starts a node in a directory of its own and waits until it is ready. It
// ends with the test at the latest.
func run(t testing.TB, change func(*config.Config)) *running {
	t.Helper()
	dir, err := os.MkdirTemp("", "weft") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg := config.Default()
	cfg.Fabric = false // tests of the subnet say so
	cfg.Dir, cfg.RoCEPort, cfg.Lanes = dir, condtest.Port(t), 1
	if change != nil {
		change(&cfg)
	}
	if len(cfg.Peers) > 0 && cfg.TrunkSecurity != config.TrunkNone {
		cfg.TrunkKeyFile = filepath.Join(dir, "trunk-key")
		const key = "8f1c35a4d7e60b9218c43f7ab5d0e6914c2b7d1f08a3e5967bd2c4f1e8a05936"
		if err := os.WriteFile(cfg.TrunkKeyFile, []byte(key), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &running{t: t, cfg: cfg, logs: &logs{}, stop: stop, done: make(chan error, 1)}
	ready := make(chan struct{})
	go func() {
		r.done <- runNode(ctx, cfg, func(n *Node) { r.node = n; close(ready) },
			slog.New(slog.NewTextHandler(r.logs, nil)))
	}()
	select {
	case <-ready:
	case err := <-r.done:
		t.Fatalf("the node ended at once: %v", err)
	case <-time.After(limit):
		t.Fatal("the node does not come up")
	}
	r.cli = api.NewClient(filepath.Join(cfg.Dir, "control.sock"), nil)
	t.Cleanup(func() {
		r.cli.Close()
		stop()
		select {
		case err := <-r.done:
			if err != nil {
				t.Errorf("the node ended: %v", err)
			}
		case <-time.After(limit):
			t.Error("the node does not end")
		}
	})
	return r
}

func (r *running) socket() string {
	return filepath.Join(r.cfg.Dir, "door", r.cfg.Device+".sock")
}

func (r *running) status() api.Status {
	r.t.Helper()
	s, err := api.Get(context.Background(), r.cli, api.GetStatus)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// notices counts those of a kind.
func (r *running) notices(what string) (n int) {
	for _, d := range r.status().Notices {
		if d.What == what {
			n++
		}
	}
	return n
}

// counter sums a counter over its instances.
func (r *running) counter(scope, name string) (sum uint64) {
	r.t.Helper()
	list, err := api.Get(context.Background(), r.cli, api.ListCounters)
	if err != nil {
		r.t.Fatal(err)
	}
	found := false
	for _, c := range list {
		if _, ok := metric.Lookup(c.Scope, c.Instance, c.Name); !ok {
			r.t.Errorf("internal/control/metric has no description of %s %q %s", c.Scope, c.Instance, c.Name)
		}
		if c.Scope == scope && c.Name == name {
			sum, found = sum+c.Value, true
		}
	}
	if !found {
		r.t.Fatalf("no counter %s %s", scope, name)
	}
	return sum
}

// quiet waits until no session is left.
func (r *running) quiet() {
	r.t.Helper()
	eventually(r.t, "the sessions end", func() bool { return r.counter(api.ScopeNode, "sessions") == 0 })
}

// client is a driver with one of everything.
type client struct {
	*vhosttest.Driver
	t    testing.TB
	r    *running
	pd   uint32
	cq   *vhosttest.CQ
	buf  []byte
	at   uint64
	mr   abi.MRResult
	qp   *vhosttest.QP
	gid  ib.GID
	slot uint8  // of gid in the table
	lid  ib.LID // instead, where the port is an InfiniBand port
	wait uint8  // for acknowledgements, as verbs has it; 0: so short that retries end within seconds
}

const clientMemory = 4 << 20

func (r *running) client(t testing.TB, o vhosttest.Options) *client {
	t.Helper()
	return r.clientOf(t, r.socket(), o)
}

// clientOf is client at any socket.
func (r *running) clientOf(t testing.TB, socket string, o vhosttest.Options) *client {
	t.Helper()
	o.MemSize = clientMemory
	c := &client{Driver: vhosttest.NewDriver(t, socket, o), t: t, r: r}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	c.pd, err = c.CreatePD()
	must(err)
	c.cq, err = c.CreateCQ(t, 64)
	must(err)
	c.buf, c.at = c.Buffer(64 << 10)
	access := ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead
	c.mr, err = c.RegMR(c.pd, c.at, uint64(len(c.buf)), access)
	must(err)
	c.gid, c.slot = r.address(t)
	if o.Plain {
		_, err = c.Control(abi.CmdAddGID, abi.AddGID{Index: uint16(c.slot), GID: c.gid}.Append(nil), 0)
		must(err)
	}
	return c
}

// address returns an IPv4 address of the node and its place in the table.
func (r *running) address(t testing.TB) (ib.GID, uint8) {
	t.Helper()
	devs, err := api.Get(context.Background(), r.cli, api.ListDevices)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(devs, func(d api.Device) bool { return d.Name == r.cfg.Device })
	for _, g := range devs[i].Ports[0].GIDs {
		if a := net.ParseIP(g.Address).To4(); a != nil {
			v := ib.GID{10: 0xff, 11: 0xff}
			copy(v[12:], a)
			return v, uint8(g.Index)
		}
	}
	t.Fatal("this host has no IPv4 address")
	return ib.GID{}, 0
}

// pair connects a queue pair of a with one of b.
func pair(t testing.TB, typ ib.QPType, a, b *client) {
	t.Helper()
	for _, c := range []*client{a, b} {
		q, err := c.CreateQP(t, vhosttest.QPOptions{Type: typ, PD: c.pd, Send: c.cq, Recv: c.cq})
		if err != nil {
			t.Fatal(err)
		}
		c.qp = q
	}
	a.connect(b)
	b.connect(a)
}

// connect takes a client's queue pair to RTS towards that of peer.
func (c *client) connect(peer *client) {
	c.t.Helper()
	a := abi.ModifyQP{PathMTU: ib.MTU1024, MaxRdAtomic: 4, MaxDestRdAtomic: 4, MinRNRTimer: 1, Timeout: cmp.Or(c.wait,
		14), RetryCnt: 7, RNRRetry: 7,
		RQPSN: 5, SQPSN: 5, DestQPNum: peer.qp.Wire, QPAccessFlags: ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead,
		AHAttr: abi.AHAttr{DGID: peer.gid, SGIDIndex: c.slot, HopLimit: 64}}
	masks := map[ib.QPType][3]abi.AttrMask{ib.RC: {0x5, 0xaa31, 0x15c1}, ib.UC: {0x5, 0x8231, 0x1001}}[c.qp.Type]
	for i, s := range []ib.QPState{ib.Init, ib.RTR, ib.RTS} {
		a.QPState, a.AttrMask = s, masks[i]
		if c.Caps&(1<<abi.CapVerbs) == 0 {
			if err := c.qp.Modify(a); err != nil {
				c.t.Fatalf("to %v: %v", s, err)
			}
			continue
		}
		v, _ := a.AttrMask.Verbs()
		if s == ib.Init {
			v |= ib.AttrPKeyIndex | ib.AttrPort
		}
		if err := c.qp.ModifyEx(abi.QPAttrEx{AttrMask: v, QPState: s, PathMTU: a.PathMTU, RQPSN: a.RQPSN,
			SQPSN: a.SQPSN, DestQPNum: a.DestQPNum,
			Access: a.QPAccessFlags, MaxRdAtomic: 4, MaxDestRdAtomic: 4, MinRNRTimer: 1, Port: 1, Timeout: cmp.Or(c.wait, 14), RetryCnt: 7, RNRRetry: 7,
			IsGlobal: b2u(c.lid == 0), AHAttr: a.AHAttr, DLID: peer.lid}); err != nil {
			c.t.Fatalf("to %v: %v", s, err)
		}
	}
}

func b2u(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// write writes n bytes at the start of a's buffer to b's and checks them.
func write(a, b *client, seed byte, n int) error {
	if err := post(a, b, seed, n); err != nil {
		return err
	}
	if !bytes.Equal(a.buf[:n], b.buf[:n]) {
		return fmt.Errorf("%d bytes arrived as others", n)
	}
	return nil
}

// post is write until it is completed, however much of it arrived.
func post(a, b *client, seed byte, n int) error {
	for i := range a.buf[:n] {
		a.buf[i] = byte(i) ^ byte(i>>8) ^ seed
	}
	s := abi.Send{WRID: uint64(seed), Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
	s.SetRDMA(b.at, b.mr.RKey)
	if err := a.qp.PostSend(s, []ib.SGE{{Addr: a.at, Len: uint32(n), LKey: a.mr.LKey}}, nil); err != nil {
		return err
	}
	list, err := a.cq.Wait(1)
	if err != nil {
		return err
	}
	if list[0].Status != 0 || list[0].WRID != uint64(seed) {
		return fmt.Errorf("completion %+v", list[0])
	}
	return nil
}

func mustWrite(t testing.TB, a, b *client, seed byte, n int) {
	t.Helper()
	if err := write(a, b, seed, n); err != nil {
		t.Fatal(err)
	}
}
