// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// MaxHops is the largest hop count of a directed route.
const MaxHops = 63

// SMPDataLen is the length of a subnet management attribute.
const SMPDataLen = 64

// SMP is a subnet management packet, LID-routed or directed-route by its MgmtClass (IBA volume 1, 14.2.1). The fields
// from D on exist only in a directed route: Append and Parse ignore them in a LID-routed SMP.
type SMP struct {
	// Header.ClassSpecific of a directed-route SMP is HopPointer and HopCount, and is not used; Header.Status is
	// without the direction bit.
	Header
	MKey uint64
	// Data is the attribute, which its Append writes in place. The remains of a longer attribute are cleared by
	//
	//	clear(s.Data[len(a.Append(s.Data[:0])):])
	Data [SMPDataLen]byte

	D              bool // direction: the SMP returns
	HopPointer     uint8
	HopCount       uint8
	DrSLID, DrDLID ib.LID
	InitialPath    [MaxHops + 1]uint8 // ports of departure; entry 0 is not used
	ReturnPath     [MaxHops + 1]uint8 // ports of arrival; entry 0 is not used
}

// Directed reports whether s is a directed-route SMP.
func (s *SMP) Directed() bool { return s.MgmtClass == ClassSubnDR }

// Append appends the Len bytes of s to b.
func (s *SMP) Append(b []byte) []byte {
	b, p := extend(b, Len)
	if s.Directed() {
		s.putDirected(p)
	} else {
		s.putLIDRouted(p)
	}
	return b
}

// Parse reads an SMP from the start of b. It validates only the length: the receiver checks class, versions and hops.
func (s *SMP) Parse(b []byte) error {
	if len(b) < Len {
		return ErrShort
	}
	*s = SMP{}
	if Class(b[1]) == ClassSubnDR {
		s.getDirected(b)
	} else {
		s.getLIDRouted(b)
	}
	return nil
}

// Reply turns a request into its response: it sets method and status, turns a directed route with its hop pointer at
// the responder, and leaves the M_Key. The caller fills Data. A trap becomes its TrapRepress.
func (s *SMP) Reply(status Status) {
	s.Method = s.Method.Response()
	s.Status = status
	if s.Directed() {
		s.D = true
		s.HopPointer = s.HopCount + 1
	}
}

// LeftBy returns the port by which the request of a returning SMP left the switch at which the SMP has arrived. ok is
// false if the hop pointer is at no hop of the directed route.
func (s *SMP) LeftBy() (port uint8, ok bool) {
	if s.HopPointer == 0 || s.HopPointer > s.HopCount || s.HopCount > MaxHops {
		return 0, false
	}
	return s.InitialPath[s.HopPointer], true
}

// Action is the next step of a directed-route SMP.
type Action uint8

// Actions of directed-route processing.
const (
	Discard Action = iota // drop without an answer
	Deliver               // to the subnet management agent of this node, or to the manager if it returns
	Forward               // by Hop.Port, with LIDs permissive
	// by LID from this node on: to DrDLID outbound, to DrSLID returning; from an end node to its peer
	RouteLID
)

var actionNames = [...]string{"discard", "deliver", "forward", "route by LID"}

func (a Action) String() string { return actionNames[a&3] }

// Hop is the result of directed-route processing.
type Hop struct {
	Action Action
	Port   uint8 // port of departure, of Forward
}

// Send processes an SMP that originates at this node: a request with its hop pointer at 0, or a response as Reply
// leaves it. ports is NumPorts of a switch, where port is not used; of a channel adapter port is the port of departure.
// Deliver means that the SMP is for this node itself. Send advances the hop pointer (IBA volume 1, 14.2.2).
func (s *SMP) Send(isSwitch bool, port, ports uint8) Hop {
	hp, hc := s.HopPointer, s.HopCount
	if hc > MaxHops {
		return Hop{}
	}
	if !s.D {
		switch {
		case s.DrSLID != ib.LIDPermissive && hp == 0:
			// The directed part starts elsewhere, at the switch that the SMP
			// reaches by its LID.
			return Hop{Action: RouteLID}
		case hc > 0 && hp == 0:
			return s.leave(isSwitch, port, ports)
		case hp == hc:
			return s.arrive(isSwitch)
		case hp == hc+1:
			return Hop{Action: Deliver}
		}
		return Hop{}
	}
	switch {
	case hp == hc+1 && s.DrDLID != ib.LIDPermissive:
		// The directed part ended before this node, which the request reached
		// by LID.
		return Hop{Action: RouteLID}
	case hc > 0 && hp == hc+1:
		return s.leave(isSwitch, port, ports)
	case hp == 1:
		return s.arrive(isSwitch)
	case hp == 0:
		return Hop{Action: Deliver}
	}
	return Hop{}
}

// Receive processes an SMP that arrived by port ingress of this node, which has ports ports. It records the return
// path, advances the hop pointer and returns the next step (IBA volume 1, 14.2.2). It processes an SMP that arrived
// routed by LID in the same way.
func (s *SMP) Receive(isSwitch bool, ingress, ports uint8) Hop {
	hp, hc := s.HopPointer, s.HopCount
	if hc > MaxHops {
		return Hop{}
	}
	if !s.D {
		switch {
		case hc > 0 && hp == 0:
			// Only a switch that the SMP reached by LID starts its directed
			// part; there is no return path to record.
			if !isSwitch || s.DrSLID == ib.LIDPermissive {
				return Hop{}
			}
			return s.leave(isSwitch, ingress, ports)
		case hp > 0 && hp < hc:
			if !isSwitch {
				return Hop{}
			}
			s.ReturnPath[hp] = ingress
			return s.leave(isSwitch, ingress, ports)
		case hp == hc:
			if hc > 0 {
				s.ReturnPath[hp] = ingress
			}
			return s.arrive(isSwitch)
		case hp == hc+1:
			return Hop{Action: Deliver}
		}
		return Hop{}
	}
	switch {
	case hc > 0 && hp == hc+1:
		if !isSwitch || s.DrDLID == ib.LIDPermissive && s.ReturnPath[hc] != ingress {
			return Hop{}
		}
		return s.leave(isSwitch, ingress, ports)
	case hp >= 2 && hp <= hc:
		if !isSwitch {
			return Hop{}
		}
		return s.leave(isSwitch, ingress, ports)
	case hp == 1:
		return s.arrive(isSwitch)
	case hp == 0:
		return Hop{Action: Deliver}
	}
	return Hop{}
}

// leave advances the hop pointer in the direction of the SMP and returns the next port. A port that does not exist
// discards the SMP; port 0 of a switch is no port of departure. Preconditions: 0 <= HopPointer < HopCount outbound, 2
// <= HopPointer <= HopCount+1 returning.
func (s *SMP) leave(isSwitch bool, port, ports uint8) Hop {
	hp, path := s.HopPointer+1, &s.InitialPath
	if s.D {
		hp, path = s.HopPointer-1, &s.ReturnPath
	}
	out := path[hp]
	if out == 0 || isSwitch && out > ports || !isSwitch && out != port {
		return Hop{}
	}
	s.HopPointer = hp
	return Hop{Action: Forward, Port: out}
}

// arrive ends the directed part of the route: here, unless a LID-routed part
// follows, which only a switch serves.
func (s *SMP) arrive(isSwitch bool) Hop {
	lid := s.DrDLID
	if s.D {
		lid = s.DrSLID
	}
	if lid != ib.LIDPermissive && !isSwitch {
		return Hop{}
	}
	if s.D {
		s.HopPointer = 0
	} else {
		s.HopPointer = s.HopCount + 1
	}
	if lid == ib.LIDPermissive {
		return Hop{Action: Deliver}
	}
	return Hop{Action: RouteLID}
}
