// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/node/conn"
	"weft/internal/node/loop"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/service/cm"
)

// cmUser is a user of a node's communication manager.
type cmUser struct {
	t      *testing.T
	s      *conn.Service
	events chan cm.Event
}

func (r *running) cmUser(t *testing.T) *cmUser {
	return &cmUser{t, r.node.cm, make(chan cm.Event, 16)}
}

func (u *cmUser) hear(_ mono.Time, e *cm.Event) { u.events <- *e }

// do calls the manager.
func (u *cmUser) do(f func(now mono.Time) error) {
	u.t.Helper()
	err := loop.ErrStopped
	u.s.Do(func(now mono.Time) { err = f(now) })
	if err != nil {
		u.t.Fatal(err)
	}
}

// event waits for an event of the user.
func (u *cmUser) event(k cm.EventKind) cm.Event {
	u.t.Helper()
	select {
	case e := <-u.events:
		if e.Kind != k {
			u.t.Fatalf("%v (reason %v), want %v", e.Kind, e.Reason, k)
		}
		return e
	case <-time.After(limit):
		u.t.Fatalf("waited in vain for %v", k)
	}
	panic("not reached")
}

// path resolves an address and a path to it.
func (u *cmUser) path(src, dst string) (a cm.Address, p cm.Path, err error) {
	u.t.Helper()
	var from netip.Addr
	if src != "" {
		from = netip.MustParseAddr(src)
	}
	done := make(chan error, 1)
	u.s.Post(func(now mono.Time) {
		u.s.ResolveAddr(now, from, netip.MustParseAddr(dst), func(now mono.Time, found cm.Address, err error) {
			if a = found; err != nil {
				done <- err
				return
			}
			u.s.ResolvePath(now, &a, 0, func(_ mono.Time, found cm.Path, err error) {
				p = found
				done <- err
			})
		})
	})
	select {
	case err = <-done:
	case <-time.After(limit):
		u.t.Fatalf("no path to %s", dst)
	}
	return a, p, err
}

// TestCMConnects connects, exchanges private data, disconnects and looks a service up, over each path
// within a node.
func TestCMConnects(t *testing.T) {
	local := func(wire bool, lanes int) func(t *testing.T) *running {
		return func(t *testing.T) *running {
			return run(t, func(c *config.Config) { c.WireLocal, c.Lanes = wire, lanes })
		}
	}
	for _, c := range []struct {
		name     string
		start    func(t *testing.T) *running
		src, dst string
		link     ib.LinkLayer
		wire     bool
	}{
		{"within the node", local(false, 1), "", "127.0.0.1", ib.LinkEthernet, false},
		{"over the wire", local(true, 1), "", "127.0.0.1", ib.LinkEthernet, true},
		{"over the wire, two lanes, IPv6", local(true, 2), "::1", "::1", ib.LinkEthernet, true},
		{"between InfiniBand ports", func(t *testing.T) *running {
			r := twoNative(t)
			r.stacks()
			r.link(t, firstNative, "10.9.0.1/24")
			r.link(t, "vf", "10.9.0.2/24")
			return r
		}, "10.9.0.1", "10.9.0.2", ib.LinkInfiniBand, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := c.start(t)
			var file bytes.Buffer
			_, stop := r.capturing(api.CaptureSpec{}, &file)
			a, b := r.cmUser(t), r.cmUser(t)
			service, datagrams := cm.IPService(cm.SpaceTCP, 7471), cm.IPService(cm.SpaceUDP, 7471)
			b.do(func(mono.Time) error {
				_, err := b.s.Manager().Listen(&cm.ListenParams{ServiceID: service}, b.hear)
				_, err2 := b.s.Manager().Listen(&cm.ListenParams{ServiceID: datagrams}, b.hear)
				return errors.Join(err, err2)
			})
			addr, path, err := a.path(c.src, c.dst)
			if err != nil {
				t.Fatal(err)
			}
			if addr.Link != c.link || addr.Dst != netip.MustParseAddr(c.dst) || path.Link != c.link ||
				path.DGID != addr.DGID || !path.MTU.Valid() {
				t.Errorf("address %+v, path %+v", addr, path)
			}
			ip := cm.IPHeader{SrcPort: 1234, Src: addr.Src, Dst: addr.Dst}
			var active, passive *cm.Conn
			a.do(func(now mono.Time) (err error) {
				active, err = a.s.Manager().Connect(now, &cm.ConnectParams{ServiceID: service, Path: path,
					QPType: ib.RC, QPN: 0x1111, ResponderResources: 4, InitiatorDepth: 2,
					RetryCount: 7, RNRRetry: 6, AckDelay: 15, PrivateData: append(ip.Append(nil), "hello"...)}, a.hear)
				return err
			})
			e := b.event(cm.ConnectRequest)
			passive = e.Conn
			if q := e.Request; !q.IsIP || q.IP != ip ||
				string(q.PrivateData[cm.IPHeaderLen:cm.IPHeaderLen+5]) != "hello" || q.QPN != 0x1111 ||
				q.Path.SGID != path.DGID || q.Path.DGID != path.SGID || q.Path.SLID != path.DLID ||
				q.Path.DLID != path.SLID {
				t.Errorf("request %+v", q)
			}
			b.do(func(now mono.Time) error {
				return passive.Accept(now, &cm.AcceptParams{QPN: 0x2222, ResponderResources: 16, InitiatorDepth: 16,
					RNRRetry: 7, PrivateData: []byte("welcome")})
			})
			if e = a.event(cm.Response); e.Reply.QPN != 0x2222 || string(e.PrivateData[:7]) != "welcome" ||
				e.Reply.ResponderResources != 2 || e.Reply.InitiatorDepth != 4 {
				t.Errorf("response %+v", e.Reply)
			}
			a.do(func(now mono.Time) error { return active.Establish(now, nil) })
			b.event(cm.Established)
			b.do(func(mono.Time) error {
				v, _, err := passive.QPAttr(ib.RTR)
				if p := r.node.all.At(v.Path.Function).Port(); err == nil &&
					p.GIDs[v.Path.SGIDIndex].GID != v.Path.SGID {
					t.Errorf("source GID %d is not %v", v.Path.SGIDIndex, v.Path.SGID)
				}
				return err
			})
			b.do(func(now mono.Time) error { return passive.Disconnect(now, nil) })
			a.event(cm.Disconnected)
			b.event(cm.Disconnected)

			a.do(func(now mono.Time) error {
				_, err := a.s.Manager().Lookup(now, &cm.LookupParams{ServiceID: datagrams, Path: path,
					PrivateData: ip.Append(nil)}, a.hear)
				return err
			})
			e = b.event(cm.LookupRequest)
			if q := e.Request; !q.IsIP || q.IP != ip || q.Path.DGID != path.SGID {
				t.Errorf("inquiry %+v", q)
			}
			b.do(func(now mono.Time) error { return e.Inquiry.Accept(now, 0x33, 0x1234567, nil) })
			if e = a.event(cm.LookupResponse); e.Status != cm.LookupOK || e.QPN != 0x33 || e.QKey != 0x1234567 {
				t.Errorf("%+v", e)
			}
			a.do(func(now mono.Time) error {
				_, err := a.s.Manager().Connect(now, &cm.ConnectParams{ServiceID: cm.IPService(cm.SpaceTCP, 1),
					Path: path, QPType: ib.RC, QPN: 0x1113}, a.hear)
				return err
			})
			if e = a.event(cm.Rejected); e.Reason != cm.ReasonInvalidServiceID {
				t.Errorf("nobody listens: %v", e.Reason)
			}
			if n := r.counter(api.ScopeCM, "received_req"); n != 2 {
				t.Errorf("%d requests", n)
			}
			stop()
			frames := managementFrames(t, file.Bytes())
			times := 1
			if c.wire || c.link == ib.LinkInfiniBand {
				times = 2 // as they leave, and as they come
			}
			for _, attr := range []mad.AttributeID{mad.AttrCMREQ, mad.AttrCMREP, mad.AttrCMRTU, mad.AttrCMDREQ,
				mad.AttrCMDREP,
				mad.AttrCMSIDRReq, mad.AttrCMSIDRRep, mad.AttrCMREJ} {
				want := times
				if attr == mad.AttrCMREQ {
					want *= 2
				}
				var n int
				for _, f := range frames {
					if f.mad.MgmtClass != mad.ClassCM || f.mad.AttributeID != attr {
						continue
					}
					n++
					there, back := f.lrh.SLID == path.SLID && f.lrh.DLID == path.DLID, f.lrh.SLID == path.DLID &&
						f.lrh.DLID == path.SLID
					if c.link == ib.LinkInfiniBand && !there && !back {
						t.Errorf("attribute %#x goes from LID %d to %d", attr, f.lrh.SLID, f.lrh.DLID)
					}
				}
				if n < want {
					t.Errorf("a capture has %d of attribute %#x, want %d", n, attr, want)
				}
			}
			if c.link == ib.LinkInfiniBand {
				paths := map[mad.Method]int{}
				for _, f := range frames {
					if f.mad.MgmtClass == mad.ClassSA && f.mad.AttributeID == mad.AttrPathRecord &&
						f.iface == firstNative {
						paths[f.mad.Method]++
					}
				}
				if paths[mad.MethodGet] == 0 || paths[mad.MethodGetResp] == 0 {
					t.Errorf("a capture has questions for paths, and answers: %v", paths)
				}
			}
			if sent := r.counter(api.ScopeLink, "sent_packets") > 0; sent != c.wire {
				t.Errorf("packets sent over RoCEv2: %v, want %v", sent, c.wire)
			}
		})
	}
}

// TestCMAddresses: what has an address is found, and nothing else.
func TestCMAddresses(t *testing.T) {
	t.Parallel()
	r := twoNative(t)
	r.stacks()
	r.link(t, firstNative, "10.9.0.1/24")
	u := r.cmUser(t)
	for _, c := range []struct {
		src, dst string
		err      error
		link     ib.LinkLayer
		from     string
	}{
		{"", "127.0.0.1", nil, ib.LinkEthernet, "127.0.0.1"},
		{"", "0.0.0.0", nil, ib.LinkEthernet, "127.0.0.1"},
		{"0.0.0.0", "::ffff:127.0.0.1", nil, ib.LinkEthernet, "127.0.0.1"},
		{"", "10.9.0.1", nil, ib.LinkInfiniBand, "10.9.0.1"}, // to itself
		{"192.0.2.77", "127.0.0.1", cm.ErrNoAddress, 0, ""},
		{"127.0.0.1", "192.0.2.1", cm.ErrNoRoute, 0, ""},
		{"::1", "127.0.0.1", cm.ErrNoRoute, 0, ""},
		{"127.0.0.1", "127.9.9.9", cm.ErrNoRoute, 0, ""}, // no address of a port, and not another host's
		{"", "10.9.0.99", cm.ErrTimeout, 0, ""},
		{"10.9.0.1", "10.9.0.255", cm.ErrNoRoute, 0, ""},
	} {
		a, p, err := u.path(c.src, c.dst)
		if !errors.Is(err, c.err) || err == nil && (a.Link != c.link || a.Src != netip.MustParseAddr(c.from) ||
			p.Link != c.link) {
			t.Errorf("%q to %q: %+v, %v, want %v", c.src, c.dst, a, err, c.err)
		}
	}
	u.do(func(mono.Time) error {
		for _, c := range []struct {
			addr string
			err  error
		}{{"10.9.0.1", nil}, {"127.0.0.1", nil}, {"192.0.2.77", cm.ErrNoAddress}, {"0.0.0.0",
			cm.ErrNoAddress}, {"224.0.0.1", cm.ErrNoAddress}} {
			if a, err := u.s.Bound(netip.MustParseAddr(c.addr)); !errors.Is(err, c.err) || err == nil &&
				a.Src != netip.MustParseAddr(c.addr) {
				t.Errorf("bound %s: %+v, %v", c.addr, a, err)
			}
		}
		return nil
	})
	// An address that two ports have: one of them is bound, either has it.
	has := func(device, a string) (yes bool) {
		t.Helper()
		i := slices.IndexFunc(r.node.funcs.all(), func(f *function) bool { return f.a.Name == device })
		if i < 0 {
			t.Fatalf("no device %s", device)
		}
		f := r.node.funcs.all()[i].a.Number()
		u.do(func(mono.Time) error {
			yes = u.s.Has(f, netip.MustParseAddr(a))
			return nil
		})
		return yes
	}
	if !has(firstNative, "10.9.0.1") || has("vf", "10.9.0.1") || has(firstNative, "10.9.0.2") ||
		has(firstNative, "127.0.0.1") {
		t.Error("the address is not the first port's alone")
	}
	r.link(t, "vf", "10.9.0.1/24")
	if !has(firstNative, "10.9.0.1") || !has("vf", "10.9.0.1") || has("vf", "10.9.0.2") {
		t.Error("the address is not both ports'")
	}
}

// TestCMStrangers: what is no datagram of queue pair 1's equals goes no further, and has a name.
func TestCMStrangers(t *testing.T) {
	r := run(t, nil)
	s := r.node.cm
	var req mad.CMREQ
	m := mad.NewCM(mad.AttrCMREQ, 1)
	req.Append(m.Data[:0])
	for _, c := range []struct {
		counter string
		h       wire.Headers
		cut     int
	}{
		{"received", wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: ib.DefaultPKey, QKey: ib.GSIQKey,
			SrcQPN: 1}, 0},
		{"drop_qkey", wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: ib.DefaultPKey, QKey: ib.GSIQKey + 1,
			SrcQPN: 1}, 0},
		{"drop_pkey", wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: 0x8001, QKey: ib.GSIQKey, SrcQPN: 1}, 0},
		{"drop_source", wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: ib.DefaultPKey, QKey: ib.GSIQKey,
			SrcQPN: 17}, 0},
		{"drop_length", wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: ib.DefaultPKey, QKey: ib.GSIQKey,
			SrcQPN: 1}, 4},
		{"drop_length", wire.Headers{Opcode: ib.ServiceUD | ib.SendOnlyImm, PKey: ib.DefaultPKey, QKey: ib.GSIQKey,
			SrcQPN: 1}, 0},
	} {
		before := r.counter(api.ScopeCM, c.counter)
		l := r.node.lanes.First()
		c.h.DestQPN = ib.QPNGSI
		run := gsiRun(c.h, m.Append(nil)[c.cut:])
		if err := l.Do(func() { l.HCA.Receive(l.Now(), run) }); err != nil {
			t.Fatal(err)
		}
		if c.counter == "received" {
			eventually(t, "the request is answered", func() bool {
				return r.counter(api.ScopeCM, c.counter) == before+
					1
			})
			continue
		}
		if n := r.counter(api.ScopeCM, c.counter); n != before+1 {
			t.Errorf("%s is %d, not %d", c.counter, n, before+1)
		}
	}
	if n := s.Stats().DropInbox.Load(); n != 0 {
		t.Errorf("%d found the inbox full", n)
	}
}

// TestCMStrangersNative: of what arrives at queue pair 1 of an InfiniBand port, what a program's queue pair sent does
// not pass for a manager's.
func TestCMStrangersNative(t *testing.T) {
	r := twoNative(t)
	f := r.node.funcs.named(firstNative).a.Number()
	var req mad.CMREQ
	m := mad.NewCM(mad.AttrCMREQ, 1)
	req.Append(m.Data[:0])
	for _, c := range []struct {
		counter string
		from    ib.QPN
	}{{"drop_source", 17}, {"received", ib.QPNGSI}} {
		before := r.counter(api.ScopeCM, c.counter)
		d := mad.Datagram{Port: 1, SLID: 1, DLID: 1, SrcQPN: c.from, DstQPN: ib.QPNGSI, QKey: ib.GSIQKey,
			PKey: ib.DefaultPKey}
		m.Append(d.Data[:0])
		if !r.node.cm.Offer(f, &d) {
			t.Errorf("from queue pair %d: not taken", c.from)
		}
		eventually(t, c.counter, func() bool { return r.counter(api.ScopeCM, c.counter) == before+1 })
	}
}

// gsiRun is a datagram from another host to queue pair 1.
func gsiRun(h wire.Headers, b []byte) *pkt.Burst {
	return &pkt.Burst{Headers: h, Count: 1, MTU: uint32(len(b)), Data: mem.BytesPayload(b), IPv4: true,
		Path: &ib.Path{SGID: ib.GIDFromAddr(netip.MustParseAddr("192.0.2.9")),
			DGID: ib.GIDFromAddr(netip.MustParseAddr("127.0.0.1")), HopLimit: 64}}
}

// cmTurns is a task that counts.
type cmTurns struct {
	due, closed chan mono.Time
	at          mono.Time
}

// Turn implements conn.Task.
func (c *cmTurns) Turn(now mono.Time) mono.Time {
	if c.at.Due(now) {
		c.at = 0
		c.due <- now
	}
	return c.at
}

// Removed implements conn.Task.
func (c *cmTurns) Removed(mono.Time, uint16) {}

// Close implements conn.Task.
func (c *cmTurns) Close(now mono.Time) { c.closed <- now }

// TestCMTask: a task is called when it is due, and before the goroutine ends.
func TestCMTask(t *testing.T) {
	r := run(t, nil)
	u := r.cmUser(t)
	c := &cmTurns{due: make(chan mono.Time, 1), closed: make(chan mono.Time, 1)}
	var asked mono.Time
	u.do(func(now mono.Time) error {
		asked = now
		c.at = now.Add(5 * time.Millisecond)
		u.s.Add(c)
		return nil
	})
	select {
	case now := <-c.due:
		if now.Sub(asked) < 5*time.Millisecond {
			t.Errorf("called %v after it was asked for", now.Sub(asked))
		}
	case <-time.After(limit):
		t.Fatal("the task is not called")
	}
	r.stop()
	select {
	case <-c.closed:
	case <-time.After(limit):
		t.Fatal("the task is not told of the end")
	}
	if u.s.Do(func(mono.Time) {}) == nil {
		t.Error("the goroutine still runs functions")
	}
}
