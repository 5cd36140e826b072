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
	// foreignSeries is how long foreign data packets have to go on until they are reported: while tables change,
	// packets of an honest member can be dropped as foreign.
	foreignSeries = 5 * time.Second
)

// describeRefused describes attempts of programs on this host to manage the subnet, which were refused because this
// member lacks the role manager.
func describeRefused(now mono.Time, u *umad.Hub) []api.Degraded {
	if u.NotManagerAt.IsZero() || now.Sub(u.NotManagerAt) > foreignShown {
		return nil
	}
	return []api.Degraded{{What: "not_manager",
		Why: fmt.Sprintf("%d attempts of programs on this host to manage the subnet were refused, the newest %v ago: "+
			"this member lacks the role manager", u.Stats.NotManager, now.Sub(u.NotManagerAt).Round(time.Second)),
		Fix: "run the subnet manager on a member with that role: weft member list"}}
}

// describeForeign describes packets of a member that only others may send, if they are to be reported.
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
	d := api.Degraded{What: "foreign_packets",
		Why: fmt.Sprintf("%s sends %s, the newest %v ago; they are dropped", name, strings.Join(what, ", "),
			now.Sub(f.Newest).Round(time.Second)),
		Fix: "end the program on " + name + " that sends them, or weft member remove " + name}
	if f.Sources+f.PKeys == 0 {
		d.Fix = "end the subnet manager on " + name + ", which lacks the role manager: weft member list"
	}
	return []api.Degraded{d}
}
