// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"bytes"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

func num(t *testing.T, v any) uint64 {
	t.Helper()
	switch x := v.(type) {
	case nil:
		return 0
	case float64:
		return uint64(x)
	case string:
		n, err := strconv.ParseUint(x, 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatalf("%v", v)
	return 0
}

func sges(t *testing.T, fields map[string]any) (list []ib.SGE) {
	for i := range int(num(t, fields["num_sge"])) {
		p := "sg_list[" + strconv.Itoa(i) + "]."
		list = append(list, ib.SGE{Addr: num(t, fields[p+"addr"]), Len: uint32(num(t, fields[p+"length"])),
			LKey: ib.Key(num(t, fields[p+"lkey"]))})
	}
	return list
}

func TestSendVectors(t *testing.T) {
	for _, v := range vectors(t, "sq") {
		t.Run(v.ID, func(t *testing.T) {
			f, want := v.Fields, unhex(t, v.Hex)
			w := Send{WRID: num(t, f["wr_id"]), Opcode: uint8(num(t, f["opcode"])),
				Flags: ib.SendFlags(num(t, f["send_flags"])),
				Imm:   [4]byte(unhex(t, f["imm_data_be"].(string))), Num: uint32(num(t, f["num_sge"]))}
			if _, ok := f["rdma.rkey"]; ok {
				w.SetRDMA(num(t, f["rdma.remote_addr"]), ib.Key(num(t, f["rdma.rkey"])))
			}
			if _, ok := f["ud.ah"]; ok {
				w.SetUD(ib.QPN(num(t, f["ud.remote_qpn"])), ib.QKey(num(t, f["ud.remote_qkey"])),
					uint32(num(t, f["ud.ah"])))
				if w.RemoteQPN() != 3 || w.RemoteQKey() != 0x11111111 || w.AH() != 1 {
					t.Error("datagram accessors disagree with the vector")
				}
			}
			list := sges(t, f)
			var inline []byte
			if s, ok := f["inline_data"]; ok {
				inline = unhex(t, s.(string))
				w.Num = uint32(len(inline))
			}
			got := bytes.Repeat([]byte{0xa5}, SendRFC.Head+len(list)*SGESize)
			w.Put(got, &SendRFC)
			copy(got[SendRFC.Inline:], inline)
			PutSGEs(got[SendRFC.Head:], list)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("encoding (-want +got):\n%s", d)
			}
			if _, ok := f["rdma.rkey"]; ok && (w.RKey() != ib.Key(num(t, f["rdma.rkey"])) ||
				w.RemoteAddr() != num(t, f["rdma.remote_addr"])) {
				t.Error("WRITE and READ accessors disagree with the vector")
			}
			var back Send
			back.Parse(want, &SendRFC)
			if d := cmp.Diff(w, back); d != "" {
				t.Errorf("decoding (-want +got):\n%s", d)
			}
			entries := make([]ib.SGE, len(list))
			ParseSGEs(entries, want[SendRFC.Head:])
			if d := cmp.Diff(append([]ib.SGE{}, list...), entries); d != "" {
				t.Errorf("list (-want +got):\n%s", d)
			}
		})
	}
}

// TestSendInlineLength: with INLINE only 16 bits of the RFC's length count.
func TestSendInlineLength(t *testing.T) {
	b := make([]byte, SQRFCSize)
	b[SQSendFlags] = uint8(ib.Inline)
	copy(b[SQRFCNumSGE:], []byte{13, 0, 0xff, 0xff})
	var s Send
	if s.Parse(b, &SendRFC); s.Num != 13 {
		t.Errorf("inline length %d", s.Num)
	}
	b[SQSendFlags] = 0
	if s.Parse(b, &SendRFC); s.Num != 0xffff000d {
		t.Errorf("num_sge %#x", s.Num)
	}
}

func TestSendCompactGolden(t *testing.T) {
	want := unhex(t, "8877665544332211"+"41020000"+"00000000"+"00b0addeff7f0000"+"0500000000000000"+"0000000000000000"+
		"1205000000000000"+"01000000"+strings.Repeat("00", 12)+"00100000007f0000"+"08000000"+"3c020000")
	w := Send{WRID: 0x1122334455667788, Opcode: OpFetchAdd, Flags: ib.Signaled, Num: 1}
	w.SetAtomic(0x7fffdeadb000, 5, 0, 0x512)
	got := bytes.Repeat([]byte{0xa5}, len(want))
	w.Put(got, &SendCompact)
	PutSGEs(got[SendCompact.Head:], []ib.SGE{{Addr: 0x7f0000001000, Len: 8, LKey: 0x23c}})
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("encoding (-want +got):\n%s", d)
	}
	var back Send
	back.Parse(want, &SendCompact)
	if back != w || back.RemoteAddr() != 0x7fffdeadb000 || back.CompareAdd() != 5 || back.AtomicRKey() != 0x512 ||
		back.Swap() != 0 {
		t.Errorf("decoded %+v", back)
	}
}

func TestRecvVectors(t *testing.T) {
	for _, v := range vectors(t, "rq") {
		want := unhex(t, v.Hex)
		w := Recv{WRID: num(t, v.Fields["wr_id"]), Num: uint32(num(t, v.Fields["num_sge"]))}
		list := sges(t, v.Fields)
		got := bytes.Repeat([]byte{0xa5}, RQSize+len(list)*SGESize)
		w.Put(got)
		PutSGEs(got[RQSize:], list)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: encoding (-want +got):\n%s", v.ID, d)
		}
		var back Recv
		if back.Parse(want); back != w {
			t.Errorf("%s: decoded %+v", v.ID, back)
		}
	}
}

func TestCQEVectors(t *testing.T) {
	for _, v := range vectors(t, "cq") {
		f, want := v.Fields, unhex(t, v.Hex)
		w := CQE{WRID: num(t, f["wr_id"]), Status: uint8(num(t, f["status"])), Opcode: uint8(num(t, f["opcode"])),
			VendorErr: uint32(num(t, f["vendor_err"])), ByteLen: uint32(num(t, f["byte_len"])),
			Imm: [4]byte(unhex(t, f["imm_data_be"].(string))), QPN: ib.QPN(num(t, f["qp_num"])),
			SrcQP: ib.QPN(num(t, f["src_qp"])), Flags: ib.WCFlags(num(t, f["wc_flags"]))}
		checkCQE(t, w, want)
	}
	checkCQE(t, CQE{Status: 1, Opcode: 2, VendorErr: 3, ByteLen: 4, Imm: [4]byte{5, 6, 7, 8}, QPN: 0x914002,
		SrcQP: 0xffffff,
		Flags: 3, PKeyIndex: 0x1122, SLID: 0x3344, SL: 0x55, DLIDPathBits: 0x66},
		unhex(t, "0000000000000000"+"01020000"+"03000000"+"04000000"+"05060708"+"02409100"+"ffffff00"+"03000000"+
			"2211"+"4433"+"5566"+"000000000000"))
}

func checkCQE(t *testing.T, w CQE, want []byte) {
	t.Helper()
	got := bytes.Repeat([]byte{0xa5}, CQESize)
	w.Put(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("encoding (-want +got):\n%s", d)
	}
	back, err := ParseCQE(want)
	if err != nil || back != w {
		t.Errorf("decoded %+v, %v", back, err)
	}
	for _, n := range []int{0, CQESize - 1, CQESize + 1} {
		if _, err := ParseCQE(make([]byte, n)); err == nil {
			t.Errorf("%d bytes accepted", n)
		}
	}
}

// TestKeyOperations pins the operands of requests that change keys.
func TestKeyOperations(t *testing.T) {
	b := Bind{Addr: 0x1122334455667788, Length: 0x99aabbccddeeff00, Object: 0x01020304, Key: 0x05060708, Access: 0x27}
	for _, tc := range []struct {
		op   uint8
		set  func(*Send)
		want string // bytes 12 to 47
	}{
		{OpBindMW, func(s *Send) { s.SetBind(b) }, "00000000" + "8877665544332211" + "00ffeeddccbbaa99" + "04030201" +
			"08070605" + "27000000" + "00000000"},
		{OpRegMR, func(s *Send) { b := b; b.Pages = 0x40; s.SetReg(b) }, "00000000" + "04030201" + "08070605" +
			"27000000" + "40000000" + "8877665544332211" + "00ffeeddccbbaa99"},
		{OpSendInv, func(s *Send) { s.SetInvKey(0x0a0b0c0d) }, "0d0c0b0a" + strings.Repeat("00", 32)},
		{OpLocalInv, func(s *Send) { s.SetInvKey(0x0a0b0c0d) }, "0d0c0b0a" + strings.Repeat("00", 32)},
	} {
		s := Send{WRID: 1, Opcode: tc.op, Flags: ib.Signaled}
		tc.set(&s)
		got := bytes.Repeat([]byte{0xa5}, SQSize)
		s.Put(got, &SendCompact)
		want := append(append(unhex(t, fmt.Sprintf("0100000000000000%02x020000", tc.op)), unhex(t, tc.want)...),
			make([]byte, 16)...)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%#x (-want +got):\n%s", tc.op, d)
		}
		var back Send
		back.Parse(want, &SendCompact)
		switch tc.op {
		case OpBindMW:
			if back.Bind() != b {
				t.Errorf("%+v", back.Bind())
			}
		case OpRegMR:
			w := b
			w.Pages = 0x40
			if back.Reg() != w {
				t.Errorf("%+v", back.Reg())
			}
		default:
			if back.InvKey() != 0x0a0b0c0d {
				t.Errorf("key %#x", back.InvKey())
			}
		}
	}
}

func TestHotCodecsDoNotAllocate(t *testing.T) {
	b := make([]byte, SQRFCSize+2*SGESize)
	list := make([]ib.SGE, 2)
	var s Send
	var r Recv
	c := CQE{WRID: 1}
	if n := testing.AllocsPerRun(100, func() {
		s.Parse(b, &SendRFC)
		s.Parse(b, &SendCompact)
		ParseSGEs(list, b[SendRFC.Head:])
		r.Parse(b)
		c.Put(b)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAttrMask(t *testing.T) {
	for _, tc := range []struct {
		wire  AttrMask
		verbs ib.AttrMask
	}{
		{0xaa31, ib.AttrState | ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN | ib.AttrMaxDestRdAtomic | ib.AttrMinRNRTimer},
		{0x15c1, ib.AttrState | ib.AttrTimeout | ib.AttrRetryCnt | ib.AttrRNRRetry | ib.AttrSQPSN | ib.AttrMaxQPRdAtomic},
		{0x9, ib.AttrState | ib.AttrQKey}, {0x10004, ib.AttrRateLimit | ib.AttrAccessFlags},
	} {
		if v, ok := tc.wire.Verbs(); !ok || v != tc.verbs {
			t.Errorf("%#x: %#x %v, want %#x", tc.wire, v, ok, tc.verbs)
		}
		if w, rest := FromVerbs(tc.verbs | ib.AttrPort | ib.AttrPKeyIndex); w != tc.wire ||
			rest != ib.AttrPort|ib.AttrPKeyIndex {
			t.Errorf("%#x: %#x rest %#x", tc.verbs, w, rest)
		}
	}
	v, _ := AttrMask(AttrAll).Verbs()
	if bits.OnesCount32(uint32(v)) != 17 {
		t.Errorf("all bits map to %#x", v)
	}
	if _, ok := AttrMask(1 << 17).Verbs(); ok {
		t.Error("bit 17 accepted")
	}
}

func TestNumbers(t *testing.T) {
	for w := range uint8(16) {
		s, ok := VerbsStatus(w)
		if !ok || WireStatus(s) != w {
			t.Errorf("status %d: %s -> %d", w, s, WireStatus(s))
		}
	}
	for _, w := range []uint8{16, 0x3f, 0x41} {
		if _, ok := VerbsStatus(w); ok {
			t.Errorf("status %d accepted", w)
		}
	}
	if s, ok := VerbsStatus(WCMWBindErr); !ok || s != ib.MWBindErr {
		t.Errorf("status %#x: %s", WCMWBindErr, s)
	}
	for s, w := range map[ib.Status]uint8{ib.WRFlushErr: 4, ib.RetryExcErr: 10, ib.GeneralErr: 15, ib.MWBindErr: 0x40,
		ib.Status(99): 15} {
		if WireStatus(s) != w {
			t.Errorf("%s: %d, want %d", s, WireStatus(s), w)
		}
	}
	for o, w := range map[ib.WROp]uint8{ib.WRWrite: 0, ib.WRRead: 4, ib.WRCmpSwap: 0x40, ib.WRFetchAdd: 0x41,
		ib.WRSendInv:  0x42,
		ib.WRLocalInv: 0x43, ib.WRRegMR: 0x44, ib.WRBindMW: 0x45, ib.WRAtomicWrite: 0x47} {
		if got, ok := WireSendOp(o); !ok || got != w {
			t.Errorf("%s: %#x", o, got)
		}
		if back, ok := SendOp(w); !ok || back != o {
			t.Errorf("%#x: %s", w, back)
		}
	}
	for _, w := range []uint8{5, 0x3f, 0x46, 0xff} {
		if o, ok := SendOp(w); ok {
			t.Errorf("opcode %#x is %s", w, o)
		}
	}
	if _, ok := WireSendOp(ib.WRAtomicWrite + 1); ok {
		t.Error("an operation that there is not has an opcode")
	}
	for o, w := range map[ib.WCOp]uint8{ib.WCSend: 0, ib.WCRead: 2, ib.WCRecv: 3, ib.WCRecvWithImm: 4,
		ib.WCFetchAdd: 0x41, ib.WCLocalInv: 0x42,
		ib.WCRegMR: 0x43, ib.WCBindMW: 0x44, ib.WCAtomicWrite: 0x47, ib.WCOp(99): 0} {
		if WireWCOp(o) != w {
			t.Errorf("completion %d: %#x", o, WireWCOp(o))
		}
	}
	if o, ok := VerbsWCOp(3); !ok || o != ib.WCRecv {
		t.Errorf("completion opcode 3: %d", o)
	}
	if _, ok := VerbsWCOp(5); ok {
		t.Error("completion opcode 5 accepted")
	}
}

// FuzzElements proves that a send element survives a round trip.
func FuzzElements(f *testing.F) {
	for _, kind := range []string{"sq", "rq", "cq"} {
		for _, v := range vectors(f, kind) {
			f.Add(unhex(f, v.Hex))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, form := range []*SendForm{&SendCompact, &SendRFC} {
			if len(b) < form.Head {
				continue
			}
			var s, again Send
			s.Parse(b, form)
			out := make([]byte, form.Head)
			s.Put(out, form)
			if again.Parse(out, form); s != again {
				t.Fatalf("%+v became %+v", s, again)
			}
		}
		if c, err := ParseCQE(b); err == nil {
			c.Flags &= 3
			out := make([]byte, CQESize)
			c.Put(out)
			if again, _ := ParseCQE(out); again != c {
				t.Fatalf("%+v became %+v", c, again)
			}
		}
	})
}
