// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/unixsock"
	"weft/internal/host/rundir"
	"weft/internal/host/shimlib"
	"weft/internal/proto/problem"
)

// TestMain runs this binary as the weft command, with a fake node, when a
// script calls it by that name.
func TestMain(m *testing.M) {
	weft := func() {
		var terminal Terminal
		terminal.Width, _ = strconv.Atoi(os.Getenv("TEST_WIDTH"))
		os.Exit(Run(context.Background(), os.Args[1:], Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
			OutTerminal: terminal,
			Getenv:      os.Getenv,
			DefaultDir:  os.Getenv("TEST_DEFAULT_DIR"), Libraries: fakeLibraries(), Node: fakeNode, Join: fakeJoin,
			Leave: fakeLeave}))
	}
	if os.Getenv("BE_WEFT") != "" {
		weft()
	}
	testscript.Main(m, map[string]func(){"weft": weft})
}

// fakeLibraries are in the place of the embedded ones. The loader passes them by. With FAKE_LIBRARIES=none there are
// none.
func fakeLibraries() fs.FS {
	if os.Getenv("FAKE_LIBRARIES") == "none" {
		return fstest.MapFS{}
	}
	return fstest.MapFS{shimlib.Preload: {Data: []byte("preload")}, shimlib.Replacement: {Data: []byte("replacement")}}
}

// rewrite writes what scripts compare output with, and the generated documents, anew.
var rewrite = flag.Bool("rewrite", false, "write golden files anew")

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: *rewrite,
		Setup: func(e *testscript.Env) error {
			e.Setenv("TEST_DEFAULT_DIR", filepath.Join(e.WorkDir, "default"))
			e.Setenv(shimlib.DirEnv, filepath.Join(e.WorkDir, "lib"))
			e.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector delays every exit by a second
			e.Defer(func() {                        // a script that failed leaves its nodes behind
				for _, name := range []string{"n", "default"} {
					stop(context.Background(), filepath.Join(e.WorkDir, name), time.Second)
				}
			})
			return nil
		},
	})
}

// fakeNode is a node without a data path. FAKE_NODE steers it: "fail" ends it
// at once, "hang" never lets it become ready, "down" leaves its port down,
// "empty" has no sessions, "bind" fails as a taken port does, "denied" as what a user may not do,
// "lingers" does not end before the second request to.
func fakeNode(ctx context.Context, c config.Config, ready func(), log *slog.Logger) error {
	mode := os.Getenv("FAKE_NODE")
	if mode == "fail" {
		return errors.New("no network interface has an address")
	}
	d, err := rundir.Acquire(c.Dir, c.DirPerm(os.Geteuid()))
	if err != nil {
		return err
	}
	defer d.Close()
	if mode == "bind" {
		return &api.Error{What: "cannot run the node", Why: "UDP port 4791 is taken by process 7 (weft)",
			Fix: "weft up --roce-port 4792"}
	}
	if mode == "denied" {
		return &problem.Error{What: "check all of the ICRC", Why: "raw socket: " + syscall.EPERM.Error(),
			Fix: "run as root", Err: syscall.EPERM}
	}
	l, err := d.Listen(nil, rundir.ControlSock, unixsock.Options{Mode: 0o666})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := &fakeBackend{fakeFabric: fakeFabric{mode: mode}, c: c, mode: mode, stop: cancel}
	s := api.NewServer(b.operations(), api.PeerAccess(os.Geteuid(), c.AllowUIDs), log)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	if mode != "hang" {
		ready()
	}
	<-ctx.Done()
	log.Info("ending")
	if err := s.Shutdown(context.Background()); err != nil {
		return err
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

type fakeBackend struct {
	fakeFabric
	fakeIPoIB
	fakeVESWs
	fakeVESW
	fakeCaptures
	fakeVMs
	fakeDesired
	fakeMembers
	c    config.Config
	mode string
	stop func()

	mu        sync.Mutex
	faults    []api.Fault
	shutdowns int
	next      int
	funcs     []api.Function
	off       bool // the adapter
}

func (b *fakeBackend) owner(n uint32) api.Owner {
	return api.Owner{Device: b.c.Device, Session: n, PID: 4000 + int(n), Comm: "ib_write_bw", UID: 1000}
}

func (b *fakeBackend) Status(context.Context) (api.Status, error) {
	s := api.Status{Ready: b.mode != "hang", Version: "v0", PID: os.Getpid(), UID: 1000, Dir: b.c.Dir,
		UptimeNS:  192 * time.Second,
		WireLocal: b.c.WireLocal, RoCEAllow: b.c.RoCEAllow, IdleExitNS: b.c.IdleExit,
		Lanes: []api.Lane{{ID: 0, Sessions: 2, Polling: true},
			{ID: 1}}}
	dev := api.DeviceSummary{Name: b.c.Device, PortState: "ACTIVE", ActiveMTU: 1024, GIDs: 2, ICRC: "solve",
		ICRCWhy: "as asked for", Enabled: b.mode != "disabled"}
	if b.mode == "disabled" {
		dev.PortState = "DOWN"
	}
	if b.mode == "down" {
		dev.PortState = "DOWN"
		s.Degraded = []api.Degraded{{What: b.c.Device + " port 1 is down", Why: "interface eth0 has no carrier",
			Fix: "ip link set eth0 up"}}
	}
	if b.mode == "subnet" {
		s.Manager = "master"
		s.Trunks = []api.Trunk{{Peer: "10.0.0.2:4792", Up: true, State: "INIT", Node: "02aa:0000:0002:0000"}}
	}
	s.Devices = []api.DeviceSummary{dev}
	if b.mode != "empty" {
		s.Sessions = []api.Session{{Owner: b.owner(1), Memory: "process", Objects: 5}, {Owner: b.owner(2)},
			{Owner: api.Owner{Comm: "evil\x1b[2J"}}}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Faults = append(s.Faults, b.faults...)
	return s, nil
}

func (b *fakeBackend) Devices(context.Context) ([]api.Device, error) {
	return []api.Device{{Name: b.c.Device, NodeGUID: "0252:54ff:fe00:0001", NodeType: "CA",
		Enabled: b.mode != "disabled", AdapterEnabled: b.mode != "disabled", Ports: []api.Port{{
			Number: 1, State: "ACTIVE", PhysState: "LINK_UP", LinkLayer: "Ethernet", NetDev: "eth0", MaxMTU: 4096, ActiveMTU: 1024,
			GIDs: []api.GID{
				{Index: 0, GID: "fe80:0000:0000:0000:5054:00ff:fe00:0001", Address: "fe80::5054:ff:fe00:1",
					Type: "RoCE v2", NetDev: "eth0"},
				{Index: 1, GID: "0000:0000:0000:0000:0000:ffff:0a00:0001", Address: "10.0.0.1", Type: "RoCE v2",
					NetDev: "eth0"},
			}}}}}, nil
}

func (b *fakeBackend) Resources(context.Context) (api.Resources, error) {
	if b.mode == "empty" {
		return api.Resources{}, nil
	}
	o := b.owner(1)
	return api.Resources{
		PDs: []api.PD{{Owner: o, PDN: 1, Users: 3}, {Owner: b.owner(2), PDN: 1}},
		MRs: []api.MR{{Owner: o, MRN: 9, PDN: 1, IOVA: 0x7f0000001000, Length: 65536, Memory: "process",
			Access: []string{"local_write", "remote_write"}}},
		MWs: []api.MW{{Owner: o, MWN: 4, PDN: 1, Type: 2, MRN: 9, IOVA: 0x7f0000001000, Length: 4096,
			Access: []string{"remote_write"}}, {Owner: o, MWN: 5, PDN: 1, Type: 1}},
		CQs: []api.CQ{{Owner: o, CQN: 1, CQE: 255, Users: 1, Armed: true}},
		QPs: []api.QP{{Owner: o, LQPN: 16385, RQPN: 32769, Type: "RC", State: "RTS", SQPSN: 77, RQPSN: 5,
			PathMTU: 1024, RemoteGID: "0000:0000:0000:0000:0000:ffff:0a00:0002"},
			{Owner: o, LQPN: 16386, Type: "UD", State: "INIT"}},
		SRQs: []api.SRQ{{Owner: o, SRQN: 3, PDN: 1, MaxWR: 512, Outstanding: 500, Limit: 16}},
		AHs:  []api.AH{{Owner: o, AHN: 2, PDN: 1, RemoteGID: "0000:0000:0000:0000:0000:ffff:0a00:0002"}},
		CMIDs: []api.CMID{{Owner: api.Owner{PID: 4003, Comm: "rping"}, CMIDN: 0, Type: "RC", State: "LISTEN",
			PS: "TCP", Src: "0.0.0.0:7174"},
			{Owner: api.Owner{Device: "weft0", PID: 4003, Comm: "rping"}, CMIDN: 1, LQPN: 16385, Type: "RC",
				State: "CONNECT", PS: "TCP", Src: "10.0.0.1:7174", Dst: "10.0.0.2:40000"}},
	}, nil
}

func (b *fakeBackend) Counters(context.Context) ([]api.Counter, error) {
	if b.mode == "empty" {
		return []api.Counter{{Scope: api.ScopeNode, Name: "sessions_refused"}}, nil
	}
	return []api.Counter{
		{Scope: api.ScopeNode, Name: "sessions_refused"},
		{Scope: api.ScopeLink, Instance: "roce", Name: "tx_bytes", Value: 123456789012},
		{Scope: api.ScopeQP, Instance: "16385", Name: "retries", Value: 4},
	}, nil
}

func (b *fakeBackend) Groups(context.Context) ([]api.Group, error) {
	if b.mode == "empty" {
		return nil, nil
	}
	return []api.Group{
		{MGID: "0000:0000:0000:0000:0000:ffff:ef01:0203", Address: "239.1.2.3", Devices: []string{b.c.Device},
			QPs: []api.GroupQP{{Owner: b.owner(1), LQPN: 16385}, {Owner: b.owner(2), LQPN: 32770, Lane: 1}}},
		{MLID: 0xc000, MGID: "ff12:401b:ffff:0000:0000:0000:ffff:ffff", Address: "ff12:401b:ffff::ffff:ffff",
			Devices: []string{"weft_ib0", "weft_ib1"}},
		{MLID: 0xc001, Devices: []string{"weft_ib1"}},
	}, nil
}

func (b *fakeBackend) Faults(context.Context) ([]api.Fault, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]api.Fault(nil), b.faults...), nil
}

func (b *fakeBackend) AddFault(_ context.Context, spec api.FaultSpec) (api.Fault, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if spec.Seed == 0 {
		spec.Seed = 42
	}
	b.next++
	f := api.Fault{ID: b.next, FaultSpec: spec}
	b.faults = append(b.faults, f)
	return f, nil
}

func (b *fakeBackend) DelFault(_ context.Context, id int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, f := range b.faults {
		if f.ID == id {
			b.faults = append(b.faults[:i:i], b.faults[i+1:]...)
			return nil
		}
	}
	return &api.Error{Code: api.CodeNotFound, Why: fmt.Sprintf("there is no fault %d", id), Fix: "weft fault list"}
}

func (b *fakeBackend) Use(context.Context) error { return nil }
func (b *fakeBackend) Functions(context.Context) ([]api.Function, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]api.Function{b.function(b.c.Device, 0)}, b.funcs...), nil
}

func (b *fakeBackend) function(name string, n int) api.Function {
	f := api.Function{Name: name, Number: n, Virtual: n > 1, Enabled: true, AdapterEnabled: !b.off, Kept: n == 0,
		NotKept: "the store is memory", LinkLayer: "Ethernet", PortState: "ACTIVE", NodeGUID: "0252:54ff:fe00:0001",
		Weight: 100, QoS: make([]int, api.Levels), Quotas: api.Quotas{Sessions: 1024, QPs: 16384, MRs: 65536,
			MemoryBytes: 1 << 30}}
	for i := range f.QoS {
		f.QoS[i] = 100
	}
	if n == 0 {
		f.Segment = api.SegmentHost
	}
	return f
}

func (b *fakeBackend) AddFunction(ctx context.Context, r api.NewFunction) (api.Function, error) {
	b.mu.Lock()
	b.next++
	f := b.function(r.Name, 1+b.next)
	f.LinkLayer, f.PortState, f.PortGUID = "InfiniBand", "INIT", "0252:54ff:fe00:0003"
	if f.Segment = r.Segment; r.Segment != "" {
		f.LinkLayer = "Ethernet"
		f.VESW = api.EthernetPort{Addrs: r.Addrs, Routes: r.Routes, CarrierReason: "it is in no VESW"}
	}
	if r.VESW() != "" {
		f.VESW.Number, f.VESW.MAC, f.VESW.Carrier, f.VESW.CarrierReason = 5, "06:50:00:07:00:00", true, ""
	}
	b.funcs = append(b.funcs, f)
	b.mu.Unlock()
	return b.SetFunction(ctx, r.Name, r.FunctionChange)
}

func (b *fakeBackend) SetFunction(_ context.Context, name string, c api.FunctionChange) (api.Function, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.AdapterEnabled != nil {
		b.off = !*c.AdapterEnabled
		return b.function(b.c.Device, 0), nil
	}
	for i := range b.funcs {
		f := &b.funcs[i]
		if f.Name != name {
			continue
		}
		if c.Weight != 0 {
			f.Weight = c.Weight
		}
		for level, w := range c.QoS {
			f.QoS[level] = w
		}
		if c.Enabled != nil {
			f.Enabled = *c.Enabled
		}
		if c.Quotas.QPs != 0 {
			f.Quotas.QPs = c.Quotas.QPs
		}
		return *f, nil
	}
	return api.Function{}, &api.Error{Code: api.CodeNotFound, Why: "there is no device " + name, Fix: "weft dev"}
}

func (b *fakeBackend) DelFunction(_ context.Context, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, f := range b.funcs {
		if f.Name == name {
			b.funcs = append(b.funcs[:i:i], b.funcs[i+1:]...)
			return nil
		}
	}
	return &api.Error{Code: api.CodeNotFound, Why: "there is no device " + name, Fix: "weft dev"}
}

func (b *fakeBackend) Shutdown(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shutdowns++; b.mode != "lingers" || b.shutdowns > 1 {
		b.stop()
	}
	return nil
}

func TestChildEnv(t *testing.T) {
	const s, r = "/b/s.so", "/b/weft-verbs/libibverbs.so.1"
	for _, x := range []struct {
		name, shim, device, arena string
		env, want                 []string
	}{
		{"plain", s, "", "off", []string{"A=1", "WEFT_ARENA=only", "WEFT_DIR=/old"},
			[]string{"A=1", "LD_PRELOAD=/b/s.so", "WEFT_DIR=/d"}},
		{"other preload", s, "", "on", []string{"LD_PRELOAD=/x.so /y.so"}, []string{"LD_PRELOAD=/b/s.so:/x.so /y.so",
			"WEFT_DIR=/d", "WEFT_ARENA=1"}},
		{"weft run in weft run", s, "w1", "only", []string{"LD_PRELOAD=/x.so:/b/s.so", "WEFT_DEVICE=w0"},
			[]string{"LD_PRELOAD=/x.so:/b/s.so", "WEFT_DIR=/d", "WEFT_ARENA=only", "WEFT_DEVICE=w1"}},
		{"empty preload", s, "", "off", []string{"LD_PRELOAD="}, []string{"LD_PRELOAD=/b/s.so", "WEFT_DIR=/d"}},
		{"replacement", r, "", "off", []string{"A=1"}, []string{"A=1", "LD_PRELOAD=" + r, "WEFT_DIR=/d",
			"LD_LIBRARY_PATH=/b/weft-verbs"}},
		{"replacement, other libraries", r, "", "off", []string{"LD_LIBRARY_PATH=/x:/y"}, []string{"LD_PRELOAD=" + r,
			"WEFT_DIR=/d", "LD_LIBRARY_PATH=/b/weft-verbs:/x:/y"}},
		{"replacement twice", r, "", "off", []string{"LD_PRELOAD=" + r, "LD_LIBRARY_PATH=/b/weft-verbs:/x"},
			[]string{"LD_PRELOAD=" + r, "WEFT_DIR=/d", "LD_LIBRARY_PATH=/b/weft-verbs:/x"}},
	} {
		if diff := cmp.Diff(x.want, childEnv(x.env, x.shim, "/d", x.device, x.arena)); diff != "" {
			t.Errorf("%s:\n%s", x.name, diff)
		}
	}
}

func TestTable(t *testing.T) {
	tb := table{heads: []string{"NAME", ">SIZE", "NOTE"}}
	tb.row("größe", 5, "")
	tb.row("x", 12345, "esc\x1b[0m\n")
	var b bytes.Buffer
	tb.write(&screen{Writer: &b})
	want := "" +
		"NAME    SIZE  NOTE\n" +
		"größe      5  -\n" +
		"x      12345  esc?[0m?\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

func TestText(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 31: "2 GiB",
		1<<64 - 1: "16 EiB"} {
		if got := sizeText(n); got != want {
			t.Errorf("%d: want %q, got %q", n, want, got)
		}
	}
	for _, x := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"lane", "lanes", 1}, {"dri", "dir", 1}, {"dorp", "drop", 1}, {"spin", "", 4}, {"abc", "xbz", 2}} {
		if got := editDistance(x.a, x.b); got != x.want {
			t.Errorf("%s to %s: want %d, got %d", x.a, x.b, x.want, got)
		}
	}
	if got := round(192*time.Second + 7*time.Millisecond); got != 192*time.Second {
		t.Error(got)
	}
	var many []api.Session
	for i := range 9 {
		many = append(many, api.Session{Owner: api.Owner{Comm: string(rune('a' + i))}},
			api.Session{Owner: api.Owner{Comm: "z"}})
	}
	if got, want := sessionList(many), "18 (z ×9, a, b, c, d, e, …)"; got != want {
		t.Errorf("want %q, got %q", want, got)
	}
}

// drained begins the numbers of programs that are announced to a drained host.
const drained = 1000

// ender is a node that has decided to end when a program is announced.
type ender struct{ uses chan int }

func (e *ender) Use(context.Context) error {
	n := <-e.uses
	e.uses <- n + 1
	switch {
	case n < 2:
		return &api.Error{Code: api.CodeNotReady, Why: "the node is ending"}
	case n >= drained:
		return &api.Error{Code: api.CodeDrained, Why: "this host is drained", Fix: "weft member undrain host3"}
	}
	return nil
}

// TestClaim: weft run announces a program to the node, and does not use a node that ends.
func TestClaim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	e := &ender{uses: make(chan int, 1)}
	e.uses <- 0
	mux := http.NewServeMux()
	api.Handle(mux, api.AnnounceProgram, api.Action(e.Use))
	s := api.NewServer(mux, api.PeerAccess(os.Geteuid(), nil), slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	defer func() { s.Close(); <-done }()
	c := api.NewClient(path, nil)
	defer c.Close()
	if err := claim(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if n := <-e.uses; n != 3 {
		t.Errorf("asked %d times, want 3", n)
	}
	e.uses <- drained
	var ae *api.Error
	if err := claim(t.Context(), c); !errors.As(err, &ae) || ae.Code != api.CodeDrained {
		t.Errorf("a drained host: %v", err)
	}
	if n := <-e.uses; n != drained+1 {
		t.Errorf("asked a drained host %d times", n-drained)
	}
	none := api.NewClient(path+"none", nil)
	defer none.Close()
	if err := claim(t.Context(), none); err != nil {
		t.Errorf("no node: %v", err)
	}
}
