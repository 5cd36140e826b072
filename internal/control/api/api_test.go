// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// A server lingers half a second after a request it did not read to its end.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// fake is a node with fixed answers.
type fake struct {
	fakeFabric
	fakeIPoIB
	fakeVESWs
	fakeVESW
	fakeCaptures
	fakeMembers
	status    Status
	faults    []Fault
	err       error
	shutdowns int
	uses      int
	funcs     []Function
}

func (f *fake) Functions(context.Context) ([]Function, error) { return f.funcs, f.err }
func (f *fake) AddFunction(_ context.Context, n NewFunction) (Function, error) {
	v := Function{Name: n.Name, Weight: n.Weight, Enabled: n.Enabled == nil || *n.Enabled, QoS: []int{n.QoS[0]},
		Quotas: n.Quotas}
	f.funcs = append(f.funcs, v)
	return v, f.err
}
func (f *fake) SetFunction(_ context.Context, name string, c FunctionChange) (Function, error) {
	for i := range f.funcs {
		if f.funcs[i].Name == name {
			f.funcs[i].Weight = c.Weight
			return f.funcs[i], f.err
		}
	}
	return Function{}, &Error{Code: CodeNotFound, Why: "there is no device " + name}
}
func (f *fake) DelFunction(_ context.Context, name string) error {
	f.funcs = nil
	return f.err
}

func (f *fake) Status(context.Context) (Status, error) { return f.status, f.err }
func (f *fake) Devices(context.Context) ([]Device, error) {
	return []Device{{Name: "weft0", Ports: []Port{{Number: 1, State: "ACTIVE"}}}}, f.err
}
func (f *fake) Resources(context.Context) (Resources, error) {
	return Resources{QPs: []QP{{Owner: Owner{PID: 7, Comm: "x"}, LQPN: 1 << 14, Type: "RC"}},
		MRs: []MR{{Length: 1 << 40}}}, f.err
}
func (f *fake) Counters(context.Context) ([]Counter, error) {
	return []Counter{{ScopeLink, "roce", "rx_packets", 1<<64 - 1}}, f.err
}
func (f *fake) Groups(context.Context) ([]Group, error) {
	return []Group{{MLID: 0xc001, MGID: "ff12::1", QPs: []GroupQP{{Owner: Owner{PID: 7}, LQPN: 1 << 14, Lane: 2}}}},
		f.err
}
func (f *fake) Faults(context.Context) ([]Fault, error) { return f.faults, f.err }
func (f *fake) AddFault(_ context.Context, s FaultSpec) (Fault, error) {
	n := Fault{ID: len(f.faults) + 1, FaultSpec: s}
	f.faults = append(f.faults, n)
	return n, f.err
}
func (f *fake) DelFault(_ context.Context, id int) error {
	if id != 1 {
		return &Error{Code: CodeNotFound, Why: fmt.Sprintf("there is no fault %d", id), Fix: "weft fault list"}
	}
	f.faults = nil
	return f.err
}
func (f *fake) Use(context.Context) error      { f.uses++; return f.err }
func (f *fake) Shutdown(context.Context) error { f.shutdowns++; return f.err }

// withLists is v as it is answered: without nil lists.
func withLists[T any](v T) T {
	noNilLists(reflect.ValueOf(&v).Elem())
	return v
}

// serve runs a server for b until the test ends and returns its socket.
func serve(t *testing.T, b *fake, access Access, refusal error) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(b.operations(), func(net.Conn) (Access, error) { return access, refusal },
		slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return path
}

func client(t *testing.T, path string) *Client {
	c := NewClient(path, nil)
	t.Cleanup(c.Close)
	return c
}

func TestRoundTrip(t *testing.T) {
	b := &fake{status: Status{Ready: true, PID: 12, UptimeNS: 3 * time.Second, StartedAt: time.Unix(5, 6).UTC(),
		Degraded: []Degraded{{"GSO is off", "the kernel lacks it", "use a newer one"}}}}
	c, ctx := client(t, serve(t, b, FullAccess, nil)), t.Context()

	s, err := Get(ctx, c, GetStatus)
	want := withLists(b.status)
	if diff := cmp.Diff(want, s); err != nil || diff != "" {
		t.Errorf("Status: %v\n%s", err, diff)
	}
	n, err := Get(ctx, c, ListCounters)
	if diff := cmp.Diff([]Counter{{ScopeLink, "roce", "rx_packets", 1<<64 - 1}}, n); err != nil || diff != "" {
		t.Errorf("Counters: %v\n%s", err, diff)
	}
	g, err := Get(ctx, c, ListGroups)
	if diff := cmp.Diff([]Group{{MLID: 0xc001, MGID: "ff12::1", Devices: []string{},
		QPs: []GroupQP{{Owner: Owner{PID: 7}, LQPN: 1 << 14, Lane: 2}}}}, g); err != nil || diff != "" {
		t.Errorf("Groups: %v\n%s", err, diff)
	}
	r, err := Get(ctx, c, GetResources)
	if err != nil || len(r.QPs) != 1 || r.QPs[0].PID != 7 || r.QPs[0].LQPN != 1<<14 || r.MRs[0].Length != 1<<40 {
		t.Errorf("Resources: %v %+v", err, r)
	}
	d, err := Get(ctx, c, ListDevices)
	if err != nil || len(d) != 1 || d[0].Ports[0].State != "ACTIVE" {
		t.Errorf("Devices: %v %+v", err, d)
	}
	spec := FaultSpec{Drop: 2.5, DelayNS: time.Millisecond, Seed: 1<<64 - 1, Peer: "fe80::1"}
	f, err := Call(ctx, c, AddFault, spec)
	if diff := cmp.Diff(Fault{ID: 1, FaultSpec: spec}, f); err != nil || diff != "" {
		t.Errorf("AddFault: %v\n%s", err, diff)
	}
	fs, err := Get(ctx, c, ListFaults)
	if diff := cmp.Diff([]Fault{f}, fs); err != nil || diff != "" {
		t.Errorf("Faults: %v\n%s", err, diff)
	}
	if err := Do(ctx, c, DeleteFault, 1); err != nil || len(b.faults) != 0 {
		t.Errorf("DelFault: %v", err)
	}
	if err := Do(ctx, c, AnnounceProgram, None{}); err != nil || b.uses != 1 {
		t.Errorf("Use: %v, %d calls", err, b.uses)
	}
	off := false
	fn, err := Call(ctx, c, AddFunction, NewFunction{Name: "vf", FunctionChange: FunctionChange{Enabled: &off,
		Weight: 7, QoS: map[int]int{0: 9}, Quotas: Quotas{QPs: 5}}})
	wantFn := withLists(Function{Name: "vf", Weight: 7, QoS: []int{9}, Quotas: Quotas{QPs: 5}})
	if diff := cmp.Diff(wantFn, fn); err != nil || diff != "" {
		t.Errorf("AddFunction: %v\n%s", err, diff)
	}
	wantFn.Weight = 8
	if fn, err = Call(ctx, c, ChangeFunction, Named[FunctionChange]{Name: "vf",
		Value: FunctionChange{Weight: 8}}); err != nil || cmp.Diff(wantFn, fn) != "" {
		t.Errorf("SetFunction: %v, %+v", err, fn)
	}
	if list, err := Get(ctx, c, ListFunctions); err != nil || cmp.Diff([]Function{wantFn}, list) != "" {
		t.Errorf("Functions: %v, %+v", err, list)
	}
	if err := Do(ctx, c, DeleteFunction, "vf"); err != nil || len(b.funcs) != 0 {
		t.Errorf("DelFunction: %v", err)
	}
	if err := Do(ctx, c, Shutdown, None{}); err != nil || b.shutdowns != 1 {
		t.Errorf("Shutdown: %v, %d calls", err, b.shutdowns)
	}
}

// TestFunctionRequests checks what is refused before the node sees it.
func TestFunctionRequests(t *testing.T) {
	for _, bad := range []NewFunction{{}, {Name: "A"}, {Name: "a/b"}, {Name: "a" + strings.Repeat("b", 32)},
		{Name: "a", FunctionChange: FunctionChange{Weight: -1}}, {Name: "a",
			FunctionChange: FunctionChange{Weight: 1001}},
		{Name: "a", FunctionChange: FunctionChange{QoS: map[int]int{16: 1}}}, {Name: "a",
			FunctionChange: FunctionChange{QoS: map[int]int{1: 0}}},
		{Name: "a", FunctionChange: FunctionChange{Quotas: Quotas{MemoryBytes: -1}}}} {
		if bad.Validate() == nil {
			t.Errorf("accepted %+v", bad)
		}
	}
	vesw := func(addr, route string) NewFunction {
		return NewFunction{Name: "a", Segment: "vesw:blue", Addrs: []string{addr}, Routes: []string{route}}
	}
	const route4, route6 = "10.0.0.0/8=10.9.0.1", "fd00::/8=fd09::1"
	for _, bad := range []NewFunction{{Name: "a", Segment: "host"}, {Name: "a", Segment: "vesw:"},
		{Name: "a", Segment: "veswblue"}, {Name: "a", Addrs: []string{"10.9.0.7/24"}},
		{Name: "a", Segment: "vesw", Addrs: []string{"10.9.0.7/24", "10.9.0.7/8"}}, {Name: "a", Segment: "vesw",
			Addrs: make([]string, MaxAddrs+1)},
		vesw("10.9.0.7", route4), vesw("224.0.0.1/24", route4), vesw("255.255.255.255/32",
			route4), vesw("::ffff:10.9.0.7/128", route4),
		vesw("10.9.0.7/24", ""), vesw("10.9.0.7/24", "10.0.0.0/8"), vesw("10.9.0.7/24",
			"10.0.0.0=10.9.0.1"), vesw("10.9.0.7/24", "10.0.0.0/8=gw"),
		vesw("10.9.0.7/24", "10.0.0.0/8=fd09::1"), vesw("10.9.0.7/24", "fd00::/8=10.9.0.1"), vesw("10.9.0.7/24",
			"fd00::/8=fe80::1%eth0"),
		vesw("10.9.0.7/24", "fd00::/8=::ffff:10.9.0.1"), vesw("10.9.0.7/24", "::ffff:10.0.0.0/104=fd09::1")} {
		if bad.Validate() == nil {
			t.Errorf("accepted %+v", bad)
		}
	}
	for _, good := range []NewFunction{vesw("10.9.0.7/24", route4), vesw("fd09::7/64", route6),
		vesw("10.9.0.7/24", route6), {Name: "a", Segment: "vesw"}} {
		if err := good.Validate(); err != nil {
			t.Error(err)
		}
	}
	good := NewFunction{Name: "vf_1", FunctionChange: FunctionChange{Weight: 1000, QoS: map[int]int{0: 1, 15: 1000},
		Quotas: Quotas{QPs: 3}}}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	path := serve(t, &fake{}, FullAccess, nil)
	for _, x := range []struct{ method, url, body string }{{"POST", "/v1/functions", `{"name":"Bad"}`},
		{"PATCH", "/v1/functions/a", `{"weight":-1}`},
		{"PATCH", "/v1/functions/a", `{"wait":1}`}} {
		if status, e := raw(t, path, x.method, x.url, x.body); status != 400 || e.Code != CodeInvalid {
			t.Errorf("%s %s: %d %+v", x.method, x.body, status, e)
		}
	}
}

func TestErrorsKeepTheirKind(t *testing.T) {
	ctx := t.Context()
	c := client(t, serve(t, &fake{err: errors.New("lane 1 hangs")}, FullAccess, nil))
	_, err := Get(ctx, c, GetStatus)
	checkError(t, err, CodeInternal, "cannot read the status: lane 1 hangs")
	c = client(t, serve(t, &fake{}, FullAccess, nil))
	checkError(t, Do(ctx, c, DeleteFault, 9), CodeNotFound,
		"cannot delete the fault: there is no fault 9. fix: weft fault list")
	_, err = Call(ctx, c, AddFault, FaultSpec{Drop: 101})
	checkError(t, err, CodeInvalid, "cannot add the fault: drop must be 0 to 100 percent, not 101")

	c = client(t, filepath.Join(t.TempDir(), "missing"))
	_, err = Get(ctx, c, ListDevices)
	checkError(t, err, CodeNoNode, "cannot list devices: no node runs there")

	stale := filepath.Join(t.TempDir(), "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	checkError(t, Do(ctx, client(t, stale), Shutdown, None{}), CodeNoNode, "cannot stop the node: no node runs there")
}

func checkError(t *testing.T, err error, code Code, text string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Code != code || e.Error() != text {
		t.Errorf("want %s %q, got %v", code, text, err)
	}
}

func TestAccess(t *testing.T) {
	ctx := t.Context()
	b := &fake{}
	c := client(t, serve(t, b, NoAccess, errors.New("uid 7 may not")))
	_, err := Get(ctx, c, GetStatus)
	checkError(t, err, CodeRefused, "cannot read the status: uid 7 may not. fix: run the command as the node's user or as root")
	c = client(t, serve(t, b, ReadAccess, nil))
	if _, err := Get(ctx, c, GetStatus); err != nil {
		t.Error(err)
	}
	const fix = ": this user may only read. fix: run the command as the node's user or as root"
	checkError(t, Do(ctx, c, Shutdown, None{}), CodeRefused, "cannot stop the node"+fix)
	_, err = Call(ctx, c, AddFault, FaultSpec{Drop: 1})
	checkError(t, err, CodeRefused, "cannot add the fault"+fix)
	checkError(t, Do(ctx, c, DeleteFault, 1), CodeRefused, "cannot delete the fault"+fix)
	if b.shutdowns != 0 || len(b.faults) != 0 {
		t.Error("a refused call reached the node")
	}
}

// raw sends a body that Client never would.
func raw(t *testing.T, path, method, url, body string) (int, Error) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return net.Dial("unix", path)
	}}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://weft"+url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var e Error
	if resp.StatusCode != http.StatusOK {
		if err := json.Unmarshal(b, &e); err != nil {
			t.Fatalf("%s: not an error of ours: %q", url, b)
		}
	}
	return resp.StatusCode, e
}

func TestStrictServer(t *testing.T) {
	b := &fake{}
	path := serve(t, b, FullAccess, nil)
	for _, x := range []struct {
		name, method, url, body string
		status                  int
		code                    Code
	}{
		{"valid", "POST", "/v1/faults", `{"drop":1}`, 200, ""},
		{"unknown field", "POST", "/v1/faults", `{"drop":1,"dorp":2}`, 400, CodeInvalid},
		{"two values", "POST", "/v1/faults", `{"drop":1}{}`, 400, CodeInvalid},
		{"trailing text", "POST", "/v1/faults", `{"drop":1} x`, 400, CodeInvalid},
		{"wrong type", "POST", "/v1/faults", `{"drop":"1"}`, 400, CodeInvalid},
		{"truncated", "POST", "/v1/faults", `{"drop":`, 400, CodeInvalid},
		{"empty", "POST", "/v1/faults", ``, 400, CodeInvalid},
		{"too large", "POST", "/v1/faults", `{"device":"` + strings.Repeat("x", maxRequest) + `"}`, 400, CodeInvalid},
		{"does nothing", "POST", "/v1/faults", `{}`, 400, CodeInvalid},
		{"bad id", "DELETE", "/v1/faults/x", ``, 400, CodeInvalid},
		{"no such path", "GET", "/v1/nothing", ``, 404, CodeNotFound},
		{"other version", "GET", "/v2/status", ``, 404, CodeNotFound},
		{"wrong method", "GET", "/v1/shutdown", ``, 404, CodeNotFound},
	} {
		status, e := raw(t, path, x.method, x.url, x.body)
		if status != x.status || e.Code != x.code {
			t.Errorf("%s: want %d %s, got %d %+v", x.name, x.status, x.code, status, e)
		}
	}
	if len(b.faults) != 1 {
		t.Errorf("want the one valid fault, got %+v", b.faults)
	}
}

// TestJSONNames keeps what scripts depend on: every field has a tag in snake
// case, and a list is never null.
func TestJSONNames(t *testing.T) {
	snake := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	var walk func(reflect.Type)
	walk = func(ty reflect.Type) {
		for ty.Kind() == reflect.Slice || ty.Kind() == reflect.Pointer {
			ty = ty.Elem()
		}
		if ty.Kind() != reflect.Struct || ty == reflect.TypeFor[time.Time]() {
			return
		}
		for f := range ty.NumField() {
			field := ty.Field(f)
			if !field.IsExported() {
				continue
			}
			tag := strings.TrimSuffix(field.Tag.Get("json"), ",omitempty")
			if !field.Anonymous && !snake.MatchString(tag) {
				t.Errorf("%s.%s: tag %q", ty.Name(), field.Name, tag)
			}
			walk(field.Type)
		}
	}
	for _, v := range []any{Subnet{}, SwitchRoutes{}, Path{}, Manager{}, Trunk{}, Partition{}, SubnetGroup{},
		GroupJoin{}, Store{}, StoreEntry{}, Status{}, Device{}, Resources{}, Counter{}, Fault{}, Function{},
		NewFunction{}, Error{}, Desired{}, Comparison{}, HistoryEntry{}} {
		walk(reflect.TypeOf(v))
	}
	for _, v := range []any{&Subnet{Nodes: []FabricNode{{Ports: []FabricPort{{}}}}},
		&[]SwitchRoutes{{Multicast: []MulticastRoute{{}}}},
		&Path{}, &Manager{}, &[]Partition{{}}, &[]SubnetGroup{{Members: []GroupMember{{}}}}, &Store{}, &Status{}, &[]Device{{Ports: []Port{{}}}},
		&Resources{MRs: []MR{{}}, MWs: []MW{{}}}, new([]Counter), &[]Function{{}}} {
		noNilLists(reflect.ValueOf(v).Elem())
		b, err := json.Marshal(v)
		if err != nil || bytes.Contains(b, []byte("null")) {
			t.Errorf("%s has a null list: %v", b, err)
		}
	}
}

func TestFaultSpecReportsAllFaults(t *testing.T) {
	err := FaultSpec{Drop: -1, Corrupt: 100.5, DelayNS: -time.Second, Peer: "host"}.Validate()
	for _, part := range []string{"drop must", "corrupt must", "delay must", "peer must"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %q", err, part)
		}
	}
	for _, ok := range []FaultSpec{{Drop: 100}, {DelayNS: MaxDelay}, {Corrupt: 0.001, Peer: "10.0.0.1"}} {
		if err := ok.Validate(); err != nil {
			t.Errorf("%+v: %v", ok, err)
		}
	}
}

// FuzzFault checks that whatever is accepted is a valid spec and survives the
// way through JSON.
func FuzzFault(f *testing.F) {
	f.Add([]byte(`{"drop":1,"seed":18446744073709551615,"peer":"::1"}`))
	f.Add([]byte(`{"delay_ns":1e3}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s FaultSpec
		if decodeStrict(bytes.NewReader(b), &s) != nil || s.Validate() != nil {
			return
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var s2 FaultSpec
		if err := decodeStrict(bytes.NewReader(again), &s2); err != nil || s2 != s {
			t.Fatalf("%+v became %+v: %v", s, s2, err)
		}
	})
}

func TestAccessOf(t *testing.T) {
	for _, x := range []struct {
		uid, self int
		allow     []int
		want      Access
	}{
		{0, 1000, nil, FullAccess},
		{1000, 1000, nil, FullAccess},
		{1001, 1000, nil, NoAccess},
		{1001, 1000, []int{7, 1001}, ReadAccess},
		{1001, 0, nil, NoAccess},
	} {
		got, err := accessOf(x.uid, x.self, x.allow)
		if got != x.want || (err != nil) != (got == NoAccess) {
			t.Errorf("%+v: got %d, %v", x, got, err)
		}
	}
}

func TestPeerAccessOfThisProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if a, err := PeerAccess(os.Geteuid(), nil)(s); a != FullAccess || err != nil {
		t.Errorf("own process: %d %v", a, err)
	}
	x, y := net.Pipe()
	defer x.Close()
	defer y.Close()
	if a, err := PeerAccess(os.Geteuid(), nil)(x); a != NoAccess || err == nil {
		t.Errorf("a peer nobody knows: %d %v", a, err)
	}
}

// TestNoAnswer: a node that accepts and does not reply costs a caller a bounded time, with any
// context, and an error with the process and a fix.
func TestNoAnswer(t *testing.T) {
	for _, c := range []struct{ name, says string }{
		{"silent", ""},
		{"cut off", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			held := make(chan net.Conn, 1)
			go func() {
				conn, err := l.Accept()
				if err == nil {
					conn.Read(make([]byte, 1)) // an answer comes after its question
					conn.Write([]byte(c.says))
				}
				held <- conn
			}()
			t.Cleanup(func() {
				if conn := <-held; conn != nil {
					conn.Close()
				}
				l.Close()
			})
			cl := client(t, path)
			cl.timeout = 50 * time.Millisecond
			_, err = Get(context.Background(), cl, GetStatus)
			pid := strconv.Itoa(os.Getpid())
			want := "cannot read the status: the node, process " + pid +
				", does not answer. fix: read its log; kill -9 " + pid + " ends it"
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeNoAnswer || e.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}

// TestNodeEndsBeforeAnswer: a node that dies while a caller waits is a node without an answer, whether the kernel
// reports the end of the stream or a reset of the connection.
func TestNodeEndsBeforeAnswer(t *testing.T) {
	for _, c := range []struct {
		name, says string
		reads      bool // a socket that is closed with unread bytes is reset
	}{
		{"closed", "", true},
		{"reset", "", false},
		{"within the answer", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					n := 1
					if c.reads {
						n = 4096
					}
					conn.Read(make([]byte, n))
					conn.Write([]byte(c.says))
					conn.Close()
				}
			}()
			_, err = Get(context.Background(), client(t, path), GetStatus)
			want := "cannot read the status: the node ended before it answered. fix: read its log; " +
				"weft up starts it again"
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeNoAnswer || e.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}

func (f *fake) VMs(context.Context) ([]VM, error)            { return nil, f.err }
func (f *fake) AddVM(_ context.Context, v NewVM) (VM, error) { return VM{NewVM: v}, f.err }
func (f *fake) DelVM(context.Context, string) error          { return f.err }
