// SPDX-License-Identifier: Apache-2.0

package umad

import (
	"bytes"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

func FuzzHeader(f *testing.F) {
	f.Add(goldenHeader)
	f.Add(goldenHeader[:shortHeaderLen])
	f.Add(bytes.Repeat([]byte{0xff}, HeaderLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, n := range []int{HeaderLen, shortHeaderLen} {
			var h, again Header
			if h.Parse(b, n) != OK {
				continue
			}
			out := h.Append(nil, n)
			if err := again.Parse(out, n); err != OK || again != h {
				t.Fatalf("%+v became %+v, %d", h, again, err)
			}
		}
	})
}

// check checks that the parts of the Hub agree with each other.
func (b *bench) check() {
	h, t := b.hub, b.t
	agents, endpoints, waiting := 0, 0, 0
	for _, p := range h.ports {
		for k, a := range p.routes {
			if a.file.port != p || h.tags[a.tag] != a {
				t.Fatalf("route %v leads to a registration that is gone", k)
			}
		}
		for _, f := range p.files {
			for id, a := range f.agents {
				if a == nil {
					continue
				}
				agents++
				if a.id != uint32(id) || a.file != f || h.tags[a.tag] != a {
					t.Fatalf("registration %d: %+v", id, a)
				}
				if a.rmpp != nil {
					endpoints++
				}
				if len(a.pending) > maxPending {
					t.Fatalf("%d wait", len(a.pending))
				}
				for k, w := range a.pending {
					if w.key != k || w.agent != a || !w.timer.IsSet() && !w.rmpp {
						t.Fatalf("%v: %+v", k, w)
					}
					if w.timer.IsSet() {
						waiting++
					}
				}
			}
		}
	}
	if agents != len(h.tags) || endpoints != len(h.rmpp) || waiting != h.timers.Len() {
		t.Fatalf("%d registrations, %d tags; %d endpoints, %d known; %d deadlines, %d known", agents, len(h.tags),
			endpoints, len(h.rmpp), waiting, h.timers.Len())
	}
	h.timers.All(func(w *transaction) {
		if !w.timer.IsSet() || w.timer.At() < h.timers.Next() {
			t.Fatalf("timer: %+v", w)
		}
	})
}

// FuzzHub interprets its input as what programs and peers do, in a loop of two
// ports.
func FuzzHub(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	f.Add([]byte{0, 0, 0, 1, 1, 1, 3, 0, 0, 3, 0, 2, 5, 5, 5, 6, 5, 7, 3, 1, 0, 5, 5, 5, 5, 5, 5, 6, 6, 6, 6})
	f.Add(bytes.Repeat([]byte{0, 1, 1, 4, 200, 5, 3, 1, 9, 5, 6, 2}, 9))
	f.Fuzz(func(t *testing.T, in []byte) {
		b := newBench(t)
		var files []*File
		var flying []mad.Datagram
		var from []uint16
		take := func() byte {
			if len(in) == 0 {
				return 0
			}
			c := in[0]
			in = in[1:]
			return c
		}
		file := func() *File {
			if len(files) == 0 {
				g, _ := b.open(1)
				files = append(files, g)
			}
			return files[int(take())%len(files)]
		}
		classes := []mad.Class{mad.ClassSA, mad.ClassPerf, mad.ClassSubnLID, mad.ClassSubnDR, 0x32, 0, 0x60}
		if long := mad.NewVEMA(mad.MethodGet, mad.AttrVESWPortInfo, 0, 9); len(in) > 0 && in[0] >= 0x80 {
			file().Write(b.now, record(Header{Agent: uint32(take() % 4), TimeoutMS: 5, LID: 0x20, QPN: 1},
				long.Append(nil)[:4*int(take())]))
		}
		for steps := 0; len(in) > 0 && steps < 500; steps++ {
			switch take() % 11 {
			case 0:
				if len(files) < 8 {
					g, _ := b.open(1 + uint16(take()%2))
					files = append(files, g)
				}
			case 1:
				c := classes[take()%7]
				r := Registration{Class: c, Version: 1 + take()%2, Methods: [2]uint64{uint64(take()) * 0x11111,
					1 << (take() % 64)}, OUI: uint32(take() % 2),
					RMPPVersion: take() % 3, UserRMPP: take()%4 == 0}
				if !c.IsSubn() {
					r.QPN = 1
				}
				file().Register(r)
			case 2:
				file().Unregister(uint32(take() % 4))
			case 3: // a sensible MAD
				c := classes[take()%7]
				m := request(c, 1+take()%2, mad.Method(take()&0x9f), uint64(take()))
				if c == mad.ClassSA && take()%2 == 0 {
					m = rmppMAD(mad.Method(take()&0x9f), int(take())*7, uint64(take()))
				}
				h := Header{Agent: uint32(take() % 4), TimeoutMS: uint32(take()), Retries: uint32(take() % 3),
					LID: 0x10 * ib.LID(1+take()%2)}
				if !c.IsSubn() {
					h.QPN = 1
				}
				file().Write(b.now, record(h, m))
			case 4: // any record
				g, n := file(), int(take())
				n = min(n, len(in))
				g.Write(b.now, in[:n])
				in = in[n:]
			case 5:
				var d mad.Datagram
				if fn, ok := b.hub.Next(b.now, &d); ok {
					if d.SL > 15 || d.SrcQPN > 1 || d.DstQPN > maxQPN || d.FlowLabel > maxFlowLabel ||
						d.Data[0] != 1 && d.Long == nil || !mad.MADLength(d.MAD()) ||
						mad.Class(d.Data[1]).IsSubn() != (d.SrcQPN == 0) {
						t.Fatalf("sent %+v", d)
					}
					flying, from = append(flying, d), append(from, fn)
				}
			case 6: // arrives, or comes back as an answer
				if len(flying) == 0 {
					break
				}
				i := int(take()) % len(flying)
				d, to := flying[i], 3-from[i]
				if take()%2 == 0 {
					d, to = d.Reply(), from[i]
					d.Data[3] ^= byte(mad.MethodResponse)
				}
				b.hub.Receive(b.now, to, &d)
			case 7:
				b.now = b.now.Add(time.Duration(take()) * 50 * time.Millisecond)
			case 8: // anything arrives
				d := mad.Datagram{Port: 1, SLID: 0x20, DstQPN: ib.QPN(take() % 2)}
				in = in[copy(d.Data[:], in):]
				b.hub.Receive(b.now, 1+uint16(take()%2), &d)
			case 9:
				arg := make([]byte, []int{registerLen, unregisterLen, 0, register2Len, 7}[take()%5])
				in = in[copy(arg, in):]
				file().Control(uint32(take()%6), arg)
			case 10:
				file().Close()
			}
			b.check()
		}
		for _, g := range files {
			g.Close()
		}
		b.check()
		if len(b.hub.tags)+b.hub.timers.Len()+len(b.hub.rmpp) != 0 {
			t.Fatalf("left: %+v", b.hub)
		}
	})
}
