// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/agent"
	"weft/internal/node/session"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/transport"
)

const internalQKey ib.QKey = 0x0b1b

// neighbour is a user in the node with a UD queue pair that echoes or counts.
type neighbourQP struct {
	t    *testing.T
	r    *session.Internal
	pd   uint32
	mr   *session.MR
	cq   *session.CQ
	qp   *session.QP
	came []hca.CQE
	done atomic.Int32 // completions of both kinds
}

// Begin, Finish, Sleep and Deadline implement lane.Poller.
func (u *neighbourQP) Begin(mono.Time) bool      { return false }
func (u *neighbourQP) Finish(now mono.Time) bool { return u.r.Complete(now) }
func (u *neighbourQP) Sleep() bool               { return !u.r.Completed() }
func (u *neighbourQP) Deadline() mono.Time       { return 0 }

// slotLen is a datagram of the largest MTU with its GRH.
const slotLen = 40 + 4096

// openUser makes a user of a device with 8 receives posted.
func (r *running) openUser(t *testing.T, device, name string) *neighbourQP {
	t.Helper()
	res, err := r.node.sessions.OpenInternal(r.node.funcs.named(device).a, name, session.InternalQPs, nil)
	if err != nil {
		t.Fatal(err)
	}
	u := &neighbourQP{t: t, r: res}
	t.Cleanup(func() {
		res.Lane().Do(func() { res.Lane().RemovePoller(u) })
		res.Close()
	})
	u.do(func() (err error) {
		res.Lane().AddPoller(u)
		if u.pd, err = res.Session().CreatePD(); err != nil {
			return err
		}
		if u.mr, err = res.RegisterMR(u.pd, 16*slotLen, func(b []byte) mem.Space {
			return mem.NewSlice(0,
				b)
		}); err != nil {
			return err
		}
		if u.cq, err = res.CreateCQ(32, u.completed); err != nil {
			return err
		}
		if u.qp, err = res.CreateQP(u.pd, u.cq, u.cq, 8, 8); err != nil {
			return err
		}
		now := r.node.now()
		for _, s := range []struct {
			a    transport.Attr
			mask ib.AttrMask
		}{{transport.Attr{State: ib.Init, QKey: internalQKey, Port: 1},
			ib.AttrState | ib.AttrQKey | ib.AttrPKeyIndex | ib.AttrPort},
			{transport.Attr{State: ib.RTR}, ib.AttrState}, {transport.Attr{State: ib.RTS},
				ib.AttrState | ib.AttrSQPSN}} {
			if err := u.qp.Change(now, s.a, s.mask); err != nil {
				return err
			}
		}
		return u.recv(now, 8)
	})
	return u
}

// do runs f on the lane.
func (u *neighbourQP) do(f func() error) {
	u.t.Helper()
	var err error
	if e := u.r.Lane().Do(func() { err = f() }); e != nil || err != nil {
		u.t.Fatal(e, err)
	}
}

func (u *neighbourQP) recv(now mono.Time, n int) error {
	for i := range n {
		p := u.qp.RecvSlot()
		if p == nil {
			return fmt.Errorf("receive %d found no room", i)
		}
		*p = session.RecvRequest{ID: uint64(i), Addr: uint64(i) * slotLen, LKey: u.mr.LKey, Len: slotLen}
		u.qp.RecvPosted(now)
	}
	return nil
}

func (u *neighbourQP) completed(mono.Time) {
	var e [5]hca.CQE
	for n := u.cq.Poll(e[:]); n > 0; n = u.cq.Poll(e[:]) {
		u.came = append(u.came, e[:n]...)
		u.done.Add(int32(n))
	}
}

// path makes an address handle on the way to another user.
func (u *neighbourQP) path(to *hca.AHAttr) (h uint32) {
	u.t.Helper()
	u.do(func() (err error) { h, err = u.r.Session().CreateAH(u.pd, to); return err })
	return h
}

// send sends n datagrams of different lengths and content.
func (u *neighbourQP) send(ah uint32, dest ib.QPN, n int) {
	u.t.Helper()
	u.do(func() error {
		for i := range n {
			at := uint64(8+i) * slotLen
			copy(u.mr.Bytes[at:], bytes.Repeat([]byte{byte(i + 1)}, slotLen))
			p := u.qp.SendSlot()
			if p == nil {
				return fmt.Errorf("send %d found no room", i)
			}
			*p = session.SendRequest{ID: 100 + uint64(i), Addr: at, LKey: u.mr.LKey, Len: uint32(100 * (i + 1)),
				AH: ah, Dest: dest, QKey: internalQKey, Signaled: true}
		}
		u.qp.SendPosted()
		return nil
	})
}

// twoNative is a node with two InfiniBand ports that are active.
func twoNative(t *testing.T) *running {
	t.Helper()
	r := master(t)
	if _, err := api.Call(context.Background(), r.cli, api.AddFunction, api.NewFunction{Name: "vf"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second port is active", func() bool {
		s := r.status()
		return len(s.Devices) == 3 && !slices.ContainsFunc(s.Devices, func(d api.DeviceSummary) bool {
			return d.PortState != "ACTIVE"
		})
	})
	return r
}

func (u *neighbourQP) lid() ib.LID { return u.r.Adapter().Port().LID }
func (u *neighbourQP) gid() ib.GID { return u.r.Adapter().Port().GIDs[0].GID }

// TestInternalSessions: two users in the node, each of a function of its own, exchange datagrams
// through the calls that sessions of programs use, and people see them.
func TestInternalSessions(t *testing.T) {
	r := twoNative(t)
	a, b := r.openUser(t, firstNative, "ipoib"), r.openUser(t, "vf", "ipoib")
	ah := a.path(&hca.AHAttr{DLID: b.lid(), DGID: b.gid(), Global: true})
	for range 3 { // rings go round
		before := [2]int32{a.done.Load(), b.done.Load()}
		a.send(ah, b.qp.Num(), 8)
		eventually(t, "both sides complete", func() bool {
			return a.done.Load() == before[0]+8 &&
				b.done.Load() == before[1]+8
		})
		b.do(func() error {
			for i, e := range b.came[len(b.came)-8:] {
				if e.Status != ib.Success || e.Op != ib.WCRecv || e.WRID != uint64(i) ||
					e.ByteLen != uint32(40+100*(i+1)) || e.SrcQPN != a.qp.Num() ||
					e.SLID != a.lid() || e.Flags&ib.WCGRH == 0 {
					return fmt.Errorf("completion %d: %+v", i, e)
				}
				at := i * slotLen
				if got := b.mr.Bytes[at+40 : at+int(e.ByteLen)]; !bytes.Equal(got, bytes.Repeat([]byte{byte(i + 1)},
					len(got))) {
					return fmt.Errorf("datagram %d arrived as another", i)
				}
			}
			return b.recv(r.node.now(), 8)
		})
	}
	a.do(func() error {
		if out, _ := a.qp.Outstanding(); out != 0 || a.qp.RecvSlot() != nil {
			return fmt.Errorf("%d sends are out, or a receive queue of 8 took 9", out)
		}
		return nil
	})

	res, err := api.Get(context.Background(), r.cli, api.GetResources)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []*neighbourQP{a, b} {
		name := u.r.Adapter().Name
		own := func(o api.Owner) bool { return o.Comm == "ipoib" && o.Device == name && o.Session == u.r.Serial() }
		if !slices.ContainsFunc(res.QPs, func(q api.QP) bool {
			return own(q.Owner) && q.LQPN == uint32(u.qp.Num()) && q.Type == "UD" && q.State == "RTS"
		}) ||
			!slices.ContainsFunc(res.MRs, func(m api.MR) bool {
				return own(m.Owner) && m.Length == 16*slotLen &&
					m.Memory == "node"
			}) ||
			!slices.ContainsFunc(res.CQs, func(c api.CQ) bool { return own(c.Owner) && c.CQE == 32 }) {
			t.Errorf("weft res does not have the objects of %s: %+v", name, res)
		}
	}
	s := r.status()
	if i := slices.IndexFunc(s.Sessions, func(v api.Session) bool {
		return v.Comm == "ipoib" &&
			v.Device == "vf"
	}); i < 0 || s.Sessions[i].Objects != 4 ||
		s.Sessions[i].Memory != "node" {
		t.Errorf("weft status: %+v", s.Sessions)
	}
}

// TestInternalSessionQuotas: a user in the node has the quotas of its function.
func TestInternalSessionQuotas(t *testing.T) {
	r := master(t)
	if _, err := api.Call(context.Background(), r.cli, api.AddFunction, api.NewFunction{Name: "small",
		FunctionChange: api.FunctionChange{Quotas: api.Quotas{Sessions: 1, QPs: 3, AHs: 1}}}); err != nil {
		t.Fatal(err)
	}
	u := r.openUser(t, "small", "ipoib")
	u.do(func() error {
		if _, err := u.r.CreateQP(u.pd, u.cq, u.cq, 8, 8); !errors.Is(err, syscall.ENOSPC) {
			return fmt.Errorf("a second queue pair: %v", err)
		}
		if err := u.mr.Deregister(); err != nil {
			return err
		}
		if err := u.cq.Destroy(); !errors.Is(err, syscall.EBUSY) {
			return fmt.Errorf("a completion queue in use: %v", err)
		}
		return errors.Join(u.qp.Destroy(r.node.now()), u.cq.Destroy(), u.r.Session().DestroyPD(u.pd))
	})
	if _, err := r.node.sessions.OpenInternal(r.node.funcs.named("small").a, "ipoib", session.InternalQPs,
		nil); !errors.Is(err, hca.ErrNoSession) {
		t.Errorf("a second session: %v", err)
	}
}

// TestInternalSessionAllocates: the way of a datagram, from the request to the completion at the
// other side, needs no memory.
func TestInternalSessionAllocates(t *testing.T) {
	r := twoNative(t)
	a, b := r.openUser(t, firstNative, "ipoib"), r.openUser(t, "vf", "ipoib")
	ah := a.path(&hca.AHAttr{DLID: b.lid()})
	a.came, b.came = make([]hca.CQE, 0, 4096), make([]hca.CQE, 0, 4096)
	n := 0.0
	a.do(func() error {
		n = testing.AllocsPerRun(500, func() {
			*a.qp.SendSlot() = session.SendRequest{ID: 1, LKey: a.mr.LKey, Len: 1000, AH: ah, Dest: b.qp.Num(),
				QKey: internalQKey, Signaled: true}
			a.qp.SendPosted()
			for range 4 {
				now := r.node.now()
				a.r.Lane().HCA.Run(now)
				a.Finish(now)
				b.Finish(now)
			}
			*b.qp.RecvSlot() = session.RecvRequest{LKey: b.mr.LKey, Len: slotLen}
			b.qp.RecvPosted(r.node.now())
		})
		return nil
	})
	if b.done.Load() < 500 || n != 0 {
		t.Errorf("%d datagrams, %v allocations each", b.done.Load(), n)
	}
}

// asker is a user of queue pair 1 that waits for answers.
type asker struct {
	t       *testing.T
	u       *subnet.User
	answers chan mad.SA
	notices chan mad.Notice
	id      uint32
}

func (r *running) asker(t *testing.T, function uint16, notices bool) *asker {
	a := &asker{t: t, answers: make(chan mad.SA, 16), notices: make(chan mad.Notice, 64)}
	var heard func(mono.Time, *mad.Notice)
	if notices {
		heard = func(_ mono.Time, n *mad.Notice) { a.notices <- *n }
	}
	a.u = r.node.sub.OpenUser(function, func(_ mono.Time, id uint32, m *mad.SA) {
		if id != a.id {
			t.Errorf("the answer to %d, not to %d", id, a.id)
		}
		a.answers <- *m
	}, heard)
	return a
}

func (a *asker) ask(method mad.Method, attr mad.AttributeID, mask mad.ComponentMask, record []byte) (v mad.SA) {
	a.t.Helper()
	a.id++
	m := &mad.SA{SAHeader: mad.SAHeader{Header: mad.Header{Method: method, AttributeID: attr}, ComponentMask: mask}}
	copy(m.Data[:], record)
	a.u.Request(a.id, m)
	select {
	case v = <-a.answers:
	case <-time.After(limit):
		a.t.Fatal("no answer")
	}
	return v
}

// TestGSI: subnet administration answers the node's own users: paths, groups,
// and notices of what happens to them.
func TestGSI(t *testing.T) {
	r := twoNative(t)
	n := r.node
	a, b := n.funcs.named(firstNative).a, n.funcs.named("vf").a
	gid := func(a *hca.Adapter) ib.GID { return a.Port().GIDs[0].GID }
	asks, hears := r.asker(t, a.Number(), false), r.asker(t, b.Number(), true)

	path := mad.PathRecord{DGID: gid(b), SGID: gid(a), NumbPath: 1, PKey: ib.DefaultPKey}
	v := asks.ask(mad.MethodGet, mad.AttrPathRecord,
		mad.CompPathDGID|mad.CompPathSGID|mad.CompPathNumbPath|mad.CompPathPKey, path.Append(nil))
	if path.Parse(v.Data[:]); v.Status != mad.StatusOK || v.Method != mad.MethodGetResp ||
		path.DLID != b.Port().LID || path.SLID != a.Port().LID {
		t.Errorf("path: %v %+v", v.Status, path)
	}

	eventually(t, "the administration has the subscription", func() (ok bool) {
		n.sub.Do(func() { _, ok = n.sub.Subscribed(b.Number()) })
		return ok
	})
	mgid := ib.GID{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 13: 1, 14: 2, 15: 3}
	join := mad.MCMemberRecord{MGID: mgid, PortGID: gid(a), QKey: internalQKey, PKey: ib.DefaultPKey,
		JoinState: mad.JoinFull}
	mask := mad.CompMCMGID | mad.CompMCPortGID | mad.CompMCQKey | mad.CompMCTClass | mad.CompMCPKey | mad.CompMCSL | mad.CompMCFlowLabel | mad.CompMCJoinState
	v = asks.ask(mad.MethodSet, mad.AttrMCMemberRecord, mask, join.Append(nil))
	var got mad.MCMemberRecord
	if got.Parse(v.Data[:]); v.Status != mad.StatusOK || !got.MLID.IsMulticast() || got.QKey != internalQKey {
		t.Fatalf("join: %v %+v", v.Status, got)
	}
	v = asks.ask(mad.MethodDelete, mad.AttrMCMemberRecord, mad.CompMCMGID|mad.CompMCPortGID|mad.CompMCJoinState,
		join.Append(nil))
	if v.Status != mad.StatusOK || v.Method != mad.MethodDeleteResp {
		t.Errorf("leave: %v", v.Status)
	}
	for want := mad.TrapNumber(66); want <= 67; {
		select {
		case x := <-hears.notices:
			if x.TrapNumber == want && x.GID() == mgid { // among those of broadcast groups and ports
				want++
			}
		case <-time.After(limit):
			t.Fatalf("no notice %d", want)
		}
	}

	// A port that a manager set up anew subscribes again.
	sent := func() (v uint64) {
		n.sub.Do(func() { v = n.sub.GSIStats().Sent })
		return v
	}
	before := sent()
	n.sub.Do(func() { n.sub.Port(b.Number()).Publish(agent.ClientReregister) })
	eventually(t, "four new requests", func() bool { return sent() >= before+4 })

	// A removed user is not called, nor is one without a port.
	ghost := r.asker(t, 0, false)
	ghost.u.Request(1, &mad.SA{})
	hears.u.Close()
	hears.u.Request(1, &mad.SA{})
	asks.id++
	asks.u.Request(asks.id, &mad.SA{SAHeader: mad.SAHeader{Header: mad.Header{Method: mad.MethodGet,
		AttributeID: mad.AttrClassPortInfo}}})
	asks.u.Close() // before the answer
	eventually(t, "drop_no_port", func() bool {
		var s subnet.GSIStats
		var onA, onB bool
		n.sub.Do(func() {
			s = n.sub.GSIStats()
			onA, _ = n.sub.Subscribed(a.Number())
			onB, _ = n.sub.Subscribed(b.Number())
		})
		return s.DropNoPort == 1 && s.Answered+s.DropStray >= 4 && !onA && !onB
	})
	if len(ghost.answers)+len(hears.answers) != 0 {
		t.Error("an answer to nobody's question")
	}
}
