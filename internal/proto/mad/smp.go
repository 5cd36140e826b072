// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// MaxHops is the largest hop count of a directed route.
const MaxHops = 63

// SMPDataLen is the length of a subnet management attribute.
const SMPDataLen = 64

// SMP is a subnet management packet, LID-routed or directed-route by its
// MgmtClass (IBA volume 1, 14.2.1). The fields from D on exist in a directed
// route only: in a LID-routed SMP they are neither read nor written.
type SMP struct {
	// Header.ClassSpecific of a directed-route SMP is HopPointer and HopCount
	// and not used; Header.Status is without the direction bit.
	Header
	MKey uint64
	// Data is the attribute, whose Append fills it in place. What a shorter
	// attribute leaves of another is cleared by
	//	clear(s.Data[len(a.Append(s.Data[:0])):])
	Data [SMPDataLen]byte

	D              bool // direction: the SMP returns
	HopPointer     uint8
	HopCount       uint8
	DrSLID, DrDLID ib.LID
	InitialPath    [MaxHops + 1]uint8 // ports to leave by; entry 0 is not used
	ReturnPath     [MaxHops + 1]uint8 // ports it came by; entry 0 is not used
}

// Directed reports whether s is a directed-route SMP.
func (s *SMP) Directed() bool { return s.MgmtClass == ClassSubnDR }

// Append appends the SMP's Len bytes to b.
func (s *SMP) Append(b []byte) []byte {
	b, p := extend(b, Len)
	if s.Directed() {
		s.putDirected(p)
	} else {
		s.putLIDRouted(p)
	}
	return b
}

// Parse reads an SMP from the start of b. It judges nothing but the length:
// class, versions and hops are the receiver's to check.
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

// Reply turns a request into its response: method and status are set, a
// directed route points back with its hop pointer at the responder, the M_Key
// goes back as it came. The caller fills Data. A trap becomes its TrapRepress.
func (s *SMP) Reply(status Status) {
	s.Method = s.Method.Response()
	s.Status = status
	if s.Directed() {
		s.D = true
		s.HopPointer = s.HopCount + 1
	}
}

// Action is what is to be done with a directed-route SMP.
type Action uint8

// Actions of directed-route processing.
const (
	Discard  Action = iota // silently
	Deliver                // to this node's subnet management agent, or manager if it returns
	Forward                // by Hop.Port, with LIDs permissive
	RouteLID               // by LID from here: to DrDLID outbound, to DrSLID returning; from an end node to its peer
)

var actionNames = [...]string{"discard", "deliver", "forward", "route by LID"}

func (a Action) String() string { return actionNames[a&3] }

// Hop is the outcome of directed-route processing.
type Hop struct {
	Action Action
	Port   uint8 // to leave by, of Forward
}

// Send processes an SMP that originates at this node: a request with its hop
// pointer at 0, or a response as Reply leaves it. ports is NumPorts of a switch and
// port is not used; of a channel adapter port is the one the SMP shall leave
// by. Deliver means that the SMP is for this node itself. The hop pointer is
// advanced (IBA volume 1, 14.2.2).
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

// Receive processes an SMP that came in by port ingress of this node, which has
// ports ports. It records the return path, advances the hop pointer and says what is
// to be done (IBA volume 1, 14.2.2). An SMP that arrived routed by LID is
// processed the same way.
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

// leave steps the hop pointer in the SMP's direction and says which port is
// next. A port that does not exist discards; port 0 of a switch is no way out.
// Preconditions: 0 <= HopPointer < HopCount outbound, 2 <= HopPointer <=
// HopCount+1 returning.
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
