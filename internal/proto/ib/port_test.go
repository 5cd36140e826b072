// SPDX-License-Identifier: Apache-2.0

package ib

import "testing"

func TestLIDKinds(t *testing.T) {
	for l, want := range map[LID][2]bool{0: {}, 1: {true, false}, 0xbfff: {true, false}, 0xc000: {false, true},
		0xfffe: {false, true}, 0xffff: {}} {
		if l.IsUnicast() != want[0] || l.IsMulticast() != want[1] {
			t.Errorf("%#x: unicast %v, multicast %v", uint16(l), l.IsUnicast(), l.IsMulticast())
		}
	}
}

func TestMakeGID(t *testing.T) {
	g := MakeGID(DefaultGIDPrefix, 0x0002c90300000001)
	if g.String() != "fe80:0000:0000:0000:0002:c903:0000:0001" || g.Prefix() != 0xfe80000000000000 ||
		g.GUID() != 0x0002c90300000001 {
		t.Errorf("%v: %x %v", g, g.Prefix(), g.GUID())
	}
}

// TestPortNames compares with what the InfiniBand diagnostics print.
func TestPortNames(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{PortDown.String(), "Down"}, {PortInit.String(), "Initialize"}, {PortArmed.String(),
			"Armed"}, {PortActive.String(), "Active"},
		{PortState(9).String(), "PortState(9)"}, {PhysLinkUp.String(), "LinkUp"}, {PhysPolling.String(), "Polling"},
		{(Width1x | Width4x | Width8x | Width12x | Width2x).String(),
			"1X or 4X or 8X or 12X or 2X"}, {Width4x.String(), "4X"},
		{LinkWidth(0).String(), "LinkWidth(0)"}, {LinkWidth(64).String(), "LinkWidth(64)"},
		{(SpeedSDR | SpeedDDR | SpeedQDR).String(), "2.5 Gbps or 5.0 Gbps or 10.0 Gbps"},
		{LinkSpeedExt(0).String(), "No Extended Speed"}, {SpeedEDR.String(), "25.78125 Gbps"},
		{Rate2_5.String(), "2.5 Gb/sec"}, {Rate100.String(), "100 Gb/sec"}, {Rate(0).String(),
			"Rate(0)"}, {Rate(25).String(), "Rate(25)"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

func TestRates(t *testing.T) {
	// In the order of speed (IBA volume 1, table 214 and its extensions).
	order := []Rate{Rate2_5, Rate5, Rate10, Rate14, Rate20, Rate25, Rate28, Rate30, Rate40, Rate50, Rate56, Rate60,
		Rate80, Rate100,
		Rate112, Rate120, Rate168, Rate200, Rate300, Rate400, Rate600, Rate800, Rate1200}
	for i := 1; i < len(order); i++ {
		if order[i-1].Tenths() >= order[i].Tenths() {
			t.Errorf("%v is not below %v", order[i-1], order[i])
		}
	}
	valid := 0
	for r := range 256 {
		if Rate(r).Valid() != (Rate(r).Tenths() > 0) {
			t.Errorf("code %d: valid %v, speed %d", r, Rate(r).Valid(), Rate(r).Tenths())
		}
		if Rate(r).Valid() {
			valid++
		}
	}
	if valid != len(order) {
		t.Errorf("%d codes, want %d", valid, len(order))
	}
	for _, c := range []struct {
		w    LinkWidth
		s    LinkSpeed
		e    LinkSpeedExt
		want Rate
	}{
		{Width4x, SpeedSDR, 0, Rate10}, {Width1x, SpeedSDR, 0, Rate2_5}, {Width12x, SpeedQDR, 0, Rate120}, {Width4x,
			SpeedQDR, SpeedEDR, Rate100},
		{Width4x, SpeedQDR, SpeedFDR, Rate56}, {Width2x, 0, SpeedHDR, Rate100}, {Width4x, 0, SpeedNDR,
			Rate400}, {Width12x, 0, SpeedNDR, Rate1200},
		{0, SpeedSDR, 0, 0}, {Width4x, 0, 0, 0}, {Width4x, SpeedSDR | SpeedDDR, 0, 0}, {Width4x, 0, SpeedExtDisable, 0},
	} {
		if got := RateOf(c.w, c.s, c.e); got != c.want {
			t.Errorf("%v at %v, %v: %v, want %v", c.w, c.s, c.e, got, c.want)
		}
	}
}
