// SPDX-License-Identifier: Apache-2.0

package topo

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

const host = 0x0002c90300bb0000

// node returns a node as ibsim describes it: all GUIDs are near the first.
func node(typ mad.NodeType, guid ib.GUID, ports int, device uint16, name string) Node {
	n := Node{Info: mad.NodeInfo{NodeType: typ, NumPorts: uint8(ports), NodeGUID: guid, SystemImageGUID: guid + 3,
		VendorID: 0x2c9, DeviceID: device},
		Description: name, Ports: make([]Port, ports+1)}
	for k := range n.Ports {
		n.Ports[k].Peer = None
	}
	if typ == mad.NodeSwitch {
		n.Switch, n.Ports[0].GUID = &Switch{}, guid
	}
	return n
}

func cable(s *Subnet, a, b Ref, i mad.PortInfo) {
	for _, e := range [][2]Ref{{a, b}, {b, a}} {
		p := s.Port(e[0])
		p.Peer = e[1]
		p.Info.LinkWidthActive, p.Info.LinkSpeedActive, p.Info.LinkSpeedExtActive = i.LinkWidthActive, i.LinkSpeedActive, i.LinkSpeedExtActive
		if n := &s.Nodes[e[0].Node]; !n.IsSwitch() {
			p.GUID = n.Info.NodeGUID + ib.GUID(e[0].Port)
		}
	}
}

// leafSpine and twoAdapters are the subnets of the vectors.
func leafSpine() *Subnet {
	s := &Subnet{Self: Ref{0, 1}, Prefix: ib.DefaultGIDPrefix, Nodes: []Node{
		node(mad.NodeCA, host, 2, 0x1003, "host-a HCA-1"),
		node(mad.NodeCA, 0x0002c90300cc0000, 2, 0x1003, "host-b HCA-1"),
		node(mad.NodeSwitch, 0x0002c90300aa0000, 36, 0xd2f0, "leaf 1"),
		node(mad.NodeSwitch, 0x0002c90300dd0000, 36, 0xd2f0, "spine"),
	}}
	s.Nodes[2].Switch.Info.EnhancedPort0 = true
	slow := mad.PortInfo{LinkWidthActive: ib.Width4x, LinkSpeedActive: ib.SpeedSDR}
	cable(s, Ref{0, 1}, Ref{2, 1}, slow)
	cable(s, Ref{1, 1}, Ref{2, 2}, slow)
	cable(s, Ref{2, 36}, Ref{3, 1}, mad.PortInfo{LinkWidthActive: ib.Width12x, LinkSpeedActive: ib.SpeedQDR})
	cable(s, Ref{2, 35}, Ref{3, 2}, mad.PortInfo{LinkWidthActive: ib.Width1x, LinkSpeedActive: ib.SpeedDDR})
	for r, l := range map[Ref]ib.LID{{0, 1}: 1, {2, 0}: 2, {3, 0}: 3, {1, 1}: 4} {
		s.Port(r).Info.LID = l
	}
	s.Index()
	return s
}

func twoAdapters() *Subnet {
	s := &Subnet{Self: Ref{0, 1}, Nodes: []Node{
		node(mad.NodeCA, host, 1, 0x1003, "host-a HCA-1"), node(mad.NodeCA, 0x0002c90300cc0000, 1, 0x1003,
			"host-b HCA-1")}}
	cable(s, Ref{0, 1}, Ref{1, 1}, mad.PortInfo{LinkWidthActive: ib.Width4x, LinkSpeedActive: ib.SpeedQDR,
		LinkSpeedExtActive: ib.SpeedEDR})
	s.Port(Ref{0, 1}).Info.LID, s.Port(Ref{1, 1}).Info.LID = 1, 2
	s.Index()
	return s
}

// TestNetDiscover compares with what the tool itself printed.
func TestNetDiscover(t *testing.T) {
	for file, s := range map[string]*Subnet{"ibnetdiscover-leaf-spine.txt": leafSpine(),
		"ibnetdiscover-two-adapters.txt": twoAdapters()} {
		want, err := os.ReadFile("../../../../test/vectors/" + file)
		if err != nil {
			t.Fatal(err)
		}
		line := strings.Split(string(want), "\n")[1]
		at, err := time.Parse(time.ANSIC, strings.TrimPrefix(line, "# Topology file: generated on "))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), s.NetDiscover(at)); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
	}
	s := twoAdapters()
	s.Self, s.Nodes[0].Description, s.Nodes[1].Info.NodeType = None, "a\nb\x00ü", mad.NodeRouter
	s.Nodes[0].Ports[1].Info.LinkSpeedExtActive, s.Nodes[1].Info.SystemImageGUID = 0x10, 0
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	want := "#\n# Topology file: generated on Wed Mar  4 05:06:07 2026\n#\n" +
		"\nvendid=0x2c9\ndevid=0x1003\nsysimgguid=0x2c90300bb0003\ncaguid=0x2c90300bb0000\nCa\t1 \"H-0002c90300bb0000\"\t\t# \"a b   \"\n" +
		"[1](2c90300bb0001) \t\"R-0002c90300cc0000\"[1] (2c90300cc0001) \t\t# lid 1 lmc 0 \"host-b HCA-1\" lid 2 4x??\n" +
		"\nvendid=0x2c9\ndevid=0x1003\nrtguid=0x2c90300cc0000\nRt\t1 \"R-0002c90300cc0000\"\t\t# \"host-b HCA-1\"\n" +
		"[1](2c90300cc0001) \t\"H-0002c90300bb0000\"[1] (2c90300bb0001) \t\t# lid 2 lmc 0 \"a b   \" lid 1 4xEDR\n"
	if diff := cmp.Diff(want, s.NetDiscover(at)); diff != "" {
		t.Error(diff)
	}
	if got := (&Subnet{Self: None}).NetDiscover(at); got != "#\n# Topology file: generated on Wed Mar  4 05:06:07 2026\n#\n" {
		t.Errorf("of nothing: %q", got)
	}
}

func TestDOT(t *testing.T) {
	s := leafSpine()
	s.Nodes[3].Description = `the "spine" \ 1`
	want := `graph subnet {
	rankdir=TB;
	node [fontname="sans-serif"];
	edge [fontname="sans-serif", fontsize=8];
	"H-0002c90300bb0000" [shape=ellipse, label="host-a HCA-1\nLID 1"];
	"H-0002c90300cc0000" [shape=ellipse, label="host-b HCA-1\nLID 4"];
	"S-0002c90300aa0000" [shape=box, label="leaf 1\nLID 2"];
	"S-0002c90300dd0000" [shape=box, label="the \"spine\" \\ 1\nLID 3"];
	"H-0002c90300bb0000" -- "S-0002c90300aa0000" [taillabel="1", headlabel="1", tooltip="4xSDR"];
	"H-0002c90300cc0000" -- "S-0002c90300aa0000" [taillabel="1", headlabel="2", tooltip="4xSDR"];
	"S-0002c90300aa0000" -- "S-0002c90300dd0000" [taillabel="35", headlabel="2", tooltip="1xDDR"];
	"S-0002c90300aa0000" -- "S-0002c90300dd0000" [taillabel="36", headlabel="1", tooltip="12xQDR"];
}
`
	if diff := cmp.Diff(want, s.DOT()); diff != "" {
		t.Error(diff)
	}
}

func TestView(t *testing.T) {
	s := twoAdapters()
	s.Prefix = ib.DefaultGIDPrefix
	s.Nodes[0].Ports[1].Info.PortState, s.Nodes[0].Ports[1].Info.NeighborMTU = ib.PortActive, ib.MTU4096
	b, err := s.JSON()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{
  "prefix": "0xfe80000000000000",
  "nodes": [
    {
      "guid": "0002:c903:00bb:0000",
      "type": "ca",
      "description": "host-a HCA-1",
      "num_ports": 1,
      "system_image_guid": "0002:c903:00bb:0003",
      "vendor_id": 713,
      "device_id": 4099,
      "ports": [
        {
          "port": 1,
          "guid": "0002:c903:00bb:0001",
          "lid": 1,
          "state": "active",
          "mtu": 4096
        }
      ]
    },
`
	if !strings.HasPrefix(string(b), want) {
		t.Error(cmp.Diff(want, string(b)))
	}
	var v View
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.View(), v); diff != "" {
		t.Error(diff)
	}
	link := []ViewLink{{A: ViewEnd{"0002:c903:00bb:0000", 1}, B: ViewEnd{"0002:c903:00cc:0000", 1}, Speed: "4xEDR",
		Gbps: 100}}
	if diff := cmp.Diff(link, v.Links); diff != "" {
		t.Error(diff)
	}
	if b, err := (&Subnet{}).JSON(); err != nil ||
		string(b) != "{\n  \"prefix\": \"0x0000000000000000\",\n  \"nodes\": [],\n  \"links\": []\n}\n" {
		t.Errorf("%s %v", b, err)
	}
}
