// SPDX-License-Identifier: Apache-2.0

// Package walk checks a subnet: a pair of ports step by step (Fabric.Pair), and the whole of it (Fabric.Whole).
//
// What comes in: the model of the master's last sweep, the intended partitions, the state of trunks and the counters of
// ports; what goes out: a list of findings, each with a level, and a fix if it is no success. The node of the master
// calls it. The package sends nothing and changes nothing: the same input gives the same findings.
package walk

import (
	"fmt"
	"slices"
	"strings"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
)

// Level is the importance of a finding.
type Level uint8

// Levels. A check with a Fail has failed.
const (
	OK Level = iota
	Warn
	Fail
)

// String returns "ok", "warn" or "fail".
func (l Level) String() string { return [...]string{"ok", "warn", "fail"}[l] }

// Finding is the result of one step.
type Finding struct {
	Level Level
	Step  string // port, partition, path, mtu, trunk, counters, subnet
	What  string
	Fix   string // a command or an action; empty of an OK
}

// Fabric is what is known of a subnet. Findings refer to nodes by their descriptions.
type Fabric struct {
	Topo       *topo.Subnet
	Partitions []sm.Partition // as intended
	Manager    ib.GUID        // the port of the manager
	// Applied reports that a sweep has applied Partitions. Differences are not failures before.
	Applied bool
	Lost    []sm.LostLink
	// Trunks are the known ends of trunks, and Counters the ports that reported theirs.
	Trunks   map[topo.Ref]Trunk
	Counters map[topo.Ref]Counters
}

// Trunk is one end of a trunk, at a port of a switch.
type Trunk struct {
	Peer string // the address of the other end
	Up   bool
	// Limit is the size of the largest datagram in octets. Here and There are the limits of the path as the two ends
	// have it. 0 is not known.
	Limit, Here, There int
	Received, Lost     uint64 // packets, and datagrams that did not arrive
	Reordered, Downs   uint64
}

// Counters are the counters of a port since it was reset.
type Counters struct {
	Packets     uint64 // sent and received
	Discards    uint64 // packets that could not be sent
	Errors      uint64 // packets that arrived damaged
	Constraints uint64 // packets that the partition or the state of the port does not permit
	Symbols     uint64 // errors of the link: on a trunk, datagrams that did not arrive
	Downs       uint64 // failures of the link
}

// Hop is a link on the way of a packet.
type Hop struct {
	Out, In topo.Ref // the ports at its ends
	MTU     ib.MTU
	Rate    ib.Rate
	State   ib.PortState
}

// Report is the result of Pair.
type Report struct {
	From, To topo.Ref // None: not in the subnet
	Hops     []Hop    // from From to To, as far as they lead
	MTU      ib.MTU   // the smallest on the way; 0: there is no way
	Findings []Finding
}

// Works reports whether no step failed.
func (r *Report) Works() bool { return r.Worst().Level != Fail }

// Worst returns the first finding of the highest level.
func (r *Report) Worst() (f Finding) {
	for _, x := range r.Findings {
		if x.Level > f.Level {
			f = x
		}
	}
	return f
}

func (r *Report) add(l Level, step, fix, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{Level: l, Step: step, What: fmt.Sprintf(format, args...), Fix: fix})
}

// name returns the name of a port's node for people.
func (f *Fabric) name(r topo.Ref) string {
	if f.Topo.Port(r) == nil {
		return "an unknown port"
	}
	n := &f.Topo.Nodes[r.Node]
	if n.Description == "" {
		return n.Info.NodeGUID.String()
	}
	return n.Description
}

// portName adds the number of the port to the name of a switch.
func (f *Fabric) portName(r topo.Ref) string {
	if f.Topo.Port(r) != nil && f.Topo.Nodes[r.Node].IsSwitch() {
		return fmt.Sprintf("%s port %d", f.name(r), r.Port)
	}
	return f.name(r)
}

// Pair checks the way between two ports with LIDs, in both directions.
func (f *Fabric) Pair(a, b ib.GUID) Report {
	r := Report{From: f.Topo.PortByGUID(a), To: f.Topo.PortByGUID(b)}
	there := f.port(&r, a, r.From)
	if !f.port(&r, b, r.To) || !there {
		return r
	}
	f.partitions(&r)
	var ok bool
	if r.Hops, ok = f.way(&r, r.From, r.To, ""); ok {
		f.way(&r, r.To, r.From, "back: ")
	}
	f.mtu(&r, ok)
	f.trunks(&r)
	f.counters(&r)
	return r
}

// port checks that a port is in the subnet and active, and reports whether it is there.
func (f *Fabric) port(r *Report, guid ib.GUID, at topo.Ref) bool {
	p := f.Topo.Port(at)
	if p == nil {
		r.add(Fail, "port", "weft status on its node, and weft trunk there", "%v is not in the subnet", guid)
		return false
	}
	switch {
	case p.Info.PortState != ib.PortActive:
		r.add(Fail, "port", "weft status on its node; weft sm", "%s: the port is %v, not ACTIVE", f.name(at),
			stateName(p.Info.PortState))
	case p.Held.LID != p.Info.LID:
		r.add(Fail, "port", "weft sm", "%s: LID %d is intended, the port has %d%s", f.name(at), p.Info.LID, p.Held.LID,
			because(p.Held.Why))
	default:
		r.add(OK, "port", "", "%s: %v, LID %d, ACTIVE", f.name(at), guid, p.Info.LID)
	}
	return true
}

// stateName returns the name of a state as verbs programs print it.
func stateName(s ib.PortState) string {
	if s == ib.PortInit {
		return "INIT"
	}
	return strings.ToUpper(s.String())
}

// because joins a reason, if there is one, to a text.
func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// partitionName returns the P_Key of a partition, and its name if it has another.
func (f *Fabric) partitionName(key ib.PKey) string {
	text := fmt.Sprintf("0x%04x", uint16(key|0x8000))
	for _, p := range f.Partitions {
		if (p.PKey^key)&0x7fff == 0 && p.Name != "" && p.Name != text {
			return text + " (" + p.Name + ")"
		}
	}
	if key&0x7fff == 0x7fff {
		return text + " (default)"
	}
	return text
}

var memberships = [...]string{sm.NotMember: "no", sm.Limited: "limited", sm.Full: "full"}

// partitions checks that two ports share a partition in which they can communicate (IBA volume 1, 10.9.3), by the
// tables that the ports have.
func (f *Fabric) partitions(r *Report) {
	a, b := f.Topo.Port(r.From), f.Topo.Port(r.To)
	wantA, wantB := sm.IntendedKeys(f.Partitions, a.GUID, f.Manager), sm.IntendedKeys(f.Partitions, b.GUID, f.Manager)
	var limited []string
	talk := false
	for _, k := range keysOf(a.Held.PKeys) {
		x, y := sm.MembershipOf(a.Held.PKeys, k), sm.MembershipOf(b.Held.PKeys, k)
		switch {
		case y == sm.NotMember:
		case x == sm.Limited && y == sm.Limited:
			limited = append(limited, f.partitionName(k))
		default:
			talk = true
			r.add(OK, "partition", "", "%s: %s is a %s member, %s a %s one", f.partitionName(k), f.name(r.From),
				memberships[x], f.name(r.To), memberships[y])
		}
	}
	differs := false
	for _, d := range sm.KeyDifferences(f.Partitions, f.Topo, f.Manager) {
		if d.Port != a.GUID && d.Port != b.GUID {
			continue
		}
		// What both ports are intended to have matters to the pair.
		shared := sm.MembershipOf(wantA, d.PKey) != sm.NotMember && sm.MembershipOf(wantB, d.PKey) != sm.NotMember
		level := Warn
		if f.Applied && shared && d.Want > d.Has {
			level, differs = Fail, true
		}
		r.Findings = append(r.Findings, f.difference(d, level))
	}
	switch {
	case talk || differs:
	case len(limited) > 0:
		r.add(Fail, "partition", f.join(a, b), "both are limited members of %s, which communicate with full ones only",
			strings.Join(limited, " and "))
	default:
		r.add(Fail, "partition", f.join(a, b), "they have no partition in common")
	}
}

// join is the command that puts two ports into a partition.
func (f *Fabric) join(a, b *topo.Port) string {
	key := ib.PKey(1)
	for slices.ContainsFunc(f.Partitions, func(p sm.Partition) bool { return p.PKey&0x7fff == key }) {
		key++
	}
	return fmt.Sprintf("weft pkey add 0x%04x %v %v", uint16(key|0x8000), a.GUID, b.GUID)
}

// keysOf returns the partitions of a table, without memberships, in its order.
func keysOf(table []ib.PKey) (keys []ib.PKey) {
	for _, k := range table {
		if k &= 0x7fff; k != 0 && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// difference is the finding of a port that does not have what is intended.
func (f *Fabric) difference(d sm.KeyDifference, level Level) Finding {
	who := d.Port.String()
	if at := f.Topo.PortByGUID(d.Port); !at.IsNone() {
		who = f.name(at)
	}
	x := Finding{Level: level, Step: "partition", Fix: "weft sm shows its problems; weft fabric sweep tries again"}
	switch {
	case d.Want == sm.NotMember:
		x.What = fmt.Sprintf("%s has %s as a %s member, against the configuration", who,
			f.partitionName(d.PKey), memberships[d.Has])
	case d.Has == sm.NotMember:
		x.What = fmt.Sprintf("%s does not have %s, of which it shall be a %s member", who, f.partitionName(d.PKey),
			memberships[d.Want])
	default:
		x.What = fmt.Sprintf("%s is a %s member of %s, and shall be a %s one", who, memberships[d.Has],
			f.partitionName(d.PKey), memberships[d.Want])
	}
	switch {
	case !f.Applied && !d.Absent:
		x.What += ": no sweep has applied the newest change yet"
		x.Fix = "wait; weft sm"
	case d.Absent:
		x.What += ": " + d.Why
		x.Fix = fmt.Sprintf("start its node, or weft pkey delete 0x%04x %v", uint16(d.PKey|0x8000), d.Port)
	default:
		x.What += because(d.Why)
	}
	return x
}
