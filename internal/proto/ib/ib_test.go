// SPDX-License-Identifier: Apache-2.0

package ib

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// num is a number that the vector files spell as JSON number or as hexadecimal
// text.
type num uint64

func (n *num) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseUint(strings.Trim(string(b), `"`), 0, 64)
	*n = num(v)
	return err
}

type vectors struct {
	Opcodes []struct {
		Opcode  num
		Name    string
		Headers []string
		HdrLen  uint8 `json:"header_len"`
		Carries string
	}
	Undefined []num                  `json:"undefined_opcodes_must_drop"`
	Newer     []struct{ Opcode num } `json:"newer_extension_opcodes"`
	RNR       []int64                `json:"rnr_timer_code_to_us"`
	AckNS     []int64                `json:"local_ack_timeout_code_to_ns"`
	PSN       []struct {
		A, B PSN
		Sign int
	} `json:"psn_compare"`
	PKeys []struct {
		A, B  num
		Match bool
	} `json:"pkey_match"`
}

func loadVectors(t *testing.T) *vectors {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "test", "vectors", "headers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Opcodes) != 38 || len(v.Undefined) != 10 || len(v.Newer) != 2 || len(v.RNR) != 32 || len(v.AckNS) != 32 ||
		len(v.PSN) != 10 || len(v.PKeys) != 8 {
		t.Fatal("headers.json is not the file this test was written for")
	}
	return &v
}

// TestOpcodeTable compares all 256 opcodes with the vector file, and derives
// First, Last and what the message is from the opcode's name there.
func TestOpcodeTable(t *testing.T) {
	v := loadVectors(t)
	ext := map[string]Ext{"DETH": ExtDETH, "RETH": ExtRETH, "AtomicETH": ExtAtomic, "AETH": ExtAETH,
		"AtomicAckETH": ExtAtomicAck, "ImmDt": ExtImm, "IETH": ExtIETH}
	want := map[Opcode]OpInfo{}
	for _, o := range v.Opcodes {
		if o.Name == "CNP" {
			continue // not an operation of a queue pair
		}
		i := OpInfo{Valid: true, HdrLen: o.HdrLen, Payload: o.Carries == "payload"}
		for _, h := range o.Headers[1:] {
			if ext[h] == 0 {
				t.Fatalf("%s: unknown header %s", o.Name, h)
			}
			i.Ext |= ext[h]
		}
		has := func(s string) bool { return strings.Contains(o.Name, s) }
		part := has("_MIDDLE") || has("_LAST")
		i.First = !part
		i.Last = !has("_FIRST") && !has("_MIDDLE")
		i.Send = has("_SEND_")
		i.Write = has("_WRITE_")
		i.ReadResp = has("_READ_RESP")
		i.Response = i.ReadResp || strings.HasSuffix(o.Name, "_ACK")
		want[Opcode(o.Opcode)] = i
	}
	if len(want) != 37 {
		t.Fatalf("%d opcodes, want 37", len(want))
	}
	// Of the newer ones: BTH, RETH and eight bytes.
	want[AtomicWrite] = OpInfo{Valid: true, Ext: ExtRETH, HdrLen: 28, First: true, Last: true, Payload: true}
	names := map[string]Opcode{}
	for o := range 256 {
		op := Opcode(o)
		got := *op.Info()
		if other, dup := names[op.String()]; dup {
			t.Errorf("%#02x and %#02x are both %q", other, o, op)
		}
		names[op.String()] = op
		if got.Valid == (got.name == "") {
			t.Errorf("%#02x: valid %v with name %q", o, got.Valid, got.name)
		}
		got.name = ""
		if d := cmp.Diff(want[op], got, cmp.AllowUnexported(OpInfo{})); d != "" {
			t.Errorf("%#02x %v (-want +got):\n%s", o, op, d)
		}
		if op.Service()|op.Op() != op {
			t.Errorf("%#02x: service %#02x, operation %#02x", o, op.Service(), op.Op())
		}
	}
	for _, o := range v.Undefined {
		if Opcode(o).Info().Valid {
			t.Errorf("%#02x is defined", o)
		}
	}
	for _, o := range v.Newer {
		if op := Opcode(o.Opcode); op.Info().Valid != (op == AtomicWrite) {
			t.Errorf("%#02x: valid %v", o.Opcode, op.Info().Valid)
		}
	}
	if CNP.Info().Valid || CNP.String() != "CNP" {
		t.Errorf("CNP: %+v %v", CNP.Info(), CNP)
	}
	if s := Opcode(0xc0).String(); s != "Opcode(0xc0)" {
		t.Errorf("vendor opcode prints %q", s)
	}
}

func TestServiceOf(t *testing.T) {
	for typ, want := range map[QPType]Opcode{RC: 0, UC: 0x20, UD: 0x60, GSI: 0x60, SMI: 0x60} {
		if got := ServiceOf(typ); got != want {
			t.Errorf("ServiceOf(%v) = %#02x, want %#02x", typ, uint8(got), uint8(want))
		}
	}
}

// TestSplit writes out, for every opcode that a run of packets can bear, what
// its packets bear: alone, at the start, in the middle and at the end.
func TestSplit(t *testing.T) {
	type row struct{ op, first, middle, last Opcode }
	rows := []row{
		{0x00, 0x00, 0x01, 0x01}, // SEND First: the message continues behind the burst
		{0x01, 0x01, 0x01, 0x01},
		{0x02, 0x01, 0x01, 0x02},
		{0x03, 0x01, 0x01, 0x03},
		{0x04, 0x00, 0x01, 0x02},
		{0x05, 0x00, 0x01, 0x03},
		{0x06, 0x06, 0x07, 0x07}, // WRITE First
		{0x07, 0x07, 0x07, 0x07},
		{0x08, 0x07, 0x07, 0x08},
		{0x09, 0x07, 0x07, 0x09},
		{0x0a, 0x06, 0x07, 0x08},
		{0x0b, 0x06, 0x07, 0x09},
	}
	for _, r := range rows { // UC has the same twelve
		rows = append(rows, row{r.op | 0x20, r.first | 0x20, r.middle | 0x20, r.last | 0x20})
	}
	rows = append(rows,
		row{0x0d, 0x0d, 0x0e, 0x0e}, // READ Response First
		row{0x0e, 0x0e, 0x0e, 0x0e},
		row{0x0f, 0x0e, 0x0e, 0x0f},
		row{0x10, 0x0d, 0x0e, 0x0f},
		row{0x16, 0x01, 0x01, 0x16}, // SEND Last Inv
		row{0x17, 0x00, 0x01, 0x16},
	)
	in := map[Opcode]bool{}
	for _, r := range rows {
		in[r.op] = true
		for _, n := range []uint32{0, 1} {
			if got := r.op.Split(0, n); got != r.op {
				t.Errorf("%v, one packet: %v", r.op, got)
			}
		}
		for _, n := range []uint32{2, 3, 4, 16, 1 << 23} {
			for _, k := range []uint32{0, 1, 2, n / 2, n - 2, n - 1} {
				if k >= n {
					continue
				}
				want := r.middle
				switch k {
				case 0:
					want = r.first
				case n - 1:
					want = r.last
				}
				if got := r.op.Split(k, n); got != want {
					t.Errorf("%v, packet %d of %d: %v, want %v", r.op, k, n, got, want)
				}
			}
		}
	}
	// Whatever is not listed is one packet, always, and Split leaves it alone.
	for o := range 256 {
		op := Opcode(o)
		if i := op.Info(); i.Valid && (i.Send || i.Write || i.ReadResp) && op.Service() != ServiceUD && !in[op] {
			t.Errorf("%v is not in this test's table", op)
		}
		if i := op.Info(); i.Send || i.Write || i.ReadResp {
			continue
		}
		if got := op.Split(1, 3); got != op {
			t.Errorf("%v split into %v", op, got)
		}
	}
}

func TestPSN(t *testing.T) {
	for _, c := range loadVectors(t).PSN {
		d := c.A.Diff(c.B)
		if sign(d) != c.Sign {
			t.Errorf("%d against %d: %d, want sign %d", c.A, c.B, d, c.Sign)
		}
	}
	for _, c := range []struct {
		p    PSN
		n    uint32
		want PSN
	}{
		{0, 0, 0}, {5, 3, 8}, {0xffffff, 1, 0}, {0xfffffe, 5, 3}, {0x800000, 0x800000, 0},
		{1, 1 << 24, 1}, {1, math.MaxUint32, 0}, {0xffffff, math.MaxUint32, 0xfffffe},
	} {
		if got := c.p.Add(c.n); got != c.want {
			t.Errorf("%#x + %#x = %#x, want %#x", c.p, c.n, got, c.want)
		}
	}
	// Diff undoes Add over the whole half circle, from both sides of the wrap.
	for _, p := range []PSN{0, 1, 0x7fffff, 0x800000, 0xffffff} {
		for _, n := range []uint32{0, 1, 2, 127, 0x7ffffe, 0x7fffff} {
			q := p.Add(n)
			if q.Diff(p) != int32(n) || p.Diff(q) != -int32(n) {
				t.Errorf("%#x and %#x: %d and %d, want %d", q, p, q.Diff(p), p.Diff(q), n)
			}
		}
		// The opposite point counts as behind, seen from either.
		if q := p.Add(1 << 23); q.Diff(p) != -1<<23 || p.Diff(q) != -1<<23 {
			t.Errorf("opposite of %#x: %d, %d", p, q.Diff(p), p.Diff(q))
		}
	}
}

func sign(d int32) int {
	switch {
	case d > 0:
		return 1
	case d < 0:
		return -1
	}
	return 0
}

func TestPKeyMatch(t *testing.T) {
	for _, c := range loadVectors(t).PKeys {
		for _, k := range [][2]PKey{{PKey(c.A), PKey(c.B)}, {PKey(c.B), PKey(c.A)}} {
			if got := k[0].Match(k[1]); got != c.Match {
				t.Errorf("%#04x with %#04x: %v, want %v", k[0], k[1], got, c.Match)
			}
		}
	}
}

func TestTimers(t *testing.T) {
	v := loadVectors(t)
	for code := range uint8(32) {
		if got, want := RNRTimer(code), time.Duration(v.RNR[code])*time.Microsecond; got != want {
			t.Errorf("RNR timer %d: %v, want %v", code, got, want)
		}
		if got, want := AckTimeout(code), time.Duration(v.AckNS[code]); got != want {
			t.Errorf("ACK timeout %d: %v, want %v", code, got, want)
		}
		// The codes are 5-bit fields: bits above them do not index anything.
		if RNRTimer(code|0xe0) != RNRTimer(code) || AckTimeout(code|0xe0) != AckTimeout(code) {
			t.Errorf("code %d with upper bits set is another", code)
		}
	}
}

func TestSyndrome(t *testing.T) {
	for s := range 256 {
		syn := Syndrome(s)
		if got, want := syn.IsACK(), s < 0x20; got != want {
			t.Errorf("%#02x: IsACK %v", s, got)
		}
		if got, want := syn.IsRNR(), s>>5 == 1; got != want {
			t.Errorf("%#02x: IsRNR %v", s, got)
		}
		if syn.Value() != uint8(s&0x1f) {
			t.Errorf("%#02x: value %d", s, syn.Value())
		}
	}
}

func TestMTU(t *testing.T) {
	for code, bytes := range map[MTU]int{1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096} {
		if !code.Valid() || code.Bytes() != bytes {
			t.Errorf("MTU %d: valid %v, %d bytes, want %d", code, code.Valid(), code.Bytes(), bytes)
		}
	}
	for _, code := range []MTU{0, 6, 255} {
		if code.Valid() {
			t.Errorf("MTU %d is valid", code)
		}
	}
	for link, want := range map[int]MTU{0: MTU256, 335: MTU256, 336: MTU256, 591: MTU256, 592: MTU512, 1103: MTU512,
		1104: MTU1024, 1500: MTU1024, 2127: MTU1024, 2128: MTU2048, 4175: MTU2048, 4176: MTU4096, 9000: MTU4096, 65536: MTU4096} {
		if got := MTUForLink(link); got != want {
			t.Errorf("link MTU %d: path MTU %d, want %d", link, got.Bytes(), want.Bytes())
		}
	}
}

func TestGID(t *testing.T) {
	for _, c := range []struct {
		addr, text  string
		ipv4, mcast bool
	}{
		{"192.0.2.1", "0000:0000:0000:0000:0000:ffff:c000:0201", true, false},
		{"::ffff:192.0.2.1", "0000:0000:0000:0000:0000:ffff:c000:0201", true, false},
		{"239.1.2.3", "0000:0000:0000:0000:0000:ffff:ef01:0203", true, true},
		{"fe80::5054:ff:fe00:1%eth0", "fe80:0000:0000:0000:5054:00ff:fe00:0001", false, false},
		{"ff0e::1:2", "ff0e:0000:0000:0000:0000:0000:0001:0002", false, true},
	} {
		a := netip.MustParseAddr(c.addr)
		g := GIDFromAddr(a)
		if g.String() != c.text || g.IsIPv4() != c.ipv4 || g.IsMulticast() != c.mcast || g.IsZero() {
			t.Errorf("%s: %v, IPv4 %v, multicast %v, zero %v", c.addr, g, g.IsIPv4(), g.IsMulticast(), g.IsZero())
		}
		if got, want := g.Addr(), a.WithZone("").Unmap(); got != want {
			t.Errorf("%s came back as %v", c.addr, got)
		}
	}
	if !(GID{}).IsZero() || (GID{}).IsMulticast() || (GID{}).IsIPv4() {
		t.Error("the zero GID")
	}
	if s := GUID(0x5054000123456789).String(); s != "5054:0001:2345:6789" {
		t.Errorf("GUID prints %q", s)
	}
}

// TestWorkRequests checks which operation each service executes and how its
// completion is called (IBA volume 1, tables 55 and 56; verbs numbers).
func TestWorkRequests(t *testing.T) {
	for op, want := range map[WROp]struct {
		on   string // RC, UC, UD
		wc   WCOp
		imm  bool
		resp bool
	}{
		WRWrite:       {"RC UC", WCWrite, false, false},
		WRWriteImm:    {"RC UC", WCWrite, true, false},
		WRSend:        {"RC UC UD", WCSend, false, false},
		WRSendImm:     {"RC UC UD", WCSend, true, false},
		WRRead:        {"RC", WCRead, false, true},
		WRCmpSwap:     {"RC", WCCmpSwap, false, true},
		WRFetchAdd:    {"RC", WCFetchAdd, false, true},
		WRLocalInv:    {"RC UC", WCLocalInv, false, false},
		WRBindMW:      {"RC UC", WCBindMW, false, false},
		WRSendInv:     {"RC", WCSend, false, false},
		WRRegMR:       {"RC UC", WCRegMR, false, false},
		WRAtomicWrite: {"RC", WCAtomicWrite, false, true},
		12:            {"", WCSend, false, false},
	} {
		var on []string
		for _, typ := range []QPType{RC, UC, UD} {
			if op.AllowedOn(typ) {
				on = append(on, typ.String())
			}
		}
		if got := strings.Join(on, " "); got != want.on {
			t.Errorf("%v on %q, want %q", op, got, want.on)
		}
		if op.AllowedOn(GSI) != op.AllowedOn(UD) || op.AllowedOn(SMI) {
			t.Errorf("%v: GSI %v, SMI %v", op, op.AllowedOn(GSI), op.AllowedOn(SMI))
		}
		if op.WCOp() != want.wc || op.HasImm() != want.imm || op.NeedsResponse() != want.resp {
			t.Errorf("%v: completion %v, immediate %v, response %v", op, op.WCOp(), op.HasImm(), op.NeedsResponse())
		}
		if got, want := op.IsSend(), strings.HasPrefix(op.String(), "SEND"); got != want {
			t.Errorf("%v: IsSend %v", op, got)
		}
	}
}

// TestNames checks numbers by name, against the order of the specification's
// and the verbs headers' tables, and the form of unknown values.
func TestNames(t *testing.T) {
	for want, v := range map[string]fmt.Stringer{
		"SUCCESS": Status(0), "LOC_PROT_ERR": Status(4), "WR_FLUSH_ERR": Status(5), "BAD_RESP_ERR": Status(7),
		"REM_INV_REQ_ERR": Status(9), "REM_ACCESS_ERR": Status(10), "REM_OP_ERR": Status(11), "RETRY_EXC_ERR": Status(12),
		"RNR_RETRY_EXC_ERR": Status(13), "GENERAL_ERR": Status(21), "Status(22)": Status(22),
		"RESET": QPState(0), "INIT": QPState(1), "RTR": QPState(2), "RTS": QPState(3), "SQD": QPState(4), "SQE": QPState(5),
		"ERR": QPState(6), "QPState(7)": QPState(7),
		"SMI": QPType(0), "GSI": QPType(1), "RC": QPType(2), "UC": QPType(3), "UD": QPType(4), "QPType(9)": QPType(9),
		"WRITE": WROp(0), "SEND_INV": WROp(9), "REG_MR": WROp(10), "ATOMIC_WRITE": WROp(11), "WROp(12)": WROp(12),
		"CQ_ERR": Event(1), "DEVICE_FATAL": Event(13), "Event(0)": Event(0), "CLIENT_REREGISTER": Event(17), "Event(18)": Event(18),
		"InfiniBand": LinkLayer(1), "Ethernet": LinkLayer(2), "Unspecified": LinkLayer(0),
	} {
		if v.String() != want {
			t.Errorf("%T prints %q, want %q", v, v, want)
		}
	}
	if len(statusNames) != int(GeneralErr)+1 || len(stateNames) != int(Err)+1 ||
		len(eventNames) != int(EventReregister)+1 {
		t.Error("a constant has no name")
	}
}

// TestSplitAndJoin checks that Join inverts Split for every opcode that can
// be cut.
func TestSplitAndJoin(t *testing.T) {
	for o := range 256 {
		op := Opcode(o)
		i := op.Info()
		if !i.Send && !i.Write && !i.ReadResp || op.Service() == ServiceUD {
			continue
		}
		for n := uint32(2); n < 5; n++ {
			r, ok := op.Split(0, n), true
			for k := uint32(1); k < n && ok; k++ {
				r, ok = r.Join(op.Split(k, n))
			}
			if !ok || r != op {
				t.Errorf("%v in %d packets joins to %v, %v", op, n, r, ok)
			}
		}
	}
}

// TestOwnedLIDs checks what an LMC adds to a LID.
func TestOwnedLIDs(t *testing.T) {
	for _, c := range []struct {
		base LID
		lmc  uint8
		dlid LID
		want bool
	}{{5, 0, 5, true}, {5, 0, 4, false}, {8, 2, 11, true}, {8, 2, 12, false}, {0, 0, 0, false}, {0, 7, 3,
		false}, {0x80, 7, 0xff, true}} {
		if got := c.base.Owns(c.lmc, c.dlid); got != c.want {
			t.Errorf("LID %#x with LMC %d and %#x: %v", c.base, c.lmc, c.dlid, got)
		}
	}
	if p := (&Path{DLID: 1}); !p.Native() || (&Path{}).Native() {
		t.Error("what is native?")
	}
}
