// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"math/rand/v2"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// native is the InfiniBand port of a node, as function 0.
type native struct{ p Port }

func (n *native) Port(function uint16) (Port, bool) { return n.p, function == 0 }

func newNative(t testing.TB, lid ib.LID, lmc uint8, keys ...ib.PKey) *host {
	gid := ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(lid))
	n := &native{Port{Link: ib.LinkInfiniBand, CAGUID: ib.GUID(lid), LID: lid, LMC: lmc, MTU: ib.MTU2048,
		GIDs: []ib.GID{gid}, PKeys: keys}}
	return &host{t: t, now: 1, Manager: New(Config{Rand: rand.New(rand.NewPCG(uint64(lid), 1))}, n)}
}

// TestNativeREQStates: on an InfiniBand port a REQ is accepted if it states LID, GID and partition of
// its sender. Otherwise it is dropped: no connection results or ends, and there is no reply.
func TestNativeREQStates(t *testing.T) {
	const full, limited = ib.PKey(0x8001), ib.PKey(0x0001)
	other := ib.MakeGID(ib.DefaultGIDPrefix, 0x99)
	for _, c := range []struct {
		name   string
		lmc    uint8     // of the port that it comes to
		keys   []ib.PKey // of that port
		path   func(p *Path)
		lie    func(d *mad.Datagram, r *mad.CMREQ)
		refuse string // counter; "" where it is taken
		check  func(q *Request) bool
	}{
		{name: "the truth"},
		{name: "the truth, with a GRH", path: func(p *Path) { p.Global, p.HopLimit = true, 64 }},
		{name: "another LID", lie: func(_ *mad.Datagram, r *mad.CMREQ) { r.Primary.LocalLID = 0x11 },
			refuse: "drop_req_lid"},
		{name: "another LID, GRH", path: func(p *Path) { p.Global = true }, lie: func(_ *mad.Datagram,
			r *mad.CMREQ) {
			r.Primary.LocalLID = 0x11
		},
			refuse: "drop_req_lid"},
		{name: "no LID", lie: func(_ *mad.Datagram, r *mad.CMREQ) { r.Primary.LocalLID = 0 }, refuse: "drop_req_lid"},
		{name: "permissive LID in the subnet", lie: func(_ *mad.Datagram,
			r *mad.CMREQ) {
			r.Primary.LocalLID = ib.LIDPermissive
		}, refuse: "drop_req_lid"},
		{name: "from the permissive LID", lie: func(d *mad.Datagram, r *mad.CMREQ) {
			d.SLID,
				r.Primary.LocalLID = ib.LIDPermissive, ib.LIDPermissive
		},
			refuse: "drop_req_lid"},
		{name: "sides swapped", lie: func(_ *mad.Datagram, r *mad.CMREQ) {
			r.Primary.LocalLID, r.Primary.RemoteLID = r.Primary.RemoteLID, r.Primary.LocalLID
		}, refuse: "drop_req_lid"},
		{name: "path bits", lmc: 2, lie: func(_ *mad.Datagram, r *mad.CMREQ) { r.Primary.LocalLID = 0x13 }},
		{name: "beyond path bits", lmc: 2, lie: func(_ *mad.Datagram, r *mad.CMREQ) { r.Primary.LocalLID = 0x14 },
			refuse: "drop_req_lid"},
		{name: "across routers", path: func(p *Path) { p.Global = true }, lie: func(_ *mad.Datagram, r *mad.CMREQ) {
			r.Primary.LocalLID, r.Primary.RemoteLID = ib.LIDPermissive, ib.LIDPermissive
		}, check: func(q *Request) bool { return q.Path.DLID == 0x10 && q.Path.SLID == 0x20 }},
		{name: "another GID", path: func(p *Path) { p.Global = true }, lie: func(_ *mad.Datagram,
			r *mad.CMREQ) {
			r.Primary.LocalGID = other
		},
			refuse: "drop_req_gid"},
		{name: "another partition", keys: []ib.PKey{full, ib.DefaultPKey}, lie: func(_ *mad.Datagram,
			r *mad.CMREQ) {
			r.PKey = uint16(ib.DefaultPKey)
		},
			refuse: "drop_req_pkey"},
		{name: "limited member", lie: func(d *mad.Datagram, r *mad.CMREQ) {
			d.PKey, r.PKey = limited,
				uint16(limited)
		}},
		{name: "limited member that states a full key", keys: []ib.PKey{limited, full}, lie: func(d *mad.Datagram,
			_ *mad.CMREQ) {
			d.PKey = limited
		},
			check: func(q *Request) bool { return q.Path.PKey == full && q.Path.PKeyIndex == 1 }},
		{name: "two limited members", keys: []ib.PKey{limited}, lie: func(d *mad.Datagram,
			_ *mad.CMREQ) {
			d.PKey = limited
		}, refuse: "reject_gid"},
	} {
		t.Run(c.name, func(t *testing.T) {
			keys := c.keys
			if keys == nil {
				keys = []ib.PKey{full}
			}
			a, b := newNative(t, 0x10, 0, full), newNative(t, 0x20, c.lmc, keys...)
			if _, err := b.Listen(&ListenParams{ServiceID: service}, b.hear); err != nil {
				t.Fatal(err)
			}
			p := Path{Link: ib.LinkInfiniBand, SGID: ib.MakeGID(ib.DefaultGIDPrefix, 0x10),
				DGID: ib.MakeGID(ib.DefaultGIDPrefix, 0x20), SLID: 0x10, DLID: 0x20,
				PKey: full, MTU: ib.MTU2048, LifeTime: 18}
			if c.path != nil {
				c.path(&p)
			}
			if _, err := a.Connect(a.now, &ConnectParams{ServiceID: service, Path: p, QPType: ib.RC, QPN: 0x77},
				a.hear); err != nil {
				t.Fatal(err)
			}
			d := a.one(mad.AttrCMREQ)
			if c.refuse != "" {
				// The lie is about the peer of a connection that there is: that stays.
				b.take(d)
				b.event(ConnectRequest)
			}
			if c.lie != nil {
				var r mad.CMREQ
				r.Parse(d.Data[mad.HeaderLen:])
				if c.refuse != "" {
					r.LocalCommID++
				}
				if c.refuse == "reject_gid" {
					r.QPN++
				}
				c.lie(&d, &r)
				r.Append(d.Data[:mad.HeaderLen])
			}
			before := counter(b, c.refuse)
			b.take(d)
			if c.refuse == "" {
				if q := b.event(ConnectRequest).Request; q.Path.SGID != p.DGID || q.Path.DGID != p.SGID ||
					c.check != nil && !c.check(q) {
					t.Errorf("request %+v", q)
				}
				return
			}
			if n := counter(b, c.refuse); n != before+1 {
				t.Errorf("%s is %d, not %d", c.refuse, n, before+1)
			}
			if c.refuse == "reject_gid" {
				b.one(mad.AttrCMREJ)
			}
			b.quiet()
			if len(b.conns) != 1 {
				t.Errorf("%d connections", len(b.conns))
			}
		})
	}
}

// TestNativeStale: a REQ, or a REP, with the queue pair of a connection ends that connection (IBA
// volume 1, 12.9.8.3.1) if it comes from the peer's port. From another port it is refused as well, for
// two connections cannot have one queue pair, but ends nothing.
func TestNativeStale(t *testing.T) {
	const key = ib.PKey(0x8001)
	path := func(from, to ib.LID) Path {
		return Path{Link: ib.LinkInfiniBand, SGID: ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(from)),
			DGID: ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(to)), SLID: from, DLID: to,
			PKey: key, MTU: ib.MTU2048, LifeTime: 18}
	}
	ask := func(h *host, p Path, qpn ib.QPN) mad.Datagram {
		t.Helper()
		if _, err := h.Connect(h.now, &ConnectParams{ServiceID: service, Path: p, QPType: ib.RC, QPN: qpn},
			h.hear); err != nil {
			t.Fatal(err)
		}
		return h.one(mad.AttrCMREQ)
	}
	listen := func(h *host) {
		if _, err := h.Listen(&ListenParams{ServiceID: service}, h.hear); err != nil {
			t.Fatal(err)
		}
	}
	// A host that claims to be the adapter of LID 0x10 after a restart.
	claims := func(n *host) { n.ports.(*native).p.CAGUID, n.rand = 0x10, rand.New(rand.NewPCG(99, 1)) }
	for _, c := range []struct {
		name string
		lid  ib.LID // where the other message comes from
		lmc  uint8
		ends bool
	}{
		{"the peer's port", 0x10, 0, true},
		{"a stranger's", 0x30, 0, false},
		{"another path of the peer's port", 0x12, 2, true},
		{"a port beyond its paths", 0x14, 2, false},
	} {
		outcome := func(t *testing.T, b *host, y *Conn, reject mad.AttributeID) {
			t.Helper()
			list := b.sent()
			if c.ends {
				if k := kindsOf(list); len(k) != 2 || k[0] != mad.AttrCMDREQ || k[1] != reject || list[0].DLID != 0x10 {
					t.Errorf("sent %#x", k)
				}
				return
			}
			if k := kindsOf(list); len(k) != 1 || k[0] != reject || list[0].DLID != c.lid {
				t.Errorf("sent %#x", k)
			}
			if y.state != established || counter(b, "drop_foreign") != 1 {
				t.Errorf("the connection is %v, %d foreign messages", y.state, counter(b, "drop_foreign"))
			}
		}
		t.Run("REQ of "+c.name, func(t *testing.T) {
			a, b, z := newNative(t, 0x10, 0, key), newNative(t, 0x20, c.lmc, key), newNative(t, c.lid, 0, key)
			listen(b)
			b.take(ask(a, path(0x10, 0x20), 0x77))
			y := b.event(ConnectRequest).Conn
			a.take(b.accept(y, 0x55))
			b.take(a.establish(a.event(Response).Conn))
			b.event(Established)
			claims(z)
			b.take(ask(z, path(c.lid, 0x20), 0x77))
			outcome(t, b, y, mad.AttrCMREJ)
		})
		t.Run("REP of "+c.name, func(t *testing.T) {
			a, b, z := newNative(t, 0x10, 0, key), newNative(t, 0x20, c.lmc, key), newNative(t, c.lid, 0, key)
			listen(a)
			listen(z)
			a.take(ask(b, path(0x20, 0x10), 0x55))
			b.take(a.accept(a.event(ConnectRequest).Conn, 0x77))
			y := b.event(Response).Conn
			b.establish(y)
			claims(z)
			z.take(ask(b, path(0x20, c.lid), 0x56))
			b.take(z.accept(z.event(ConnectRequest).Conn, 0x77))
			if e := b.event(Rejected); e.Reason != ReasonStale || e.Conn == y {
				t.Errorf("%+v", e)
			}
			list := b.sent()
			if k := kindsOf(list); c.ends && (len(k) != 2 || k[0] != mad.AttrCMREJ || k[1] != mad.AttrCMDREQ) ||
				!c.ends && (len(k) != 1 || k[0] != mad.AttrCMREJ) {
				t.Errorf("sent %#x", k)
			}
			if !c.ends && (y.state != established || counter(b, "drop_foreign") != 1) {
				t.Errorf("the connection is %v", y.state)
			}
		})
	}
}

// counter returns one by its name.
func counter(h *host, name string) (v uint64) {
	h.t.Helper()
	found := name == ""
	h.Stats.Each(func(n string, value uint64) {
		if n == name {
			v, found = value, true
		}
	})
	if !found {
		h.t.Fatalf("no counter %q", name)
	}
	return v
}
