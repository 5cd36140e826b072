// SPDX-License-Identifier: Apache-2.0

package vmcard

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/node/intent"
	"weft/internal/node/vesw"
	"weft/internal/verbs/hca"
)

// savingKeeper is a Keeper that counts what it saved.
type savingKeeper struct{ saved int }

func (k *savingKeeper) Edit(_ context.Context, _ string, change func() error) error {
	err := change()
	if err == nil {
		k.saved++
	}
	return err
}

func (k *savingKeeper) Kept() (bool, string) { return true, "" }
func (k *savingKeeper) Forget(string) bool   { return false }

// noVESWs refuses every operation, as a node that is not the master does.
type noVESWs struct{}

var errNotMaster = &api.Error{Code: api.CodeNotMaster, Why: "not the master"}

func (noVESWs) Get(context.Context, string) (api.VESW, error) { return api.VESW{}, errNotMaster }
func (noVESWs) AddPort(context.Context, string, api.VESWPortAdd) (api.VESW, error) {
	return api.VESW{}, errNotMaster
}
func (noVESWs) Leave(context.Context, string, string) error { return nil }

// newTestCards returns cards with functions that are never added to a node: fail is the result of adding one.
func newTestCards(t *testing.T, fail *error) (*Cards, *savingKeeper) {
	k := &savingKeeper{}
	var c *Cards
	c = New(Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Keeper: k, VESWs: noVESWs{},
		Admit:       func() error { return nil },
		AddFunction: func(m *Card, _ *api.FunctionChange, _ func(*hca.Adapter) error) error { return *fail },
		RemoveFunction: func(name string) error {
			c.Card(name).Remove()
			return nil
		},
		PortState: func(uint16) vesw.PortState { return vesw.PortState{} },
		AwaitPort: func(context.Context, func() bool) {}})
	return c, k
}

// TestMake: a card has a MAC and a socket of its own; what cannot be made leaves nothing behind.
func TestMake(t *testing.T) {
	var fail error
	c, _ := newTestCards(t, &fail)
	a, err := c.Make(api.NewVM{Name: "a"}, &api.FunctionChange{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r := a.Request(); r.Queues != 1 || !strings.HasPrefix(r.MAC, "52:54:00:") ||
		r.Socket != filepath.Join(c.cfg.Dir, socketDir, "a.sock") {
		t.Errorf("%+v", r)
	}
	file := filepath.Join(c.cfg.Dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []api.NewVM{
		{Name: "a"}, {Name: "b", Socket: a.Request().Socket}, {Name: "b", Socket: file}, {Name: "b", MAC: "1"},
	} {
		if _, err := c.Make(want, &api.FunctionChange{}, nil); err == nil {
			t.Errorf("%+v was made", want)
		}
	}
	fail = errors.New("no function")
	if _, err := c.Make(api.NewVM{Name: "c"}, &api.FunctionChange{}, nil); !errors.Is(err, fail) || c.Has("c") {
		t.Errorf("%v, %v", err, c.Has("c"))
	}
	if len(c.All()) != 1 || !c.Has("a") {
		t.Errorf("%d cards", len(c.All()))
	}
	a.Remove()
	if c.Has("a") {
		t.Error("a removed card is left")
	}
}

// ownSessions are sessions of a node of uid 7.
type ownSessions struct{ Sessions }

func (ownSessions) Own(uid int) bool { return uid == 0 || uid == 7 }

// TestSocketUsers: users of the node's devices may not connect to a card, unless it was added for them.
func TestSocketUsers(t *testing.T) {
	var fail error
	c, _ := newTestCards(t, &fail)
	c.cfg.Sessions = ownSessions{}
	for _, x := range []struct {
		allow  int
		mode   os.FileMode
		served bool // user 1002
	}{{0, 0o600, false}, {1002, 0o666, true}, {1003, 0o666, false}} {
		m, err := c.newCard(api.NewVM{Name: "a", AllowUID: x.allow})
		if err != nil {
			t.Fatal(err)
		}
		if m.socketMode() != x.mode || m.serves(1002) != x.served || !m.serves(0) || !m.serves(7) {
			t.Errorf("%+v: mode %v, served %v", x, m.socketMode(), m.serves(1002))
		}
	}
	for _, want := range []api.NewVM{{Name: "a", AllowUID: -1}, {Name: "a", AllowUID: 1002, Connect: "/x"}} {
		if _, err := c.newCard(want); err == nil {
			t.Errorf("%+v was made", want)
		}
	}
}

// TestRefusals: the answer to a request that fails names what helps, and nothing is saved.
func TestRefusals(t *testing.T) {
	var fail error
	c, k := newTestCards(t, &fail)
	for _, x := range []struct {
		fail error
		want api.NewVM
		fix  string
	}{
		{intent.ErrNameTaken, api.NewVM{Name: "a"}, "choose another name"},
		{hca.ErrNoFunction, api.NewVM{Name: "a"}, "start it again"},
		{errors.New("permission denied"), api.NewVM{Name: "a"}, "choose another --socket"},
		{nil, api.NewVM{Name: "a", VESW: "blue"}, "weft vm add a without --vesw here"},
	} {
		fail = x.fail
		var e *api.Error
		if _, err := c.add(t.Context(), x.want); !errors.As(err, &e) || !strings.HasPrefix(e.Fix, x.fix) {
			t.Errorf("%+v, %v: %v", x.want, x.fail, err)
		}
	}
	if err := c.remove(t.Context(), "a"); err == nil || k.saved != 0 || len(c.All()) != 0 {
		t.Errorf("%v, saved %d times, %d cards", err, k.saved, len(c.All()))
	}
	absent := errors.New("no fabric")
	c.cfg.Absent = absent
	if _, err := c.add(t.Context(), api.NewVM{Name: "a"}); !errors.Is(err, absent) {
		t.Error(err)
	}
}
