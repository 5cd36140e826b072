// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"fmt"
	"strings"
	"time"

	"weft/internal/control/api"
	"weft/internal/fabric/link/fabric"
	"weft/internal/mgmt/umad"
	"weft/internal/proto/mono"
)

const (
	// foreignShown is how long a member is reported after the last of its packets that were dropped as foreign.
	foreignShown = 5 * time.Minute
	// foreignSeries is how long data packets have to go on until they are reported: while tables change, those of an
	// honest member can be taken for foreign ones.
	foreignSeries = 5 * time.Second
)

// foreignDegraded lists the members that send what only others may send (fabric.Foreign), and whether programs of this
// node try to manage the subnet without the role manager. No lane may call it.
func (s *Subnet) foreignDegraded() (list []api.Degraded, err error) {
	first := s.lanes.First()
	err = first.Query(func() {
		for i := range s.trunks.Peers() {
			if s.trunks.Used(i) {
				f := first.Net.Fabric.PeerCounters(i).Foreign
				list = append(list, describeForeign(first.Now(), s.trunks.Status(i).Name, &f)...)
			}
		}
	})
	if e := s.Do(func() {
		if u, ok := s.Clients.(*umad.Hub); ok && !s.manages && u.Stats.NotManager > 0 {
			list = append(list, api.Degraded{What: "not_manager",
				Why: fmt.Sprintf("%d attempts of programs on this host to manage the subnet were refused: this member "+
					"lacks the role manager", u.Stats.NotManager),
				Fix: "run the subnet manager on a member with that role: weft member list"})
		}
	}); err == nil {
		err = e
	}
	return list, err
}

// describeForeign describes what a member sends, if it is to be reported.
func describeForeign(now mono.Time, name string, f *fabric.Foreign) []api.Degraded {
	if f.Newest.IsZero() || now.Sub(f.Newest) > foreignShown || f.SMPs == 0 && f.Newest.Sub(f.Since) < foreignSeries {
		return nil
	}
	var what []string
	for _, x := range []struct {
		n    uint64
		text string
	}{
		{f.SMPs, "subnet management packets of a manager"}, {f.Sources, "packets with LIDs of others"},
		{f.PKeys, "packets of partitions that it is not in"},
	} {
		if x.n > 0 {
			what = append(what, fmt.Sprintf("%d %s", x.n, x.text))
		}
	}
	d := api.Degraded{What: "foreign_packets", Why: fmt.Sprintf("%s sends %s, the newest %v ago; they are dropped", name,
		strings.Join(what, ", "), now.Sub(f.Newest).Round(time.Second)),
		Fix: "end the program on " + name + " that sends them, or weft member remove " + name}
	if f.Sources+f.PKeys == 0 {
		d.Fix = "end the subnet manager on " + name + ", which lacks the role manager: weft member list"
	}
	return []api.Degraded{d}
}
