// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// codec is what every structure of the package is.
type codec interface {
	Append([]byte) []byte
	Parse([]byte) error
}

// layout is a structure with the bits that it carries.
type layout struct {
	name string
	new  func() codec
	mask []byte // ones where a bit is not reserved
}

// mask builds a mask: n bytes of ones, but for the given ones.
func mask(n int, but map[int]byte) []byte {
	m := bytes.Repeat([]byte{0xff}, n)
	for i, v := range but {
		m[i] = v
	}
	return m
}

// without clears mask bytes from … to-1.
func without(m []byte, from, to int) []byte {
	clear(m[from:to])
	return m
}

func of[T any, P interface {
	*T
	codec
}]() func() codec {
	return func() codec { return P(new(T)) }
}

var layouts = []layout{
	{"Header", of[Header](), without(mask(HeaderLen, nil), 18, 20)},
	{"NodeInfo", of[NodeInfo](), mask(NodeInfoLen, nil)},
	{"NodeDescription", of[NodeDescription](), mask(NodeDescriptionLen, nil)},
	{"SwitchInfo", of[SwitchInfo](), mask(SwitchInfoLen, map[int]byte{16: 0xf8, 17: 0})},
	{"SMInfo", of[SMInfo](), mask(SMInfoLen, nil)},
	{"PortInfo", of[PortInfo](), mask(PortInfoLen, map[int]byte{34: 0xc7, 52: 0x1f, 56: 0, 63: 0x1f})},
	{"GUIDInfo", of[GUIDInfo](), mask(TableLen, nil)},
	{"PKeyTable", of[PKeyTable](), mask(TableLen, nil)},
	{"SLtoVL", of[SLtoVL](), mask(SLtoVLLen, nil)},
	{"VLArb", of[VLArb](), bytes.Repeat([]byte{0x0f, 0xff}, VLArbPerBlock)},
	{"LFT", of[LFT](), mask(TableLen, nil)},
	{"MFT", of[MFT](), mask(TableLen, nil)},
	{"RMPP", of[RMPP](), mask(RMPPLen, nil)},
	{"SAHeader", of[SAHeader](), without(without(mask(SAHeaderLen, nil), 18, 20), 46, 48)},
	{"SA", of[SA](), without(without(mask(Len, nil), 18, 20), 46, 48)},
	{"NodeRecord", of[NodeRecord](), without(mask(NodeRecordLen, nil), 2, 4)},
	{"PortInfoRecord", of[PortInfoRecord](), mask(PortInfoRecordLen, map[int]byte{38: 0xc7, 56: 0x1f, 60: 0,
		67: 0x1f})},
	{"SLtoVLRecord", of[SLtoVLRecord](), without(mask(SLtoVLRecordLen, nil), 4, 8)},
	{"SwitchInfoRecord", of[SwitchInfoRecord](), mask(SwitchInfoRecordLen, map[int]byte{2: 0, 3: 0, 20: 0xf8, 21: 0})},
	{"LFTRecord", of[LFTRecord](), without(mask(TableRecordLen, nil), 4, 8)},
	{"MFTRecord", of[MFTRecord](), without(mask(TableRecordLen, map[int]byte{2: 0xf1}), 4, 8)},
	{"GUIDInfoRecord", of[GUIDInfoRecord](), without(mask(TableRecordLen, nil), 3, 8)},
	{"PKeyTableRecord", of[PKeyTableRecord](), without(mask(TableRecordLen, nil), 5, 8)},
	{"VLArbRecord", of[VLArbRecord](), without(append(mask(8, nil), bytes.Repeat([]byte{0x0f, 0xff},
		VLArbPerBlock)...), 4, 8)},
	{"SMInfoRecord", of[SMInfoRecord](), without(mask(SMInfoRecordLen, nil), 2, 4)},
	{"LinkRecord", of[LinkRecord](), mask(LinkRecordLen, nil)},
	{"ServiceRecord", of[ServiceRecord](), without(mask(ServiceRecordLen, nil), 26, 28)},
	{"PathRecord", of[PathRecord](), without(mask(PathRecordLen, map[int]byte{44: 0x8f}), 58, 64)},
	{"MultiPathRecord", of[MultiPathRecord](), mask(MultiPathRecordLen, map[int]byte{0: 0x8f, 14: 0xc0})},
	{"MCMemberRecord", of[MCMemberRecord](), mask(MCMemberRecordLen, map[int]byte{49: 0x80, 50: 0, 51: 0})},
	{"InformInfo", of[InformInfo](), mask(InformInfoLen, map[int]byte{20: 0, 21: 0, 31: 0x1f, 32: 0})},
	{"InformInfoRecord", of[InformInfoRecord](),
		without(mask(InformInfoRecordLen, map[int]byte{44: 0, 45: 0, 55: 0x1f, 56: 0}), 18, 24)},
	{"Notice", of[Notice](), mask(NoticeLen, nil)},
	{"NoticeRecord", of[NoticeRecord](), mask(NoticeRecordLen, nil)},
	{"ClassPortInfo", of[ClassPortInfo](), mask(ClassPortInfoLen, map[int]byte{32: 0})},
	{"Perf", of[Perf](), without(without(mask(Len, nil), 18, 20), 24, 64)},
	{"PortCounters", of[PortCounters](), mask(PortCountersLen, map[int]byte{0: 0})},
	{"PortCountersExtended", of[PortCountersExtended](), mask(PortCountersExtendedLen, map[int]byte{0: 0})},
	{"CM", of[CM](), without(mask(Len, nil), 18, 20)},
	{"CMREQ", of[CMREQ](), without(mask(CMDataLen, map[int]byte{4: 0, 90: 0xf0, 91: 0x3f, 94: 0xf8, 95: 0xf8,
		134: 0xf0, 135: 0x3f, 138: 0xf8, 139: 0xf8}), 24, 28)},
	{"CMREP", of[CMREP](), mask(CMDataLen, map[int]byte{27: 0xf0})},
	{"CMRTU", of[CMRTU](), mask(CMDataLen, nil)},
	{"CMDREQ", of[CMDREQ](), mask(CMDataLen, map[int]byte{11: 0})},
	{"CMDREP", of[CMDREP](), mask(CMDataLen, nil)},
	{"CMMRA", of[CMMRA](), mask(CMDataLen, map[int]byte{8: 0xc0, 9: 0xf8})},
	{"CMREJ", of[CMREJ](), mask(CMDataLen, map[int]byte{8: 0xc0, 9: 0xfe})},
	{"CMLAP", of[CMLAP](), without(without(mask(CMDataLen, map[int]byte{15: 0xf8, 58: 0xf0, 61: 0x3f, 62: 0xf8,
		63: 0xf8}), 8, 12), 16, 20)},
	{"CMAPR", of[CMAPR](), without(mask(CMDataLen, nil), 10, 12)},
	{"CMSIDRReq", of[CMSIDRReq](), without(mask(CMDataLen, nil), 6, 8)},
	{"CMSIDRRep", of[CMSIDRRep](), mask(CMDataLen, nil)},
	{"VEMA", of[VEMA](), mask(OPALen, map[int]byte{18: 0, 19: 0, 36: 0})},
	{"VEMATrap", of[VEMATrap](), without(without(mask(VEMATrapLen, map[int]byte{18: 0, 19: 0, 36: 0}), 52, 56), 84,
		VEMATrapLen)},
	{"VEMANotice", of[VEMANotice](), without(without(mask(VEMANoticeLen, nil), 12, 16), 44, VEMANoticeLen)},
	{"VEMAClassPortInfo", of[VEMAClassPortInfo](), without(mask(VEMAClassPortInfoLen, map[int]byte{25: 0x0f, 32: 0xf8,
		57: 0x0f, 76: 0xf8}), 77, 80)},
	{"VESWPortInfo", of[VESWPortInfo](), mask(VESWPortInfoLen, nil)},
	{"VESWMACEntries", of[VESWMACEntries](), mask(VESWMACEntriesLen, nil)},
	{"VESWMACList", of[VESWMACList](), mask(VESWMACListLen, nil)},
	{"VESWSummary", of[VESWSummary](), without(mask(VESWSummaryLen, nil), 232, VESWSummaryLen)},
	{"VESWErrors", of[VESWErrors](), errorsMask()},
}

// errorsMask is the counters of a VESWErrors, between which there are reserved ones.
func errorsMask() []byte {
	m := mask(VESWErrorsLen, nil)
	for _, at := range []int{24, 40, 48, 56, 72, 88, 112, 136, 168} {
		clear(m[at : at+8])
	}
	return without(m, 176, VESWErrorsLen)
}

// TestLayouts proves of every structure: each bit that is not reserved comes
// back where it was, each reserved one is ignored and sent as zero, nothing
// after the structure is looked at, and every truncation is refused.
func TestLayouts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			in := make([]byte, len(l.mask)+3)
			for range 40 {
				for i := range in {
					in[i] = byte(rng.Uint32())
				}
				check(t, l, in)
			}
			for bit := range len(l.mask) * 8 {
				clear(in)
				in[bit/8] = 0x80 >> (bit % 8)
				check(t, l, in)
			}
			for n := range len(l.mask) {
				if err := l.new().Parse(in[:n]); !errors.Is(err, ErrShort) {
					t.Fatalf("%d of %d bytes: %v, want ErrShort", n, len(l.mask), err)
				}
			}
		})
	}
}

// check parses in and appends it again, to a dirty buffer.
func check(t *testing.T, l layout, in []byte) {
	t.Helper()
	c := l.new()
	if err := c.Parse(in); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, len(l.mask))
	for i := range want {
		want[i] = in[i] & l.mask[i]
	}
	buf := bytes.Repeat([]byte{0xa5}, 2*OPALen)
	got := c.Append(buf[:5])
	if !bytes.Equal(got[5:], want) || !bytes.Equal(got[:5], buf[:5]) {
		t.Fatalf("%s % x\nwant % x\n got % x", l.name, in, want, got)
	}
}

// TestOverwideFields proves that a value too wide for its field does not reach
// its neighbours: with every numeric field at its largest, one field of zero is zero
// on the wire.
func TestOverwideFields(t *testing.T) {
	for _, l := range layouts {
		full := l.new()
		v := reflect.ValueOf(full).Elem()
		if v.Kind() != reflect.Struct {
			continue
		}
		fill(v)
		ones := full.Append(nil)
		if !bytes.Equal(ones, l.mask) {
			t.Errorf("%s: all fields at their largest\nwant % x\n got % x", l.name, l.mask, ones)
		}
		for _, name := range fieldPaths(v) {
			c := l.new()
			v := reflect.ValueOf(c).Elem()
			fill(v)
			f := v
			for part := range strings.SplitSeq(name, ".") {
				f = f.FieldByName(part)
			}
			f.SetZero()
			again := l.new()
			if err := again.Parse(c.Append(nil)); err != nil {
				t.Fatal(err)
			}
			g := reflect.ValueOf(again).Elem()
			for part := range strings.SplitSeq(name, ".") {
				g = g.FieldByName(part)
			}
			if !g.IsZero() {
				t.Errorf("%s.%s: zero comes back as %v", l.name, name, g)
			}
		}
	}
}

func fieldPaths(v reflect.Value) (names []string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Type.Kind() == reflect.Struct {
			for _, n := range fieldPaths(v.Field(i)) {
				names = append(names, f.Name+"."+n)
			}
			continue
		}
		names = append(names, f.Name)
	}
	return names
}

// fill sets every bit of every field below v.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(^uint64(0) >> (64 - v.Type().Bits()))
	default:
		panic(v.Kind())
	}
}

func TestNoAllocation(t *testing.T) {
	buf := make([]byte, 0, 2*OPALen)
	all := slices.Clone(layouts)
	all = append(all, layout{"SMP", of[SMP](), mask(Len, nil)})
	for _, l := range all {
		c, in := l.new(), make([]byte, OPALen)
		in[1] = byte(ClassSubnDR)
		if n := testing.AllocsPerRun(100, func() {
			if c.Parse(in) != nil {
				t.Fatal("refused")
			}
			buf = c.Append(buf[:0])
		}); n != 0 {
			t.Errorf("%s: %v allocations", l.name, n)
		}
	}
}

// FuzzLayouts parses arbitrary bytes as every structure: what is accepted
// comes back with its reserved bits zero, and then is stable.
func FuzzLayouts(f *testing.F) {
	for i := range layouts {
		for _, m := range sampleMADs(f) {
			f.Add(uint8(i), m[64:])
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, in []byte) {
		l := layouts[int(which)%len(layouts)]
		if len(in) < len(l.mask) {
			if err := l.new().Parse(in); !errors.Is(err, ErrShort) {
				t.Fatalf("%s of %d bytes: %v", l.name, len(in), err)
			}
			return
		}
		check(t, l, in)
	})
}
