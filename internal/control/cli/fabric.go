// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

func fabricCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fabric",
		Short: "show the subnet as its manager sees it",
		Long: `Show the subnet as its manager sees it. The node with the master manager
answers; other nodes name that node.`,
		Example: `  weft fabric nodes            switches, devices, LIDs
  weft fabric plan             trunks that members shall have
  weft fabric routes           forwarding tables
  weft fabric routes A B       the path from port A to port B`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	nodes := view(a, stateOrder[api.FabricNode](&cobra.Command{Use: "nodes",
		Short: "list switches, devices and their LIDs"}),
		api.GetSubnet, nil,
		func(w *screen, s api.Subnet) { writeTable(w, "no nodes", nodeColumns, portsOf(s)) })
	links := view(a, stateOrder[api.FabricLink](&cobra.Command{Use: "links", Short: "list links"}), api.GetSubnet, nil,
		func(w *screen, s api.Subnet) { writeTable(w, "no links", linkColumns, s.Links) })
	cmd.AddCommand(planCommand(a), topoCommand(a), onMaster(nodes), onMaster(links), onMaster(fabricRoutes(a)),
		sweepCommand(a))
	return cmd
}

// onMaster makes the error of a node that is not the master name cmd as the command for that node.
func onMaster(cmd *cobra.Command) *cobra.Command {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		var e *api.Error
		if errors.As(err, &e) && e.Code == api.CodeNotMaster {
			x := *e
			x.Fix = strings.Replace(x.Fix, "weft fabric topo", strings.Join(append([]string{cmd.CommandPath()},
				args...), " "), 1)
			return &x
		}
		return err
	}
	return cmd
}

func topoCommand(a *app) *cobra.Command {
	var format string
	formats := []string{"table", "json"}
	for _, f := range api.TextFormats {
		formats = append(formats, string(f))
	}
	cmd := &cobra.Command{
		Use:   "topo",
		Short: "show each node with the peers of its ports",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(formats, format) {
				return usage("weft fabric topo -o json", "-o must be one of %s, not %q", strings.Join(formats, ", "),
					format)
			}
			if slices.Contains(api.TextFormats, api.TextFormat(format)) {
				text, err := call(cmd.Context(), a, api.GetSubnetText, api.TextFormat(format))
				io.WriteString(a.env.Out, text.Text)
				return err
			}
			s, err := get(cmd.Context(), a, api.GetSubnet)
			switch {
			case err != nil:
				return err
			case format == "table":
				printTopo(a.out(), s)
				return nil
			}
			return printJSON(a.env.Out, s)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "table",
		"table, json, ibnetdiscover (its output format) or dot (for Graphviz)")
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// topoPort is a port of a node with the link to its peer, if there is one.
type topoPort struct {
	api.FabricPort
	to   api.FabricEnd
	link *api.FabricLink
}

// linked is a value of a link, nothing without one.
func linked(f func(p topoPort) any) func(p topoPort) any {
	return func(p topoPort) any {
		if p.link == nil {
			return ""
		}
		return f(p)
	}
}

var topoColumns = []column[topoPort]{
	{head: ">PORT", cell: func(p topoPort) any { return p.Number }},
	{head: ">LID", cell: func(p topoPort) any { return lidText(p.LID) }},
	{head: "STATE", cell: func(p topoPort) any { return p.State }},
	{head: "TO", cell: linked(func(p topoPort) any { return p.to.Description })},
	{head: ">PORT", cell: linked(func(p topoPort) any { return p.to.Port })},
	{head: ">LID", cell: linked(func(p topoPort) any { return lidText(p.to.LID) })},
	{head: rateHead, cell: linked(func(p topoPort) any { return p.link.Gbps }), wide: 2},
	{head: ">MTU", cell: linked(func(p topoPort) any { return p.link.MTU }), wide: 1},
}

func printTopo(w *screen, s api.Subnet) {
	type end struct {
		guid string
		port int
	}
	peers := map[end]api.FabricEnd{}
	links := map[end]*api.FabricLink{}
	for i := range s.Links {
		l := &s.Links[i]
		x, y := end{l.A.GUID, l.A.Port}, end{l.B.GUID, l.B.Port}
		peers[x], peers[y] = l.B, l.A
		links[x], links[y] = l, l
	}
	for i, n := range s.Nodes {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s %s: %s\n", n.Type, n.GUID, printable(n.Description))
		var ports []topoPort
		for _, p := range n.Ports {
			at := end{n.GUID, p.Number}
			ports = append(ports, topoPort{p, peers[at], links[at]})
		}
		writeTable(w, "", topoColumns, ports)
	}
}

// nodePort is a port that has a GUID, with its node.
type nodePort struct {
	node api.FabricNode
	port api.FabricPort
}

var nodeColumns = []column[nodePort]{
	{head: "TYPE", cell: func(p nodePort) any { return p.node.Type }},
	{head: "NODE GUID", cell: func(p nodePort) any { return p.node.GUID }, wide: 2},
	{head: ">PORT", cell: func(p nodePort) any { return p.port.Number }, wide: 1},
	{head: "PORT GUID", cell: func(p nodePort) any { return p.port.GUID }},
	{head: ">LID", cell: func(p nodePort) any { return p.port.LID }},
	{head: "STATE", cell: func(p nodePort) any { return p.port.State }},
	{head: "P_KEYS", cell: func(p nodePort) any { return strings.Join(p.port.PKeys, ",") }},
	{head: "DESCRIPTION", cell: func(p nodePort) any { return p.node.Description }},
}

func portsOf(s api.Subnet) (ports []nodePort) {
	for _, n := range s.Nodes {
		for _, p := range n.Ports {
			if p.GUID != "" {
				ports = append(ports, nodePort{n, p})
			}
		}
	}
	return ports
}

var linkColumns = []column[api.FabricLink]{
	{head: "FROM", cell: func(l api.FabricLink) any { return l.A.Description }},
	{head: ">PORT", cell: func(l api.FabricLink) any { return l.A.Port }},
	{head: ">LID", cell: func(l api.FabricLink) any { return lidText(l.A.LID) }},
	{head: "TO", cell: func(l api.FabricLink) any { return l.B.Description }},
	{head: ">PORT", cell: func(l api.FabricLink) any { return l.B.Port }},
	{head: ">LID", cell: func(l api.FabricLink) any { return lidText(l.B.LID) }},
	{head: "STATE", cell: func(l api.FabricLink) any { return l.State }},
	{head: rateHead, cell: func(l api.FabricLink) any { return l.Gbps }, wide: 2},
	{head: ">MTU", cell: func(l api.FabricLink) any { return l.MTU }, wide: 1},
}

func fabricRoutes(a *app) *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "routes [FROM TO]",
		Short: "show forwarding tables, or the path between two ports",
		Long: `Show the forwarding tables of all switches, or the path between two ports. A
port is named by its GUID, by a device of the node, or by DEVICE@NODE with a
node's host name or GUID.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 0 && len(args) != 2 {
				return fmt.Errorf("want two ports or none, not %d", len(args))
			}
			return nil
		},
	}, func(cmd *cobra.Command, args []string, print printer) error {
		if len(args) == 2 {
			p, err := call(cmd.Context(), a, api.FindPath, api.PathQuery{From: args[0], To: args[1]})
			if err != nil {
				return err
			}
			return print(p, func(w *screen) { printPath(w, p) })
		}
		r, err := get(cmd.Context(), a, api.ListRoutes)
		if err != nil {
			return err
		}
		return print(r, func(w *screen) { printRoutes(w, r) })
	})
}

var hopColumns = []column[api.FabricEnd]{
	{head: "LEAVES", cell: func(h api.FabricEnd) any { return h.Description }},
	{head: ">BY PORT", cell: func(h api.FabricEnd) any { return h.Port }},
}

func printPath(w *screen, p api.Path) {
	fmt.Fprintf(w, "from LID %d to LID %d: %s, mtu %d, %s\n", p.From.LID, p.To.LID, plural(len(p.Hops), "hop"), p.MTU,
		rateText(p.Gbps))
	writeTable(w, "", hopColumns, p.Hops)
}

// routeRow is a row of a switch's forwarding table, unicast or multicast.
type routeRow struct{ lid, port, hops, to any }

var routeColumns = []column[routeRow]{
	{head: ">LID", cell: func(r routeRow) any { return r.lid }},
	{head: ">PORT", cell: func(r routeRow) any { return r.port }},
	{head: ">HOPS", cell: func(r routeRow) any { return r.hops }},
	{head: "TO", cell: func(r routeRow) any { return r.to }},
}

func printRoutes(w *screen, switches []api.SwitchRoutes) {
	for i, s := range switches {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "switch %s, lid %d: %s\n", s.Switch.GUID, s.Switch.LID, printable(s.Switch.Description))
		var rows []routeRow
		for _, r := range s.Unicast {
			rows = append(rows, routeRow{r.LID, r.Port, r.Hops, r.To.Description})
		}
		for _, m := range s.Multicast {
			rows = append(rows, routeRow{mlidText(m.MLID), strings.Trim(fmt.Sprint(m.Ports), "[]"), "", "multicast"})
		}
		writeTable(w, "", routeColumns, rows)
	}
}

// sweep is both "weft fabric sweep" and "weft sm sweep".
func sweepCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "sweep",
		Short: "have the manager discover the subnet again",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := do(cmd.Context(), a, api.StartSweep, api.None{}); err != nil {
				return err
			}
			fmt.Fprintln(a.env.Out, "a sweep begins")
			return nil
		},
	}
}

func trunksCommand(a *app) *cobra.Command {
	return list(a, &cobra.Command{
		Use:   "trunk",
		Short: "list the node's trunks to other nodes",
		Long: `List the node's trunks to other nodes. weft up --peer ADDRESS makes them, once
for each other node, when the node starts.`,
	}, api.ListTrunks, nil, "no trunks: weft up --peer ADDRESS makes them", trunkColumns)
}

var trunkColumns = []column[api.Trunk]{
	{head: "PEER", cell: func(t api.Trunk) any { return t.Peer }},
	{head: ">PORT", cell: func(t api.Trunk) any { return t.Port }, wide: 3},
	{head: "STATE", cell: func(t api.Trunk) any {
		switch {
		case isIdle(t):
			return "up, " + strings.ToLower(t.State)
		case t.Up:
			return "up"
		}
		return "down"
	}},
	{head: "NODE", cell: func(t api.Trunk) any { return t.Node }},
	{head: "NAME", cell: func(t api.Trunk) any { return t.Name }, wide: 6},
	{head: "SECURITY", cell: func(t api.Trunk) any { return t.Security }},
	{head: ">RTT", cell: func(t api.Trunk) any {
		if t.RTTNS == 0 {
			return ""
		}
		return t.RTTNS.Round(time.Microsecond)
	}},
	{head: ">LIMIT", cell: func(t api.Trunk) any { return t.Limit }},
	{head: ">SENT", cell: func(t api.Trunk) any { return t.Sent }, wide: 2},
	{head: ">RECEIVED", cell: func(t api.Trunk) any { return t.Received }, wide: 2},
	{head: ">LOST", cell: func(t api.Trunk) any {
		if t.LossPercent == 0 {
			return t.Lost
		}
		return fmt.Sprintf("%d (%.1f %% now)", t.Lost, t.LossPercent)
	}},
	{head: ">REORDERED", cell: func(t api.Trunk) any { return t.Reordered }, wide: 5},
	{head: ">DOWNS", cell: func(t api.Trunk) any { return t.Downs }, wide: 1},
}
