// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

func (a *app) mcast() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mcast",
		Short: "show multicast groups and who is in them, and join ports to them",
		Long: `Show multicast groups and who is in them: what this node takes part in (list, show), and what the master of the subnet
knows (groups). Join ports to groups for good, whether their programs ask for it or not.

  weft mcast join ff12:401b:ffff::1234 weft_ib0
  weft mcast leave ff12:401b:ffff::1234 weft_ib0

` + memberHelp,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	cmd.AddCommand(a.show(&cobra.Command{
		Use:   "list",
		Short: "list the groups this node takes part in",
		Args:  cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			g, err := api.Get(ctx, c, api.ListGroups)
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
			g, err := api.Get(ctx, c, api.ListGroups)
			if err != nil {
				return err
			}
			g = slices.DeleteFunc(g, func(v api.Group) bool { return !names(args[0], v) })
			if len(g) == 0 {
				return &api.Error{Code: api.CodeNotFound, What: "cannot show the group", Why: fmt.Sprintf("this node is not in %s", args[0]), Fix: "weft mcast list"}
			}
			return print(g, func() { printMembers(a.env.Out, g) })
		})
	}), a.mcastGroups(), a.mcastJoin(), a.mcastLeave())
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

func (a *app) mcastGroups() *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "groups [MGID]",
		Short: "list the groups of the subnet, or the ports in one; the master answers",
		Args:  cobra.MaximumNArgs(1),
	}, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			g, err := api.Get(ctx, c, api.ListSubnetGroups)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return print(g, func() { printSubnetGroups(a.env.Out, g) })
			}
			want, err := netip.ParseAddr(args[0])
			if err != nil {
				return usage("weft mcast groups", "%q is no MGID", args[0])
			}
			g = slices.DeleteFunc(g, func(g api.SubnetGroup) bool {
				a, err := netip.ParseAddr(g.MGID)
				return err != nil || a != want
			})
			if len(g) == 0 {
				return &api.Error{Code: api.CodeNotFound, What: "cannot show the group", Why: "the subnet has no group " + args[0], Fix: "weft mcast groups"}
			}
			return print(g, func() { printSubnetMembers(a.env.Out, g) })
		})
	})
}

func printSubnetGroups(w io.Writer, list []api.SubnetGroup) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no groups")
		return
	}
	t := table{heads: []string{"MLID", "MGID", "P_KEY", "Q_KEY", ">MTU", ">SL", "KEPT", ">MEMBERS"}}
	for _, g := range list {
		kept := "while it has members"
		if g.Permanent {
			kept = "for good"
		}
		t.row(lid(g.MLID), g.MGID, g.PKey, fmt.Sprintf("0x%08x", g.QKey), g.MTU, g.SL, kept, len(g.Members))
	}
	t.write(w)
}

func printSubnetMembers(w io.Writer, list []api.SubnetGroup) {
	t := table{heads: []string{"MLID", "MGID", "PORT GUID", "JOIN", "OF"}}
	for _, g := range list {
		for _, m := range g.Members {
			t.row(lid(g.MLID), g.MGID, m.PortGUID, strings.Join(m.Join, ","), m.Name)
		}
	}
	if len(t.rows) == 0 {
		fmt.Fprintln(w, "no members")
	}
	t.write(w)
}

func (a *app) mcastJoin() *cobra.Command {
	var j api.GroupJoin
	cmd := &cobra.Command{
		Use:   "join MGID [PORT…]",
		Short: "keep a multicast group, with these ports in it",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			j.MGID, j.Members = args[0], args[1:]
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				if err := api.Do(ctx, c, api.JoinGroup, j); err != nil {
					return err
				}
				fmt.Fprintf(a.env.Out, "group %s is kept, with %s joined to it\n", printable(j.MGID), plural(len(j.Members), "port"))
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&j.PKey, "pkey", "", "partition of a new group; the default one if not given")
	f.Uint32Var(&j.QKey, "qkey", 0, "Q_Key of a new group; if not given 0x0b1b, or for groups of IP links that of their broadcast group")
	f.IntVar(&j.MTU, "mtu", 0, "MTU of a new group in bytes; 2048 if not given")
	return cmd
}

func (a *app) mcastLeave() *cobra.Command {
	return &cobra.Command{
		Use:   "leave MGID [PORT…]",
		Short: "undo join for these ports; without ports, for the group",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				if err := api.Do(ctx, c, api.LeaveGroup, api.GroupJoin{MGID: args[0], Members: args[1:]}); err != nil {
					return err
				}
				if len(args) == 1 {
					fmt.Fprintf(a.env.Out, "group %s is kept no longer\n", printable(args[0]))
				} else {
					fmt.Fprintf(a.env.Out, "%s left group %s\n", plural(len(args)-1, "port"), printable(args[0]))
				}
				return nil
			})
		},
	}
}
