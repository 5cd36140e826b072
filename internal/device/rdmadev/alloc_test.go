// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"weft/internal/device/procmem"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// pump posts the same requests over and over as docs/notes/abi.md, section 2
// allows: tables are filled once, then only an index moves. Nothing of it
// allocates, so what AllocsPerRun finds is the device's.
type pump struct {
	a, b             *end
	sent, recvd, cqe uint16
}

// used returns the used index of a ring.
func (r *ring) used(d *driver) uint16 { return binary.LittleEndian.Uint16(d.mem.At(r.Used+2, 2)) }

// preset fills a ring: descriptor i is element i.
func (r *ring) preset(element func(i int) virtiotest.Buf, flags uint16) {
	for i := range r.Num {
		b := element(i)
		r.SetDesc(i, b.GPA, uint32(b.Len), flags, 0)
		r.SetAvail(uint16(i), uint16(i))
	}
}

func newPump(a, b *end, s abi.Send, list []ib.SGE, inline []byte) *pump {
	x := a.element(s, list, inline)
	a.send.preset(func(i int) virtiotest.Buf {
		slot := a.send.slots + uint64(i)*slotSize
		copy(a.d.mem.At(slot, len(x)), x)
		return virtiotest.Buf{GPA: slot, Len: len(x)}
	}, 0)
	y := recvElement(9, []ib.SGE{b.sge(0, 8192)})
	b.recv.preset(func(i int) virtiotest.Buf {
		slot := b.recv.slots + uint64(i)*slotSize
		copy(b.d.mem.At(slot, len(y)), y)
		return virtiotest.Buf{GPA: slot, Len: len(y)}
	}, 0)
	for _, e := range []*end{a, b} {
		e.cq.preset(func(i int) virtiotest.Buf {
			return virtiotest.Buf{GPA: e.cq.slots + uint64(i)*slotSize, Len: abi.CQESize}
		}, abi.DescFlagWrite)
	}
	return &pump{a: a, b: b, cqe: ringNum}
}

// turn posts n requests, and as many receives where the request needs them, and
// lets the lane work until they are complete.
func (p *pump) turn(n int, receives bool) {
	if receives {
		p.recvd += uint16(n)
		p.b.recv.PublishIndex(p.recvd)
		p.b.d.dev.Kick(p.b.recv.index)
	}
	p.sent += uint16(n)
	p.a.send.PublishIndex(p.sent)
	p.a.d.dev.Kick(p.a.send.index)
	f := p.a.d.f
	for f.lane.Run(f.clock) {
	}
	p.cqe += uint16(n)
	p.a.cq.PublishIndex(p.cqe)
	p.b.cq.PublishIndex(p.cqe)
}

// TestAllocatesNothing posts, moves data and completes: in memory that is mapped
// and in a process's memory, with inline data, on every service.
func TestAllocatesNothing(t *testing.T) {
	const runs, batch = 200, 16
	for _, c := range []struct {
		name    string
		typ     ib.QPType
		op      ib.WROp
		inline  bool
		process bool
	}{
		{"write", ib.RC, ib.WRWrite, false, false},
		{"write, process memory", ib.RC, ib.WRWrite, false, true},
		{"inline write", ib.RC, ib.WRWrite, true, false},
		{"send", ib.RC, ib.WRSend, false, false},
		{"send, process memory", ib.RC, ib.WRSend, false, true},
		{"read", ib.RC, ib.WRRead, false, false},
		{"read, process memory", ib.RC, ib.WRRead, false, true},
		{"unreliable write", ib.UC, ib.WRWrite, false, false},
		{"datagram", ib.UD, ib.WRSend, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, a, b := pair(t, true, c.typ)
			if c.process {
				a.inProcess(t)
				b.inProcess(t)
			}
			s := abi.Send{WRID: 7, Opcode: uint8(c.op), Flags: ib.Signaled}
			if c.typ == ib.UD {
				s.SetUD(b.wire, qkey, a.d.ah(a.pd))
			} else {
				s.SetRDMA(b.at, b.mr.RKey)
			}
			size := 8192
			if c.typ == ib.UD {
				size = 1000
			}
			list, inline := []ib.SGE{a.sge(0, size)}, []byte(nil)
			if c.inline {
				s.Flags |= ib.Inline
				size, inline = 64, fill(make([]byte, 64), 3)
			}
			fill(a.mem[:size], 3)
			if c.op == ib.WRRead {
				fill(b.mem[:size], 5)
			}
			p := newPump(a, b, s, list, inline)
			receives := c.op == ib.WRSend
			for range 8 {
				p.turn(batch, receives) // queues and scratch grow to their size
			}
			got := testing.AllocsPerRun(runs, func() { p.turn(batch, receives) })
			// The race detector's annotations of system calls allocate.
			if got != 0 && !(raceEnabled && c.process) {
				t.Errorf("%v allocations for %d requests", got, batch)
			}
			if p.a.send.used(a.d) != p.sent || p.a.cq.used(a.d) != p.sent || receives && p.b.cq.used(b.d) != p.recvd {
				t.Fatalf("posted %d, used %d, completed %d", p.sent, p.a.send.used(a.d), p.a.cq.used(a.d))
			}
			last := uint64(p.sent-1) % ringNum
			e := parse(a.d, a.d.mem.At(a.cq.slots+last*slotSize, abi.CQESize), abi.ParseCQE)
			if e.Status != 0 || e.WRID != 7 {
				t.Fatalf("%+v", e)
			}
			at := 0
			if c.typ == ib.UD {
				at = 40
			}
			if !bytes.Equal(a.mem[:size], b.mem[at:at+size]) {
				t.Error("other bytes arrived")
			}
		})
	}
}

// inProcess moves an end's registered memory to memory that is not announced,
// which the device reaches by address.
func (e *end) inProcess(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := virtiotest.NewMemory(t, 64<<10)
	binary.LittleEndian.PutUint64(m.Bytes[60<<10:], 0x77656674)
	s, err := procmem.New(procmem.Config{Mem: f, PID: os.Getpid(), UID: uint32(os.Getuid()),
		ProbeAddr: m.Base + 60<<10, ProbeValue: 0x77656674})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	e.d.dev.SetProc(s)
	e.mem, e.at = m.Bytes[:32<<10], m.Base
	e.mr = e.d.mr(e.pd, e.at, len(e.mem), allAccess)
}
