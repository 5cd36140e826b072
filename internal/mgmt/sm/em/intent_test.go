// SPDX-License-Identifier: Apache-2.0

package em

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

func TestValidate(t *testing.T) {
	two := func(change func(i *Intent)) Intent {
		i := Intent{VESWs: []VESW{members("a", 1, 0, 1), members("b", 2, 2, 3)}}
		change(&i)
		return i
	}
	for _, c := range []struct {
		why    string
		change func(i *Intent)
	}{
		{"", func(*Intent) {}},
		{"", func(i *Intent) { i.VESWs[1].PKey = 1; i.VESWs[0].MTU = 9000; i.VESWs[0].SL = 14 }},
		{"", func(i *Intent) { i.VESWs[0].PKey, i.VESWs[1].PKey = 5, 5 }},
		{"fabric id 1024", func(i *Intent) { i.FabricID = 1024 }},
		{"already", func(i *Intent) { i.VESWs[1].Name = "a" }},
		{"the name", func(i *Intent) { i.VESWs[1].Name = "a b" }},
		{"the name", func(i *Intent) { i.VESWs[1].Name = ".." }},
		{"the name", func(i *Intent) { i.VESWs[1].Name = strings.Repeat("x", 65) }},
		{"the name", func(i *Intent) { i.VESWs[1].Name = "ä" }},
		{"ids that are one: 1", func(i *Intent) { i.VESWs[1].ID = 1 }},
		{"id 0", func(i *Intent) { i.VESWs[1].ID = 0 }},
		{"id 4096", func(i *Intent) { i.VESWs[1].ID = 4096 }},
		{"", func(i *Intent) { i.VESWs[1].ID = 257 }},
		{"ids that are one: 257 in their low eight bits", func(i *Intent) { i.VESWs[1].ID, i.ByteIDs = 257, true }},
		{"id 256", func(i *Intent) { i.VESWs[1].ID, i.ByteIDs = 256, true }},
		{"both have vport 0", func(i *Intent) { i.VESWs[1].Members[0].Port = portGUID(0) }},
		{"a member twice", func(i *Intent) { i.VESWs[0].Members[1] = Member{Port: portGUID(0), Index: 1, Num: 9} }},
		{"without a port", func(i *Intent) { i.VESWs[0].Members[1].Port = 0 }},
		{"the number 1", func(i *Intent) { i.VESWs[0].Members[1].Num = 1 }},
		{"the number 0", func(i *Intent) { i.VESWs[0].Members[1].Num = 0 }},
		{"vport 255", func(i *Intent) { i.VESWs[0].Members[1].Index = 255 }},
		{"P_Key 0x8000", func(i *Intent) { i.VESWs[0].PKey = 0x8000 }},
		{"for itself", func(i *Intent) { i.VESWs[1].PKey = 0x4001 }},
		{"MTU 67", func(i *Intent) { i.VESWs[0].MTU = 67 }},
		{"MTU 10223", func(i *Intent) { i.VESWs[0].MTU = 10223 }},
		{"2049 MACs", func(i *Intent) { i.VESWs[0].MaxMACs = 2049 }},
		{"service levels", func(i *Intent) { i.VESWs[0].PCP = &[8]uint8{7: 15} }},
		{"17 gateways", func(i *Intent) {
			i.VESWs[0].Members = nil
			for k := range 17 {
				i.VESWs[0].Members = append(i.VESWs[0].Members, Member{Port: portGUID(50 + k), Num: uint32(k + 1),
					Gateway: true})
			}
		}},
	} {
		i := two(c.change)
		err := i.Validate()
		if c.why == "" && err != nil || c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why)) {
			t.Errorf("want %q, have %v", c.why, err)
		}
		b, _ := json.Marshal(i)
		var back Intent
		if err := json.Unmarshal(b, &back); err != nil || cmp.Diff(i, back) != "" {
			t.Errorf("%s: %v %s", b, err, cmp.Diff(i, back))
		}
	}
}

// TestEdits: identifiers, vports and numbers are chosen so that none is used twice, nor at once again.
func TestEdits(t *testing.T) {
	var i Intent
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(i.Create(VESW{Name: "a"}))
	must(i.Create(VESW{Name: "b"}))
	must(i.Delete("b"))
	must(i.Create(VESW{Name: "c"}))
	if a, c := i.Find("a"), i.Find("c"); a.ID != 1 || c.ID != 3 || i.Find("b") != nil {
		t.Errorf("%+v", i)
	}
	if err := i.Create(VESW{Name: "a"}); err == nil || len(i.VESWs) != 2 {
		t.Error(err)
	}
	must(i.Create(VESW{Name: "last", ID: MaxID}))
	must(i.Create(VESW{Name: "next"}))
	if n := i.Find("next"); n.ID != 2 {
		t.Error(n.ID)
	}
	byteWise := Intent{ByteIDs: true, LastID: 254}
	must(byteWise.Create(VESW{Name: "x"}))
	must(byteWise.Create(VESW{Name: "y"}))
	if x, y := byteWise.Find("x").ID, byteWise.Find("y").ID; x != 255 || y != 257 {
		t.Error(x, y)
	}
	for n := 2; n < 255; n++ {
		must(byteWise.Create(VESW{Name: "v" + string(rune('a'+n%26)) + strings.Repeat("z", n/26)}))
	}
	if err := byteWise.Create(VESW{Name: "full"}); !errors.Is(err, ErrNoRoom) {
		t.Error(err)
	}

	add := func(name string, port ib.GUID, index int, gateway bool) Member {
		t.Helper()
		m, err := i.Add(name, port, index, gateway)
		must(err)
		return m
	}
	if m := add("a", 7, -1, false); m != (Member{Port: 7, Num: 1}) {
		t.Error(m)
	}
	if m := add("c", 7, -1, true); m != (Member{Port: 7, Index: 1, Num: 1, Gateway: true}) {
		t.Error(m)
	}
	if m := add("a", 8, 254, false); m != (Member{Port: 8, Index: 254, Num: 2}) {
		t.Error(m)
	}
	if m := add("c", 7, -1, false); m != (Member{Port: 7, Index: 1, Num: 1}) {
		t.Error(m)
	}
	for _, c := range []struct {
		name  string
		port  ib.GUID
		index int
	}{{"none", 7, -1}, {"last", 7, 0}, {"last", 7, 255}, {"a", 7, 3}} {
		if m, err := i.Add(c.name, c.port, c.index, false); err == nil {
			t.Error(c, m)
		}
	}
	must(i.Remove("a", 7, -1))
	if m := add("a", 9, -1, false); m.Num != 1 {
		t.Error(m)
	}
	if err := i.Remove("a", 7, -1); !errors.Is(err, ErrNoMember) {
		t.Error(err)
	}
	if err := i.Remove("a", 8, 0); !errors.Is(err, ErrNoMember) {
		t.Error(err)
	}
	if err := i.Remove("none", 8, 0); !errors.Is(err, ErrNoVESW) {
		t.Error(err)
	}
	if err := i.Delete("none"); !errors.Is(err, ErrNoVESW) {
		t.Error(err)
	}
	must(i.Validate())
}

func TestMACText(t *testing.T) {
	var m MAC
	for _, s := range []string{"", "00:11:22:33:44", "00:11:22:33:44:5g", "00:11:22:33:44:55:66"} {
		if m.UnmarshalText([]byte(s)) == nil {
			t.Error(s)
		}
	}
	if err := m.UnmarshalText([]byte("0a:11:22:33:44:ff")); err != nil || m.String() != "0a:11:22:33:44:ff" {
		t.Error(m, err)
	}
}
