// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// relay is a Forwarder that passes requests to a handler in memory.
type relay struct {
	to   http.Handler
	here bool
	err  error
	seen []Forwarded
}

func (r *relay) Forward(ctx context.Context, f *Forwarded) (*Answer, bool, error) {
	r.seen = append(r.seen, *f)
	if r.here || r.err != nil {
		return nil, r.here, r.err
	}
	q, err := f.NewRequest(ctx, "https://master")
	if err != nil {
		return nil, false, err
	}
	w := httptest.NewRecorder()
	r.to.ServeHTTP(w, q)
	return &Answer{Status: w.Code, Body: w.Body.Bytes()}, false, nil
}

// done is a request as an operation of a node got it.
type done struct {
	Op      string
	In      string
	Caller  Caller
	Confirm string
}

// node is a mux with some operations, which note what they get.
func node(log *[]done) *http.ServeMux {
	mux := http.NewServeMux()
	note := func(ctx context.Context, op, in string) {
		*log = append(*log, done{op, in, CallerOf(ctx), Confirmed(ctx)})
	}
	Handle(mux, ListPartitions, func(ctx context.Context, _ None) ([]Partition, error) {
		note(ctx, "list", "")
		return []Partition{{Name: "red"}}, nil
	})
	Handle(mux, AddPartition, func(ctx context.Context, p Partition) (Partition, error) {
		note(ctx, "add", p.PKey)
		if p.PKey == "0x0" {
			return p, &Error{Code: CodeInvalid, Why: "no P_Key", Fix: "weft pkey add --help"}
		}
		return p, nil
	})
	Handle(mux, DeletePartition, NoOutput(func(ctx context.Context, p PartitionMembers) error {
		note(ctx, "delete", p.PKey+" "+strings.Join(p.Members, " "))
		return nil
	}))
	Handle(mux, ListHistory, func(ctx context.Context, _ Since) ([]HistoryEntry, error) {
		note(ctx, "history", "")
		return nil, nil
	})
	Handle(mux, ListDevices, func(ctx context.Context, _ None) ([]Device, error) {
		note(ctx, "devices", "")
		return nil, nil
	})
	return mux
}

// TestForward: requests for operations of the master go there with the user as their caller, the member of its
// certificate and what they confirm; others stay, and no request goes further than to the master.
func TestForward(t *testing.T) {
	var here, there []done
	local, master := node(&here), node(&there)
	identify := func(_ *http.Request, need Right) (Caller, error) {
		return Caller{Member: "b1", Node: 7, UID: 99, User: "forged"}, nil
	}
	r := &relay{to: ForMembers(master, identify)}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(local, func(net.Conn) (Access, error) { return FullAccess, nil }, slog.New(slog.DiscardHandler))
	s.Forwarder = r
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	defer func() { s.Close(); <-ended }()
	c := NewClient(path, nil)
	defer c.Close()
	ctx := Confirm(t.Context(), "d5")

	if list, err := Get(ctx, c, ListPartitions); err != nil || len(list) != 1 || list[0].Name != "red" {
		t.Errorf("list: %v %v", list, err)
	}
	if p, err := Call(ctx, c, AddPartition, Partition{PKey: "0x8001"}); err != nil || p.PKey != "0x8001" {
		t.Errorf("add: %v %v", p, err)
	}
	if err := Do(ctx, c, DeletePartition, PartitionMembers{PKey: "a/b", Members: []string{"x@y", "ALL"}}); err != nil {
		t.Error(err)
	}
	var wrong *Error
	if _, err := Call(ctx, c, AddPartition, Partition{PKey: "0x0"}); !errors.As(err, &wrong) ||
		wrong.Code != CodeInvalid ||
		wrong.What != AddPartition.What || wrong.Fix != "weft pkey add --help" {
		t.Errorf("a refusal of the master: %+v", err)
	}
	if _, err := Get(ctx, c, ListDevices); err != nil {
		t.Error(err)
	}
	me := Caller{UID: os.Geteuid()}.named()
	by := Caller{Member: "b1", Node: 7, UID: me.UID, User: me.User}
	reader := by
	reader.User = "" // names are looked up for changes
	want := []done{{"list", "", reader, "d5"}, {"add", "0x8001", by, "d5"}, {"delete", "a/b x@y ALL", by, "d5"},
		{"add", "0x0", by, "d5"}}
	if diff := cmp.Diff(want, there); diff != "" {
		t.Error(diff)
	}
	if len(here) != 1 || here[0].Op != "devices" || here[0].Caller.Member != "" {
		t.Errorf("handled here: %+v", here)
	}
	var changes []bool
	for _, f := range r.seen {
		changes = append(changes, f.Change)
	}
	if diff := cmp.Diff([]bool{false, true, true, true}, changes); diff != "" {
		t.Error(diff)
	}

	// Where the forwarder leaves a request to this node, its body is whole.
	r.here, here = true, nil
	if _, err := Call(ctx, c, AddPartition, Partition{PKey: "0x8002"}); err != nil || len(here) != 1 ||
		here[0].In != "0x8002" || here[0].Caller != me {
		t.Errorf("here: %+v %v", here, err)
	}
	r.here, r.err = false, &Error{Code: CodeRefused, Why: "this member may not"}
	if _, err := Call(ctx, c, AddPartition, Partition{PKey: "0x8002"}); !errors.As(err, &wrong) ||
		wrong.Code != CodeRefused {
		t.Errorf("a refusal of this node: %v", err)
	}
}

// TestForMembers: another member gets the operations of the master only, by its certificate only, and nothing of what
// it states about itself is believed but the user.
func TestForMembers(t *testing.T) {
	var log []done
	mux := node(&log)
	_ = NewServer(mux, nil, slog.New(slog.DiscardHandler)) // registers the answer to what is unknown
	refused := false
	h := ForMembers(mux, func(_ *http.Request, need Right) (Caller, error) {
		if refused || need.Change || need.Reads != "" {
			return Caller{}, &Error{Code: CodeRefused, Why: "b1 may only read"}
		}
		return Caller{Member: "b1", Node: 7}, nil
	})
	ask := func(method, uri string, header map[string]string) (int, string) {
		q := httptest.NewRequest(method, uri, strings.NewReader("{}"))
		for k, v := range header {
			q.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, q)
		b, _ := io.ReadAll(w.Body)
		return w.Code, string(b)
	}
	for _, x := range []struct {
		method, uri string
		status      int
	}{{"GET", "/v1/devices", 403}, {"GET", "/v1/nothing", 403}, {"POST", "/v1/fabric/partitions", 403},
		{"GET", "/v1/fabric/history", 403}, {"GET", "/v1/fabric/partitions", 200}} {
		if status, body := ask(x.method, x.uri, nil); status != x.status {
			t.Errorf("%s %s: %d %s", x.method, x.uri, status, body)
		}
	}
	for _, x := range []struct {
		header map[string]string
		want   Caller
	}{
		{nil, Caller{Member: "b1", Node: 7, UID: -1}},
		{map[string]string{headerUID: "1000", headerUser: "ann"},
			Caller{Member: "b1", Node: 7, UID: 1000, User: "ann"}},
		{map[string]string{headerUID: "-7", headerUser: "a b"}, Caller{Member: "b1", Node: 7, UID: -1}},
		{map[string]string{headerUID: "x", headerUser: "\x1b[2J"}, Caller{Member: "b1", Node: 7, UID: -1}},
		{map[string]string{headerUser: strings.Repeat("a", 65)}, Caller{Member: "b1", Node: 7, UID: -1}},
		{map[string]string{"Weft-Member": "other"}, Caller{Member: "b1", Node: 7, UID: -1}},
	} {
		log = nil
		ask("GET", "/v1/fabric/partitions", x.header)
		if len(log) != 1 || log[0].Caller != x.want {
			t.Errorf("%v: %+v, want %+v", x.header, log, x.want)
		}
	}
	refused, log = true, nil
	if status, _ := ask("GET", "/v1/fabric/partitions", nil); status != 403 || len(log) != 0 {
		t.Errorf("a member that is removed: %d", status)
	}
}

// TestVia: what a node itself needs of the master is done where the forwarder decides, with the answer and the refusal
// of the master.
func TestVia(t *testing.T) {
	var there []done
	identify := func(*http.Request, Right) (Caller, error) { return Caller{Member: "b1", Node: 7}, nil }
	r := &relay{to: ForMembers(node(&there), identify)}
	local := 0
	add := func(key string) (Partition, error) {
		ctx := WithCaller(Confirm(t.Context(), ConfirmAll), Caller{UID: 12})
		return Via(ctx, r, AddPartition, Partition{PKey: key}, func(_ context.Context, p Partition) (Partition, error) {
			local++
			return p, nil
		})
	}
	if p, err := add("0x8001"); err != nil || p.PKey != "0x8001" || local != 0 {
		t.Errorf("%+v %v, %d times here", p, err, local)
	}
	var wrong *Error
	if _, err := add("0x0"); !errors.As(err, &wrong) || wrong.Code != CodeInvalid || wrong.Why != "no P_Key" {
		t.Errorf("a refusal of the master: %v", err)
	}
	if diff := cmp.Diff(done{"add", "0x8001", Caller{Member: "b1", Node: 7, UID: 12}, ConfirmAll},
		there[0]); diff != "" {
		t.Error(diff)
	}
	if !r.seen[0].Change {
		t.Error("a change is forwarded as a read")
	}
	r.err = &Error{Code: CodeNotMaster, Why: "not reached"}
	if _, err := add("0x8002"); !errors.Is(err, r.err) || local != 0 {
		t.Errorf("%v, %d times here", err, local)
	}
	r.here, r.err = true, nil
	if p, err := add("0x8003"); err != nil || p.PKey != "0x8003" || local != 1 {
		t.Errorf("%+v %v, %d times here", p, err, local)
	}
}
