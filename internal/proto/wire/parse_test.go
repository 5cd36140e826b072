// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

// clearReserved zeroes the reserved bits of a copy of encoded headers, which
// Parse ignores and Put writes zero.
func clearReserved(p []byte) []byte {
	p = bytes.Clone(p)
	p[4] &= 0xc0
	p[8] &= 0x80
	if ib.Opcode(p[0]).Info().Ext&ib.ExtDETH != 0 {
		p[BTHLen+4] = 0
	}
	return p
}

func TestParseVectors(t *testing.T) {
	for _, v := range icrcVectors(t) {
		if !v.Valid {
			continue // wrong CRCs only; TestICRCVectors
		}
		t.Run(v.ID, func(t *testing.T) {
			p := v.transport()
			var h Headers
			payload, why := h.Parse(p)
			if ib.Opcode(p[0]) == ib.CNP {
				if why != Congestion {
					t.Fatalf("CNP: got %v", why)
				}
				return
			}
			if why != OK {
				t.Fatalf("refused: %v", why)
			}
			if v.captured() { // their vectors state the BTH only
				bth := h
				bth.QKey, bth.SrcQPN, bth.VA, bth.RKey, bth.DMALen, bth.SwapAdd, bth.Compare = 0, 0, 0, 0, 0, 0, 0
				bth.Syndrome, bth.MSN, bth.Orig, bth.Imm, bth.InvKey = 0, 0, 0, 0, 0
				if d := cmp.Diff(v.Fields.BTH.headers(), bth); d != "" {
					t.Errorf("BTH (-want +got):\n%s", d)
				}
			} else {
				if d := cmp.Diff(v.headers(), h); d != "" {
					t.Errorf("headers (-want +got):\n%s", d)
				}
				if len(payload) != v.Fields.PayloadLen {
					t.Errorf("payload %d bytes, want %d", len(payload), v.Fields.PayloadLen)
				}
			}
			b := dirty(len(p))
			n := h.Put(b)
			if d := cmp.Diff(clearReserved(p[:n]), b[:n]); d != "" {
				t.Errorf("re-encoded (-want +got):\n%s", d)
			}
			if rest := b[n:]; !bytes.Equal(rest, dirty(len(rest))) {
				t.Error("Put wrote behind its headers")
			}
			if Pad(len(payload)) != int(h.PadCnt) {
				t.Errorf("Pad(%d) = %d, want %d", len(payload), Pad(len(payload)), h.PadCnt)
			}
			for i := range p { // no prefix that is not whole may be mistaken for an opcode's headers
				var h Headers
				pl, why := h.Parse(p[:i:i])
				if hdr := int(ib.Opcode(p[0]).Info().HdrLen); i < hdr+ICRCLen && why == OK {
					t.Errorf("%d of %d bytes parsed", i, len(p))
				}
				if why != OK && pl != nil {
					t.Errorf("refusal of %d bytes returned payload", i)
				}
			}
		})
	}
}

func TestParseRefusals(t *testing.T) {
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tc := range []struct {
		name, p string
		want    Refusal
	}{
		{"empty", "", Short},
		{"BTH without ICRC", "0400ffff0000001180000001", Short},
		{"SEND Only, nothing in it", "0400ffff0000001180000001 00000000", OK},
		{"one byte over", "0400ffff0000001180000001 00 00000000", Unaligned},
		{"two bytes over", "0400ffff0000001180000001 0000 00000000", Unaligned},
		{"three bytes over", "0400ffff0000001180000001 000000 00000000", Unaligned},
		{"transport version 1", "0401ffff0000001180000001 00000000", TransportVersion},
		{"transport version before opcode", "15f1ffff0000001180000001 00000000", TransportVersion},
		{"reserved opcode", "1500ffff0000001180000001 00000000", BadOpcode},
		{"FLUSH", "1c00ffff0000001180000001 00000000", BadOpcode},
		{"ATOMIC WRITE without RETH", "1d00ffff0000001180000001 00000000", Short},
		{"ATOMIC WRITE", "1d00ffff0000001180000001 00000000000000000000000000000008 0102030405060708 00000000", OK},
		{"UC ATOMIC WRITE", "3d00ffff0000001180000001 00000000000000000000000000000008 0102030405060708 00000000",
			BadOpcode},
		{"UC READ Request", "2c00ffff0000001180000001 00000000", BadOpcode},
		{"reliable datagram", "4400ffff0000001180000001 00000000", BadOpcode},
		{"vendor", "c000ffff0000001180000001 00000000", BadOpcode},
		{"WRITE Only, 12 of 16 bytes of RETH", "0a00ffff0000001180000001 000000000000000000000000 00000000", Short},
		{"ACK without AETH", "1100ffff0000001180000001 00000000", Short},
		{"SEND Only, pad 3 of no payload", "0430ffff0000001180000001 00000000", BadPad},
		{"ACK, pad 3", "1130ffff0000001180000001 1f000000 00000000", BadPad},
		{"ACK with payload", "1100ffff0000001180000001 1f000000 deadbeef 00000000", Surplus},
		{"ACK with padding", "1130ffff0000001180000001 1f000000 deadbeef 00000000", Surplus},
		{"SEND Only, pad 3 of 4", "0430ffff0000001180000001 01000000 00000000", OK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var h Headers
			if _, why := h.Parse(unhex(tc.p)); why != tc.want {
				t.Errorf("got %v, want %v", why, tc.want)
			}
		})
	}
}

// TestReceiveDrops feeds packets with a right ICRC that a receiver must drop.
// Two of them are beyond a parser: they name no queue pair that RoCE has and a
// partition that matches none.
func TestReceiveDrops(t *testing.T) {
	var f struct {
		Drops struct {
			Cases []struct {
				Reason string
				Frame  hexBytes `json:"frame_hex"`
			}
		} `json:"receive_drops"`
	}
	loadJSON(t, "headers.json", &f)
	want := []Refusal{TransportVersion, BadOpcode, OK, OK, Short, BadPad}
	if len(f.Drops.Cases) != len(want) {
		t.Fatalf("%d cases, want %d", len(f.Drops.Cases), len(want))
	}
	for i, c := range f.Drops.Cases {
		var ip IPUDP
		p, why := ip.Parse(c.Frame)
		if why != OK {
			t.Fatalf("%s: IP: %v", c.Reason, why)
		}
		if s := NewSeed(ip.Src, ip.Dst, ip.SrcPort, ip.DstPort); !s.Verify(ip.ID, p) {
			t.Errorf("%s: ICRC wrong", c.Reason)
		}
		var h Headers
		if _, why := h.Parse(p); why != want[i] {
			t.Errorf("%s: got %v, want %v", c.Reason, why, want[i])
		}
		if want[i] == OK && h.DestQPN != 0 && h.PKey.Match(ib.DefaultPKey) {
			t.Errorf("%s: nothing to drop it for", c.Reason)
		}
	}
}

func TestHeaderVectors(t *testing.T) {
	var f struct {
		Headers []struct {
			Header string
			Hex    hexBytes
			Fields bthFields
		}
	}
	loadJSON(t, "headers.json", &f)
	seen := map[string]int{}
	for i, v := range f.Headers {
		seen[v.Header]++
		x := &v.Fields
		// A header alone is put behind a BTH with an opcode that has it.
		ext := func(op ib.Opcode, set Headers, lead int) {
			set.Opcode, set.PKey = op, 0xffff
			b := dirty(MaxHeaderLen + ICRCLen)
			n := set.Put(b)
			if d := cmp.Diff([]byte(v.Hex), b[lead:lead+len(v.Hex)]); d != "" {
				t.Errorf("%d %s put (-want +got):\n%s", i, v.Header, d)
			}
			copy(b[lead:], v.Hex)
			var got Headers
			if _, why := got.Parse(b[:n+ICRCLen]); why != OK {
				t.Errorf("%d %s: %v", i, v.Header, why)
			} else if d := cmp.Diff(set, got); d != "" {
				t.Errorf("%d %s parsed (-want +got):\n%s", i, v.Header, d)
			}
		}
		switch v.Header {
		case "LRH":
			want := LRH{VL: x.VL, LVer: x.LVer, SL: x.SL, LNH: x.LNH, DLID: ib.LID(x.DLID), SLID: ib.LID(x.SLID),
				PktLen: x.PktLen}
			var got LRH
			got.parse(v.Hex)
			b := dirty(LRHLen)
			want.Put(b)
			if d := cmp.Diff(want, got) + cmp.Diff([]byte(v.Hex), b); d != "" {
				t.Errorf("%d LRH (-want +got):\n%s", i, d)
			}
		case "GRH":
			want := GRH{IPVer: x.IPVer, TClass: x.TClass, FlowLabel: x.Flow, PayLen: x.PayLen, NxtHdr: x.NxtHdr,
				HopLimit: x.Hop,
				SGID:     ib.GIDFromAddr(x.SGID), DGID: ib.GIDFromAddr(x.DGID)}
			var got GRH
			got.parse(v.Hex)
			b := dirty(GRHLen)
			want.Put(b)
			if d := cmp.Diff(want, got) + cmp.Diff([]byte(v.Hex), b); d != "" {
				t.Errorf("%d GRH (-want +got):\n%s", i, d)
			}
		case "BTH":
			want := x.headers()
			p := make([]byte, 12+28+4) // room for the headers of any opcode; the rest is padding and payload
			copy(p, v.Hex)
			var got Headers
			_, why := got.Parse(p)
			if x.TVer != 0 {
				if why != TransportVersion {
					t.Errorf("%d BTH with TVer %d: %v", i, x.TVer, why)
				}
				continue
			}
			if why != OK {
				t.Errorf("%d BTH: %v", i, why)
			}
			b := dirty(MaxHeaderLen)
			want.Put(b)
			if d := cmp.Diff(want, got) + cmp.Diff([]byte(v.Hex), b[:BTHLen]); d != "" {
				t.Errorf("%d BTH (-want +got):\n%s", i, d)
			}
		case "DETH":
			ext(ib.ServiceUD|ib.SendOnly, Headers{QKey: ib.QKey(x.QKey), SrcQPN: ib.QPN(x.SQP)}, 12)
			ext(ib.ServiceUD|ib.SendOnlyImm, Headers{QKey: ib.QKey(x.QKey), SrcQPN: ib.QPN(x.SQP), Imm: 7}, 12)
		case "RETH":
			h := Headers{VA: uint64(x.VA), RKey: ib.Key(x.RKey), DMALen: uint32(x.DMALen)}
			for _, op := range []ib.Opcode{ib.WriteFirst, ib.WriteOnly, ib.ReadRequest, ib.ServiceUC | ib.WriteOnly} {
				ext(op, h, 12)
			}
			h.Imm = 1
			ext(ib.WriteOnlyImm, h, 12)
		case "AtomicETH":
			for _, op := range []ib.Opcode{ib.CmpSwap, ib.FetchAdd} {
				ext(op, Headers{VA: uint64(x.VA), RKey: ib.Key(x.RKey), SwapAdd: uint64(x.SwapAdd),
					Compare: uint64(x.Compare)}, 12)
			}
		case "AETH":
			for _, op := range []ib.Opcode{ib.Acknowledge, ib.ReadRespFirst, ib.ReadRespLast, ib.ReadRespOnly} {
				ext(op, Headers{Syndrome: ib.Syndrome(x.Syndrome), MSN: x.MSN}, 12)
			}
		case "AtomicAckETH":
			ext(ib.AtomicAck, Headers{Syndrome: 0x1f, MSN: 3, Orig: uint64(x.Orig)}, 16)
		case "ImmDt":
			for _, op := range []ib.Opcode{ib.SendLastImm, ib.SendOnlyImm, ib.WriteLastImm,
				ib.ServiceUC | ib.SendOnlyImm} {
				ext(op, Headers{Imm: uint32(x.Imm)}, 12)
			}
			ext(ib.WriteOnlyImm, Headers{Imm: uint32(x.Imm), VA: 9}, 28)
			ext(ib.ServiceUD|ib.SendOnlyImm, Headers{Imm: uint32(x.Imm), SrcQPN: 2}, 20)
		case "IETH":
			ext(ib.SendLastInv, Headers{InvKey: ib.Key(x.RKey)}, 12)
			ext(ib.SendOnlyInv, Headers{InvKey: ib.Key(x.RKey)}, 12)
		case "RDETH": // reliable datagram is refused: TestParseRefusals
		default:
			t.Errorf("no test for header %q", v.Header)
		}
	}
	if len(seen) != 11 {
		t.Errorf("kinds of header seen: %v", seen)
	}
}

// TestPacket cuts one run of every opcode that a run can have and checks each
// packet against the rules of IBA volume 1, 9.4 and 9.5.
func TestPacket(t *testing.T) {
	for o := range 256 {
		op := ib.Opcode(o)
		i := op.Info()
		if !i.Valid || !(i.Send || i.Write || i.ReadResp) || op.Service() == ib.ServiceUD {
			continue
		}
		for _, n := range []uint32{1, 2, 3, 5} {
			run := Headers{Opcode: op, SE: true, AckReq: true, MigReq: true, PKey: 0x8001, DestQPN: 5, PSN: 0xfffffe}
			if i.Ext&ib.ExtRETH != 0 {
				run.VA, run.RKey, run.DMALen = 0x1000, 7, 4000
			}
			if i.Ext&ib.ExtAETH != 0 {
				run.Syndrome, run.MSN = 0x1f, 11
			}
			if i.Ext&ib.ExtImm != 0 {
				run.Imm = 0xdeadbeef
			}
			if i.Ext&ib.ExtIETH != 0 {
				run.InvKey = 0x99
			}
			for k := range n {
				name := fmt.Sprintf("%v packet %d of %d", op, k, n)
				size := 256
				if k == n-1 {
					size = 5
				}
				got := run.Packet(k, n, size)
				first, last := k == 0, k == n-1
				want := Headers{Opcode: op.Split(k, n), MigReq: true, SE: last, AckReq: last, PKey: 0x8001, DestQPN: 5,
					PSN: ib.PSN((0xfffffe + k) & 0xffffff), PadCnt: uint8(Pad(size))}
				if first {
					want.VA, want.RKey, want.DMALen = run.VA, run.RKey, run.DMALen
				}
				if last {
					want.Imm, want.InvKey = run.Imm, run.InvKey
				}
				if want.Opcode.Info().Ext&ib.ExtAETH != 0 {
					want.Syndrome, want.MSN = run.Syndrome, run.MSN
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("%s (-want +got):\n%s", name, d)
				}
				// And it must survive the wire.
				b := dirty(MaxHeaderLen + size + int(got.PadCnt) + ICRCLen)
				l := got.Put(b)
				var back Headers
				payload, why := back.Parse(b[:l+size+int(got.PadCnt)+ICRCLen])
				if why != OK || len(payload) != size {
					t.Errorf("%s: %v, payload %d", name, why, len(payload))
				} else if d := cmp.Diff(got, back); d != "" {
					t.Errorf("%s parsed (-want +got):\n%s", name, d)
				}
			}
		}
	}
}

func TestRefusalNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range Refusal(NumRefusals) {
		if s := r.String(); s == "" || s == "unknown" || seen[s] {
			t.Errorf("refusal %d has name %q", r, s)
		}
		seen[r.String()] = true
	}
}

func FuzzParse(f *testing.F) {
	for _, v := range icrcVectors(f) {
		f.Add([]byte(v.transport()))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var h Headers
		payload, why := h.Parse(p)
		if why != OK {
			if why >= NumRefusals || payload != nil {
				t.Fatalf("refusal %d, payload %d bytes", why, len(payload))
			}
			return
		}
		b := dirty(MaxHeaderLen)
		n := h.Put(b)
		if n+len(payload)+int(h.PadCnt)+ICRCLen != len(p) {
			t.Fatalf("%d header bytes, %d payload, %d padding and ICRC make not %d", n, len(payload), h.PadCnt, len(p))
		}
		if !bytes.Equal(b[:n], clearReserved(p[:n])) {
			t.Fatalf("parsed   %x\nencoded  %x", p[:n], b[:n])
		}
		if len(payload) > 0 && &payload[0] != &p[n] {
			t.Fatal("payload does not alias the packet behind its headers")
		}
	})
}

func BenchmarkParse(b *testing.B) {
	p := make([]byte, 28+1024+4)
	h := Headers{Opcode: ib.WriteFirst, PKey: 0xffff}
	h.Put(p)
	b.ReportAllocs()
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if _, why := h.Parse(p); why != OK {
			b.Fatal(why)
		}
	}
}

func BenchmarkPut(b *testing.B) {
	p := make([]byte, MaxHeaderLen)
	h := Headers{Opcode: ib.WriteFirst, PKey: 0xffff}
	b.ReportAllocs()
	for b.Loop() {
		h.Put(p)
	}
}
