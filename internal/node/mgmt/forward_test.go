// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/control/api"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/store"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// members is a fabric as a node has it.
type members struct {
	self   member.Claims
	in     bool
	gone   error
	answer api.Answer
	err    error
	asked  []api.Forwarded
}

func (m *members) Self() (member.Claims, bool, error) { return m.self, m.in, m.gone }

func (m *members) Ask(_ context.Context, node ib.GUID, r *api.Forwarded) (*api.Answer, error) {
	if node != 2 {
		return nil, errors.New("that is not the node of the master")
	}
	m.asked = append(m.asked, *r)
	return &m.answer, m.err
}

// standby returns the node 1, which stands by for the manager of node 2, as the store has it. It has the device d, with
// the port 0x11.
func standby(t *testing.T, m *members) *Network {
	t.Helper()
	mem := store.NewMemory()
	t.Cleanup(func() { mem.Close() })
	own, master := mem.Open(), mem.Open()
	term, err := store.Campaign(t.Context(), master, manager.Election, store.Leader{Name: "b2 0000:0000:0000:0002"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { term.Resign(context.Background()) })
	n := New(Config{Log: slog.New(slog.DiscardHandler), GUID: 1, Host: "b1", Members: m,
		Now: func() mono.Time { return 1 }, Wall: func(mono.Time) time.Time { return time.Unix(1, 0) },
		DevicePort: func(name string) (ib.GUID, bool) { return 0x11, name == "d" },
		ManagedBy:  func() ib.LID { return 7 },
		Subnet:     subnet.New(subnet.Config{Log: slog.New(slog.DiscardHandler), SwitchPorts: 4})})
	n.store = own
	return n
}

// TestForward: a node that does not reach the master refuses a change, and reads by itself; so does one that is a
// member no more.
func TestForward(t *testing.T) {
	unreached := &api.UnreachedError{Err: errors.New("no route")}
	self := member.Claims{Name: "b1", Roles: member.HostRoles}
	yes := api.Answer{Status: http.StatusOK, Body: []byte(`{}`)}
	for _, x := range []struct {
		name   string
		m      members
		change bool
		here   bool
		asked  int
		code   api.Code
	}{
		{name: "in no fabric", change: true, here: true},
		{name: "a change", m: members{self: self, in: true, answer: yes}, change: true, asked: 1},
		{name: "a read", m: members{self: self, in: true, answer: yes}, asked: 1},
		{name: "a change without a way", m: members{self: self, in: true, err: unreached}, change: true, asked: 1,
			code: api.CodeNotMaster},
		{name: "a read without a way", m: members{self: self, in: true, err: unreached}, here: true, asked: 1},
		{name: "a change that may be done", m: members{self: self, in: true, err: errors.New("reset")}, change: true,
			asked: 1, code: api.CodeInternal},
		{name: "a change of one that was removed", m: members{self: self, in: true, gone: errors.New("removed")},
			change: true, code: api.CodeRefused},
		{name: "a read of one that was removed", m: members{self: self, in: true, gone: errors.New("removed")},
			here: true},
		{name: "a change of a leaf", m: members{self: member.Claims{Roles: member.Leaf}, in: true}, change: true,
			code: api.CodeRefused},
		{name: "another is master by now", m: members{self: self, in: true, answer: api.Answer{
			Status: http.StatusConflict, Body: []byte(`{"code":"not_master"}`)}}, change: true, here: true, asked: 1},
	} {
		n := standby(t, &x.m)
		a, here, err := n.Forwarder().Forward(t.Context(), &api.Forwarded{Method: "POST", URI: "/",
			Right: api.Right{Change: x.change}})
		var e *api.Error
		if errors.As(err, &e); (e != nil) != (x.code != "") || e != nil && e.Code != x.code {
			t.Errorf("%s: %v", x.name, err)
		}
		if here != x.here || len(x.m.asked) != x.asked || (a != nil) != (!x.here && x.code == "") {
			t.Errorf("%s: here %v, asked %d times, answer %v", x.name, here, len(x.m.asked), a)
		}
	}
}

// TestDeviceJoinsByMaster: a device of this node enters and leaves a switch by the node of the master, which may not
// have seen the device: its port goes by GUID.
func TestDeviceJoinsByMaster(t *testing.T) {
	m := &members{self: member.Claims{Name: "b1", Roles: member.HostRoles}, in: true,
		answer: api.Answer{Status: http.StatusOK, Body: []byte(`{"name":"lab"}`)}}
	n := standby(t, m)
	v, err := n.VESWs.AddPort(t.Context(), "lab", api.VESWPortAdd{Port: "d"})
	if err != nil || v.Name != "lab" {
		t.Errorf("%+v %v", v, err)
	}
	for _, confirm := range []string{"", "digest", api.ConfirmAll} {
		if err := n.VESWs.Leave(api.Confirm(t.Context(), confirm), "lab", "d"); err != nil {
			t.Error(err)
		}
	}
	if err := n.VESWs.Leave(t.Context(), "", "d"); err != nil { // in none
		t.Error(err)
	}
	by, right := api.Caller{UID: -1}, api.Right{Change: true}
	leave := api.Forwarded{Method: "DELETE", URI: "/v1/vesws/lab/ports/0000:0000:0000:0011", Right: right, Caller: by}
	confirmed := leave
	confirmed.Confirm = api.ConfirmAll
	want := []api.Forwarded{{Method: "POST", URI: "/v1/vesws/lab/ports", Right: right, Caller: by}, leave, confirmed,
		confirmed}
	if len(m.asked) > 0 {
		want[0].Body = m.asked[0].Body
	}
	if diff := cmp.Diff(want, m.asked); diff != "" {
		t.Fatal(diff)
	}
	if body := string(m.asked[0].Body); body != `{"port":"0000:0000:0000:0011","vport":null,"gateway":false}` {
		t.Error(body)
	}
	var e *api.Error
	m.answer = api.Answer{Status: http.StatusConflict, Body: []byte(`{"code":"contact"}`)}
	if err := n.VESWs.Leave(t.Context(), "lab", "d"); !errors.As(err, &e) || e.Code != api.CodeContact {
		t.Errorf("contact that is lost by now: %v", err)
	}
	m.err = &api.UnreachedError{Err: errors.New("no route")}
	if err := n.VESWs.Leave(t.Context(), "lab", "d"); err != nil {
		t.Errorf("the device stays where the master is away: %v", err)
	}
	if _, err := n.VESWs.AddPort(t.Context(), "lab", api.VESWPortAdd{Port: "d"}); !errors.As(err, &e) ||
		e.Code != api.CodeNotMaster {
		t.Errorf("without the master: %v", err)
	}
}

// TestDeleteOfNamedPort: a member without a manager compares at the node of the master, or else by its own store; what
// it cannot compare needs a confirmation as well.
func TestDeleteOfNamedPort(t *testing.T) {
	unreached := &api.UnreachedError{Err: errors.New("no route")}
	yes := func(body string) api.Answer { return api.Answer{Status: http.StatusOK, Body: []byte(body)} }
	self := member.Claims{Name: "b1"} // any member reads
	for _, x := range []struct {
		name    string
		m       members
		keep    func(t *testing.T, n *Network)
		port    ib.GUID
		users   []string
		lines   []string // nil: nothing is lost
		forward bool
	}{
		{name: "the master names what is lost", port: 0x11, forward: true,
			m:     members{self: self, in: true, answer: yes(`{"pairs":2,"lines":["b1 d: b2 d, in vesw lab"],"digest":"d"}`)},
			lines: []string{"b1 d: b2 d, in vesw lab"}},
		{name: "nothing is lost", port: 0x11, forward: true, m: members{self: self, in: true, answer: yes(`null`)}},
		{name: "programs, and what the master names", port: 0x11, forward: true, users: []string{"prog"},
			m: members{self: self, in: true, answer: yes(`{"lines":["x"],"digest":"d"}`)},
			lines: []string{"0000:0000:0000:0011: the sessions of prog end",
				"x"}},
		{name: "the master is away: by the store", port: 0x11, forward: true,
			m: members{self: self, in: true, err: unreached}, keep: keepLab,
			lines: []string{"0000:0000:0000:0011: 0000:0000:0000:0012, in vesw lab",
				"0000:0000:0000:0011: 0000:0000:0000:0012, in the default partition"}},
		{name: "a port that the store does not name", port: 0x77, forward: true,
			m: members{self: self, in: true, err: unreached}, keep: keepLab},
		{name: "the store is away as well", port: 0x11, m: members{self: self, in: true, err: unreached},
			keep: func(_ *testing.T, n *Network) { n.store.Close() },
			lines: []string{"0000:0000:0000:0011: what else loses contact is not known: " +
				"cannot use the store: it was closed"}},
		{name: "a member without a store", port: 0x11, m: members{self: self, in: true},
			keep: func(_ *testing.T, n *Network) { n.store, n.noStore = nil, errors.New("it did not start") },
			lines: []string{"0000:0000:0000:0011: what else loses contact is not known: " +
				"this node has no manager; the one at LID 7 is master"}},
		{name: "in no fabric, without a store", port: 0x11,
			keep: func(_ *testing.T, n *Network) { n.store = nil }},
		{name: "a device that is no port of the subnet", m: members{self: self, in: true}},
	} {
		t.Run(x.name, func(t *testing.T) {
			n := standby(t, &x.m)
			if x.keep != nil {
				x.keep(t, n)
			}
			var e *api.Error
			err := n.RefuseDelete(t.Context(), x.port, x.users)
			if !errors.As(err, &e) && x.lines != nil || e == nil && err != nil {
				t.Fatalf("it is not refused: %v", err)
			}
			if (len(x.m.asked) > 0) != x.forward {
				t.Errorf("the master was requested: %+v", x.m.asked)
			}
			if x.lines == nil {
				if e != nil {
					t.Errorf("it is refused: %v", e)
				}
				return
			}
			if e.Code != api.CodeContact || e.Lost == nil {
				t.Fatalf("%+v", e)
			}
			if diff := cmp.Diff(x.lines, e.Lost.Lines); diff != "" {
				t.Error(diff)
			}
			for _, c := range []string{api.ConfirmAll, e.Lost.Digest} {
				if err := n.RefuseDelete(api.Confirm(t.Context(), c), x.port, x.users); err != nil {
					t.Errorf("confirmed by %q: %v", c, err)
				}
			}
		})
	}
}

// keepLab writes a switch with the ports 0x11 and 0x12 to the store of a node.
func keepLab(t *testing.T, n *Network) {
	t.Helper()
	if err := manager.Edit(t.Context(), n.store, manager.Change{}, func(d *manager.Desired, _ *manager.Change) error {
		d.Ethernet.VESWs = []em.VESW{{Name: "lab", ID: 1, Members: []em.Member{{Port: 0x11, Num: 1}, {Port: 0x12, Num: 2}}}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestWriteNeedsTerm: in a fabric a node without a term changes nothing, also where a request reaches its handler.
func TestWriteNeedsTerm(t *testing.T) {
	m := &members{}
	n := standby(t, m)
	var err error
	n.manager, err = manager.New(manager.Config{Log: slog.New(slog.DiscardHandler), Store: n.store, Node: "b1",
		PortGUID: 0x11, Now: func() mono.Time { return 1 }, Post: func(func()) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.manager.Close()
	if s, ok := n.fenced(); !ok || s != n.store {
		t.Error("a node in no fabric writes nothing")
	}
	m.in = true
	if _, ok := n.fenced(); ok {
		t.Error("a node of a fabric writes without a term")
	}
}

// TestDestination: the master's node handles requests of its users; others go to it. A change needs a role everywhere.
func TestDestination(t *testing.T) {
	const own, other = ib.GUID(1), ib.GUID(2)
	read, change, history := api.Right{}, api.Right{Change: true}, api.Right{Reads: api.ListHistory.Reads}
	for _, x := range []struct {
		name    string
		roles   member.Role
		need    api.Right
		master  ib.GUID
		to      ib.GUID
		refused bool
	}{
		{"a read of the master", member.HostRoles, read, own, 0, false},
		{"a read of another", 0, read, other, other, false},
		{"a read without a master", 0, read, 0, 0, false},
		{"a change of the master", member.HostRoles, change, own, 0, false},
		{"a change of another", member.Administrator, change, other, other, false},
		{"a change of a voter", member.Voter, change, other, 0, true},
		{"a change without a master", member.HostRoles, change, 0, 0, false},
		{"a change of a leaf", member.Leaf, change, other, 0, true},
		{"the history by a manager", member.Manager, history, other, other, false},
		{"the history by a leaf", member.Leaf, history, other, 0, true},
		{"a change of a master without the role", member.Manager, change, own, 0, true},
	} {
		to, err := destination(member.Claims{Name: "b", Roles: x.roles}, x.need, own, x.master)
		var e *api.Error
		if to != x.to || (err != nil) != x.refused || err != nil && (!errors.As(err, &e) || e.Code != api.CodeRefused) {
			t.Errorf("%s: %v %v", x.name, to, err)
		}
	}
}

func TestNotMaster(t *testing.T) {
	for _, x := range []struct {
		a    api.Answer
		want bool
	}{
		{api.Answer{Status: http.StatusConflict, Body: []byte(`{"code":"not_master"}`)}, true},
		{api.Answer{Status: http.StatusConflict, Body: []byte(`{"code":"conflict"}`)}, false},
		{api.Answer{Status: http.StatusOK, Body: []byte(`{"code":"not_master"}`)}, false},
		{api.Answer{Status: http.StatusBadGateway, Body: []byte(`?`)}, false},
	} {
		if notMaster(&x.a) != x.want {
			t.Errorf("%+v", x.a)
		}
	}
}
