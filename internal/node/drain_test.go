// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/device/ethdev/ethdevtest"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
	"weft/internal/proto/condtest"
)

// usedBy lists the kinds and names of what uses the node.
func (r *running) usedBy() (list []string) {
	r.t.Helper()
	all, err := r.node.users()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, u := range all {
		list = append(list, u.Kind+" "+u.Name)
	}
	return list
}

// newUses requests one of all that may use a host, and returns the errors.
func (r *running) newUses() map[string]error {
	ctx, errs := context.Background(), map[string]error{}
	errs["program"] = api.Do(ctx, r.cli, api.AnnounceProgram, api.None{})
	_, errs["IP link"] = api.Call(ctx, r.cli, api.AddIPLinks, api.IPRequest{Device: firstNative,
		PKeys: []string{"0x7fff"}, Backend: api.BackendTUN})
	_, errs["guest"] = api.Call(ctx, r.cli, api.AddVM, api.NewVM{Name: "late"})
	_, errs["device"] = api.Call(ctx, r.cli, api.AddFunction, api.NewFunction{Name: "late_ib0"})
	_, errs["Ethernet port"] = api.Call(ctx, r.cli, api.AddFunction, api.NewFunction{Name: "late_eth",
		Segment: api.SegmentVESW})
	_, errs["virtual port"] = api.Call(ctx, r.cli, api.AttachVESW, api.VESWRequest{Device: firstNative, VESW: 9,
		Backend: api.BackendTAP, Name: "late0"})
	return errs
}

// TestDrainRefusesAll: all that may use a drained host is refused at once, with a code of its own, the reason and the
// command that ends the drain.
func TestDrainRefusesAll(t *testing.T) {
	t.Parallel()
	r := master(t)
	r.stacks()
	r.node.drain("host3", true, false)
	begun := time.Now()
	for what, err := range r.newUses() {
		if code(err) != api.CodeDrained || !strings.HasPrefix(err.Error(), "cannot ") ||
			!strings.Contains(err.Error(), ": this host is drained: it accepts no new ") ||
			!strings.HasSuffix(err.Error(), ". fix: weft member undrain host3") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the refusals took %v", took)
	}
	if list := r.usedBy(); len(list) != 0 || len(r.ipLinks()) != 0 || r.vm("late").Name != "" {
		t.Errorf("%v, %+v", list, r.ipLinks())
	}
	r.node.drain("host3", false, false)
	for what, err := range r.newUses() {
		if err != nil {
			t.Errorf("after the drain: %s: %v", what, err)
		}
	}
}

// TestDrainOfUsers: what used the host before the drain goes on and is counted; a drain by force ends all of it, and
// what the configuration has is there again after the drain.
func TestDrainOfUsers(t *testing.T) {
	n := veswPair(t)[0]
	stacks := n.stacks()
	n.link(t, firstNative, "10.9.0.1/24")
	n.addVM(api.NewVM{Name: "web"})
	card := n.vm("web")
	connect := func() error {
		_, err := ethdevtest.NewGuest(t, card.Socket, ethdevtest.Options{Features: 1 << abi.FeatureMrgRxbuf})
		return err
	}
	if err := connect(); err != nil {
		t.Fatal(err)
	}
	n.vport(1, 0, 5, 4000)
	n.made(0)
	n.forwards("plug0")
	program := n.client(t, vhosttest.Options{})
	want := []string{"program node.test", "guest web", "IP link ib0_1_7fff", "VESW port plug0"}
	used := func() bool { return slices.Equal(n.usedBy(), want) }
	condtest.Until(t, "users", used)

	n.node.drain("host3", true, false)
	if _, err := program.CreatePD(); err != nil {
		t.Errorf("a program of before the drain: %v", err)
	}
	select {
	case <-stacks.of("ib0_1_7fff").end:
		t.Error("the link ends with the begin of the drain")
	default:
	}
	if !used() {
		t.Errorf("drained: %v", n.usedBy())
	}

	n.node.drain("host3", true, true)
	condtest.Until(t, "the end of all users", func() bool { return len(n.usedBy()) == 0 })
	for _, l := range n.ipLinks() {
		if !l.Pending || l.Reason != "the host is drained" || !l.Kept && l.NotKept == "it ends with its command" {
			t.Errorf("%+v", l)
		}
	}
	for _, d := range n.status().Degraded {
		if strings.HasPrefix(d.What, "vesw") || d.What == "ip_link" {
			t.Errorf("degraded by the drain: %+v", d)
		}
	}
	if err := connect(); err == nil {
		t.Error("a guest connects to a drained host")
	}
	if len(n.usedBy()) != 0 {
		t.Errorf("drained by force: %v", n.usedBy())
	}

	n.node.drain("host3", false, false)
	if err := connect(); err != nil {
		t.Errorf("a guest after the drain: %v", err)
	}
	n.client(t, vhosttest.Options{})
	want[3] = "VESW port plug1"
	condtest.Until(t, fmt.Sprint("users after the drain: ", n.usedBy()), used)
	n.forwards("plug1")
}
