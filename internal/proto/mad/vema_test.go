// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// vemaStep is a step of the sequence in opa16b.json, its bytes trimmed of zeros.
type vemaStep struct {
	Name     string
	Len      int `json:"mad_len"`
	Request  hexBytes
	Response hexBytes
	Trap     hexBytes
}

func vemaSequence(t testing.TB) (steps []vemaStep) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "test", "vectors", "opa16b.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		VEMA struct{ Sequence []vemaStep }
	}
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.VEMA.Sequence) != 23 {
		t.Fatalf("opa16b.json: %d steps", len(f.VEMA.Sequence))
	}
	for _, s := range f.VEMA.Sequence {
		whole := func(b hexBytes) hexBytes {
			if b == nil {
				return nil
			}
			return append(b, make([]byte, s.Len-len(b))...)
		}
		s.Request, s.Response, s.Trap = whole(s.Request), whole(s.Response), whole(s.Trap)
		steps = append(steps, s)
	}
	return steps
}

// driversVESWPortInfo is what the sequence configures.
func driversVESWPortInfo() VESWPortInfo {
	i := VESWPortInfo{VESW: VESW{FabricID: 0x301, VESWID: 2, DefaultPortMask: 5, PKey: 0x8002, McastDLID: 0xf00002,
		RC: 0x6543210, EthMTU: 9000},
		Port: VESWPort{PortNum: 7, LinkStatus: VESWLinkDown, BaseMAC: [6]byte{0x06, 0x2c, 0, 5, 0, 0},
			ConfigState: VESWForwarding, OperState: VESWDropAll,
			MaxMACEntries: VESWMaxMACs, MaxSMACEntries: VESWMaxSMACs, EncapSLID: 5,
			PCPToSCUc: [8]uint8{0, 1, 2, 3, 4, 5, 6, 7}, PCPToVLUc: [8]uint8{0, 1, 2, 3, 0, 1, 2, 3},
			PCPToSCMc: [8]uint8{8, 9, 10, 11, 12, 13, 14, 15}, PCPToVLMc: [8]uint8{1, 2, 3, 0, 1, 2, 3, 0},
			NonVLANSCUc: 1, NonVLANVLUc: 1, NonVLANSCMc: 2, NonVLANVLMc: 2,
			Reserved120: [8]byte{0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5}}}
	i.VESW.UcastDLIDs[0], i.VESW.UcastDLIDs[2] = 0x77, 0x100079
	return i
}

// TestVEMASequence writes the MADs of a manager and an agent in the sequence of opa16b.json, and compares them with the
// bytes of the agent of the driver.
func TestVEMASequence(t *testing.T) {
	type step struct {
		name      string
		method    Method
		attribute AttributeID
		modifier  uint32
		request   codec // nil: nothing
		status    Status
		response  codec // nil: nothing
	}
	agents := VEMAClassPortInfo{BaseVersion: 0x80, ClassVersion: 0x80, CapabilityMask: 0xff01, RespTimeValue: 18}
	set := VEMAClassPortInfo{CapabilityMask: 0xdead, Trap: VEMATarget{LID: 0x12, SL: 3, QPN: 1, QKey: 0x80010000,
		PKey: 0xffff}}
	agentsSet := agents
	agentsSet.Trap = set.Trap
	initial, down := DefaultVESWPortInfo(), driversVESWPortInfo()
	asked, up, deleted := down, down, initial
	asked.Port.OperState, asked.Port.LinkStatus, asked.Port.MaxMACEntries, asked.Port.MaxSMACEntries = VESWForwarding, VESWLinkUp, 9, 0
	up.Port.OperState, up.Port.LinkStatus = VESWForwarding, VESWLinkUp
	deleted.Port.LinkStatus, deleted.Port.UcMACsGen, deleted.Port.McMACsGen = VESWLinkDown, 3, 4
	all := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	one := VESWMACEntry{MAC: [6]byte{0, 0x11, 0x22, 0x33, 0x44, 0x55}, Mask: all, DLIDSD: MakeDLIDSD(0x123)}
	two := VESWMACEntry{MAC: [6]byte{0x33, 0x33, 0, 0, 0, 1}, Mask: all, DLIDSD: MakeDLIDSD(0xf00011)}
	entries := func(offset, num uint16, digest uint32, e ...VESWMACEntry) *VESWMACEntries {
		m := &VESWMACEntries{Offset: offset, Num: num, Digest: digest}
		copy(m.Entries[:], e)
		return m
	}
	summary := &VESWSummary{VPort: 1, VESWID: 2, PortNum: 1, Values: [NumVESWCounters]uint64{1005, 1004, 1001, 1000,
		1003, 1002}}
	for c := VESWTxUnicast; c < NumVESWCounters; c++ {
		summary.Values[c] = 1024 + uint64(c-VESWTxUnicast)
	}
	errs := &VESWErrors{VPort: 1, VESWID: 2, PortNum: 1, TxErrors: 1005, RxErrors: 1004, TxDLIDZero: 1046,
		TxLogic: 2035, TxDropState: 1047,
		RxBadVESWID: 1023, RxRunt: 1049, RxOversize: 1050, RxDropState: 1048, RxLogic: 1014}
	steps := []step{
		{"get_cpi_initial", MethodGet, AttrClassPortInfo, 0, nil, 0, &agents},
		{"set_cpi", MethodSet, AttrClassPortInfo, 0, &set, 0, &agentsSet},
		{"get_veswportinfo_pod", MethodGet, AttrVESWPortInfo, 1, nil, 0, &initial},
		{"get_mac_entries_no_vport", MethodGet, AttrVESWMACEntries, 1, nil, StatusInvalidValue, nil},
		{"set_veswportinfo_if_down", MethodSet, AttrVESWPortInfo, 1, &asked, 0, &down},
		{name: "trap_eth_link_status"},
		{"get_veswportinfo_if_up", MethodGet, AttrVESWPortInfo, 0xabcd0001, nil, 0, &up},
		{"set_mac_entries", MethodSet, AttrVESWMACEntries, 1, entries(4, 2, 0xcafef00d, one, two), 0,
			entries(4, 2, 0xcafef00d, one, two)},
		{"get_mac_entries", MethodGet, AttrVESWMACEntries, 1, entries(3, 4, 0), 0, entries(3, 4, 0xcafef00d,
			VESWMACEntry{}, one, two)},
		{"get_mac_entries_126", MethodGet, AttrVESWMACEntries, 1, entries(0, 126, 0), StatusInvalidValue, nil},
		{"set_mac_entries_past_end", MethodSet, AttrVESWMACEntries, 1, entries(2047, 2, 1), StatusInvalidValue, nil},
		{"get_mac_entries_last8", MethodGet, AttrVESWMACEntries, 1, entries(2040, 8, 0), 0,
			entries(2040, 8, 0xcafef00d)},
		{"get_ucast_macs", MethodGet, AttrVESWUnicastMACs, 1, nil, 0,
			&VESWMACList{Num: 2, Total: 2, Gen: 3, MACs: [VESWListPerMAD][6]byte{{0, 0x11, 0x22, 0x33, 0x44, 0x01},
				{0, 0x11, 0x22, 0x33, 0x44, 0x02}}}},
		{"get_mcast_macs_paged", MethodGet, AttrVESWMcastMACs, 1, &VESWMACList{Start: 1, Num: 1}, 0,
			&VESWMACList{Start: 1, Num: 1, Total: 3, Gen: 4, MACs: [VESWListPerMAD][6]byte{{0x33, 0x33, 0, 0, 0, 1}}}},
		{"get_summary_counters", MethodGet, AttrVESWSummary, 1, nil, 0, summary},
		{"get_error_counters", MethodGet, AttrVESWErrors, 1, nil, 0, errs},
		{"get_error_counters_no_vport", MethodGet, AttrVESWErrors, 9, nil, StatusInvalidValue, nil},
		{"get_bad_attr", MethodGet, 0x21, 1, nil, StatusBadMethodAttr, nil},
		{"set_ucast_macs_unsupported", MethodSet, AttrVESWUnicastMACs, 1, nil, StatusBadMethodAttr, nil},
		{"get_delete_vesw_unsupported", MethodGet, AttrVESWDelete, 1, nil, StatusBadMethodAttr, nil},
		{"set_delete_vesw", MethodSet, AttrVESWDelete, 1, nil, 0, &deleted},
		{"get_veswportinfo_after_delete", MethodGet, AttrVESWPortInfo, 1, nil, 0, &deleted},
		{"get_mac_entries_after_delete", MethodGet, AttrVESWMACEntries, 1, nil, 0, entries(0, 0, 0)},
	}
	tid := uint64(0x1000)
	for i, want := range vemaSequence(t) {
		s := steps[i]
		if s.name != want.Name {
			t.Fatalf("step %d is %s, want %s", i, want.Name, s.name)
		}
		if want.Trap != nil {
			trap := NewVEMATrap(0x42, VEMANotice{GenericType: VEMAGenericType, OUI: VEMAOUI, IssuerLID: 5,
				FabricID: 0x301, VESWID: 2, PortNum: 7,
				OPAPort: 1, VPort: 1, Opcode: VEMALinkStatus})
			if d := cmp.Diff([]byte(want.Trap), trap.Append(nil)); d != "" {
				t.Errorf("%s (-want +got):\n%s", s.name, d)
			}
			var back VEMATrap
			if err := back.Parse(want.Trap); err != nil || back != trap || !back.Notice.Informational() {
				t.Errorf("%s: %+v, %v", s.name, back, err)
			}
			continue
		}
		tid++
		m := NewVEMA(s.method, s.attribute, 0, tid)
		m.AttributeModifier = s.modifier
		put := func(c codec) {
			m.Data = [VEMADataLen]byte{}
			if c != nil {
				c.Append(m.Data[:0])
			}
		}
		put(s.request)
		if d := cmp.Diff([]byte(want.Request), m.Append(nil)); d != "" {
			t.Errorf("%s, request (-want +got):\n%s", s.name, d)
		}
		m.Method, m.Status = m.Method.Response(), s.status
		put(s.response)
		if d := cmp.Diff([]byte(want.Response), m.Append(nil)); d != "" {
			t.Errorf("%s, response (-want +got):\n%s", s.name, d)
		}
		if !IsVEMA(want.Request) || VEMAVPort(m.AttributeModifier) != uint8(s.modifier) {
			t.Errorf("%s: not of the class", s.name)
		}
	}
}

// TestVESWMAC compares encoded MACs with those of opa16b.json, both ways.
func TestVESWMAC(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "test", "vectors", "opa16b.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Decisions struct {
			MACs struct {
				Cases []struct {
					FabricID uint16 `json:"fabric_id"`
					VESWID   uint16 `json:"vesw_id"`
					LID      uint32
					MAC      hexBytes
				}
			} `json:"mac_encoding"`
		}
	}
	if err := json.Unmarshal(b, &f); err != nil || len(f.Decisions.MACs.Cases) < 3 {
		t.Fatal(err, len(f.Decisions.MACs.Cases))
	}
	for _, c := range f.Decisions.MACs.Cases {
		if mac := VESWMAC(c.FabricID, c.VESWID, c.LID); !bytes.Equal(mac[:], c.MAC) {
			t.Errorf("%+v: % x", c, mac)
		}
		if fabric, vesw, lid, ok := ParseVESWMAC([6]byte(c.MAC)); fabric != c.FabricID || vesw != c.VESWID ||
			lid != c.LID || !ok {
			t.Errorf("%+v: %#x %#x %#x %v", c, fabric, vesw, lid, ok)
		}
	}
	if VESWMAC(0xffff, 0, 0) != [6]byte{0xfe, 0x0f} || VESWMAC(0, 0xffff, 0) != [6]byte{2, 0xf0, 0xff} {
		t.Error("a number too wide reaches its neighbour")
	}
	for _, m := range []byte{0, 1, 3} {
		if _, _, _, ok := ParseVESWMAC([6]byte{m}); ok {
			t.Errorf("%#x is taken for a port's", m)
		}
	}
}

// TestVESWFlood looks for the bit where it is agreed to be.
func TestVESWFlood(t *testing.T) {
	var i VESWPortInfo
	i.VESW.Reserved4[5] = 0xf0
	i.VESW.SetFlood(true)
	if b := i.Append(nil); b[9] != 0xf1 || !i.VESW.Flood() {
		t.Errorf("% x", b[:12])
	}
	i.VESW.SetFlood(false)
	if b := i.Append(nil); b[9] != 0xf0 || i.VESW.Flood() {
		t.Errorf("% x", b[:12])
	}
}

// TestVEMAValues checks the methods of values.
func TestVEMAValues(t *testing.T) {
	for _, c := range []struct {
		offset, num uint16
		want        bool
	}{{0, 0, true}, {0, 125, true}, {0, 126, false}, {2048, 0, true}, {2049, 0, false}, {1923, 125, true}, {1924, 125,
		false}, {65535, 65535, false}} {
		if m := (VESWMACEntries{Offset: c.offset, Num: c.num}); m.Valid() != c.want {
			t.Errorf("%d from %d: %v", c.num, c.offset, !c.want)
		}
	}
	e := VESWMACEntry{DLIDSD: MakeDLIDSD(0xabcdef) | 0x20}
	if e.DLID() != 0xabcdef || !e.IsSource() || (&VESWMACEntry{DLIDSD: 0xffffffdf}).IsSource() {
		t.Errorf("%+v", e)
	}
	for typ, want := range map[uint8]bool{0x08: true, 0x04: true, 0: false, 0x84: false} {
		if n := (VEMANotice{GenericType: typ}); n.Informational() != want {
			t.Errorf("type %#x: %v", typ, !want)
		}
	}
	if c := (VEMAClassPortInfo{CapabilityMask: 0xff01}); c.MaxVPorts() != 255 {
		t.Error(c.MaxVPorts())
	}
	whole := vemaSequence(t)[0].Request
	for i, at := range []int{0, 1, 2, 37, 38, 39} {
		b := bytes.Clone(whole)
		b[at] ^= 1
		if IsVEMA(b) {
			t.Errorf("case %d: octet %d is wrong", i, at)
		}
	}
	for n := range VEMAHeaderLen {
		if IsVEMA(whole[:n]) {
			t.Errorf("%d octets", n)
		}
	}
}

// FuzzVEMA takes arbitrary MADs apart as agents and managers do: headers, then the attribute
// that they name; what comes back is stable.
func FuzzVEMA(f *testing.F) {
	for _, s := range vemaSequence(f) {
		for _, b := range [][]byte{s.Request, s.Response, s.Trap} {
			if b != nil {
				f.Add(b)
			}
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var h VEMATrap
		if err := h.Parse(in); (err == nil) != (len(in) >= VEMATrapLen) {
			t.Fatal(err)
		}
		if len(in) >= VEMATrapLen {
			var again VEMATrap
			if again.Parse(h.Append(nil)) != nil || again != h {
				t.Fatalf("%+v became %+v", h, again)
			}
		}
		var m, again VEMA
		if err := m.Parse(in); (err == nil) != (len(in) >= OPALen) {
			t.Fatal(err)
		} else if err != nil {
			return
		}
		if again.Parse(m.Append(nil)) != nil || again != m {
			t.Fatalf("%+v became %+v", m.Header, again.Header)
		}
		attributes := map[AttributeID]codec{AttrClassPortInfo: &VEMAClassPortInfo{}, AttrNotice: &VEMANotice{},
			AttrVESWPortInfo:   &VESWPortInfo{},
			AttrVESWMACEntries: &VESWMACEntries{}, AttrVESWUnicastMACs: &VESWMACList{}, AttrVESWMcastMACs: &VESWMACList{},
			AttrVESWSummary: &VESWSummary{}, AttrVESWErrors: &VESWErrors{}}
		c := attributes[m.AttributeID]
		if c == nil {
			return
		}
		if err := c.Parse(m.Data[:]); err != nil {
			t.Fatal(err)
		}
		once := c.Append(nil)
		if err := c.Parse(once); err != nil {
			t.Fatal(err)
		}
		if twice := c.Append(nil); !bytes.Equal(once, twice) {
			t.Fatalf("% x\nbecame % x", once, twice)
		}
	})
}
