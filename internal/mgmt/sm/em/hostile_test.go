// SPDX-License-Identifier: Apache-2.0

package em

import (
	"math/rand/v2"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// twists are agents that do not what they should. Each gets every request and the answer that was right.
var twists = map[string]func(w *world) func(q, a *mad.VEMA) *mad.VEMA{
	"reports that all is refused": func(*world) func(q, a *mad.VEMA) *mad.VEMA {
		return func(q, a *mad.VEMA) *mad.VEMA {
			if q.AttributeID != mad.AttrClassPortInfo {
				a.Status = mad.StatusInvalidValue
			}
			return a
		}
	},
	"answers zeros": func(*world) func(q, a *mad.VEMA) *mad.VEMA {
		return func(q, a *mad.VEMA) *mad.VEMA {
			if q.AttributeID != mad.AttrClassPortInfo {
				a.Data = [mad.VEMADataLen]byte{}
			}
			return a
		}
	},
	"answers ones": func(*world) func(q, a *mad.VEMA) *mad.VEMA {
		return func(q, a *mad.VEMA) *mad.VEMA {
			for i := range a.Data {
				a.Data[i] = 0xff
			}
			return a
		}
	},
	"answers at random": func(w *world) func(q, a *mad.VEMA) *mad.VEMA {
		rng := rand.New(rand.NewPCG(1, 2))
		return func(q, a *mad.VEMA) *mad.VEMA {
			if q.AttributeID == mad.AttrClassPortInfo {
				return a
			}
			for i := range a.Data {
				if rng.IntN(4) == 0 {
					a.Data[i] = byte(rng.Uint32())
				}
			}
			return a
		}
	},
	"has a list without an end": func(*world) func(q, a *mad.VEMA) *mad.VEMA {
		n := uint32(0)
		return func(q, a *mad.VEMA) *mad.VEMA {
			if q.AttributeID == mad.AttrVESWUnicastMACs {
				var l mad.VESWMACList
				l.Parse(a.Data[:])
				l.Num, l.Total = 1, 0xffff
				n++
				l.MACs[0] = [6]byte{2, 9, 9, byte(n >> 16), byte(n >> 8), byte(n)}
				l.Append(a.Data[:0])
			}
			return a
		}
	},
	"has another list each time": func(*world) func(q, a *mad.VEMA) *mad.VEMA {
		n := uint16(0)
		return func(q, a *mad.VEMA) *mad.VEMA {
			n++
			switch q.AttributeID {
			case mad.AttrVESWUnicastMACs:
				var l, want mad.VESWMACList
				want.Parse(q.Data[:])
				l.Start, l.Num, l.Total, l.Gen = want.Start, 333, 0xffff, n
				for i := range l.MACs {
					l.MACs[i] = [6]byte{2, 9, byte(want.Start >> 8), byte(i >> 8), byte(i), byte(n)}
				}
				l.Append(a.Data[:0])
			case mad.AttrVESWPortInfo:
				var i mad.VESWPortInfo
				i.Parse(a.Data[:])
				i.Port.UcMACsGen, i.Port.McMACsGen = n, n
				i.Append(a.Data[:0])
			}
			return a
		}
	},
	"changes its state each time": func(*world) func(q, a *mad.VEMA) *mad.VEMA {
		n := 0
		return func(q, a *mad.VEMA) *mad.VEMA {
			if q.AttributeID == mad.AttrVESWPortInfo {
				var i mad.VESWPortInfo
				i.Parse(a.Data[:])
				n++
				i.Port.LinkStatus, i.Port.OperState, i.Port.MACDigest = mad.VESWLinkStatus(n), mad.VESWState(n), uint32(n)
				i.Append(a.Data[:0])
			}
			return a
		}
	},
	"never is what it was told": func(*world) func(q, a *mad.VEMA) *mad.VEMA {
		return func(q, a *mad.VEMA) *mad.VEMA {
			if q.AttributeID == mad.AttrVESWPortInfo {
				var i mad.VESWPortInfo
				i.Parse(a.Data[:])
				i.VESW.VESWID, i.Port.LinkStatus, i.Port.ConfigState = 77, mad.VESWLinkUp, mad.VESWForwarding
				i.Append(a.Data[:0])
			}
			return a
		}
	},
	"answers every fourth request": func(*world) func(q, a *mad.VEMA) *mad.VEMA {
		n := 0
		return func(q, a *mad.VEMA) *mad.VEMA {
			if n++; n%4 != 0 {
				return nil
			}
			return a
		}
	},
	"answers what was not asked": func(*world) func(q, a *mad.VEMA) *mad.VEMA {
		return func(q, a *mad.VEMA) *mad.VEMA {
			a.TransactionID++
			return a
		}
	},
}

// TestHostileAgents: whatever the agent of one member answers, the others of its VESW and of another come up, get each
// other's MACs, and are not interrupted; and the rate of requests to it is bounded.
func TestHostileAgents(t *testing.T) {
	for name, twist := range twists {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, 5)
			bad := w.agents[portGUID(4)]
			ask := 0
			change := twist(w)
			bad.twist = func(q, a *mad.VEMA) *mad.VEMA {
				ask++
				return change(q, a)
			}
			w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1, 4), members("b", 2, 2, 3)}})
			w.start(nil)
			w.until(20*time.Second, "the others forward", func() bool {
				return w.forwards(1, 0, 1) &&
					w.forwards(2, 2, 3)
			})
			w.setMACs(0, 0, MAC{0, 1})
			w.setMACs(2, 0, MAC{0, 2})
			w.until(3*time.Second, "MACs are known", func() bool {
				return w.at(1, 0).lookup(MAC{0, 1}) == 11 &&
					w.at(3, 0).lookup(MAC{0, 2}) == 13
			})
			for range 100 { // and traps all the time
				w.trap(bad, 0, mad.VEMAUnicastMACs)
				w.trap(bad, 0, mad.VEMALinkStatus)
				w.run(100*time.Millisecond, nil)
			}
			before := ask
			w.run(time.Minute, nil)
			if ask-before > 1200 {
				t.Errorf("asked %d times in a minute", ask-before)
			}
			w.setMACs(1, 0, MAC{0, 3})
			w.until(3*time.Second, "a MAC is known later", func() bool { return w.at(0, 0).lookup(MAC{0, 3}) == 12 })
			for _, o := range w.bounces() {
				if o.port != bad.guid {
					t.Error("bounced", o)
				}
			}
			if n := w.at(3, 0).entries(); n != 1 {
				t.Errorf("the other VESW has %d entries", n)
			}
		})
	}
}

// TestSilentPorts: hundreds of ports that do not answer do not keep two that do.
func TestSilentPorts(t *testing.T) {
	w := newWorld(t, 1, 300)
	for i := range 298 {
		w.agents[portGUID(i)].mute = true
	}
	var all []int
	for i := range 300 {
		all = append(all, i)
	}
	w.want(Intent{VESWs: []VESW{members("all", 1, all...)}})
	w.start(nil)
	w.until(40*time.Second, "two forward", func() bool { return w.forwards(1, 298, 299) })
	w.setMACs(298, 0, MAC{0, 1})
	w.until(2*time.Second, "MACs are known", func() bool { return w.at(299, 0).entries() == 1 })
	if w.m.outstanding > w.m.cfg.Outstanding || w.m.doubtful > w.m.cfg.Outstanding/2 {
		t.Error(w.m.outstanding, w.m.doubtful)
	}
	problems := func() []Problem { return w.m.Status().VESWs[0].Problems }
	w.until(40*time.Second, "the silent are named", func() bool { return len(problems()) == 298 })
	if p := problems(); p[0].What != "its agent does not answer" {
		t.Error(p[0])
	}
}

// TestUnrelatedAnswers: answers and traps from ports without a request change nothing.
func TestUnrelatedAnswers(t *testing.T) {
	w := newWorld(t, 1, 3)
	w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1)}})
	w.start(nil)
	var r Request
	if !w.m.Next(w.now, &r) {
		t.Fatal("nothing to send")
	}
	a := r.MAD
	a.Method = mad.MethodGetResp
	for _, f := range []func(*mad.VEMA) ib.LID{
		func(*mad.VEMA) ib.LID { return r.LID + 1 },
		func(a *mad.VEMA) ib.LID { a.TransactionID ^= 1 << 40; return r.LID },
		func(a *mad.VEMA) ib.LID { a.AttributeID++; return r.LID },
		func(a *mad.VEMA) ib.LID { a.Method = mad.MethodSet; return r.LID },
		func(a *mad.VEMA) ib.LID { a.AttributeModifier = 1; return r.LID },
	} {
		x := a
		w.m.Handle(w.now, f(&x), &x)
	}
	if w.m.Counters.Stray != 5 || w.m.Counters.Answered != 0 {
		t.Errorf("%+v", w.m.Counters)
	}
	for _, n := range []mad.VEMANotice{{}, {GenericType: mad.VEMAGenericType, VPort: 200, Opcode: 1}} {
		w.m.Trap(w.now, 11, &n)
	}
	w.m.Trap(w.now, 99, &mad.VEMANotice{GenericType: mad.VEMAGenericType})
	w.m.Trap(w.now, 13, &mad.VEMANotice{GenericType: mad.VEMAGenericType})
	if w.m.Counters.TrapsDropped != 4 || w.m.Counters.Traps != 0 {
		t.Errorf("%+v", w.m.Counters)
	}
}

// TestDeactivated: a deactivated manager sends nothing.
func TestDeactivated(t *testing.T) {
	w := newWorld(t, 1, 2)
	w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1)}})
	w.start(nil)
	w.until(5*time.Second, "up", func() bool { return w.forwards(1, 0, 1) })
	w.m.Deactivate()
	w.sweep()
	w.m.Recheck(w.now, 11)
	n := w.requests
	w.run(time.Minute, nil)
	if w.requests != n || w.m.Deadline() != 0 || w.m.Active() {
		t.Error("still active")
	}
}

// TestRandomAgents: whatever the agent of one member answers, if the transaction matches, the other two come up and get
// each other's MACs, and its state stays within the bounds.
func TestRandomAgents(t *testing.T) {
	for seed := range uint64(200) {
		w := newWorld(t, 1, 3)
		at := 0
		rng := rand.New(rand.NewPCG(seed, 3))
		b := make([]byte, 1+rng.IntN(400))
		for i := range b {
			b[i] = byte(rng.Uint32()) >> rng.IntN(8)
		}
		next := func() byte {
			if at < len(b) {
				at++
				return b[at-1]
			}
			return 0
		}
		w.agents[portGUID(2)].twist = func(q, a *mad.VEMA) *mad.VEMA {
			switch k := next(); k % 8 {
			case 1:
				a.Status = mad.Status(next())
			case 2:
				return nil
			case 3, 4, 5:
				for range int(next()) {
					a.Data[(int(next())<<3|int(k>>5))%mad.VEMADataLen] = next()
				}
			case 6:
				for i := range a.Data {
					a.Data[i] ^= b[i%len(b)]
				}
			}
			return a
		}
		w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1, 2)}})
		w.start(nil)
		w.until(20*time.Second, "the others forward", func() bool { return w.forwards(1, 0, 1) })
		w.setMACs(0, 0, MAC{0, 1})
		w.until(10*time.Second, "a MAC is known", func() bool { return w.at(1, 0).lookup(MAC{0, 1}) == 11 })
		w.run(12*time.Second, nil)
		if !w.forwards(1, 0, 1) || w.at(1, 0).lookup(MAC{0, 1}) != 11 {
			t.Error("the others have lost it")
		}
		for _, o := range w.bounces() {
			if o.port != portGUID(2) {
				t.Error("bounced", o)
			}
		}
		if t.Failed() {
			t.Fatal("seed", seed)
		}
		p := w.m.ports[portGUID(2)]
		if len(p.vports) > MaxIndex+1 || w.requests > 20000 {
			t.Errorf("%d vports, %d requests", len(p.vports), w.requests)
		}
		for _, v := range p.vports {
			if len(v.uc.macs)+len(v.uc.part) > 2*maxList || len(v.table.has) > mad.VESWMaxMACs {
				t.Errorf("%d MACs, %d slots", len(v.uc.macs), len(v.table.has))
			}
		}
	}
}
