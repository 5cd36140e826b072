// SPDX-License-Identifier: Apache-2.0

package topo

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// Types of nodes in the output of ibnetdiscover.
var (
	kindLetters = map[mad.NodeType]string{mad.NodeCA: "H", mad.NodeSwitch: "S", mad.NodeRouter: "R"}
	kindTitles  = map[mad.NodeType]string{mad.NodeCA: "Ca", mad.NodeSwitch: "Switch", mad.NodeRouter: "Rt"}
	kindShorts  = map[mad.NodeType]string{mad.NodeCA: "ca", mad.NodeSwitch: "switch", mad.NodeRouter: "rt"}
)

// kind returns the type of the node: one with a switch part is a switch.
func (n *Node) kind() mad.NodeType {
	switch {
	case n.IsSwitch():
		return mad.NodeSwitch
	case n.Info.NodeType == mad.NodeRouter:
		return mad.NodeRouter
	}
	return mad.NodeCA
}

// id returns the identifier of the node in files of the InfiniBand diagnostics.
func (n *Node) id() string {
	return fmt.Sprintf("%s-%016x", kindLetters[n.kind()], uint64(n.Info.NodeGUID))
}

// plain returns a description as the diagnostics print it, with a space for each character that is not printable.
func plain(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c < 0x20 || c > 0x7e {
			b[i] = ' '
		}
	}
	return string(b)
}

// speed returns width and speed of the link of a port, as the diagnostics print them.
func (p *Port) speed() string {
	lane := "??"
	switch i := &p.Info; {
	case i.LinkSpeedExtActive == ib.SpeedFDR:
		lane = "FDR"
	case i.LinkSpeedExtActive == ib.SpeedEDR:
		lane = "EDR"
	case i.LinkSpeedExtActive == ib.SpeedHDR:
		lane = "HDR"
	case i.LinkSpeedExtActive == ib.SpeedNDR:
		lane = "NDR"
	case i.LinkSpeedExtActive != 0:
	case i.LinkSpeedActive == ib.SpeedSDR:
		lane = "SDR"
	case i.LinkSpeedActive == ib.SpeedDDR:
		lane = "DDR"
	case i.LinkSpeedActive == ib.SpeedQDR:
		lane = "QDR"
	}
	if n := p.Info.LinkWidthActive.Lanes(); n > 0 {
		return fmt.Sprintf("%dx%s", n, lane)
	}
	return "??" + lane
}

// lid returns the base LID of a port, or of its switch.
func (s *Subnet) lid(r Ref) ib.LID {
	if n := &s.Nodes[r.Node]; n.IsSwitch() {
		return n.Ports[0].Info.LID
	}
	return s.Port(r).Info.LID
}

// NetDiscover returns the subnet in the format of ibnetdiscover of infiniband-diags, which ibsim and other tools read.
// Switches come first, then adapters and routers, each in the reverse order of Nodes, as in the tool. at is the time of
// creation in its header.
func (s *Subnet) NetDiscover(at time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#\n# Topology file: generated on %s\n#\n", at.Format(time.ANSIC))
	if p := s.Port(s.Self); p != nil {
		fmt.Fprintf(&b, "# Initiated from node %016x port %016x\n", uint64(s.Nodes[s.Self.Node].Info.NodeGUID),
			uint64(p.GUID))
	}
	for _, kind := range []mad.NodeType{mad.NodeSwitch, mad.NodeCA, mad.NodeRouter} {
		for i := range slices.Backward(s.Nodes) {
			if s.Nodes[i].kind() == kind {
				s.discovered(&b, &s.Nodes[i])
			}
		}
	}
	return b.String()
}

func (s *Subnet) discovered(b *strings.Builder, n *Node) {
	kind := n.kind()
	fmt.Fprintf(b, "\nvendid=0x%x\ndevid=0x%x\n", n.Info.VendorID, n.Info.DeviceID)
	if g := n.Info.SystemImageGUID; g != 0 {
		fmt.Fprintf(b, "sysimgguid=0x%x\n", uint64(g))
	}
	fmt.Fprintf(b, "%sguid=0x%x", kindShorts[kind], uint64(n.Info.NodeGUID))
	if kind == mad.NodeSwitch {
		fmt.Fprintf(b, "(%x)", uint64(n.Ports[0].GUID))
	}
	fmt.Fprintf(b, "\n%s\t%d \"%s\"\t\t# \"%s\"", kindTitles[kind], n.Info.NumPorts, n.id(), plain(n.Description))
	if kind == mad.NodeSwitch {
		port0 := "base"
		if n.Switch.Info.EnhancedPort0 {
			port0 = "enhanced"
		}
		fmt.Fprintf(b, " %s port 0 lid %d lmc %d", port0, n.Ports[0].Info.LID, n.Ports[0].Info.LMC)
	}
	b.WriteByte('\n')
	for k := 1; k < len(n.Ports); k++ {
		p := &n.Ports[k]
		if p.Peer.IsNone() {
			continue
		}
		peer, far := &s.Nodes[p.Peer.Node], s.Port(p.Peer)
		fmt.Fprintf(b, "[%d]", k)
		if kind == mad.NodeSwitch {
			fmt.Fprintf(b, "\t\"%s\"[%d]", peer.id(), p.Peer.Port)
			if !peer.IsSwitch() {
				fmt.Fprintf(b, "(%x) ", uint64(far.GUID))
			}
			b.WriteString("\t\t#")
		} else {
			fmt.Fprintf(b, "(%x) \t\"%s\"[%d]", uint64(p.GUID), peer.id(), p.Peer.Port)
			if !peer.IsSwitch() {
				fmt.Fprintf(b, " (%x) ", uint64(far.GUID))
			}
			fmt.Fprintf(b, "\t\t# lid %d lmc %d", p.Info.LID, p.Info.LMC)
		}
		fmt.Fprintf(b, " \"%s\" lid %d %s\n", plain(peer.Description), s.lid(p.Peer), p.speed())
	}
}

// DOT returns the subnet as a graph for Graphviz: switches as boxes, links with their port numbers, parallel links as
// several.
func (s *Subnet) DOT() string {
	var b strings.Builder
	b.WriteString("graph subnet {\n\trankdir=TB;\n\tnode [fontname=\"sans-serif\"];\n\tedge [fontname=\"sans-serif\", fontsize=8];\n")
	for i := range s.Nodes {
		n := &s.Nodes[i]
		shape := "ellipse"
		switch n.kind() {
		case mad.NodeSwitch:
			shape = "box"
		case mad.NodeRouter:
			shape = "diamond"
		}
		label := n.Description
		if label == "" {
			label = n.Info.NodeGUID.String()
		}
		for r := range n.endPorts(int32(i)) {
			if l := s.Port(r).Info.LID; l != 0 {
				label += fmt.Sprintf("\nLID %d", l)
			}
		}
		fmt.Fprintf(&b, "\t\"%s\" [shape=%s, label=\"%s\"];\n", n.id(), shape, dotText(label))
	}
	for _, l := range s.Links() {
		fmt.Fprintf(&b, "\t\"%s\" -- \"%s\" [taillabel=\"%d\", headlabel=\"%d\", tooltip=\"%s\"];\n",
			s.Nodes[l.A.Node].id(), s.Nodes[l.B.Node].id(), l.A.Port, l.B.Port, s.Port(l.A).speed())
	}
	b.WriteString("}\n")
	return b.String()
}

// dotText writes a quoted text of DOT.
func dotText(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(s, "?"))
}

// View is a subnet for programs, with stable names: later versions only add fields.
type View struct {
	Prefix string     `json:"prefix"`
	Nodes  []ViewNode `json:"nodes"`
	Links  []ViewLink `json:"links"`
}

// ViewNode is a node of a View.
type ViewNode struct {
	GUID        string     `json:"guid"`
	Type        string     `json:"type"` // "switch", "ca" or "rt"
	Description string     `json:"description"`
	NumPorts    int        `json:"num_ports"`
	SystemImage string     `json:"system_image_guid"`
	VendorID    uint32     `json:"vendor_id"`
	DeviceID    uint16     `json:"device_id"`
	Ports       []ViewPort `json:"ports"` // those with a GUID or a link
}

// ViewPort is a port of a ViewNode.
type ViewPort struct {
	Port  int    `json:"port"`
	GUID  string `json:"guid,omitempty"`
	LID   int    `json:"lid,omitempty"`
	LMC   int    `json:"lmc,omitempty"`
	State string `json:"state,omitempty"` // empty of a port without PortInfo
	MTU   int    `json:"mtu,omitempty"`   // of the link, in bytes
}

// ViewLink is a link of a View.
type ViewLink struct {
	A     ViewEnd `json:"a"`
	B     ViewEnd `json:"b"`
	Speed string  `json:"speed"` // such as "4xEDR"
	Gbps  float64 `json:"gbps"`
}

// ViewEnd is an end of a ViewLink.
type ViewEnd struct {
	GUID string `json:"guid"` // of the node
	Port int    `json:"port"`
}

// View returns the subnet for programs.
func (s *Subnet) View() View {
	v := View{Prefix: fmt.Sprintf("0x%016x", s.Prefix), Nodes: make([]ViewNode, 0, len(s.Nodes)), Links: []ViewLink{}}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		o := ViewNode{GUID: n.Info.NodeGUID.String(), Type: kindShorts[n.kind()], Description: n.Description,
			NumPorts:    int(n.Info.NumPorts),
			SystemImage: n.Info.SystemImageGUID.String(), VendorID: n.Info.VendorID, DeviceID: n.Info.DeviceID, Ports: []ViewPort{}}
		for k := range n.Ports {
			p := &n.Ports[k]
			if p.GUID == 0 && p.Peer.IsNone() {
				continue
			}
			q := ViewPort{Port: k, LID: int(p.Info.LID), LMC: int(p.Info.LMC)}
			if st := p.Info.PortState; st != 0 {
				q.State = strings.ToLower(st.String())
			}
			if p.GUID != 0 {
				q.GUID = p.GUID.String()
			}
			if p.Info.NeighborMTU.Valid() {
				q.MTU = p.Info.NeighborMTU.Bytes()
			}
			o.Ports = append(o.Ports, q)
		}
		v.Nodes = append(v.Nodes, o)
	}
	for _, l := range s.Links() {
		p := s.Port(l.A)
		v.Links = append(v.Links, ViewLink{A: s.viewEnd(l.A), B: s.viewEnd(l.B), Speed: p.speed(),
			Gbps: float64(p.Rate().Tenths()) / 10})
	}
	return v
}

func (s *Subnet) viewEnd(r Ref) ViewEnd {
	return ViewEnd{s.Nodes[r.Node].Info.NodeGUID.String(), int(r.Port)}
}

// JSON returns View as indented JSON, with a new-line at its end.
func (s *Subnet) JSON() ([]byte, error) {
	b, err := json.MarshalIndent(s.View(), "", "  ")
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}
