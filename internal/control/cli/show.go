// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/control/metric"
)

func statusCommand(a *app) *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "status",
		Short: "show the node's state, and what is degraded with its fix",
		Long:  "Show the node's state, and what is degraded with its fix. The exit code is 0\nonly when the node is ready.",
		Args:  cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print printer) error {
		s, err := get(cmd.Context(), a, api.GetStatus)
		if err != nil {
			return err
		}
		if err := print(s, func(w *screen) { printStatus(w, s) }); err != nil {
			return err
		}
		if !s.Ready {
			return &codeError{code: ExitNotReady}
		}
		return nil
	})
}

func printStatus(w *screen, s api.Status) {
	state := "starting"
	if s.Ready {
		state = "ready"
	}
	line := fields{w, 9}.line
	line("node", "%s, up %v, pid %d, uid %d, weft %s", state, round(s.UptimeNS), s.PID, s.UID, s.Version)
	line("dir", "%s", s.Dir)
	for _, d := range s.Devices {
		kind, lid := "", ""
		switch {
		case d.LinkLayer == "InfiniBand":
			kind, lid = "InfiniBand ", fmt.Sprintf(", lid %d", d.LID)
		case api.InVESW(d.Segment):
			kind = "Ethernet " + d.Segment + " "
		}
		state := d.PortState
		if !d.Enabled {
			state += ", disabled"
		}
		line("device", "%s: %sport %s%s, mtu %d, %s", d.Name, kind, state, lid, d.ActiveMTU, plural(d.GIDs, "gid"))
	}
	printICRC(line, s.Devices)
	var polling, realtime int
	for _, l := range s.Lanes {
		if l.Polling {
			polling++
		}
		if l.RealTime {
			realtime++
		}
	}
	line("lanes", "%d, %d polling, %d with real-time priority", len(s.Lanes), polling, realtime)
	line("sessions", "%s", sessionList(s.Sessions))
	if s.Member != "" {
		line("member", "%s", s.Member)
	}
	if s.Manager != "" {
		line("manager", "%s", s.Manager)
	}
	if len(s.Trunks) > 0 {
		up := 0
		for _, t := range s.Trunks {
			if t.Up {
				up++
			}
		}
		line("trunks", "%d of %d up", up, len(s.Trunks))
	}
	for _, l := range s.IPLinks {
		line("ip link", "%s of %s: %s, mtu %d, carrier %s", l.Name, l.Device, l.State, l.MTU,
			whether(l.Carrier, l.Reason))
	}
	for _, v := range s.VESWInterfaces {
		name := ""
		if v.Name != "" {
			name = v.Name + " "
		}
		line("vesw port", "%sof %s, VESW %d: %s, mtu %d", name, v.Device, v.VESW, veswStateText(v), v.MTU)
	}
	for _, v := range s.VMs {
		line("vm", "%s: guest %s, carrier %s", v.Name, vmGuest(v), whether(v.Carrier, v.CarrierReason))
	}
	if s.WireLocal {
		line("path", "traffic within the node takes the full packet path (--wire-local)")
	}
	if s.RoCEPort != 0 && s.RoCEPort != config.RoCEPort {
		line("roce port", "%d, not %d: nodes reach each other by RoCEv2 with the same port only", s.RoCEPort,
			config.RoCEPort)
	}
	if len(s.RoCEAllow) > 0 {
		line("roce only", "%s: packets from and to other addresses are dropped", strings.Join(s.RoCEAllow, ", "))
	}
	if s.IdleExitNS > 0 {
		line("end", "%v after the last session", s.IdleExitNS)
	}
	for _, f := range s.Faults {
		line("fault", "%d: %s", f.ID, faultText(f.FaultSpec))
	}
	for _, c := range s.Captures {
		line("capture", "%d: %s: %d packets so far, %d dropped; %s", c.ID, captureText(c.CaptureSpec), c.Packets,
			c.Dropped, capturePath)
	}
	for _, d := range s.Degraded {
		line("degraded", "%s: %s. fix: %s", d.What, d.Why, d.Fix)
	}
	for _, d := range s.Notices {
		line("notice", "%s: %s. fix: %s", d.What, d.Why, d.Fix)
	}
	if len(s.Faults)+len(s.Degraded) == 0 {
		line("health", "nothing is degraded, no fault is injected")
	}
}

// printICRC prints how devices check the ICRC of received packets, one line for those with the same reason.
func printICRC(line func(name, format string, args ...any), devs []api.DeviceSummary) {
	var modes []string
	names := map[string][]string{}
	for _, d := range devs {
		m := d.ICRC + ": " + d.ICRCWhy
		if names[m] == nil {
			modes = append(modes, m)
		}
		switch n := len(names[m]); {
		case n < maxNames:
			names[m] = append(names[m], d.Name)
		case n == maxNames:
			names[m] = append(names[m], "…")
		}
	}
	for _, m := range modes {
		line("icrc", "%s: %s", strings.Join(names[m], ", "), m)
	}
}

// maxNames is the number of names in a line.
const maxNames = 6

// sessionList names the programs, most sessions first.
func sessionList(sessions []api.Session) string {
	if len(sessions) == 0 {
		return "none"
	}
	count := map[string]int{}
	var names []string
	for _, s := range sessions {
		if count[s.Comm] == 0 {
			names = append(names, s.Comm)
		}
		count[s.Comm]++
	}
	slices.SortFunc(names, func(x, y string) int {
		if count[x] != count[y] {
			return count[y] - count[x]
		}
		return strings.Compare(x, y)
	})
	var parts []string
	for i, n := range names {
		if i == maxNames {
			parts = append(parts, "…")
			break
		}
		if count[n] > 1 {
			n = fmt.Sprintf("%s ×%d", n, count[n])
		}
		parts = append(parts, n)
	}
	return fmt.Sprintf("%d (%s)", len(sessions), strings.Join(parts, ", "))
}

func countersCommand(a *app) *cobra.Command {
	var all, explain bool
	var scope string
	scopes := metric.Scopes()
	cmd := a.show(stateOrder[api.Counter](&cobra.Command{
		Use:   "stat",
		Short: "show counters",
		Args:  cobra.NoArgs,
	}), func(cmd *cobra.Command, _ []string, print printer) error {
		if scope != "" && !slices.Contains(scopes, scope) {
			return usage("weft stat --scope link", "--scope must be one of %s, not %q", strings.Join(scopes, ", "),
				scope)
		}
		n, err := get(cmd.Context(), a, api.ListCounters)
		if err != nil {
			return err
		}
		n = slices.DeleteFunc(n, func(c api.Counter) bool { return scope != "" && c.Scope != scope })
		n = nonZero(n, all)
		if explain {
			list := explained(n)
			return print(list, func(w *screen) { writeTable(w, "every counter is zero", explainedColumns, list) })
		}
		return print(n, func(w *screen) { writeTable(w, "every counter is zero", counterColumns, n) })
	})
	cmd.Flags().BoolVar(&all, "all", false, "include counters that are zero")
	cmd.Flags().BoolVar(&explain, "explain", false, "show the unit and the meaning of each counter")
	cmd.Flags().StringVar(&scope, "scope", "", "one scope: "+strings.Join(scopes, ", "))
	return cmd
}

var counterColumns = []column[api.Counter]{
	{head: "SCOPE", cell: func(c api.Counter) any { return c.Scope }},
	{head: "INSTANCE", cell: func(c api.Counter) any { return c.Instance }},
	{head: "COUNTER", cell: func(c api.Counter) any { return c.Name }},
	{head: ">VALUE", cell: func(c api.Counter) any { return c.Value }},
}

// explainedCounter is a counter with its description.
type explainedCounter struct {
	api.Counter
	Unit    string `json:"unit"`
	Kind    string `json:"kind,omitempty"` // now, most; else the value only grows
	Meaning string `json:"meaning"`
}

// explained adds the description of each counter. A node of another version may list one that has none here.
func explained(list []api.Counter) []explainedCounter {
	with := []explainedCounter{} // not null in JSON
	for _, c := range list {
		m, _ := metric.Lookup(c.Scope, c.Instance, c.Name)
		with = append(with, explainedCounter{Counter: c, Unit: m.Unit, Kind: m.Kind.String(), Meaning: m.Meaning})
	}
	return with
}

var explainedColumns = []column[explainedCounter]{
	{head: "SCOPE", cell: func(c explainedCounter) any { return c.Scope }},
	{head: "INSTANCE", cell: func(c explainedCounter) any { return c.Instance }},
	{head: "COUNTER", cell: func(c explainedCounter) any { return c.Name }},
	{head: ">VALUE", cell: func(c explainedCounter) any { return c.Value }},
	{head: "UNIT", cell: func(c explainedCounter) any { return c.Unit }},
	{head: "MEANING", cell: func(c explainedCounter) any { return c.Meaning }},
}

// nonZero returns the counters that are not zero, or all of them.
func nonZero(list []api.Counter, all bool) []api.Counter {
	some := []api.Counter{} // not null in JSON
	for _, c := range list {
		if c.Value != 0 || all {
			some = append(some, c)
		}
	}
	return some
}
