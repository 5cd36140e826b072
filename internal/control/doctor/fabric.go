// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	"weft/internal/control/api"
)

// validity returns when a certificate, DER or PEM, begins and ends.
func validity(b []byte) (begins, ends time.Time, err error) {
	if p, _ := pem.Decode(b); p != nil {
		b = p.Bytes
	}
	c, err := x509.ParseCertificate(b)
	if err != nil {
		return begins, ends, err
	}
	return c.NotBefore, c.NotAfter, nil
}

// severe are the degraded states with which something does not work; with others it works less well than it could. A
// name that ends in _ means all with that beginning.
var severe = []string{"trunk_down", "trunk_path", "trunk_mtu", "trunk_mtu_hole", "port_not_active", "no_manager",
	"intent_unreadable", "no_subnet_manager", "no_ethernet_manager", "store_", "two_managers", "subnet_problems",
	"partition_differs", "link_lost",
	"no_way", "mtu_differs", "fabric_", "vesw_", "ip_link", "stuck_", "roce_interface", "multicast_group", "trunk_trust",
	"vm_needs_reset", "vm_broken_ring"}

func isSevere(name string) bool {
	return slices.ContainsFunc(severe, func(s string) bool {
		return name == s || strings.HasSuffix(s, "_") && strings.HasPrefix(name, s)
	})
}

// misleading are the notices of a node as it should be on which programs may still fail.
var misleading = []string{"gid_no_address"}

// reported are the degraded states that the checks of the fabric find themselves.
var reported = []string{"two_managers", "subnet_problems", "partition_differs", "link_lost", "no_way", "mtu_differs",
	"fabric_port", "fabric_link"}

// Node checks a running node by its status. program is the version of the caller. checked reports that the checks of
// the fabric are listed as well.
func Node(s *api.Status, program string, checked bool) []api.Finding {
	var l list
	if !s.Ready {
		l.add(api.LevelFail, "node", "weft wait --for=ready", "it is starting, pid %d", s.PID)
	} else {
		l.add(api.LevelOK, "node", "", "ready, pid %d, up %v", s.PID, s.UptimeNS.Round(time.Second))
	}
	if s.Version != program {
		l.add(api.LevelWarn, "version", "weft down; weft up", "the node is weft %s, this is weft %s", s.Version, program)
	}
	up := 0
	for _, t := range s.Trunks {
		if t.Up {
			up++
		}
	}
	if len(s.Trunks) > 0 && up == len(s.Trunks) {
		l.add(api.LevelOK, "trunks", "", "%d of %d up", up, up)
	}
	for _, d := range s.Degraded {
		if checked && slices.Contains(reported, d.What) {
			continue
		}
		level := api.LevelWarn
		if isSevere(d.What) {
			level = api.LevelFail
		}
		l.add(level, d.What, d.Fix, "%s", d.Why)
	}
	for _, d := range s.Notices {
		if slices.Contains(misleading, d.What) {
			l.add(api.LevelWarn, d.What, d.Fix, "%s", d.Why)
		}
	}
	for _, f := range s.Faults {
		l.add(api.LevelWarn, "fault", fmt.Sprintf("weft fault delete %d", f.ID),
			"fault %d is injected: it drops or changes packets", f.ID)
	}
	return l
}

// Manager checks that a master is known.
func Manager(m *api.Manager) []api.Finding {
	var l list
	switch {
	case m.State == "off" || m.State == "external":
		l.add(api.LevelOK, "manager", "", "another node or program manages the subnet (--sm %s)", m.State)
	case m.State == "failed":
		l.add(api.LevelFail, "manager", "weft store status", "none: %s", m.Store.Down)
	case m.Master.GUID == "" && m.Master.Name == "":
		l.add(api.LevelFail, "manager", "weft sm; weft trunk", "this node knows no master of the subnet")
	case m.State != "master":
		name := m.Master.Name
		if name == "" {
			name = m.Master.GUID
		}
		l.add(api.LevelOK, "manager", "", "the master is %s; weft doctor there checks the whole fabric", name)
	}
	return l
}

// Store checks the store and its majority.
func Store(s *api.Store) []api.Finding {
	var l list
	switch {
	case s.Kind == "none":
	case s.Down != "":
		l.add(api.LevelFail, "store", "weft store status", "%s: %s", s.Kind, s.Down)
	case s.SetAside != "":
		l.add(api.LevelWarn, "store", "weft store status", "%s", s.SetAside)
	default:
		what := s.Kind
		if n := len(s.Replicas); n > 0 {
			what = fmt.Sprintf("%s, %d copies, with a majority", what, n)
		}
		l.add(api.LevelOK, "store", "", "%s", what)
	}
	return l
}

// Members checks that each active member of the fabric is in the subnet.
func Members(members []api.FabricMember, s *api.Subnet) []api.Finding {
	var l list
	for _, m := range members {
		if m.State == "joining" {
			continue
		}
		if !slices.ContainsFunc(s.Nodes, func(n api.FabricNode) bool { return n.GUID == m.GUID }) {
			l.add(api.LevelFail, "members", "weft status on that host; weft member remove "+m.Name+" if it is gone for good",
				"%s is not in the subnet", m.Name)
		}
	}
	if len(l) == 0 && len(members) > 0 {
		l.add(api.LevelOK, "members", "", "all %d are in the subnet", len(members))
	}
	return l
}
