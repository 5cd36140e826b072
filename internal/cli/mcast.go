// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/api"
)

func (a *app) mcast() *cobra.Command {
	cmd := &cobra.Command{Use: "mcast", Short: "show multicast groups and who is in them"}
	cmd.AddCommand(a.show(&cobra.Command{
		Use:   "list",
		Short: "list the groups this node takes part in",
		Args:  cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			g, err := c.Groups(ctx)
			if err != nil {
				return err
			}
			return print(g, func() { printGroups(a.env.Out, g) })
		})
	}), a.show(&cobra.Command{
		Use:   "show GROUP",
		Short: "show the members of a group, named by GID, address or LID",
		Args:  cobra.ExactArgs(1),
	}, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			g, err := c.Groups(ctx)
			if err != nil {
				return err
			}
			g = slices.DeleteFunc(g, func(v api.Group) bool { return !names(args[0], v) })
			if len(g) == 0 {
				return &api.Error{Code: api.CodeNotFound, What: "cannot show the group", Why: fmt.Sprintf("this node is not in %s", args[0]), Fix: "weft mcast list"}
			}
			return print(g, func() { printMembers(a.env.Out, g) })
		})
	}))
	return cmd
}

// names reports whether s means the group.
func names(s string, g api.Group) bool {
	return strings.EqualFold(s, g.MGID) || strings.EqualFold(s, g.Address) || g.MLID != 0 && strings.EqualFold(s, lid(g.MLID))
}

// lid writes a multicast LID; an Ethernet port's group has none.
func lid(l uint16) string {
	if l == 0 {
		return ""
	}
	return fmt.Sprintf("0x%04x", l)
}

func printGroups(w io.Writer, groups []api.Group) {
	if len(groups) == 0 {
		fmt.Fprintln(w, "this node is in no multicast group")
		return
	}
	t := table{heads: []string{"MLID", "ADDRESS", "DEVICES", ">QPS"}}
	for _, g := range groups {
		t.row(lid(g.MLID), g.Address, strings.Join(g.Devices, ","), len(g.QPs))
	}
	t.write(w)
}

func printMembers(w io.Writer, groups []api.Group) {
	for _, g := range groups {
		line := func(name, v string) {
			if v != "" {
				fmt.Fprintf(w, "%-8s %s\n", name, printable(v))
			}
		}
		line("mgid", g.MGID)
		line("address", g.Address)
		line("mlid", lid(g.MLID))
		line("devices", strings.Join(g.Devices, ", "))
		t := table{heads: []string{"DEVICE", ">PID", "COMMAND", ">LQPN", ">LANE"}}
		for _, q := range g.QPs {
			t.row(q.Device, q.PID, q.Comm, q.LQPN, q.Lane)
		}
		t.write(w)
	}
}
