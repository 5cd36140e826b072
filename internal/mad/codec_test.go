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

// bits builds a mask: n bytes of ones, but for the given ones.
func bits(n int, but map[int]byte) []byte {
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
	{"Header", of[Header](), without(bits(HeaderLen, nil), 18, 20)},
	{"NodeInfo", of[NodeInfo](), bits(NodeInfoLen, nil)},
	{"NodeDescription", of[NodeDescription](), bits(NodeDescriptionLen, nil)},
	{"SwitchInfo", of[SwitchInfo](), bits(SwitchInfoLen, map[int]byte{16: 0xf8, 17: 0})},
	{"SMInfo", of[SMInfo](), bits(SMInfoLen, nil)},
	{"PortInfo", of[PortInfo](), bits(PortInfoLen, map[int]byte{34: 0xc7, 52: 0x1f, 56: 0, 63: 0x1f})},
	{"GUIDInfo", of[GUIDInfo](), bits(TableLen, nil)},
	{"PKeyTable", of[PKeyTable](), bits(TableLen, nil)},
	{"SLtoVL", of[SLtoVL](), bits(SLtoVLLen, nil)},
	{"VLArb", of[VLArb](), bytes.Repeat([]byte{0x0f, 0xff}, VLArbPerBlock)},
	{"LFT", of[LFT](), bits(TableLen, nil)},
	{"MFT", of[MFT](), bits(TableLen, nil)},
}

// TestLayouts proves of every structure: each bit that is not reserved comes
// back where it was, each reserved one is ignored and sent as zero, nothing
// after the structure is looked at, and every truncation is refused.
func TestLayouts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			in := make([]byte, len(l.mask)+3)
			for range 200 {
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
	buf := bytes.Repeat([]byte{0xa5}, 600)
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
	buf := make([]byte, 0, 2*Len)
	all := slices.Clone(layouts)
	all = append(all, layout{"SMP", of[SMP](), bits(Len, nil)})
	for _, l := range all {
		c, in := l.new(), make([]byte, Len)
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
