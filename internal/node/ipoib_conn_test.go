// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/proto/mono"
	"weft/internal/service/cm"
)

// modes are how packets of links go to an address.
func (r *running) modes(t *testing.T, addr string) (modes []string) {
	t.Helper()
	list, err := api.Call(context.Background(), r.cli, api.ListIPNeighbours, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list {
		if n.Addr == addr {
			modes = append(modes, n.Mode)
		}
	}
	return modes
}

// TestIPLinksConnected: two functions of one node, a link in connected mode each: a packet of 65520 octets goes
// by the one connection that they make, both ways; one of them is set to datagrams and back; in the end no
// object is left.
func TestIPLinksConnected(t *testing.T) {
	t.Parallel()
	r := twoNative(t)
	s, ctx := r.stacks(), context.Background()
	r.link(t, firstNative, "10.9.0.1/24", "mode=connected")
	r.link(t, "vf", "10.9.0.2/24", "mode=connected")
	const from, to = "10.9.0.1", "10.9.0.2"
	// What was sent may be lost while a link goes and comes.
	carry := func(src, dst string, a, b *ipStack, n int) {
		t.Helper()
		try := 0
		eventually(t, fmt.Sprintf("a packet of %d octets from %s", n, src), func() bool {
			p := ipv4(src, dst, append(bytes.Repeat([]byte{byte(n), 0xa5}, (n-28)/2-4), fmt.Sprintf("%08d", try)...))
			try++
			select {
			case a.send <- p:
			case <-a.end:
				return false
			}
			for range 20 {
				if b.has(p) {
					return true
				}
				r.node.ip.List(context.Background()) // the lane has turned
			}
			return false
		})
	}
	a, b := s.of("ib0_1_7fff"), s.of("ib1_1_7fff")
	if a.info.MTU != 65520 || a.info.Address[0] != 0x80 {
		t.Errorf("%+v", a.info)
	}
	carry(from, to, a, b, 65520)
	carry(to, from, b, a, 65520)
	carry(from, to, a, b, 100)
	if m := r.modes(t, to); !slices.Equal(m, []string{"connected"}) {
		t.Errorf("packets go by %v", m)
	}
	l, err := api.Get(ctx, r.cli, api.ListIPLinks)
	if err != nil || len(l) != 2 || l[0].Connections != 1 || l[1].Connections != 1 || l[0].Mode != "connected" ||
		l[0].DatagramMTU != 2044 {
		t.Errorf("%v %+v", err, l)
	}
	for _, mode := range []string{"datagram", "connected"} {
		if err := api.Do(ctx, r.cli, api.ChangeIPLink, api.Named[api.IPAction]{Name: "ib1_1_7fff",
			Value: api.IPAction{Op: api.IPMode, Mode: mode}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the link is back", func() bool {
			l, err := api.Get(ctx, r.cli, api.ListIPLinks)
			i := slices.IndexFunc(l, func(l api.IPLink) bool { return l.Name == "ib1_1_7fff" })
			return err == nil && i >= 0 && l[i].Carrier && l[i].Mode == mode
		})
		b = s.of("ib1_1_7fff")
		size := map[string]int{"datagram": 2044, "connected": 65520}[mode]
		carry(from, to, a, b, size)
		carry(to, from, b, a, size)
	}
	for _, bad := range []struct{ link, mode string }{{"ib1_1_7fff", "both"}, {"ib9_1_7fff", "datagram"}} {
		if err := api.Do(ctx, r.cli, api.ChangeIPLink, api.Named[api.IPAction]{Name: bad.link,
			Value: api.IPAction{Op: api.IPMode, Mode: bad.mode}}); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
	for _, name := range []string{firstNative, "vf"} {
		if err := api.Do(ctx, r.cli, api.DeleteIPLinks, api.IPLinkDelete{Name: name}); err != nil {
			t.Error(err)
		}
	}
	if list := r.node.sessions.Internal(); len(list) != 0 {
		t.Errorf("%d sessions are left", len(list))
	}
	eventually(t, "the connection manager has no request that waits", func() bool {
		half := 0
		r.node.cm.Do(func(_ mono.Time) { _, half = r.node.cm.Manager().Load() })
		return half == 0
	})
}

// TestIPLinkListensLater: a link without a listener reports that once, and listens as soon as there is room.
func TestIPLinkListensLater(t *testing.T) {
	t.Parallel()
	r := twoNative(t)
	r.stacks()
	var others []*cm.Listener
	r.node.cm.Do(func(mono.Time) {
		for {
			l, err := r.node.cm.Manager().Listen(&cm.ListenParams{ServiceID: cm.ServiceID(0x4711<<32 + len(others))},
				func(mono.Time, *cm.Event) {})
			if err != nil {
				return
			}
			others = append(others, l)
		}
	})
	reported := func(text string) (n int) {
		events, err := api.Call(context.Background(), r.cli, api.ListIPEvents, api.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if strings.Contains(e.Text, text) {
				n++
			}
		}
		return n
	}
	r.link(t, firstNative, "10.9.0.1/24", "mode=connected")
	eventually(t, "an event: no neighbour can connect",
		func() bool { return reported("no neighbour can connect") == 1 })
	r.node.cm.Do(func(now mono.Time) {
		for _, l := range others {
			l.Close(now)
		}
	})
	eventually(t, "an event: neighbours can connect", func() bool { return reported("neighbours can connect") == 1 })
	if n := reported("no neighbour can connect"); n != 1 {
		t.Errorf("reported %d times", n)
	}
}
