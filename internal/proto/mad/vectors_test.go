// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

type hexBytes []byte

func (h *hexBytes) UnmarshalText(t []byte) (err error) {
	*h, err = hex.DecodeString(string(t))
	return err
}

type sample struct {
	Title    string
	Exchange []struct {
		Direction string
		Length    int
		MAD       hexBytes `json:"mad_hex"`
	}
	ToolOutput []string `json:"tool_output"`
}

type vectorFile struct {
	MADSamples struct{ Samples []sample } `json:"mad_samples"`
	Walk       struct {
		InitialPath []uint8 `json:"initial_path"`
		Steps       []struct {
			At         string
			D          int
			HopPointer uint8   `json:"hop_pointer"`
			OutPort    uint8   `json:"out_port"`
			ReturnPath []uint8 `json:"return_path"`
		}
	} `json:"dr_smp_walk"`
	Join struct {
		MAD  hexBytes `json:"mad_hex"`
		Mask string   `json:"component_mask"`
	} `json:"sa_join_example"`
}

func vectors(t testing.TB) (v vectorFile) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "test", "vectors", "headers.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.MADSamples.Samples) < 15 || len(v.Walk.Steps) != 7 || len(v.Join.MAD) != Len {
		t.Fatal("headers.json lacks MADs")
	}
	return v
}

// sampleMADs are all MADs of the vector file.
func sampleMADs(t testing.TB) (out [][]byte) {
	v := vectors(t)
	for _, s := range v.MADSamples.Samples {
		for _, e := range s.Exchange {
			if len(e.MAD) != Len {
				t.Fatalf("%s: %d bytes", s.Title, len(e.MAD))
			}
			out = append(out, e.MAD)
		}
	}
	return append(out, v.Join.MAD)
}

// parse reads a codec and fails the test if it is refused.
func parse[T any, P interface {
	*T
	codec
}](t *testing.T, b []byte) (v T) {
	t.Helper()
	if err := P(&v).Parse(b); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestSampleSMPs proves byte equality of every subnet management sample both
// ways: the SMP without its reserved bytes (one answer holds its sender's stale memory
// there), and the attribute in it.
func TestSampleSMPs(t *testing.T) {
	seen := map[AttributeID]int{}
	for _, s := range vectors(t).MADSamples.Samples {
		for _, e := range s.Exchange {
			h := parse[Header](t, e.MAD)
			if !h.MgmtClass.IsSubn() {
				continue
			}
			smp := parse[SMP](t, e.MAD)
			want := bytes.Clone(e.MAD)
			if smp.Directed() {
				clear(want[36:64])
			} else {
				clear(want[32:64])
				clear(want[128:])
			}
			if got := smp.Append(bytes.Repeat([]byte{0xa5}, 3))[3:]; !bytes.Equal(got, want) {
				t.Errorf("%s %s:\nwant %x\n got %x", s.Title, e.Direction, want, got)
			}
			if e.Direction != "response" {
				continue
			}
			var c codec
			switch smp.AttributeID {
			case AttrNodeInfo:
				c = new(NodeInfo)
			case AttrNodeDescription:
				c = new(NodeDescription)
			case AttrPortInfo:
				c = new(PortInfo)
			case AttrSwitchInfo:
				c = new(SwitchInfo)
			case AttrSMInfo:
				c = new(SMInfo)
			case AttrPKeyTable:
				c = new(PKeyTable)
			case AttrSLtoVL:
				c = new(SLtoVL)
			case AttrVLArb:
				c = new(VLArb)
			default:
				t.Fatalf("%s: attribute %#x", s.Title, smp.AttributeID)
			}
			if err := c.Parse(smp.Data[:]); err != nil {
				t.Fatal(err)
			}
			got := c.Append(nil)
			if !bytes.Equal(got, smp.Data[:len(got)]) {
				t.Errorf("%s:\nwant %x\n got %x", s.Title, smp.Data[:len(got)], got)
			}
			seen[smp.AttributeID]++
		}
	}
	if len(seen) != 8 {
		t.Errorf("samples of %v only", seen)
	}
}

func response(t *testing.T, title string, n int) SMP {
	t.Helper()
	for _, s := range vectors(t).MADSamples.Samples {
		if s.Title == title {
			return parse[SMP](t, s.Exchange[n].MAD)
		}
	}
	t.Fatalf("no sample %q", title)
	return SMP{}
}

// TestSampleValues compares decoded samples with what the diagnostics printed of
// them.
func TestSampleValues(t *testing.T) {
	s := response(t, "SubnGet NodeInfo, directed route 0,1 (switch)", 1)
	if s.TransactionID != 0x100010749d4eb || s.Method != MethodGetResp || !s.D || s.Status != StatusOK ||
		s.HopPointer != 0 ||
		s.HopCount != 1 || s.InitialPath[1] != 1 || s.ReturnPath[1] != 2 || s.DrSLID != 0xffff ||
		s.DrDLID != 0xffff || s.MKey != 0 {
		t.Errorf("SMP %+v", s)
	}
	if diff := cmp.Diff(NodeInfo{BaseVersion: 1, ClassVersion: 1, NodeType: NodeSwitch, NumPorts: 8,
		SystemImageGUID: 0x200000,
		NodeGUID:        0x200000, PortGUID: 0x200000, PartitionCap: 8, Revision: 0xa1, LocalPortNum: 2},
		parse[NodeInfo](t, s.Data[:])); diff != "" {
		t.Error(diff)
	}
	s = response(t, "SubnGet PortInfo, LID 4 port 1 (CA)", 1)
	if diff := cmp.Diff(PortInfo{GIDPrefix: ib.DefaultGIDPrefix, LID: 4, MasterSMLID: 1,
		CapabilityMask:  CapTrap | CapSLMapping | CapExtendedSpeeds | CapCapabilityMask2 | CapVendorClass | CapCapabilityMaskNotice,
		MKeyLeasePeriod: 4089, LocalPortNum: 1, LinkWidthEnabled: ib.Width4x, LinkWidthActive: ib.Width4x,
		LinkWidthSupported: ib.Width1x | ib.Width2x | ib.Width4x | ib.Width8x | ib.Width12x,
		LinkSpeedSupported: ib.SpeedSDR | ib.SpeedDDR | ib.SpeedQDR, PortState: ib.PortActive, PortPhysicalState: ib.PhysLinkUp,
		LinkDownDefaultState: ib.PhysPolling, LinkSpeedActive: ib.SpeedSDR, LinkSpeedEnabled: ib.SpeedSDR,
		NeighborMTU: ib.MTU2048, VLCap: VL0to7, VLArbHighCap: 8, VLArbLowCap: 8, MTUCap: ib.MTU2048, VLStallCount: 7,
		OperationalVLs: VL0to7, GUIDCap: 32, SubnetTimeOut: 31, CapabilityMask2: Cap2LinkWidth2x | Cap2LinkSpeedHDR,
	}, parse[PortInfo](t, s.Data[:])); diff != "" {
		t.Error(diff)
	}
	s = response(t, "SubnGet SwitchInfo, LID 2", 1)
	if diff := cmp.Diff(SwitchInfo{LinearFDBCap: 30720, MulticastFDBCap: 1024, LinearFDBTop: 5, LifeTimeValue: 18,
		PartitionEnforcementCap: 64, FilterRawInboundCap: true, FilterRawOutboundCap: true},
		parse[SwitchInfo](t, s.Data[:])); diff != "" {
		t.Error(diff)
	}
	s = response(t, "SubnGet SMInfo, LID 1", 1)
	if diff := cmp.Diff(SMInfo{GUID: 0x100001, SMKey: 1, ActCount: 133, Priority: 5, State: SMMaster},
		parse[SMInfo](t, s.Data[:])); diff != "" {
		t.Error(diff)
	}
	s = response(t, "SubnGet NodeInfo then NodeDescription", 3)
	if d := parse[NodeDescription](t, s.Data[:]); d.String() != "H2" || d != MakeNodeDescription("H2") {
		t.Errorf("description %q", d.String())
	}
	s = response(t, "SubnGet NodeInfo, PortInfo/SwitchInfo, P_KeyTable", 3)
	if k := parse[PKeyTable](t, s.Data[:]); k != (PKeyTable{0xffff}) {
		t.Errorf("keys %v", k)
	}
	s = response(t, "SubnGet NodeInfo and SLtoVL table of switch port 1", 7)
	if m := parse[SLtoVL](t, s.Data[:]); m != (SLtoVL{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7}) ||
		s.AttributeModifier != SLtoVLModifier(2, 1) {
		t.Errorf("lanes %v of %#x", m, s.AttributeModifier)
	}
	s = response(t, "SubnGet NodeInfo/PortInfo/VLArbitration", 5)
	want := VLArb{{0, 0}}
	for i := 1; i < 8; i++ {
		want[i] = VLArbEntry{uint8(i), 4}
	}
	if a := parse[VLArb](t, s.Data[:]); want[1] != a[1] || a[0] != (VLArbEntry{}) || want[7] != a[7] ||
		s.AttributeModifier != VLArbModifier(VLArbLow, 0) {
		t.Errorf("arbitration %v of %#x", a, s.AttributeModifier)
	}
}
