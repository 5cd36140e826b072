// SPDX-License-Identifier: Apache-2.0

package ib

import (
	"fmt"
	"strings"
)

// Local identifiers with a meaning of their own (IBA volume 1, 4.1.3).
const (
	LIDMulticastFirst LID = 0xc000
	LIDMulticastLast  LID = 0xfffe
	LIDPermissive     LID = 0xffff
)

// IsUnicast reports whether l names a port.
func (l LID) IsUnicast() bool { return l > 0 && l < LIDMulticastFirst }

// IsMulticast reports whether l names a multicast group.
func (l LID) IsMulticast() bool { return l >= LIDMulticastFirst && l < LIDPermissive }

// DefaultGIDPrefix is the subnet prefix of a port that no manager has set.
const DefaultGIDPrefix uint64 = 0xfe80000000000000

// MakeGID returns the GID of a subnet prefix and an interface identifier.
func MakeGID(prefix uint64, guid GUID) (g GID) {
	for i := range 8 {
		g[i] = byte(prefix >> (56 - 8*i))
		g[8+i] = byte(guid >> (56 - 8*i))
	}
	return g
}

// Prefix returns the upper half of g.
func (g GID) Prefix() (p uint64) {
	for _, c := range g[:8] {
		p = p<<8 | uint64(c)
	}
	return p
}

// GUID returns the lower half of g: the interface identifier.
func (g GID) GUID() (id GUID) {
	for _, c := range g[8:] {
		id = id<<8 | GUID(c)
	}
	return id
}

// IsFull reports whether p is a key of a full member.
func (p PKey) IsFull() bool { return p&0x8000 != 0 }

// PortState is the logical state of a port (IBA volume 1, 7.2.7; verbs has the
// same numbers). PortNoChange is only ever set, not reported.
type PortState uint8

// Port states.
const (
	PortNoChange PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
)

var portStateNames = [...]string{"NoChange", "Down", "Initialize", "Armed", "Active"}

// String returns the name that the InfiniBand diagnostics print.
func (s PortState) String() string { return nameOf("PortState", portStateNames[:], uint8(s)) }

// PhysState is the state of a port's physical layer.
type PhysState uint8

// Physical states. PhysNoChange is only ever set, not reported.
const (
	PhysNoChange PhysState = iota
	PhysSleep
	PhysPolling
	PhysDisabled
	PhysTraining
	PhysLinkUp
	PhysErrorRecovery
	PhysTest
)

var physStateNames = [...]string{"NoChange", "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp",
	"LinkErrorRecovery", "PhyTest"}

// String returns the name that the InfiniBand diagnostics print.
func (s PhysState) String() string { return nameOf("PhysState", physStateNames[:], uint8(s)) }

// LinkWidth is a set of link widths; an active width is a set of one.
type LinkWidth uint8

// Link widths. WidthAllSupported is only ever set: enable all supported.
const (
	Width1x           LinkWidth = 1
	Width4x           LinkWidth = 2
	Width8x           LinkWidth = 4
	Width12x          LinkWidth = 8
	Width2x           LinkWidth = 16
	WidthAllSupported LinkWidth = 255
)

var widthNames = [...]string{"1X", "4X", "8X", "12X", "2X"}

// Lanes returns the number of lanes of an active width, 0 if it is none.
func (w LinkWidth) Lanes() int {
	switch w {
	case Width1x:
		return 1
	case Width2x:
		return 2
	case Width4x:
		return 4
	case Width8x:
		return 8
	case Width12x:
		return 12
	}
	return 0
}

// String prints the set as the InfiniBand diagnostics do.
func (w LinkWidth) String() string { return setString("LinkWidth", widthNames[:], uint8(w)) }

// LinkSpeed is a set of lane speeds; an active speed is a set of one.
type LinkSpeed uint8

// Lane speeds. SpeedAllSupported is only ever set: enable all supported.
const (
	SpeedSDR          LinkSpeed = 1 // 2.5 Gbit/s
	SpeedDDR          LinkSpeed = 2 // 5 Gbit/s
	SpeedQDR          LinkSpeed = 4 // 10 Gbit/s
	SpeedAllSupported LinkSpeed = 15
)

var speedNames = [...]string{"2.5 Gbps", "5.0 Gbps", "10.0 Gbps"}

// String prints the set as the InfiniBand diagnostics do.
func (s LinkSpeed) String() string { return setString("LinkSpeed", speedNames[:], uint8(s)) }

// LinkSpeedExt is a set of extended lane speeds; none is active where a
// port runs at a LinkSpeed.
type LinkSpeedExt uint8

// Extended lane speeds. SpeedExtDisable and SpeedExtAll are only ever set.
const (
	SpeedFDR        LinkSpeedExt = 1 // 14.0625 Gbit/s
	SpeedEDR        LinkSpeedExt = 2 // 25.78125 Gbit/s
	SpeedHDR        LinkSpeedExt = 4 // 53.125 Gbit/s
	SpeedNDR        LinkSpeedExt = 8 // 106.25 Gbit/s
	SpeedExtDisable LinkSpeedExt = 30
	SpeedExtAll     LinkSpeedExt = 31
)

var speedExtNames = [...]string{"14.0625 Gbps", "25.78125 Gbps", "53.125 Gbps", "106.25 Gbps"}

// String prints the set as the InfiniBand diagnostics do.
func (s LinkSpeedExt) String() string {
	if s == 0 {
		return "No Extended Speed"
	}
	return setString("LinkSpeedExt", speedExtNames[:], uint8(s))
}

// Rate is a static rate code of a path (IBA volume 1, table 214; verbs has the
// same numbers). Codes are not in the order of speed: compare Gbps.
type Rate uint8

// Rate codes, by speed in Gbit/s.
const (
	Rate2_5  Rate = 2
	Rate5    Rate = 5
	Rate10   Rate = 3
	Rate14   Rate = 11
	Rate20   Rate = 6
	Rate25   Rate = 15
	Rate28   Rate = 19
	Rate30   Rate = 4
	Rate40   Rate = 7
	Rate50   Rate = 20
	Rate56   Rate = 12
	Rate60   Rate = 8
	Rate80   Rate = 9
	Rate100  Rate = 16
	Rate112  Rate = 13
	Rate120  Rate = 10
	Rate168  Rate = 14
	Rate200  Rate = 17
	Rate300  Rate = 18
	Rate400  Rate = 21
	Rate600  Rate = 22
	Rate800  Rate = 23
	Rate1200 Rate = 24
)

var rateTenths = [...]uint16{0, 0, 25, 100, 300, 50, 200, 400, 600, 800, 1200, 140, 560, 1120, 1680, 250, 1000, 2000,
	3000, 280, 500,
	4000, 6000, 8000, 12000}

// Valid reports whether r is a known code.
func (r Rate) Valid() bool { return r >= Rate2_5 && int(r) < len(rateTenths) }

// Tenths returns the speed in units of 100 Mbit/s, 0 for an unknown code. It
// is what rates are compared by.
func (r Rate) Tenths() int {
	if !r.Valid() {
		return 0
	}
	return int(rateTenths[r])
}

// String prints the speed, such as "2.5 Gb/sec".
func (r Rate) String() string {
	if !r.Valid() {
		return fmt.Sprintf("Rate(%d)", uint8(r))
	}
	if t := r.Tenths(); t%10 != 0 {
		return fmt.Sprintf("%d.%d Gb/sec", t/10, t%10)
	}
	return fmt.Sprintf("%d Gb/sec", r.Tenths()/10)
}

// RateOf returns the code of a link's rate from its active width and speeds; ext
// counts where it is set. It is 0 where no code fits.
func RateOf(w LinkWidth, s LinkSpeed, ext LinkSpeedExt) Rate {
	lane := 0
	switch {
	case ext == SpeedFDR:
		lane = 140
	case ext == SpeedEDR:
		lane = 250
	case ext == SpeedHDR:
		lane = 500
	case ext == SpeedNDR:
		lane = 1000
	case ext != 0:
		return 0
	case s == SpeedSDR:
		lane = 25
	case s == SpeedDDR:
		lane = 50
	case s == SpeedQDR:
		lane = 100
	}
	want := lane * w.Lanes()
	for r, t := range rateTenths {
		if int(t) == want && want != 0 {
			return Rate(r)
		}
	}
	return 0
}

func nameOf(kind string, names []string, v uint8) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", kind, v)
}

// setString joins the names of the bits of v with "or".
func setString(kind string, names []string, v uint8) string {
	if v == 0 || v>>len(names) != 0 {
		return fmt.Sprintf("%s(%d)", kind, v)
	}
	var parts []string
	for i, n := range names {
		if v>>i&1 != 0 {
			parts = append(parts, n)
		}
	}
	return strings.Join(parts, " or ")
}
