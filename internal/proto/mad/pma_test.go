// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func perfSample(t *testing.T, title string, n int) Perf {
	t.Helper()
	for _, s := range vectors(t).MADSamples.Samples {
		if s.Title == title {
			return parse[Perf](t, s.Exchange[n].MAD)
		}
	}
	t.Fatalf("no sample %q", title)
	return Perf{}
}

// TestSampleCounters compares decoded samples with what perfquery printed of
// them.
func TestSampleCounters(t *testing.T) {
	m := perfSample(t, "PMA Get ClassPortInfo then PortCounters", 3)
	want := PortCounters{PortSelect: 1}
	want.Values[CounterXmitData], want.Values[CounterRcvData] = 13176, 13176
	want.Values[CounterXmitPkts], want.Values[CounterRcvPkts] = 183, 183
	if diff := cmp.Diff(want, parse[PortCounters](t, m.Data[:])); diff != "" {
		t.Error(diff)
	}
	m = perfSample(t, "PMA Get ClassPortInfo then PortCountersExtended", 3)
	if diff := cmp.Diff(PortCountersExtended{PortSelect: 1, XmitData: 13176, RcvData: 13176, XmitPkts: 183,
		RcvPkts: 183},
		parse[PortCountersExtended](t, m.Data[:])); diff != "" {
		t.Error(diff)
	}
	m = perfSample(t, "PMA Get ClassPortInfo then PortCountersExtended", 1)
	if c := parse[ClassPortInfo](t, m.Data[:]); c.CapabilityMask != PerfCapXmitWait|PerfCapExtWidth ||
		c.RespTimeValue != 0x12 {
		t.Errorf("%+v", c)
	}
	m.Method = MethodSet
	if m.Reply(StatusInvalidValue); m.Method != MethodGetResp || m.Status != 0x1c {
		t.Errorf("%+v", m.Header)
	}
}

// TestCounterBytes gives every counter its own value, by hand.
func TestCounterBytes(t *testing.T) {
	p := PortCounters{PortSelect: 1, CounterSelect: 0x0203, CounterSelect2: 0x12, Values: [NumCounters]uint64{
		0x0405, 6, 7, 0x0809, 0x0a0b, 0x0c0d, 0x0e0f, 0x10, 0x11, 3, 4, 0x1617, 0x18191a1b, 0x1c1d1e1f, 0x20212223, 0x24252627, 0x28292a2b, 0x1415}}
	want := make([]byte, PortCountersLen)
	for i := range want {
		want[i] = byte(i)
	}
	want[19] = 0x34
	if diff := cmp.Diff(want, p.Append(nil)); diff != "" {
		t.Error(diff)
	}
	e := PortCountersExtended{PortSelect: 1, CounterSelect: 0x0203, CounterSelect2: 0x04050607,
		XmitData: 0x08090a0b0c0d0e0f, RcvData: 0x1011121314151617,
		XmitPkts: 0x18191a1b1c1d1e1f, RcvPkts: 0x2021222324252627, UnicastXmit: 0x28292a2b2c2d2e2f, UnicastRcv: 0x3031323334353637,
		MulticastXmit: 0x38393a3b3c3d3e3f, MulticastRcv: 0x4041424344454647}
	want = make([]byte, PortCountersExtendedLen)
	for i := range want {
		want[i] = byte(i)
	}
	if diff := cmp.Diff(want, e.Append(nil)); diff != "" {
		t.Error(diff)
	}
}

// TestCountersSaturate proves that each counter stays at its largest value and does
// not reach its neighbours.
func TestCountersSaturate(t *testing.T) {
	for c := range NumCounters {
		for _, v := range []uint64{uint64(c.Max()), uint64(c.Max()) + 1, 1 << 40, ^uint64(0)} {
			p := PortCounters{}
			p.Values[c] = v
			back := parse[PortCounters](t, p.Append(nil))
			want := PortCounters{}
			want.Values[c] = uint64(c.Max())
			if back != want {
				t.Errorf("counter %d at %d: %+v", c, v, back)
			}
		}
	}
	for c, want := range map[Counter]uint32{CounterLocalLinkIntegrity: 15, CounterLinkDowned: 255,
		CounterVL15Dropped: 65535, CounterRcvPkts: 0xffffffff} {
		if c.Max() != want {
			t.Errorf("counter %d: largest value %d, want %d", c, c.Max(), want)
		}
	}
}

func TestSetCounters(t *testing.T) {
	for c := range NumCounters {
		have, req := PortCounters{}, PortCounters{}
		for i := range have.Values {
			have.Values[i] = 9
		}
		want := have
		want.Values[c] = 3
		req.Values[c] = 3
		if have.Load(&req); have.Values[c] != 9 {
			t.Errorf("counter %d is set without being selected", c)
		}
		if c < 16 {
			req.CounterSelect = 1 << c
		} else {
			req.CounterSelect2 = 1 << (c - 16)
		}
		if have.Load(&req); have != want {
			t.Errorf("counter %d: %+v", c, have)
		}
	}
	have := PortCountersExtended{XmitData: 9, RcvData: 9, XmitPkts: 9, RcvPkts: 9, UnicastXmit: 9, UnicastRcv: 9,
		MulticastXmit: 9, MulticastRcv: 9}
	have.Load(&PortCountersExtended{CounterSelect: 0xaa, RcvData: 1, RcvPkts: 2, UnicastRcv: 3, MulticastRcv: 4,
		XmitData: 5})
	if want := (PortCountersExtended{XmitData: 9, RcvData: 1, XmitPkts: 9, RcvPkts: 2, UnicastXmit: 9, UnicastRcv: 3,
		MulticastXmit: 9, MulticastRcv: 4}); have != want {
		t.Errorf("%+v", have)
	}
}
