// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"

	"weft/internal/proto/ib"
)

// Sizes in bytes.
const (
	BTHLen  = 12
	ICRCLen = 4
	// MaxHeaderLen bounds what Put writes: BTH and AtomicETH.
	MaxHeaderLen = BTHLen + 28
)

// be names the byte order of every header field.
var be = binary.BigEndian

// Parse decodes the transport headers of p, which holds BTH … ICRC: a UDP
// payload of RoCEv2, or a native packet without LRH, GRH and VCRC. It checks
// every length once, the transport version and that the opcode exists. It
// does not check the ICRC (Seed.Verify, VerifyIB), nor what depends on a port
// or a queue pair.
//
// On OK, h is wholly overwritten and payload is the slice of p between headers
// and padding; it aliases p. Otherwise payload is nil and h is undefined.
// Reserved bits are ignored, and so is the value of pad bytes.
func (h *Headers) Parse(p []byte) (payload []byte, why Refusal) {
	if len(p) < BTHLen+ICRCLen {
		return nil, Short
	}
	if len(p)&3 != 0 {
		return nil, Unaligned
	}
	op := ib.Opcode(p[0])
	if p[1]&0x0f != 0 {
		return nil, TransportVersion
	}
	i := op.Info()
	if !i.Valid {
		if op == ib.CNP {
			return nil, Congestion
		}
		return nil, BadOpcode
	}
	hdrLen, pad := int(i.HdrLen), p[1]>>4&3
	end := len(p) - ICRCLen
	if end < hdrLen {
		return nil, Short
	}
	if end -= int(pad); end < hdrLen {
		return nil, BadPad
	}
	if !i.Payload && end+int(pad) > hdrLen {
		return nil, Surplus
	}
	*h = Headers{
		Opcode:  op,
		SE:      p[1]&0x80 != 0,
		MigReq:  p[1]&0x40 != 0,
		PadCnt:  pad,
		PKey:    ib.PKey(be.Uint16(p[2:])),
		FECN:    p[4]&0x80 != 0,
		BECN:    p[4]&0x40 != 0,
		DestQPN: ib.QPN(be.Uint32(p[4:]) & 0xffffff),
		AckReq:  p[8]&0x80 != 0,
		PSN:     ib.PSN(be.Uint32(p[8:]) & 0xffffff),
	}
	x := p[BTHLen:hdrLen]
	if i.Ext&ib.ExtDETH != 0 {
		h.QKey = ib.QKey(be.Uint32(x))
		h.SrcQPN = ib.QPN(be.Uint32(x[4:]) & 0xffffff)
		x = x[8:]
	}
	if i.Ext&ib.ExtRETH != 0 {
		h.VA = be.Uint64(x)
		h.RKey = ib.Key(be.Uint32(x[8:]))
		h.DMALen = be.Uint32(x[12:])
		x = x[16:]
	}
	if i.Ext&ib.ExtAtomic != 0 {
		h.VA = be.Uint64(x)
		h.RKey = ib.Key(be.Uint32(x[8:]))
		h.SwapAdd = be.Uint64(x[12:])
		h.Compare = be.Uint64(x[20:])
		x = x[28:]
	}
	if i.Ext&ib.ExtAETH != 0 {
		h.Syndrome = ib.Syndrome(x[0])
		h.MSN = be.Uint32(x) & 0xffffff
		x = x[4:]
	}
	if i.Ext&ib.ExtAtomicAck != 0 {
		h.Orig = be.Uint64(x)
		x = x[8:]
	}
	if i.Ext&ib.ExtImm != 0 {
		h.Imm = be.Uint32(x)
		x = x[4:]
	}
	if i.Ext&ib.ExtIETH != 0 {
		h.InvKey = ib.Key(be.Uint32(x))
	}
	return p[hdrLen:end], OK
}

// Put writes the BTH and the extension headers of h.Opcode to the start of b
// and returns their length, Opcode.Info().HdrLen. Reserved bits are written
// zero; numbers wider than their field are cut to it.
//
// Preconditions: h.Opcode.Info().Valid, and b has room (MaxHeaderLen always
// suffices).
func (h *Headers) Put(b []byte) int {
	i := h.Opcode.Info()
	n := int(i.HdrLen)
	b = b[:n]
	b[0] = byte(h.Opcode)
	b[1] = bit(h.SE, 7) | bit(h.MigReq, 6) | h.PadCnt&3<<4
	be.PutUint16(b[2:], uint16(h.PKey))
	be.PutUint32(b[4:], uint32(h.DestQPN)&0xffffff|uint32(bit(h.FECN, 7)|bit(h.BECN, 6))<<24)
	be.PutUint32(b[8:], uint32(h.PSN)&0xffffff|uint32(bit(h.AckReq, 7))<<24)
	x := b[BTHLen:]
	if i.Ext&ib.ExtDETH != 0 {
		be.PutUint32(x, uint32(h.QKey))
		be.PutUint32(x[4:], uint32(h.SrcQPN)&0xffffff)
		x = x[8:]
	}
	if i.Ext&ib.ExtRETH != 0 {
		be.PutUint64(x, h.VA)
		be.PutUint32(x[8:], uint32(h.RKey))
		be.PutUint32(x[12:], h.DMALen)
		x = x[16:]
	}
	if i.Ext&ib.ExtAtomic != 0 {
		be.PutUint64(x, h.VA)
		be.PutUint32(x[8:], uint32(h.RKey))
		be.PutUint64(x[12:], h.SwapAdd)
		be.PutUint64(x[20:], h.Compare)
		x = x[28:]
	}
	if i.Ext&ib.ExtAETH != 0 {
		be.PutUint32(x, uint32(h.Syndrome)<<24|h.MSN&0xffffff)
		x = x[4:]
	}
	if i.Ext&ib.ExtAtomicAck != 0 {
		be.PutUint64(x, h.Orig)
		x = x[8:]
	}
	if i.Ext&ib.ExtImm != 0 {
		be.PutUint32(x, h.Imm)
		x = x[4:]
	}
	if i.Ext&ib.ExtIETH != 0 {
		be.PutUint32(x, uint32(h.InvKey))
	}
	return n
}

func bit(v bool, n uint) byte {
	if v {
		return 1 << n
	}
	return 0
}

// Pad returns the number of pad bytes behind a payload of n bytes (IBA volume
// 1, 9.2.6).
func Pad(n int) int { return -n & 3 }

// Packet returns the headers of packet k of the n that carry a run whose
// headers are h (package pkt), payloadLen being that packet's own payload in
// bytes. The opcode is h.Opcode.Split(k, n) and the sequence number h.PSN+k;
// SE, AckReq, ImmDt and IETH stay with the last packet, RETH with the first,
// the AETH of a READ response with first and last. PadCnt is set, and fields
// that the packet's opcode does not have are zero.
func (h *Headers) Packet(k, n uint32, payloadLen int) Headers {
	r := *h
	r.PadCnt = uint8(Pad(payloadLen))
	if n <= 1 {
		return r
	}
	r.Opcode = h.Opcode.Split(k, n)
	r.PSN = h.PSN.Add(k)
	if k != n-1 {
		r.SE, r.AckReq = false, false
	}
	ext := r.Opcode.Info().Ext
	if ext&ib.ExtRETH == 0 {
		r.VA, r.RKey, r.DMALen = 0, 0, 0
	}
	if ext&ib.ExtAETH == 0 {
		r.Syndrome, r.MSN = 0, 0
	}
	if ext&ib.ExtImm == 0 {
		r.Imm = 0
	}
	if ext&ib.ExtIETH == 0 {
		r.InvKey = 0
	}
	return r
}
