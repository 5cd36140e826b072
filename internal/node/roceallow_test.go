// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/fabric/link/roce"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/service/cm"
	"weft/internal/verbs/hca"
)

// cmSender sends connection requests to the RoCEv2 port of a node, from addresses of the loopback interface.
func cmSender(t *testing.T, r *running) (send func(from string)) {
	l, err := roce.Open(roce.Config{Port: uint16(condtest.Port(t)), PeerPort: uint16(r.cfg.RoCEPort)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var req mad.CMREQ
	m := mad.NewCM(mad.AttrCMREQ, 1)
	req.Append(m.Data[:0])
	b := m.Append(nil)
	return func(from string) {
		p := &ib.Path{SGID: ib.GIDFromAddr(netip.MustParseAddr(from)),
			DGID: ib.GIDFromAddr(netip.MustParseAddr("127.0.0.1")), HopLimit: 64}
		d := pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: ib.DefaultPKey, QKey: ib.GSIQKey,
			SrcQPN: ib.QPNGSI, DestQPN: ib.QPNGSI}, Count: 1, MTU: uint32(len(b)), Data: mem.BytesPayload(b), Path: p}
		if res := l.Send(0, &d, mem.NewBatch(4096)); res != mem.OK {
			t.Fatal(res)
		}
		l.Flush(0)
	}
}

// TestRoCEAllow: with roce-allow a node accepts datagrams, also those of the connection manager, from listed addresses
// and its own, and connects to no other; the status shows the setting and what was dropped.
func TestRoCEAllow(t *testing.T) {
	const dropped = "drop_source_not_allowed"
	open := run(t, nil)
	send := cmSender(t, open)
	send("127.0.0.77")
	eventually(t, "without roce-allow everyone is served", func() bool {
		return open.counter(api.ScopeCM, "received") == 1 && open.counter(api.ScopeLink, dropped) == 0
	})
	if s := open.status(); len(s.RoCEAllow) != 0 || open.notices("roce_open") != 0 {
		t.Errorf("of a node that is no member: %q, %+v", s.RoCEAllow, s.Notices)
	}

	r := run(t, func(c *config.Config) { // by wire-local its own packets arrive as those of others do
		c.RoCEAllow, c.WireLocal = []string{"127.0.0.4/30", "198.51.100.0/24"}, true
	})
	send = cmSender(t, r)
	if n := r.notices("roce_not_allowed"); n != 0 {
		t.Errorf("%d notices before a packet", n)
	}
	send("127.0.0.77")
	eventually(t, "the stranger is dropped", func() bool { return r.counter(api.ScopeLink, dropped) == 1 })
	for i, from := range []string{"127.0.0.5", "127.0.0.1"} {
		send(from)
		eventually(t, "the request from "+from+" is served", func() bool {
			return r.counter(api.ScopeCM, "received") == uint64(i+1)
		})
	}
	if n := r.counter(api.ScopeLink, dropped); n != 1 {
		t.Errorf("%d packets dropped", n)
	}
	s := r.status()
	if !slices.Equal(s.RoCEAllow, r.cfg.RoCEAllow) {
		t.Errorf("status shows %q", s.RoCEAllow)
	}
	i := slices.IndexFunc(s.Notices, func(d api.Degraded) bool { return d.What == "roce_not_allowed" })
	if i < 0 || !strings.Contains(s.Notices[i].Why, "1 RoCEv2 packets") ||
		!strings.Contains(s.Notices[i].Fix, "--roce-allow 127.0.0.77") {
		t.Errorf("%+v", s.Notices)
	}
	connects(t, r)
}

// connects: rdma_cm and address vectors lead to addresses of roce-allow only. The node has one more address, which is
// none of the host, so that the host's routes do not count here.
func connects(t *testing.T, r *running) {
	p := *r.node.adapter.Port()
	p.Route = nil
	p.GIDs = append(slices.Clone(p.GIDs), hca.GIDEntry{GID: ib.GIDFromAddr(netip.MustParseAddr("203.0.113.1"))})
	r.node.adapter.SetPort(&p)
	own := uint8(len(p.GIDs) - 1)
	u := r.cmUser(t)
	for _, x := range []struct {
		dst  string
		err  error
		verb error
	}{
		{"198.51.100.7", nil, nil},
		{"198.51.101.7", cm.ErrDenied, syscall.EACCES},
		{"203.0.113.2", cm.ErrDenied, syscall.EACCES},
		{"203.0.113.1", nil, nil}, // its own
		{"127.0.0.1", nil, nil},   // the same
		{"239.1.1.1", nil, nil},   // a group: members are on this node too
	} {
		if _, _, err := u.path("203.0.113.1", x.dst); !errors.Is(err, x.err) {
			t.Errorf("rdma_resolve_addr of %s: %v, want %v", x.dst, err, x.err)
		}
		v := &hca.AHAttr{DGID: ib.GIDFromAddr(netip.MustParseAddr(x.dst)), SGIDIndex: own, Global: true}
		if err := addressHandle(t, r, v); !errors.Is(err, x.verb) {
			t.Errorf("ibv_create_ah to %s: %v, want %v", x.dst, err, x.verb)
		}
	}
}

// addressHandle makes an address handle in a session of its own.
func addressHandle(t *testing.T, r *running, v *hca.AHAttr) (err error) {
	t.Helper()
	l := r.node.lanes.First()
	if e := l.Do(func() {
		s := l.HCA.NewSession(r.node.adapter, events{}, 16, 16, false)
		if err = r.node.adapter.Attach(s); err != nil {
			return
		}
		var pd uint32
		if pd, err = s.CreatePD(); err == nil {
			_, err = s.CreateAH(pd, v)
		}
		s.Close()
	}); e != nil {
		t.Fatal(e)
	}
	return err
}

// events are of no interest.
type events struct{}

func (events) Event(ib.Event, uint32) {}

// TestRoCEOpenNotice: the status of a member without roce-allow reports that everyone reaches its RoCEv2 device.
func TestRoCEOpenNotice(t *testing.T) {
	for _, x := range []struct {
		allow []string
		want  int
	}{{nil, 1}, {[]string{"10.0.0.0/8"}, 0}} {
		r := run(t, func(c *config.Config) {
			c.Fabric, c.Store, c.TrunkPort, c.StorePort = true, config.StoreEmbedded, condtest.Port(t), condtest.Port(t)
			c.RoCEAllow = x.allow
		})
		if n := r.notices("roce_open"); n != 0 {
			t.Errorf("roce-allow %q, before the fabric: %d notices", x.allow, n)
		}
		if _, err := api.Call(context.Background(), r.cli, api.CreateToken, api.NewToken{Uses: 1}); err != nil {
			t.Fatal(err)
		}
		if n := r.notices("roce_open"); n != x.want {
			t.Errorf("roce-allow %q, of a member: %d notices, want %d", x.allow, n, x.want)
		}
		if d := r.degraded("roce_open"); d.What != "" {
			t.Errorf("it is degraded: %+v", d)
		}
	}
}
