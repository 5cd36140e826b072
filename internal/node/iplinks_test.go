// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/host/ifdev"
	"weft/internal/node/ipif"
	"weft/internal/proto/ib"
	"weft/internal/service/ipoib"
)

func (r *running) ipLinks() []api.IPLink {
	r.t.Helper()
	list, err := api.Get(context.Background(), r.cli, api.ListIPLinks)
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// pending lists the names of links that wait for their partition.
func (r *running) pending() (names []string) {
	for _, l := range r.ipLinks() {
		if l.Pending {
			names = append(names, l.Name)
		}
	}
	return names
}

// TestPortEventsWhileIPLinkStarts: events of the port arrive while the session of a link is being opened. The race
// detector judges.
func TestPortEventsWhileIPLinkStarts(t *testing.T) {
	r := master(t)
	r.stacks()
	a, first := r.node.funcs.adapter(firstNative), r.node.lanes.First()
	ctx, stop := context.WithCancel(context.Background())
	var events sync.WaitGroup
	defer events.Wait()
	defer stop()
	events.Go(func() {
		for ctx.Err() == nil {
			r.node.sessions.NotifyPort(a, []ib.Event{ib.EventSMChange})
			first.Do(func() {}) // until the lane has them
		}
	})
	for i := range 10 {
		r.link(t, firstNative, fmt.Sprintf("10.9.0.%d/24", i+1))
		if err := api.Do(ctx, r.cli, api.DeleteIPLinks, api.IPLinkDelete{Name: firstNative}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestIPLinksAreKept: a node that starts again has the links that were requested, with their addresses and mode,
// and none that was deleted.
func TestIPLinksAreKept(t *testing.T) {
	ctx := context.Background()
	s := &stacks{m: map[string]*ipStack{}}
	testHookOpened = func(n *Node) { n.ip.Open = s.open }
	defer func() { testHookOpened = nil }()
	r := run(t, func(c *config.Config) { c.Fabric = true })
	r.link(t, firstNative, "10.9.0.1/24")
	if _, err := api.Call(ctx, r.cli, api.ChangeIPLink, api.Named[api.IPAction]{Name: "ib0_1_7fff",
		Value: api.IPAction{Op: api.IPMode, Mode: "connected"}}); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"0x14", "0x15"} {
		if _, err := api.Call(ctx, r.cli, api.AddIPLinks, api.IPRequest{Device: firstNative, PKeys: []string{k},
			Backend: api.BackendTUN}); err != nil {
			t.Fatal(err)
		}
	}
	if err := api.Do(ctx, r.cli, api.DeleteIPLinks, api.IPLinkDelete{Name: firstNative,
		PKeys: []string{"0x15"}}); err != nil {
		t.Fatal(err)
	}
	r.end()
	r = r.again(nil)
	eventually(t, "the link is back", func() bool {
		return slices.ContainsFunc(r.ipLinks(), func(l api.IPLink) bool { return l.Name == "ib0_1_7fff" })
	})
	if got := r.pending(); !slices.Equal(got, []string{"ib0_1_14"}) {
		t.Errorf("pending: %v", got)
	}
	kept := r.node.ip.Kept()
	if len(kept) != 2 || !slices.Equal(kept[0].Addrs, []string{"10.9.0.1/24"}) || !slices.Equal(kept[0].Params,
		[]string{"mode=connected"}) {
		t.Errorf("%+v", kept)
	}
	if err := api.Do(ctx, r.cli, api.DeleteIPLinks, api.IPLinkDelete{Name: firstNative}); err != nil {
		t.Fatal(err)
	}
	r.end()
	if r = r.again(nil); len(r.ipLinks()) != 0 || len(r.node.ip.Kept()) != 0 {
		t.Errorf("%+v", r.ipLinks())
	}
}

// TestPendingIPLinks: a link in a partition without the port is listed with the reason, and can be deleted by
// its name, or by device and partition.
func TestPendingIPLinks(t *testing.T) {
	r, ctx := master(t), context.Background()
	r.stacks()
	add := func(key string) []api.IPLink {
		t.Helper()
		l, err := api.Call(ctx, r.cli, api.AddIPLinks, api.IPRequest{Device: firstNative, PKeys: []string{key},
			Backend: api.BackendTUN})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if l := add("0x9999"); len(l) != 1 || !l[0].Pending || l[0].Carrier || !strings.Contains(l[0].Reason,
		"not in partition 0x1999") {
		t.Fatalf("%+v", l)
	}
	if !slices.ContainsFunc(r.status().Degraded, func(d api.Degraded) bool {
		return d.What == "ip_link" && strings.Contains(d.Why, "ib0_1_1999 is pending") &&
			d.Fix == "weft pkey add 0x9999 weft_ib0@"+r.node.host+" where the subnet manager runs"
	}) {
		t.Errorf("%+v", r.status().Degraded)
	}
	add("0x14")
	if got := r.pending(); !slices.Equal(got, []string{"ib0_1_14", "ib0_1_1999"}) {
		t.Fatalf("%v", got)
	}
	// with the membership bit
	if err := api.Do(ctx, r.cli, api.DeleteIPLinks, api.IPLinkDelete{Name: "ib0_1_9999"}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Call(ctx, r.cli, api.AddPartition, api.Partition{PKey: "0x14",
		Members: []api.Member{{Port: firstNative}}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the partition comes, and the link with it", func() bool {
		l := r.ipLinks()
		return len(l) == 1 && l[0].Name == "ib0_1_14" && !l[0].Pending && l[0].Carrier
	})
	del := api.IPLinkDelete{Name: firstNative, PKeys: []string{"0x15"}}
	if err := api.Do(ctx, r.cli, api.DeleteIPLinks, del); code(err) != api.CodeNotFound {
		t.Errorf("another partition: %v", err)
	}
	del.PKeys = []string{"0x8014"}
	if err := api.Do(ctx, r.cli, api.DeleteIPLinks, del); err != nil {
		t.Error(err)
	}
	if l := r.ipLinks(); len(l) != 0 {
		t.Errorf("%+v", l)
	}
}

// TestIPLinkWithoutInterface: a request for links that get no interface is refused with the reason and the fix, and
// is not there afterwards.
func TestIPLinkWithoutInterface(t *testing.T) {
	r, ctx := master(t), context.Background()
	r.node.ip.Open = func(*ipif.Device) (ipoib.Backend, error) {
		return nil, ifdev.TUN.Explain("create it",
			syscall.EPERM)
	}
	want := api.IPRequest{Device: firstNative, PKeys: []string{"0x7fff"}, Backend: api.BackendTUN}
	for range 2 {
		_, err := api.Call(ctx, r.cli, api.AddIPLinks, want)
		if code(err) != api.CodeConflict || !strings.Contains(err.Error(), "CAP_NET_ADMIN. fix: ") ||
			!strings.Contains(err.Error(), "weft ipoib netstack") {
			t.Errorf("%v", err)
		}
	}
	eventually(t, "no link is left", func() bool { return len(r.ipLinks()) == 0 })
	if kept := r.node.ip.Kept(); len(kept) != 0 {
		t.Errorf("%+v", kept)
	}
}
