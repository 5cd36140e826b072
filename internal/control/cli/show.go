// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

// show is a command that prints what get returns.
func (a *app) show(cmd *cobra.Command, get func(cmd *cobra.Command, args []string, print func(v any, people func()) error) error) *cobra.Command {
	var print func(v any, people func()) error
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return get(cmd, args, print) }
	print = output(cmd, a.env.Out)
	return cmd
}

func (a *app) status() *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "status",
		Short: "show the node's state, what is degraded and how to mend it",
		Long:  "Show the node's state, what is degraded and how to mend it. The exit code is 0 only when the node is ready.",
		Args:  cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			s, err := api.Get(ctx, c, api.GetStatus)
			if err != nil {
				return err
			}
			if err := print(s, func() { printStatus(a.env.Out, s) }); err != nil {
				return err
			}
			if !s.Ready {
				return &codeError{code: ExitNotReady}
			}
			return nil
		})
	})
}

func printStatus(w io.Writer, s api.Status) {
	state := "starting"
	if s.Ready {
		state = "ready"
	}
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-9s %s\n", name, printable(fmt.Sprintf(format, args...)))
	}
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
		line("ip link", "%s of %s: %s, mtu %d, carrier %s", l.Name, l.Device, l.State, l.MTU, carrierText(l))
	}
	for _, v := range s.VESWInterfaces {
		name := v.Name
		if name == "" {
			name = "port"
		}
		line("vesw port", "%s of %s, VESW %d: %s, mtu %d", name, v.Device, v.VESW, veswStateText(v), v.MTU)
	}
	for _, v := range s.VMs {
		line("vm", "%s: guest %s, carrier %s", v.Name, vmGuest(v), vmCarrier(v))
	}
	if s.WireLocal {
		line("path", "traffic within the node takes the full packet path (--wire-local)")
	}
	if s.IdleExitNS > 0 {
		line("end", "%v after the last session", s.IdleExitNS)
	}
	for _, f := range s.Faults {
		line("fault", "%d: %s", f.ID, faultText(f.FaultSpec))
	}
	for _, c := range s.Captures {
		line("capture", "%d: %s: %d packets so far, %d dropped; %s", c.ID, captureText(c.CaptureSpec), c.Packets, c.Dropped, capturePath)
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

// printICRC tells how devices check what they receive, those with one reason
// together.
func printICRC(line func(name, format string, args ...any), devs []api.DeviceSummary) {
	var modes []string
	names := map[string][]string{}
	for _, d := range devs {
		m := d.ICRC + ": " + d.ICRCWhy
		if names[m] == nil {
			modes = append(modes, m)
		}
		switch n := len(names[m]); {
		case n < most:
			names[m] = append(names[m], d.Name)
		case n == most:
			names[m] = append(names[m], "…")
		}
	}
	for _, m := range modes {
		line("icrc", "%s: %s", strings.Join(names[m], ", "), m)
	}
}

// most is how many names one line has.
const most = 6

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
		if i == most {
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

func (a *app) devShow() *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "dev",
		Short: "show devices, ports and GIDs",
		Args:  cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			devs, err := api.Get(ctx, c, api.ListDevices)
			if err != nil {
				return err
			}
			return print(devs, func() { printDevices(a.env.Out, devs) })
		})
	})
}

// devDetails is devShow by its full name, for all devices or one.
func (a *app) devDetails() *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "show [NAME]",
		Short: "show devices, ports and GIDs, of all devices or one",
		Args:  cobra.MaximumNArgs(1),
	}, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			devs, err := api.Get(ctx, c, api.ListDevices)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				devs = slices.DeleteFunc(devs, func(d api.Device) bool { return d.Name != args[0] })
				if len(devs) == 0 {
					return &api.Error{Code: api.CodeNotFound, What: "cannot show the device", Why: "there is no device " + args[0], Fix: "weft dev"}
				}
			}
			return print(devs, func() { printDevices(a.env.Out, devs) })
		})
	})
}

func printDevices(w io.Writer, devs []api.Device) {
	ports := table{heads: []string{"DEVICE", ">PORT", "STATE", "PHYSICAL", "LINK", ">LID", ">MTU", "NETDEV", "NODE GUID"}}
	gids := table{heads: []string{"DEVICE", ">PORT", ">GID", "ADDRESS", "TYPE", "NETDEV", "VALUE"}}
	neighbours := table{heads: []string{"DEVICE", "NEIGHBOUR", "STATE", "MAC", ">ASKED", ">WAITING"}}
	var segments []string
	for _, d := range devs {
		for _, p := range d.Ports {
			ports.row(d.Name, p.Number, p.State, p.PhysState, p.LinkLayer, p.LID, p.ActiveMTU, p.NetDev, d.NodeGUID)
			for _, g := range p.GIDs {
				gids.row(d.Name, p.Number, g.Index, g.Address, g.Type, g.NetDev, g.GID)
			}
			if e := p.Ethernet; api.InVESW(p.Segment) {
				segments = append(segments, fmt.Sprintf("%s in %s: %s", d.Name, p.Segment, printable(ethernetText(e))))
				for _, o := range e.Neighbours {
					asked := "-"
					if o.SinceNS > 0 {
						asked = fmt.Sprintf("%v ago", round(o.SinceNS))
					}
					neighbours.row(d.Name, o.Address, o.State, dash(o.MAC), asked, o.Frames)
				}
			}
		}
	}
	ports.write(w)
	if len(gids.rows) > 0 {
		fmt.Fprintln(w)
	}
	gids.write(w)
	if len(segments) > 0 {
		fmt.Fprintln(w)
	}
	for _, s := range segments {
		fmt.Fprintln(w, s)
	}
	if len(neighbours.rows) > 0 {
		fmt.Fprintln(w)
		neighbours.write(w)
	}
	if slices.ContainsFunc(devs, func(d api.Device) bool { return !d.AdapterEnabled }) {
		fmt.Fprintln(w, "\nthe adapter is disabled: every port is down (weft status tells the fix)")
	}
	for _, d := range devs {
		if !d.Enabled {
			fmt.Fprintf(w, "\n%s is disabled: its port is down. fix: weft dev set %s --enabled\n", d.Name, d.Name)
		}
	}
}

func (a *app) counters() *cobra.Command {
	var all bool
	var scope string
	scopes := []string{api.ScopeNode, api.ScopeLane, api.ScopeLink, api.ScopePort, api.ScopeMcast, api.ScopeSession, api.ScopeQP, api.ScopeTrunk,
		api.ScopeAgent, api.ScopeSM, api.ScopeSA, api.ScopeEM, api.ScopeIPoIB, api.ScopeVM, api.ScopeCM}
	cmd := a.show(&cobra.Command{
		Use:   "stat",
		Short: "show counters",
		Args:  cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print func(any, func()) error) error {
		if scope != "" && !slices.Contains(scopes, scope) {
			return usage("weft stat --scope link", "--scope must be one of %s, not %q", strings.Join(scopes, ", "), scope)
		}
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			n, err := api.Get(ctx, c, api.ListCounters)
			if err != nil {
				return err
			}
			n = slices.DeleteFunc(n, func(c api.Counter) bool { return scope != "" && c.Scope != scope })
			return print(n, func() {
				t := table{heads: []string{"SCOPE", "INSTANCE", "COUNTER", ">VALUE"}}
				for _, c := range n {
					if c.Value != 0 || all {
						t.row(c.Scope, c.Instance, c.Name, c.Value)
					}
				}
				if len(t.rows) == 0 {
					fmt.Fprintln(a.env.Out, "every counter is zero")
				}
				t.write(a.env.Out)
			})
		})
	})
	cmd.Flags().BoolVar(&all, "all", false, "also those that are zero")
	cmd.Flags().StringVar(&scope, "scope", "", "only one kind: "+strings.Join(scopes, ", "))
	return cmd
}

// Build says what this program is.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// ThisBuild returns what the linker noted.
func ThisBuild() Build {
	b := Build{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Version = info.Main.Version
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	return b
}

func (a *app) version() *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "version",
		Short: "show the version of this program",
		Args:  cobra.NoArgs,
	}, func(_ *cobra.Command, _ []string, print func(any, func()) error) error {
		b := ThisBuild()
		return print(b, func() { fmt.Fprintf(a.env.Out, "weft %s, %s, %s\n", b.Version, b.Go, b.Platform) })
	})
}
