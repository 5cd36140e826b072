// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

// look is a command that asks one thing and prints it.
func look[T any](a *app, cmd *cobra.Command, ask func(ctx context.Context, c *api.Client) (T, error), people func(w io.Writer, v T)) *cobra.Command {
	if cmd.Args == nil {
		cmd.Args = cobra.NoArgs
	}
	return a.show(cmd, func(cmd *cobra.Command, _ []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			v, err := ask(ctx, c)
			if err != nil {
				return err
			}
			return print(v, func() { people(a.env.Out, v) })
		})
	})
}

func (a *app) fabric() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fabric",
		Short: "show the subnet as its manager sees it",
		Long: `Show the subnet as its manager sees it. The node whose manager is master answers; others say which that is.

  weft fabric nodes            switches, devices, LIDs
  weft fabric routes           forwarding tables
  weft fabric routes A B       the way from port A to port B`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	nodes := look(a, &cobra.Command{Use: "nodes", Short: "list switches, devices and their LIDs"},
		func(ctx context.Context, c *api.Client) (api.Subnet, error) { return api.Get(ctx, c, api.GetSubnet) }, printNodes)
	links := look(a, &cobra.Command{Use: "links", Short: "list links"},
		func(ctx context.Context, c *api.Client) (api.Subnet, error) { return api.Get(ctx, c, api.GetSubnet) }, printLinks)
	cmd.AddCommand(a.topo(), nodes, links, a.fabricRoutes(), a.sweep())
	return cmd
}

func (a *app) topo() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "topo",
		Short: "show nodes with what is at each of their ports",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			formats := []string{"table", "json"}
			for _, f := range api.TextFormats {
				formats = append(formats, string(f))
			}
			if !slices.Contains(formats, format) {
				return usage("weft fabric topo -o json", "-o must be one of %s, not %q", strings.Join(formats, ", "), format)
			}
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				if slices.Contains(api.TextFormats, api.TextFormat(format)) {
					text, err := api.Call(ctx, c, api.GetSubnetText, api.TextFormat(format))
					io.WriteString(a.env.Out, text.Text)
					return err
				}
				s, err := api.Get(ctx, c, api.GetSubnet)
				switch {
				case err != nil:
					return err
				case format == "table":
					printTopo(a.env.Out, s)
					return nil
				}
				return printJSON(a.env.Out, s)
			})
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "table", "table, json, ibnetdiscover (as that tool prints it) or dot (for Graphviz)")
	return cmd
}

func printTopo(w io.Writer, s api.Subnet) {
	type end struct {
		guid string
		port int
	}
	peers := map[end]api.FabricEnd{}
	links := map[end]api.FabricLink{}
	for _, l := range s.Links {
		x, y := end{l.A.GUID, l.A.Port}, end{l.B.GUID, l.B.Port}
		peers[x], peers[y] = l.B, l.A
		links[x], links[y] = l, l
	}
	for i, n := range s.Nodes {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s %s: %s\n", n.Type, n.GUID, printable(n.Description))
		t := table{heads: []string{">PORT", ">LID", "STATE", "TO", ">PORT", ">LID", ">GB/S", ">MTU"}}
		for _, p := range n.Ports {
			at := end{n.GUID, p.Number}
			to, ok := peers[at]
			if !ok {
				t.row(p.Number, lidText(p.LID), p.State, "", "", "", "", "")
				continue
			}
			t.row(p.Number, lidText(p.LID), p.State, to.Description, to.Port, lidText(to.LID), links[at].Gbps/8, links[at].MTU)
		}
		t.write(w)
	}
}

func lidText(lid uint16) string {
	if lid == 0 {
		return ""
	}
	return fmt.Sprint(lid)
}

func printNodes(w io.Writer, s api.Subnet) {
	t := table{heads: []string{"TYPE", "NODE GUID", ">PORT", "PORT GUID", ">LID", "STATE", "P_KEYS", "DESCRIPTION"}}
	for _, n := range s.Nodes {
		for _, p := range n.Ports {
			if p.GUID != "" {
				t.row(n.Type, n.GUID, p.Number, p.GUID, p.LID, p.State, strings.Join(p.PKeys, ","), n.Description)
			}
		}
	}
	t.write(w)
}

func printLinks(w io.Writer, s api.Subnet) {
	t := table{heads: []string{"FROM", ">PORT", ">LID", "TO", ">PORT", ">LID", "STATE", ">GB/S", ">MTU"}}
	for _, l := range s.Links {
		t.row(l.A.Description, l.A.Port, lidText(l.A.LID), l.B.Description, l.B.Port, lidText(l.B.LID), l.State, l.Gbps/8, l.MTU)
	}
	if len(t.rows) == 0 {
		fmt.Fprintln(w, "no links")
	}
	t.write(w)
}

func (a *app) fabricRoutes() *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "routes [FROM TO]",
		Short: "show forwarding tables, or the way between two ports",
		Long: `Show the forwarding tables of all switches, or the way between two ports. A port is named by its GUID, a device of
the node, or DEVICE@NODE with a node's host name or GUID.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 0 && len(args) != 2 {
				return fmt.Errorf("want two ports or none, not %d", len(args))
			}
			return nil
		},
	}, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			if len(args) == 2 {
				p, err := api.Call(ctx, c, api.FindPath, api.PathQuery{From: args[0], To: args[1]})
				if err != nil {
					return err
				}
				return print(p, func() { printPath(a.env.Out, p) })
			}
			r, err := api.Get(ctx, c, api.ListRoutes)
			if err != nil {
				return err
			}
			return print(r, func() { printRoutes(a.env.Out, r) })
		})
	})
}

func printPath(w io.Writer, p api.Path) {
	fmt.Fprintf(w, "from LID %d to LID %d: %s, mtu %d, %v GB/s\n", p.From.LID, p.To.LID, plural(len(p.Hops), "hop"), p.MTU, p.Gbps/8)
	t := table{heads: []string{"LEAVES", ">BY PORT"}}
	for _, h := range p.Hops {
		t.row(h.Description, h.Port)
	}
	t.write(w)
}

func printRoutes(w io.Writer, list []api.SwitchRoutes) {
	for i, s := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "switch %s, lid %d: %s\n", s.Switch.GUID, s.Switch.LID, printable(s.Switch.Description))
		t := table{heads: []string{">LID", ">PORT", ">HOPS", "TO"}}
		for _, r := range s.Unicast {
			t.row(r.LID, r.Port, r.Hops, r.To.Description)
		}
		for _, m := range s.Multicast {
			t.row(fmt.Sprintf("0x%04x", m.MLID), strings.Trim(fmt.Sprint(m.Ports), "[]"), "", "multicast")
		}
		t.write(w)
	}
}

// sweep is both "weft fabric sweep" and "weft sm sweep".
func (a *app) sweep() *cobra.Command {
	return &cobra.Command{
		Use:   "sweep",
		Short: "have the manager discover the subnet anew",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				if err := api.Do(ctx, c, api.StartSweep, api.None{}); err != nil {
					return err
				}
				fmt.Fprintln(a.env.Out, "a sweep was asked for")
				return nil
			})
		},
	}
}

func (a *app) trunks() *cobra.Command {
	return look(a, &cobra.Command{Use: "trunk", Short: "list the node's trunks to other nodes"},
		func(ctx context.Context, c *api.Client) ([]api.Trunk, error) { return api.Get(ctx, c, api.ListTrunks) }, printTrunks)
}

func printTrunks(w io.Writer, list []api.Trunk) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no trunks")
		return
	}
	t := table{heads: []string{"PEER", ">PORT", "STATE", "NODE", ">RTT", ">LIMIT", ">SENT", ">RECEIVED", ">LOST", ">REORDERED", ">DOWNS"}}
	for _, k := range list {
		state := "down"
		if k.Up {
			state = "up"
		}
		t.row(k.Peer, k.Port, state, k.Node, k.RTTNS.Round(time.Microsecond), k.Limit, k.Sent, k.Received, k.Lost, k.Reordered, k.Downs)
	}
	t.write(w)
}
