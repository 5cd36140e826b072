// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/join"
	"weft/internal/mgmt/store"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
)

// TestCommands: members pass commands on by their certificates over TLS. A leaf reads, and changes nothing; a removed
// member, and one that is away, reach nothing.
func TestCommands(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s.Open(), c)
	a.start(t)
	enter := func(n int, roles string) *host {
		t.Helper()
		line, err := a.createToken(t.Context(), api.NewToken{Uses: 1, Roles: roles})
		if err != nil {
			t.Fatal(err)
		}
		dir, own := t.TempDir(), condtest.Port(t)
		if _, err := Join(t.Context(), JoinSpec{Dir: dir, GUID: guid(n), Host: "127.0.0.1:" + port(a.cfg.Port),
			Port: own, Token: strings.Fields(line.Line)[4], Name: "host" + string(rune('0'+n)),
			Addresses: []string{"127.0.0.1:" + port(own)}, Now: c.now}); err != nil {
			t.Fatal(err)
		}
		h := newHost(t, dir, n, own, s.Open(), c)
		h.start(t)
		return h
	}
	b, leaf := enter(2, ""), enter(3, "leaf")
	condtest.Until(t, "each knows all", func() bool {
		return len(b.Roster().Members) == 3 && len(leaf.Roster().Members) == 3 && len(a.Roster().Members) == 3
	})

	callers := make(chan api.Caller, 10)
	mux := http.NewServeMux()
	api.Handle(mux, api.ListPartitions, func(ctx context.Context, _ api.None) ([]api.Partition, error) {
		callers <- api.CallerOf(ctx)
		return nil, nil
	})
	api.Handle(mux, api.AddPartition, func(ctx context.Context, p api.Partition) (api.Partition, error) {
		callers <- api.CallerOf(ctx)
		return p, nil
	})
	api.Handle(mux, api.ListHistory, func(context.Context, api.Since) ([]api.HistoryEntry, error) { return nil, nil })
	api.Handle(mux, api.ListDevices, func(context.Context, api.None) ([]api.Device, error) { return nil, nil })
	history := &api.Forwarded{Method: "GET", URI: "/v1/fabric/history", Right: api.Right{Reads: "history"}}
	read := &api.Forwarded{Method: "GET", URI: "/v1/fabric/partitions", Caller: api.Caller{UID: 5}}
	change := &api.Forwarded{Method: "POST", URI: "/v1/fabric/partitions", Body: []byte(`{"pkey":"0x1"}`),
		Right: api.Right{Change: true}, Caller: api.Caller{Member: "forged", UID: 0, User: "root"}}
	ask := func(h *host, to *host, r *api.Forwarded, status int) string {
		t.Helper()
		answer, err := h.Commands().Ask(t.Context(), to.cfg.GUID, r)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Status != status {
			t.Errorf("%s asks %s for %s: %d %s, want %d", h.Name(), to.Name(), r.Method, answer.Status, answer.Body,
				status)
		}
		return string(answer.Body)
	}
	ask(b, a, read, http.StatusServiceUnavailable) // it serves nothing yet
	a.Commands().Serve(mux)
	ask(b, a, read, http.StatusOK)
	if got := <-callers; got != (api.Caller{Member: "host2", Node: guid(2), UID: 5}) {
		t.Errorf("%+v", got)
	}
	ask(b, a, change, http.StatusOK)
	if got := <-callers; got != (api.Caller{Member: "host2", Node: guid(2), UID: 0, User: "root"}) {
		t.Errorf("%+v", got)
	}
	ask(leaf, a, read, http.StatusOK)
	<-callers
	if body := ask(leaf, a, change, http.StatusForbidden); !strings.Contains(body, "host3 has the roles leaf") {
		t.Error(body)
	}
	ask(b, a, history, http.StatusOK)
	if body := ask(leaf, a, history, http.StatusForbidden); !strings.Contains(body, "history") {
		t.Error(body)
	}
	if n := a.Commands().count.RefusedCommands.Load(); n != 2 {
		t.Errorf("%d refusals are counted, want 2", n)
	}
	// A stranger is counted as well, also for what no member may request.
	stranger := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer stranger.CloseIdleConnections()
	for _, path := range []string{"/v1/fabric/partitions", "/v1/devices"} {
		resp, err := stranger.Get("https://127.0.0.1:" + port(a.cfg.Port) + join.PathCommands + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("a stranger: %d", resp.StatusCode)
		}
	}
	counted := map[string]uint64{}
	a.Counters(func(_, _, name string, v uint64) { counted[name] = v })
	if counted["refused_commands"] != 4 || counted["commands"] < 6 {
		t.Errorf("counted: %v", counted)
	}
	if claims, in, err := leaf.Commands().Self(); !in || err != nil || claims.Name != "host3" ||
		claims.Roles != member.Leaf {
		t.Errorf("the leaf is %+v %v %v", claims, in, err)
	}

	var unreached *api.UnreachedError
	if _, err := b.Commands().Ask(t.Context(), ib.GUID(77), read); !errors.As(err, &unreached) {
		t.Errorf("no member: %v", err)
	}
	// What names a member without the role manager as the master gets no command, and so cannot answer one.
	leaf.Commands().Serve(mux)
	if _, err := b.Commands().Ask(t.Context(), guid(3), change); !errors.As(err, &unreached) ||
		!strings.Contains(err.Error(), "it is not the master") {
		t.Errorf("a leaf as the master: %v", err)
	}
	if len(callers) > 0 {
		t.Errorf("a leaf handles %+v", <-callers)
	}
	if _, err := a.remove(t.Context(), api.MemberRemoval{Name: "host3", Force: true}); err != nil {
		t.Fatal(err)
	}
	condtest.Until(t, "the removal is known", func() bool { return len(a.Roster().Members) == 2 })
	// Its connection is open still.
	if answer, err := leaf.Commands().Ask(t.Context(), guid(1), read); err == nil && answer.Status == http.StatusOK {
		t.Error("a removed member reads")
	}
	if len(callers) > 0 {
		t.Errorf("an operation was called for a removed member: %+v", <-callers)
	}
	// A master that was removed gets nothing, though the connection to it was verified before.
	b.Commands().Serve(mux)
	ask(a, b, read, http.StatusOK)
	<-callers
	if _, err := a.remove(t.Context(), api.MemberRemoval{Name: "host2", Force: true}); err != nil {
		t.Fatal(err)
	}
	condtest.Until(t, "the removal is known", func() bool { return len(a.Roster().Members) == 1 })
	if _, err := a.Commands().Ask(t.Context(), guid(2), change); !errors.As(err, &unreached) {
		t.Errorf("a master that was removed: %v", err)
	}
	if len(callers) > 0 {
		t.Errorf("a master that was removed handles %+v", <-callers)
	}
	a.Close()
	if _, err := b.Commands().Ask(t.Context(), guid(1), read); !errors.As(err, &unreached) {
		t.Errorf("a node that is away: %v", err)
	}
}
