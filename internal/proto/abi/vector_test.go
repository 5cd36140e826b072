// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

// vector is one entry of test/vectors/virtio-roce.json.
type vector struct {
	ID, Kind string
	Command  Cmd
	Request  json.RawMessage
	Result   map[string]any
	Fields   map[string]any
	Hex      string
	ToDevice string `json:"driver_to_device_hex"`
	ToDriver string `json:"device_to_driver_hex"`
	Ack      byte

	N, M, L  int
	CQN, QPN uint32
	CtrlVQ   int `json:"ctrl_vq"`
	CQVQ     int `json:"cq_vq"`
	SQVQ     int `json:"sq_vq"`
	RQVQ     int `json:"rq_vq"`
	TotalVQs int `json:"total_vqs"`
}

func vectors(t testing.TB, kind string) []vector {
	t.Helper()
	raw, err := os.ReadFile("../../../test/vectors/virtio-roce.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Vectors []vector }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	list := slices.DeleteFunc(file.Vectors, func(v vector) bool { return v.Kind != kind })
	if len(list) == 0 {
		t.Fatalf("no vector of kind %s", kind)
	}
	return list
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// codec lets one test treat all structures alike.
type codec struct {
	zero  any
	parse func(b []byte) (any, error)
}

type appender interface{ Append(b []byte) []byte }

func of[T appender](parse func([]byte) (T, error)) codec {
	var zero T
	return codec{zero, func(b []byte) (any, error) { return parse(b) }}
}

var none = codec{}

var codecs = map[Cmd][2]codec{
	CmdQueryDevice: {none, of(ParseQueryDeviceResult)},
	CmdQueryPort:   {none, of(ParseQueryPortResult)},
	CmdCreateCQ:    {of(ParseCreateCQ), of(ParseCreateCQResult)},
	CmdDestroyCQ:   {of(ParseDestroyCQ), none},
	CmdCreatePD:    {none, of(ParseCreatePDResult)},
	CmdDestroyPD:   {of(ParseDestroyPD), none},
	CmdGetDMAMR:    {of(ParseGetDMAMR), of(ParseMRResult)},
	CmdRegUserMR:   {of(ParseRegUserMR), of(ParseMRResult)},
	CmdDeregMR:     {of(ParseDeregMR), none},
	CmdCreateQP:    {of(ParseCreateQP), of(ParseCreateQPResult)},
	CmdModifyQP:    {of(ParseModifyQP), none},
	CmdQueryQP:     {of(ParseQueryQP), of(ParseQueryQPResult)},
	CmdDestroyQP:   {of(ParseDestroyQP), none},
	CmdCreateAH:    {of(ParseCreateAH), of(ParseCreateAHResult)},
	CmdDestroyAH:   {of(ParseDestroyAH), none},
	CmdAddGID:      {of(ParseAddGID), none},
	CmdDelGID:      {of(ParseDelGID), none},
	CmdReqNotifyCQ: {of(ParseReqNotifyCQ), none},
	CmdExtEnable:   {of(ParseExtEnable), of(ParseExtEnable)},
	CmdCreateSRQ:   {of(ParseCreateSRQ), of(ParseCreateSRQResult)},
	CmdModifySRQ:   {of(ParseModifySRQ), none},
	CmdQuerySRQ:    {of(ParseQuerySRQ), of(ParseQuerySRQResult)},
	CmdDestroySRQ:  {of(ParseDestroySRQ), none},
	CmdAllocMR:     {of(ParseAllocMR), of(ParseMRResult)},
	CmdAllocMW:     {of(ParseAllocMW), of(ParseAllocMWResult)},
	CmdDeallocMW:   {of(ParseDeallocMW), none},
	CmdResizeCQ:    {of(ParseResizeCQ), none},
	CmdSetEVQ:      {of(ParseSetEVQ), none},
	CmdSetArmArea:  {of(ParseSetArmArea), none},
	CmdRegMRVA:     {of(ParseRegMRVA), of(ParseMRResult)},
	CmdReregMR:     {of(ParseReregMR), of(ParseMRResult)},
	CmdQueryPortEx: {of(ParseQueryPortEx), of(ParseQueryPortExResult)},
	CmdQueryGID:    {of(ParseQueryGID), of(ParseQueryGIDResult)},
	CmdModifyQPEx:  {of(ParseQPAttrEx), none},
	CmdQueryQPEx:   {of(ParseQueryQPEx), of(ParseQPAttrEx)},
	CmdQueryPKey:   {of(ParseQueryPKey), of(ParseQueryPKeyResult)},
	CmdAttachMcast: {of(ParseAttachMcast), none},
	CmdDetachMcast: {of(ParseAttachMcast), none},
}

// others are the structures that are not part of a control command.
var others = []codec{of(ParseConfig), of(ParseVUHeader), of(ParseVUConfig), of(ParseVUMemReg), of(ParseVUVringState),
	of(ParseVUVringAddr), of(ParseHello), of(ParseHelloReply), of(ParseSetDoorbell), of(ParseSetRing), of(ParseStopRing),
	of(ParseProcMem), of(ParseCtrlHeader), of(ParseCreateQPResultEx), of(ParseEvent)}

// fill sets the fields of the structure v from a vector's names.
func fill(t *testing.T, v reflect.Value, fields map[string]any) {
	t.Helper()
	for name, value := range fields {
		if strings.HasPrefix(name, "pages[") {
			continue
		}
		dst, rest := v, name
		if sub, f, ok := strings.Cut(name, "."); ok {
			dst, rest = member(t, v, map[string]string{"cap": "cap", "ah": "ah_attr"}[sub]), f
		}
		set(t, name, member(t, dst, rest), value)
	}
}

func member(t *testing.T, v reflect.Value, name string) reflect.Value {
	t.Helper()
	f := v.FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, strings.ReplaceAll(name, "_", "")) })
	if !f.IsValid() {
		t.Fatalf("%s has no field %s", v.Type(), name)
	}
	return f
}

func set(t *testing.T, name string, f reflect.Value, value any) {
	t.Helper()
	switch s, isString := value.(string); {
	case !isString:
		f.SetUint(uint64(value.(float64)))
	case strings.HasPrefix(s, "0x"):
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		f.SetUint(n)
	default:
		b := unhex(t, s)
		if f.Len() != len(b) {
			t.Fatalf("%s has %d bytes, the vector %d", name, f.Len(), len(b))
		}
		reflect.Copy(f, reflect.ValueOf(b))
	}
}

// check proves both directions, every other length, and that encoding leaves
// no byte of a dirty buffer.
func check(t *testing.T, c codec, fields map[string]any, want []byte) {
	t.Helper()
	if c.parse == nil {
		if len(want) != 0 || len(fields) != 0 {
			t.Fatalf("vector has %d bytes where the command has none", len(want))
		}
		return
	}
	v := reflect.New(reflect.TypeOf(c.zero)).Elem()
	fill(t, v, fields)
	got := append(v.Interface().(appender).Append(bytes.Repeat([]byte{0xa5}, 3)[:0]), 0xa5)
	if d := cmp.Diff(append(bytes.Clone(want), 0xa5), got); d != "" {
		t.Errorf("encoding differs (-want +got):\n%s", d)
	}
	back, err := c.parse(want)
	if d := cmp.Diff(v.Interface(), back); err != nil || d != "" {
		t.Errorf("decoding: %v, differs (-want +got):\n%s", err, d)
	}
	for n := range len(want) + 2 {
		if n == len(want) {
			continue
		}
		if _, err := c.parse(append(bytes.Clone(want), 0)[:n]); !errors.Is(err, ErrLength) {
			t.Errorf("%d bytes instead of %d: error %v", n, len(want), err)
		}
	}
	if poison := poisoned(c, len(want)); poison != "" {
		t.Error(poison)
	}
}

// poisoned encodes zeroes into a buffer full of 0xa5 and looks for leftovers.
func poisoned(c codec, size int) string {
	buf := bytes.Repeat([]byte{0xa5}, size+1)
	out := c.zero.(appender).Append(buf[:0])
	if len(out) != size || &out[0] != &buf[0] {
		return "encoding has not the structure's length"
	}
	if !bytes.Equal(buf, append(make([]byte, size), 0xa5)) {
		return "encoding leaves bytes of the buffer, or writes beyond"
	}
	return ""
}

func TestConfigVector(t *testing.T) {
	for _, v := range vectors(t, "config") {
		check(t, of(ParseConfig), v.Fields, unhex(t, v.Hex))
	}
}

func TestControlVectors(t *testing.T) {
	seen := map[Cmd]bool{}
	for _, v := range vectors(t, "ctrl") {
		t.Run(v.ID, func(t *testing.T) {
			seen[v.Command] = true
			var request map[string]any
			if err := json.Unmarshal(v.Request, &request); err != nil {
				t.Fatal(err)
			}
			down, up := unhex(t, v.ToDevice), unhex(t, v.ToDriver)
			hdr, err := ParseCtrlHeader(down[:CtrlHeaderSize])
			if err != nil || hdr != (CtrlHeader{ClassRoCE, v.Command}) {
				t.Fatalf("header %v, %v", hdr, err)
			}
			info, ok := v.Command.Info()
			if !ok {
				t.Fatal("command not in the table")
			}
			data, result := down[CtrlHeaderSize:], up[1:]
			if v.Command == CmdRegUserMR {
				r, err := ParseRegUserMR(data[:info.Req])
				if err != nil {
					t.Fatal(err)
				}
				pages, err := ParseRegUserMRPages(r, data)
				if d := cmp.Diff([]uint64{0x10000000, 0x10005000, 0xffff000}, pages); err != nil || d != "" {
					t.Errorf("pages: %v %s", err, d)
				}
				for _, n := range []int{-1, 1} {
					if _, err := ParseRegUserMRPages(r, append(data, 0)[:len(data)+n]); !errors.Is(err, ErrLength) {
						t.Errorf("page list %+d: %v", n, err)
					}
				}
				data = data[:info.Req]
			}
			if len(data) != info.Req || v.Ack == AckOK && len(result) != info.Res {
				t.Errorf("table has %d and %d bytes, vector has %d and %d", info.Req, info.Res, len(data), len(result))
			}
			check(t, codecs[v.Command][0], request, data)
			if v.Ack == AckOK {
				check(t, codecs[v.Command][1], v.Result, result)
			}
		})
	}
	for c := Cmd(0); c <= CmdReqNotifyCQ; c++ {
		if !seen[c] {
			t.Errorf("no vector of %s", c)
		}
	}
}

func TestControlErrorVectors(t *testing.T) {
	for _, v := range vectors(t, "ctrl-error") {
		if got := unhex(t, v.ToDriver); !bytes.Equal(got, []byte{AckErr}) {
			t.Errorf("%s: answer % x", v.ID, got)
		}
	}
	if _, ok := Cmd(200).Info(); ok {
		t.Error("command 200 is assigned")
	}
}

// TestEveryCommandHasCodecs compares the command table with the structures.
func TestEveryCommandHasCodecs(t *testing.T) {
	assigned := 0
	for i := range 256 {
		info, ok := Cmd(i).Info()
		c, has := codecs[Cmd(i)]
		if ok != has {
			t.Errorf("%s: in the table %v, has codecs %v", Cmd(i), ok, has)
		}
		if !ok {
			continue
		}
		assigned++
		for k, size := range []int{info.Req, info.Res} {
			if (c[k].parse != nil) != (size > 0) {
				t.Errorf("%s: part %d of %d bytes", info.Name, k, size)
			} else if size > 0 {
				if p := poisoned(c[k], size); p != "" {
					t.Errorf("%s part %d: %s", info.Name, k, p)
				}
			}
		}
	}
	if assigned != 38 {
		t.Errorf("%d commands", assigned)
	}
}

// TestExtensionGolden pins the layouts that no published vector covers to the
// offsets docs/notes/abi.md gives.
func TestExtensionGolden(t *testing.T) {
	at := func(size int, bytes map[int]string) []byte {
		b := make([]byte, size)
		for _, off := range slices.Sorted(maps.Keys(bytes)) {
			copy(b[off:], unhex(t, bytes[off]))
		}
		return b
	}
	gid := ib.GID{0: 0xfe, 1: 0x80, 15: 0x07}
	gidHex := "fe800000000000000000000000000007"
	for _, tc := range []struct {
		name string
		v    appender
		want []byte
	}{
		{"RegMRVA", RegMRVA{PDN: 1, Access: 7, VA: 0x7f0011223344, Length: 0x5000, IOVA: 0x99},
			at(32, map[int]string{0: "01", 4: "07", 8: "44332211007f", 16: "0050", 24: "99"})},
		{"ReregMR", ReregMR{MRN: 9, Flags: 5, PDN: 2, Access: 1, VA: 3, Length: 4, IOVA: 5},
			at(40, map[int]string{0: "09", 4: "05", 8: "02", 12: "01", 16: "03", 24: "04", 32: "05"})},
		{"QueryPortExResult", QueryPortExResult{State: 4, MaxMTU: 5, ActiveMTU: 3, PhysState: 5, LinkLayer: 2,
			ActiveWidth: 1,
			ActiveSpeed: 32, LMC: 1, LID: 0x1234, SMLID: 0x5678, GIDTblLen: 256, PKeyTblLen: 1, MaxMsgSz: 1 << 31,
			PortCapFlags: 0x04010000, BadPKeyCntr: 2, QKeyViolCntr: 3, SMSL: 4, SubnetTimeout: 5, InitType: 6, Flags: 7},
			at(64, map[int]string{0: "0405030502012001", 8: "34127856", 12: "00010100", 16: "00000080", 20: "00000104",
				24: "02", 28: "03", 32: "04050607"})},
		{"QueryGIDResult", QueryGIDResult{GID: gid, Type: GIDTypeRoCEv2, IfIndex: 3, Valid: 1},
			at(32, map[int]string{0: gidHex, 16: "02", 20: "03", 24: "01"})},
		{"QPAttrEx", QPAttrEx{QPN: 2, AttrMask: 0x121181, QPState: 2, CurQPState: 1, PathMTU: 3, PathMigState: 1,
			QKey:  0x80010000,
			RQPSN: 0x123456, SQPSN: 0xabcdef, DestQPNum: 0x8005, Access: 7, PKeyIndex: 0x102, EnSQDAsyncNotify: 1, SQDraining: 1,
			MaxRdAtomic: 4, MaxDestRdAtomic: 6, MinRNRTimer: 12, Port: 1, Timeout: 14, RetryCnt: 7, RNRRetry: 6, IsGlobal: 1,
			RateLimit: 0x10, Cap: QPCap{1, 2, 3, 4, 5},
			AHAttr: AHAttr{DGID: gid, FlowLabel: 0x12345, SGIDIndex: 1, HopLimit: 64, TrafficClass: 104,
				DMAC: [6]byte{2, 0, 0, 0, 0, 2}},
			SL: 3, SrcPathBits: 2, DLID: 0xc001, StaticRate: 9, QPType: ib.RC, SigAll: 1},
			at(192, map[int]string{0: "02", 4: "811112", 8: "02010301", 12: "00000180", 16: "563412", 20: "efcdab",
				24: "0580",
				28: "07", 32: "0201", 34: "0101", 36: "04060c01", 40: "0e070601", 44: "10", 48: "01", 52: "02", 56: "03", 60: "04",
				64: "05", 72: gidHex, 88: "45230100", 92: "014068", 96: "020000000002", 112: "0302", 114: "01c0", 116: "09", 117: "0201"})},
		{"CreateQP", CreateQP{SRQN1: 6, QPFlags: QPSGWQE}, at(56, map[int]string{40: "06", 44: "01"})},
		{"CreateSRQ", CreateSRQ{1, 2, 3, 4}, at(32, map[int]string{0: "01", 4: "02", 8: "03", 12: "04"})},
		{"AllocMR", AllocMR{PDN: 1, MaxPages: 512, Access: 7, Type: 9},
			at(16, map[int]string{0: "01", 4: "0002", 8: "07", 12: "09"})},
		{"AllocMW", AllocMW{PDN: 3, Type: MWType2}, at(8, map[int]string{0: "03", 4: "02"})},
		{"AllocMWResult", AllocMWResult{MWN: 5, RKey: 0x11223344}, at(8, map[int]string{0: "05", 4: "44332211"})},
		{"DeallocMW", DeallocMW{MWN: 5}, at(4, map[int]string{0: "05"})},
		{"SetArmArea", SetArmArea{CQN: 3, GPA: 0x1000}, at(16, map[int]string{0: "03", 9: "10"})},
		{"Event", Event{Type: 5, Object: 0x4002}, at(16, map[int]string{0: "05", 4: "0240"})},
		{"SetRing", SetRing{Index: 1, Num: 2, Desc: 3, Avail: 4, Used: 5, CallValue: 6, Flags: 7},
			at(48, map[int]string{0: "01", 4: "02", 8: "03", 16: "04", 24: "05", 32: "06", 40: "07"})},
		{"SetDoorbell", SetDoorbell{GPA: 0x40, NBits: 128}, at(16, map[int]string{0: "40", 8: "80"})},
		{"HelloReply", HelloReply{ABI: 1, NodeUID: 1000, SpinUs: 50},
			at(16, map[int]string{0: "01", 8: "e803", 12: "32"})},
		{"ProcMem", ProcMem{1, 2}, at(16, map[int]string{0: "01", 8: "02"})},
		{"QueryDeviceResult", QueryDeviceResult{MaxSRQ: 1, MaxSRQWR: 2, MaxSRQSGE: 3, AtomicCap: 1, MaxInline: 220,
			ActiveMTU: 3},
			at(128, map[int]string{72: "01", 76: "02", 80: "03", 92: "01", 96: "dc", 100: "03"})},
	} {
		if d := cmp.Diff(tc.want, tc.v.Append(nil)); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
		c, ok := byType()[reflect.TypeOf(tc.v)]
		if !ok {
			t.Fatalf("%s has no codec", tc.name)
		}
		if back, err := c.parse(tc.want); err != nil || !reflect.DeepEqual(back, tc.v) {
			t.Errorf("%s: decoded %+v, %v", tc.name, back, err)
		}
	}
}

// byType returns every codec once.
func byType() map[reflect.Type]codec {
	all := map[reflect.Type]codec{}
	for _, c := range others {
		all[reflect.TypeOf(c.zero)] = c
	}
	for _, pair := range codecs {
		for _, c := range pair {
			if c.parse != nil {
				all[reflect.TypeOf(c.zero)] = c
			}
		}
	}
	return all
}

// TestEveryField gives each byte of each field of each structure a value of
// its own and expects all of them back.
func TestEveryField(t *testing.T) {
	for typ, c := range byType() {
		v := reflect.New(typ).Elem()
		next := uint64(0)
		number(v, &next)
		b := v.Interface().(appender).Append(nil)
		back, err := c.parse(b)
		if err != nil || !reflect.DeepEqual(back, v.Interface()) {
			t.Errorf("%s (%v):\n%+v became\n%+v", typ, err, v.Interface(), back)
		}
		for n := range len(b) + 2 {
			if _, err := c.parse(make([]byte, n)); (err == nil) != (n == len(b)) {
				t.Errorf("%s: %d bytes of %d: %v", typ, n, len(b), err)
			}
		}
		if p := poisoned(c, len(b)); p != "" {
			t.Errorf("%s: %s", typ, p)
		}
	}
}

func number(v reflect.Value, next *uint64) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			number(v.Field(i), next)
		}
	case reflect.Array:
		for i := range v.Len() {
			number(v.Index(i), next)
		}
	default:
		x := uint64(0)
		for range v.Type().Size() {
			*next++
			x = x<<8 | *next&0xff
		}
		v.SetUint(x)
	}
}

// FuzzCommands proves for every structure that parsed bytes encode to the same fields, in the same length, and that
// only reserved bytes are not kept.
func FuzzCommands(f *testing.F) {
	for _, v := range vectors(f, "ctrl") {
		f.Add(byte(v.Command), unhex(f, v.ToDevice)[CtrlHeaderSize:])
		f.Add(byte(v.Command), unhex(f, v.ToDriver)[1:])
	}
	f.Fuzz(func(t *testing.T, cmd byte, b []byte) {
		cs := slices.Clone(others)
		if pair, ok := codecs[Cmd(cmd)]; ok {
			cs = append(cs, pair[0], pair[1])
		}
		for _, c := range cs {
			if c.parse == nil {
				continue
			}
			v, err := c.parse(b)
			if err != nil {
				if !errors.Is(err, ErrLength) {
					t.Fatal(err)
				}
				continue
			}
			out := v.(appender).Append(nil)
			again, err := c.parse(out)
			if err != nil || !reflect.DeepEqual(v, again) {
				t.Fatalf("%T: %v\n% x\n% x", v, err, b, out)
			}
		}
		if len(b) >= RegUserMRSize {
			r, err := ParseRegUserMR(b[:RegUserMRSize])
			if err != nil {
				t.Fatal(err)
			}
			if pages, err := ParseRegUserMRPages(r, b); err == nil && len(pages)*8+RegUserMRSize != len(b) {
				t.Fatalf("%d pages in %d bytes", len(pages), len(b))
			}
		}
	})
}
