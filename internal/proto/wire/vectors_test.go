// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"weft/internal/proto/ib"
)

// hexBytes and num decode the two spellings of values in the vector files:
// hexadecimal text for bytes and for 64-bit numbers, JSON numbers otherwise.
type hexBytes []byte

func (h *hexBytes) UnmarshalText(t []byte) (err error) {
	*h, err = hex.DecodeString(string(t))
	return err
}

type num uint64

func (n *num) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseUint(strings.Trim(string(b), `"`), 0, 64)
	*n = num(v)
	return err
}

type bthFields struct {
	Opcode                                   uint8
	SE, M, Pad, TVer, FECN, BECN, A          uint8
	PKey                                     uint16
	DQPN, PSN                                uint32
	Resv6                                    uint8
	Resv7                                    uint8
	EEN                                      uint32
	QKey, SQP                                uint32
	VA, RKey, DMALen, Compare, Orig, Imm     num
	SwapAdd                                  num `json:"swap_add"`
	Syndrome                                 uint8
	MSN                                      uint32
	VL, LVer, SL, LNH                        uint8
	DLID, SLID, PktLen                       uint16
	IPVer, TClass, NxtHdr, Hop, TTL, TOS, TC uint8
	Flow                                     uint32
	PayLen                                   uint16
	SGID, DGID, Src, Dst                     netip.Addr
	ID                                       uint16
	DF                                       uint8
	SPort, DPort, Length, Checksum           uint16
}

type vector struct {
	ID, Kind    string
	Valid       bool
	Frame       hexBytes `json:"frame_hex"`
	ICRC        hexBytes `json:"icrc_hex"`
	VCRC        hexBytes `json:"vcrc_hex"`
	CRCInput    hexBytes `json:"crc_input_hex"`
	SameAs      string   `json:"same_icrc_as"`
	DiffersFrom string   `json:"differs_from"`
	Fields      struct {
		IP, IP6, UDP, BTH, LRH, GRH, DETH, RETH, AtomicETH, AETH *bthFields
		ImmDt, AtomicAck                                         *num
		IETH                                                     *num `json:"ieth_rkey"`
		PayloadLen                                               int  `json:"payload_len"`
	}
}

func (v *vector) captured() bool {
	return strings.HasPrefix(v.ID, "cap-") || strings.HasPrefix(v.ID, "pub-")
}

// headers returns the expected result of Parse, from the vector's fields.
func (v *vector) headers() Headers {
	f := &v.Fields
	h := f.BTH.headers()
	if x := f.DETH; x != nil {
		h.QKey, h.SrcQPN = ib.QKey(x.QKey), ib.QPN(x.SQP)
	}
	if x := f.RETH; x != nil {
		h.VA, h.RKey, h.DMALen = uint64(x.VA), ib.Key(x.RKey), uint32(x.DMALen)
	}
	if x := f.AtomicETH; x != nil {
		h.VA, h.RKey, h.SwapAdd, h.Compare = uint64(x.VA), ib.Key(x.RKey), uint64(x.SwapAdd), uint64(x.Compare)
	}
	if x := f.AETH; x != nil {
		h.Syndrome, h.MSN = ib.Syndrome(x.Syndrome), x.MSN
	}
	if f.ImmDt != nil {
		h.Imm = uint32(*f.ImmDt)
	}
	if f.AtomicAck != nil {
		h.Orig = uint64(*f.AtomicAck)
	}
	if f.IETH != nil {
		h.InvKey = ib.Key(*f.IETH)
	}
	return h
}

func (f *bthFields) headers() Headers {
	return Headers{Opcode: ib.Opcode(f.Opcode), SE: f.SE == 1, MigReq: f.M == 1, FECN: f.FECN == 1, BECN: f.BECN == 1,
		AckReq: f.A == 1, PadCnt: f.Pad, PKey: ib.PKey(f.PKey), DestQPN: ib.QPN(f.DQPN), PSN: ib.PSN(f.PSN)}
}

func vectorFile(name string) string { return filepath.Join("..", "..", "..", "test", "vectors", name) }

func loadJSON(t testing.TB, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(vectorFile(name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func icrcVectors(t testing.TB) []vector {
	var f struct{ Vectors []vector }
	loadJSON(t, "icrc.json", &f)
	if len(f.Vectors) < 50 {
		t.Fatalf("icrc.json: only %d vectors", len(f.Vectors))
	}
	return f.Vectors
}

// transport returns BTH … ICRC of a vector's frame, found by plain offsets
// rather than by the parser under test.
func (v *vector) transport() []byte {
	switch v.Kind {
	case "rocev2-ipv4":
		return v.Frame[28:]
	case "rocev2-ipv6":
		return v.Frame[48:]
	case "ib-local":
		return v.Frame[8 : len(v.Frame)-2]
	}
	return v.Frame[48 : len(v.Frame)-2]
}

// dirty returns n bytes of 0xa5, which shows a field that was not written.
func dirty(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0xa5
	}
	return b
}
