// SPDX-License-Identifier: Apache-2.0

package walk

import (
	"fmt"
	"slices"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
)

// maxPairs bounds the ports of which Whole walks all pairs; in a larger subnet it walks from each port to that of the
// manager and back.
const maxPairs = 64

// Whole checks a subnet: ports, links, trunks, partitions and ways. Each step that finds nothing wrong is one OK.
func (f *Fabric) Whole() (list []Finding) {
	for _, step := range []struct {
		check func() []Finding
		sound string
		name  string
	}{
		{f.allPorts, fmt.Sprintf("%d ports are active, with the LIDs that they shall have", f.numberOfPorts()), "port"},
		{f.allLinks, fmt.Sprintf("%d links are active, with one MTU at both ends", len(f.Topo.Links())), "mtu"},
		{f.allTrunks, "every known trunk is up, and no link is lost", "trunk"},
		{f.allKeys, "ports have the partitions that are intended", "partition"},
		{f.allWays, "the forwarding tables lead from port to port", "path"},
	} {
		found := step.check()
		if len(found) == 0 {
			found = []Finding{{Level: OK, Step: step.name, What: step.sound}}
		}
		list = append(list, found...)
	}
	return list
}

// numberOfPorts is the number of ports with LIDs.
func (f *Fabric) numberOfPorts() (n int) {
	for range f.Topo.EndPorts() {
		n++
	}
	return n
}

func (f *Fabric) allPorts() []Finding {
	var r Report
	for at := range f.Topo.EndPorts() {
		f.port(&r, f.Topo.Port(at).GUID, at)
	}
	return wrong(r.Findings)
}

// wrong returns the findings that are no success.
func wrong(list []Finding) []Finding {
	return slices.DeleteFunc(list, func(x Finding) bool { return x.Level == OK })
}

func (f *Fabric) allLinks() (list []Finding) {
	for _, l := range f.Topo.Links() {
		a, b := f.Topo.Port(l.A), f.Topo.Port(l.B)
		between := fmt.Sprintf("the link between %s and %s", f.portName(l.A), f.portName(l.B))
		if s := min(a.Info.PortState, b.Info.PortState); s != ib.PortActive {
			list = append(list, Finding{Fail, "link", between + " is " + stateName(s) + ", not ACTIVE",
				"weft fabric sweep; weft sm"})
		} else if a.Info.NeighborMTU != b.Info.NeighborMTU {
			list = append(list, Finding{Fail, "mtu", fmt.Sprintf("%s has MTU %d at one end and %d at the other", between,
				a.Info.NeighborMTU.Bytes(), b.Info.NeighborMTU.Bytes()), "weft fabric sweep; weft sm"})
		}
	}
	return list
}

func (f *Fabric) allTrunks() (list []Finding) {
	for _, x := range f.broken() {
		list = append(list, x.Finding)
	}
	for _, l := range f.Topo.Links() {
		for _, at := range []topo.Ref{l.A, l.B} {
			if t, ok := f.Trunks[at]; ok && t.Up {
				list = append(list, f.trunk(at, t)...)
			}
		}
		if x := f.ends(l.A, l.B); x != nil {
			list = append(list, *x)
		}
	}
	return list
}

func (f *Fabric) allKeys() (list []Finding) {
	level := Fail
	if !f.Applied {
		level = Warn
	}
	for _, d := range sm.KeyDifferences(f.Partitions, f.Topo, f.Manager) {
		list = append(list, f.difference(d, level))
	}
	return list
}

// allWays checks the tables. A way that does not lead to its end is named once for each switch or link at fault.
func (f *Fabric) allWays() (list []Finding) {
	var ports []topo.Ref
	for at := range f.Topo.EndPorts() {
		if p := f.Topo.Port(at); p.Info.PortState == ib.PortActive {
			ports = append(ports, at)
		}
	}
	seen := map[string]bool{}
	walk := func(from, to topo.Ref) {
		if _, end := f.follow(from, to); end != nil && !seen[end.why] {
			seen[end.why] = true
			list = append(list, Finding{Fail, "path", fmt.Sprintf("from %s to %s: %s", f.name(from), f.name(to), end.why),
				end.fix})
		}
	}
	self := f.Topo.PortByGUID(f.Manager)
	for _, from := range ports {
		if len(ports) <= maxPairs {
			for _, to := range ports {
				walk(from, to)
			}
		} else if !self.IsNone() {
			walk(from, self)
			walk(self, from)
		}
	}
	for _, i := range f.Topo.Switches() {
		if f.Topo.Nodes[i].Switch.Unwritten {
			list = append(list, Finding{Warn, "path", f.name(topo.Ref{Node: i}) + " did not accept all of its tables",
				"weft sm"})
		}
	}
	return list
}
