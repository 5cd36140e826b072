// SPDX-License-Identifier: Apache-2.0

package ethdev_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"weft/internal/device/ethdev/ethdevtest"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ether"
)

const roce = 1 << abi.FeatureRoCE

// half is a RoCE half that answers each command with the octets of the test. Its fields belong to the hub.
type half struct {
	qps, cqs uint32
	begun    []int // first ring, negative if ROCE was not negotiated
	got      [][]byte
	room     []int
	ask      int // octets behind the command
	behind   []byte
	say      []byte
}

func (h *half) Limits() (qps, cqs uint32) { return h.qps, h.cqs }

func (h *half) Begin(first int, on bool) {
	if !on {
		first = -first
	}
	h.begun = append(h.begun, first)
}

func (h *half) Execute(command []byte, room int, behind func(n int) []byte) []byte {
	h.got, h.room = append(h.got, bytes.Clone(command)), append(h.room, room)
	if h.ask > 0 {
		h.behind = behind(h.ask)
	}
	return h.say[:min(len(h.say), room)]
}

// TestCardFeatures: a card with both halves offers ROCE, without what excludes it, and describes both; one without
// offers what it did.
func TestCardFeatures(t *testing.T) {
	const without = 1<<abi.FeaturePacked | 1<<abi.FeatureLogAll | 1<<abi.FeatureHostUSO
	w := newWorld(t, 2)
	plain := w.guest(0, ethdevtest.Options{})
	h := &half{qps: 40, cqs: 30}
	w.half.Store(h)
	card := w.guest(1, ethdevtest.Options{Features: roce, Control: true})
	offers := func(g *ethdevtest.Guest) uint64 {
		f, err := g.GetU64(abi.ReqGetFeatures)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	a, b := offers(plain), offers(card)
	if a&roce != 0 || a&without != without || b != a&^without|roce {
		t.Errorf("features %#x without the half and %#x with it", a, b)
	}
	if f, err := card.GetU64(abi.ReqGetProtocolFeatures); f&(1<<abi.ProtoLogShmFD) != 0 || err != nil {
		t.Errorf("protocol features %#x, %v", f, err)
	}
	for g, want := range map[*ethdevtest.Guest][2]uint32{plain: {}, card: {40, 30}} {
		p, err := g.Get(abi.ReqGetConfig, append(abi.VUConfig{Size: abi.ConfigSize}.Append(nil),
			make([]byte, abi.ConfigSize)...))
		if err != nil {
			t.Fatal(err)
		}
		c, err := abi.ParseConfig(p[abi.VUConfigSize:])
		if err != nil || c.MaxRDMAQPs != want[0] || c.MaxRDMACQs != want[1] {
			t.Errorf("%+v, %v", c, err)
		}
	}
	// Without the control queue, or VERSION_1, there is no ROCE.
	for _, f := range []uint64{roce | 1<<abi.FeatureVersion1, roce | 1<<abi.FeatureCtrlVQ} {
		card.Close()
		<-w.port[1].ends
		w.hub.Do(func() { h.begun = nil })
		front, err := vhosttest.Dial(w.port[1].path)
		if err != nil {
			t.Fatal(err)
		}
		proto := vhosttest.U64(1<<abi.ProtoStatus | 1<<abi.ProtoReplyAck)
		if err := front.Do(abi.ReqSetProtocolFeatures, proto); err != nil {
			t.Fatal(err)
		}
		if err := front.Do(abi.ReqSetFeatures, vhosttest.U64(f|1<<abi.FeatureProtocol)); err != nil {
			t.Fatal(err)
		}
		if err := front.Do(abi.ReqSetStatus, vhosttest.U64(0x0b)); err != nil {
			t.Fatal(err)
		}
		st, err := front.GetU64(abi.ReqGetStatus)
		w.hub.Do(func() {
			if st != 3 || err != nil || h.begun != nil {
				t.Errorf("features %#x: status %#x, %v, begun %v", f, st, err, h.begun)
			}
		})
		front.Close()
		<-w.port[1].ends
		card = w.guest(1, ethdevtest.Options{})
	}
}

// TestCardRings: the rings of the RoCE half follow the control queue, which multiqueue moves.
func TestCardRings(t *testing.T) {
	for _, c := range []struct {
		features uint64
		control  int
		begun    int
	}{{roce, 2, 3}, {roce | mq, 8, 9}, {mq, 8, -9}, {0, 2, -3}} {
		w := newWorld(t, 1) // of four pairs
		h := &half{qps: 40, cqs: 30}
		w.half.Store(h)
		o := ethdevtest.Options{Features: c.features, Control: true}
		if c.features&mq != 0 {
			o.Pairs = 4
		}
		g := w.guest(0, o)
		var begun []int
		w.hub.Do(func() { begun = slices.Clone(h.begun) })
		if !slices.Equal(begun, []int{c.begun}) || g.CVQ.Index != c.control {
			t.Errorf("features %#x: control queue %d, begun %v", c.features, g.CVQ.Index, begun)
		}
		var rings int
		w.hub.Do(func() { rings = w.port[0].Device().Rings() })
		if want := 9 + 30 + 2*40; rings != want {
			t.Errorf("%d rings, want %d", rings, want)
		}
		if c.features&roce == 0 {
			continue
		}
		// A ring beyond the control queue is the other half's.
		if err := g.CVQ.Enable(true); err != nil {
			t.Fatal(err)
		}
		before := *g.CVQ
		g.CVQ.Index = c.begun
		if err := g.CVQ.Start(); err == nil || !strings.Contains(err.Error(), "invalid argument") {
			t.Errorf("features %#x: ring %d: %v", c.features, c.begun, err)
		}
		*g.CVQ = before
	}
	// No more rings than a message can name.
	w := newWorld(t, 1)
	w.half.Store(&half{qps: 100, cqs: 48})
	if _, err := ethdevtest.NewGuest(t, w.port[0].path, ethdevtest.Options{}); !vhosttest.Closed(err) {
		t.Errorf("257 rings: %v", err)
	}
	w.half.Store(&half{qps: 100, cqs: 47})
	w.guest(0, ethdevtest.Options{})
}

// pieces cuts what lies at an address.
func pieces(gpa uint64, sizes ...int) (list []virtiotest.Buf) {
	for _, n := range sizes {
		list = append(list, virtiotest.Buf{GPA: gpa, Len: n})
		gpa += uint64(n)
	}
	return list
}

// TestCardCommands: commands of the RoCE class reach the RoCE half whole, however they are framed and before
// DRIVER_OK; the answer is written to the start of what is writable, and used elements count it.
func TestCardCommands(t *testing.T) {
	w := newWorld(t, 1)
	h := &half{qps: 40, cqs: 30, say: []byte("\x00answer")}
	w.half.Store(h)
	g := w.guest(0, ethdevtest.Options{Features: roce, Control: true, MemSize: 32 << 20})
	if err := g.Do(abi.ReqSetStatus, vhosttest.U64(0x0b)); err != nil { // not DRIVER_OK
		t.Fatal(err)
	}
	const most = 2 + 32 + 8*262144
	command := g.Mem.Alloc(most+64, 8)
	text := g.Mem.At(command, most+64)
	for i := range text {
		text[i] = byte(i * 3)
	}
	text[0], text[1] = abi.ClassRoCE, 7
	out := g.Mem.Alloc(512, 8)
	for _, c := range []struct {
		read, write []int
		say         int
		used        uint32
	}{
		{[]int{2, 32}, []int{1, 12}, 13, 13},
		{[]int{34}, []int{13}, 13, 13},
		{[]int{1, 1, 0, 30, 2}, []int{0, 3, 7, 40}, 13, 13},
		{[]int{2, 32}, []int{1}, 1, 1},
		{[]int{2, 32}, []int{512}, 256, 256},
		{[]int{2, 32}, []int{5}, 13, 5}, // the half keeps to the room
		{[]int{2, 32, 8 * 262144}, []int{1, 12}, 13, 13},
		{[]int{most + 64}, []int{1, 12}, 13, 13},
	} {
		size, room := 0, 0
		for _, n := range c.read {
			size += n
		}
		for _, n := range c.write {
			room += n
		}
		answer := bytes.Repeat([]byte{0x5a}, c.say)
		answer[0] = abi.AckOK
		w.hub.Do(func() { h.got, h.room, h.say = nil, nil, answer })
		copy(g.Mem.At(out, 512), bytes.Repeat([]byte{0xee}, 512))
		g.CVQ.Raw(pieces(command, c.read...), pieces(out, c.write...))
		used, err := g.CVQ.Reap()
		if err != nil {
			t.Fatal(err)
		}
		w.hub.Do(func() {
			if len(h.got) != 1 || !bytes.Equal(h.got[0], text[:min(size, most)]) || h.room[0] != room {
				t.Errorf("%v: %d commands, room %v", c, len(h.got), h.room)
			}
		})
		n := min(c.say, room)
		if got := g.Mem.At(out, 512); used != c.used || !bytes.Equal(got[:n], answer[:n]) || n < 512 && got[n] != 0xee {
			t.Errorf("%v: %d used, answer %x", c, used, got[:n])
		}
	}
	// What lies behind the command in memory.
	for n, want := range map[int][]byte{24: text[34:58], 8 * 262144: text[34 : 34+8*262144], 8*262144 + 1: nil,
		16 << 20: nil} {
		w.hub.Do(func() { h.ask, h.behind = n, nil })
		g.CVQ.Raw(pieces(command, 2, 32), pieces(out, 1))
		if _, err := g.CVQ.Reap(); err != nil {
			t.Fatal(err)
		}
		w.hub.Do(func() {
			if !bytes.Equal(h.behind, want) {
				t.Errorf("%d octets behind: %d of them", n, len(h.behind))
			}
		})
	}
	w.hub.Do(func() { h.ask, h.got = 0, nil })
	// No room for an answer: nothing is executed. Too short for a class: no half's.
	before := w.stats(0)
	g.CVQ.Raw(pieces(command, 2, 32), nil)
	if used, err := g.CVQ.Reap(); used != 0 || err != nil {
		t.Error(used, err)
	}
	g.CVQ.Raw(pieces(command, 1), pieces(out, 1))
	if used, err := g.CVQ.Reap(); used != 1 || err != nil || g.Mem.At(out, 1)[0] != abi.AckErr {
		t.Error(used, err)
	}
	// An error of the half counts as one.
	w.hub.Do(func() {
		if h.got != nil {
			t.Errorf("executed %x", h.got)
		}
		h.say = []byte{abi.AckErr}
	})
	g.CVQ.Raw(pieces(command, 2, 32), pieces(out, 1, 12))
	if used, err := g.CVQ.Reap(); used != 1 || err != nil {
		t.Error(used, err)
	}
	if s := w.stats(0); s.Commands-before.Commands != 3 || s.CommandErrors-before.CommandErrors != 3 {
		t.Errorf("%+v", s)
	}
	// The Ethernet half answers the other classes.
	if ack, err := g.Command(abi.ClassRX, 0, []byte{1}); ack != abi.AckErr || err != nil {
		t.Error(ack, err)
	}
	// Without the feature the class is unknown.
	g.Close()
	<-w.port[0].ends
	w.hub.Do(func() { h.got = nil })
	g = w.guest(0, ethdevtest.Options{Control: true})
	if ack, err := g.Command(abi.ClassRoCE, 0, nil); ack != abi.AckErr || err != nil {
		t.Error(ack, err)
	}
	w.hub.Do(func() {
		if h.got != nil {
			t.Errorf("executed %x without ROCE", h.got)
		}
	})
}

// TestCardCommandBudget: a driver that posts commands faster than they execute does not keep the lane; what is left is
// executed in later turns, which come without a kick. A command that costs more than a turn may spend is paid by the
// turns behind it.
func TestCardCommandBudget(t *testing.T) {
	for _, c := range []struct{ size, behind, most int }{{2, 0, 16}, {60 << 10, 0, 2}, {2 << 20, 0, 1},
		{34, 60 << 10, 2}} {
		w := newWorld(t, 1)
		h := &half{qps: 40, cqs: 30, say: []byte{abi.AckOK}, ask: c.behind}
		w.half.Store(h)
		g := w.guest(0, ethdevtest.Options{Features: roce, Control: true, Num: 128, MemSize: 32 << 20})
		w.hub.Remove(w.port[0].Port)
		command, out := g.Mem.Alloc(c.size, 8), g.Mem.Alloc(1, 1)
		g.Mem.At(command, 1)[0] = abi.ClassRoCE
		const total = 64
		for range total {
			g.CVQ.Raw(pieces(command, c.size), pieces(out, 1))
		}
		p := w.port[0].Port
		turns := 0
		w.hub.Do(func() {
			cost := 4<<10 + c.size + c.behind
			for len(h.got) < total && turns < 2*total*(1+cost>>16) {
				before := len(h.got)
				if _, err := p.TryReadBatch(make([][]byte, 1), make([]ether.Offload, 1)); err != nil {
					t.Fatal(err)
				}
				if n := len(h.got) - before; n > c.most || n < 1 && cost <= 64<<10 {
					t.Errorf("%d commands of %d octets in a turn", n, c.size)
				}
				if turns++; (len(h.got)-1)*cost > turns*64<<10 {
					t.Errorf("%d commands of %d octets in %d turns", len(h.got), c.size, turns)
					break
				}
				if p.Arm() != (len(h.got) < total) {
					t.Errorf("after %d commands: armed", len(h.got))
				}
			}
		})
		if turns < total/c.most {
			t.Errorf("%d turns", turns)
		}
	}
}
