// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

func mcastCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mcast",
		Short: "show multicast groups and their members, and join ports to them",
		Long: `Show multicast groups and their members: those that this node takes part in
(list, show), and those of the subnet, from its master (groups). Join ports to
groups permanently, whether their programs join them or not.

` + memberHelp,
		Example: `  weft mcast join ff12:401b:ffff::1234 weft_ib0
  weft mcast leave ff12:401b:ffff::1234 weft_ib0`,
		Args: cobra.ArbitraryArgs,
	}
	groups := list(a, &cobra.Command{Use: "list", Short: "list the groups that this node takes part in"},
		api.ListGroups, nil,
		"this node is in no multicast group", groupColumns)
	members := find(a, &cobra.Command{
		Use:   "show GROUP",
		Short: "show the members of a group, named by GID, address or LID",
		Args:  cobra.ExactArgs(1),
	}, api.ListGroups, isGroup, func(arg string) error {
		return &api.Error{Code: api.CodeNotFound, What: "cannot show the group", Why: "this node is not in " + arg,
			Fix: groupFix(arg)}
	}, printGroupMembers)
	listing(cmd, groups)
	cmd.AddCommand(groups, members, mcastGroups(a), mcastJoin(a), mcastLeave(a))
	return cmd
}

// isGroup reports whether name is the GID, the address or the LID of a group.
func isGroup(g api.Group, name string) bool {
	a, err := netip.ParseAddr(name)
	mgid, bad := netip.ParseAddr(g.MGID)
	return err == nil && bad == nil && a == mgid || strings.EqualFold(name, g.MGID) || strings.EqualFold(name, g.Address) || g.MLID != 0 &&
		strings.EqualFold(name, mlidText(g.MLID))
}

// groupFix is the command that finds a group which this node is not in: the subnet may have one of that MGID.
func groupFix(name string) string {
	if a, err := netip.ParseAddr(name); err == nil && a.Is6() {
		return "weft mcast groups " + name
	}
	return "weft mcast list"
}

var groupColumns = []column[api.Group]{
	{head: "MLID", cell: func(g api.Group) any { return mlidText(g.MLID) }},
	{head: "ADDRESS", cell: func(g api.Group) any { return g.Address }},
	{head: "DEVICES", cell: func(g api.Group) any { return strings.Join(g.Devices, ",") }},
	{head: ">QPS", cell: func(g api.Group) any { return len(g.QPs) }},
}

var groupQPColumns = []column[api.GroupQP]{
	{head: "DEVICE", cell: func(q api.GroupQP) any { return q.Device }},
	{head: ">PID", cell: func(q api.GroupQP) any { return q.PID }},
	{head: "COMMAND", cell: func(q api.GroupQP) any { return q.Comm }},
	{head: ">LQPN", cell: func(q api.GroupQP) any { return q.LQPN }},
	{head: ">LANE", cell: func(q api.GroupQP) any { return q.Lane }},
}

func printGroupMembers(w *screen, groups []api.Group) {
	for _, g := range groups {
		for _, f := range []struct{ name, value string }{
			{"mgid", g.MGID}, {"address", g.Address}, {"mlid", mlidText(g.MLID)}, {"devices", strings.Join(g.Devices,
				", ")},
		} {
			if f.value != "" {
				fields{w, 8}.line(f.name, "%s", f.value)
			}
		}
		writeTable(w, "", groupQPColumns, g.QPs)
	}
}

func mcastGroups(a *app) *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "groups [MGID]",
		Short: "list the groups of the subnet, or the ports in one; the master answers",
		Args:  cobra.MaximumNArgs(1),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		groups, err := get(cmd.Context(), a, api.ListSubnetGroups)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			return print(groups, func(w *screen) { writeTable(w, "no groups", subnetGroupColumns, groups) })
		}
		want, err := netip.ParseAddr(args[0])
		if err != nil {
			return usage("weft mcast groups", "%q is not an MGID", args[0])
		}
		var found []api.SubnetGroup
		for _, g := range groups {
			if a, err := netip.ParseAddr(g.MGID); err == nil && a == want {
				found = append(found, g)
			}
		}
		if len(found) == 0 {
			return &api.Error{Code: api.CodeNotFound, What: "cannot show the group", Why: "the subnet has no group " +
				args[0], Fix: "weft mcast groups"}
		}
		return print(found, func(w *screen) { printSubnetMembers(w, found) })
	})
}

var subnetGroupColumns = []column[api.SubnetGroup]{
	{head: "MLID", cell: func(g api.SubnetGroup) any { return mlidText(g.MLID) }},
	{head: "MGID", cell: func(g api.SubnetGroup) any { return g.MGID }},
	{head: "P_KEY", cell: func(g api.SubnetGroup) any { return g.PKey }},
	{head: "Q_KEY", cell: func(g api.SubnetGroup) any { return fmt.Sprintf("0x%08x", g.QKey) }, wide: 2},
	{head: ">MTU", cell: func(g api.SubnetGroup) any { return g.MTU }},
	{head: ">SL", cell: func(g api.SubnetGroup) any { return g.SL }, wide: 3},
	{head: "LIFETIME", cell: func(g api.SubnetGroup) any {
		if g.Permanent {
			return "permanent"
		}
		return "while it has members"
	}, wide: 1},
	{head: ">MEMBERS", cell: func(g api.SubnetGroup) any { return len(g.Members) }},
}

// subnetMember is a member with its group.
type subnetMember struct {
	api.SubnetGroup
	api.GroupMember
}

var subnetMemberColumns = []column[subnetMember]{
	{head: "MLID", cell: func(m subnetMember) any { return mlidText(m.MLID) }, wide: 1},
	{head: "MGID", cell: func(m subnetMember) any { return m.MGID }},
	{head: "PORT GUID", cell: func(m subnetMember) any { return m.PortGUID }},
	{head: "JOIN", cell: func(m subnetMember) any { return strings.Join(m.Join, ",") }},
	{head: "FLAG", cell: func(m subnetMember) any { return m.Flag }},
	{head: "OF", cell: func(m subnetMember) any { return m.Name }, wide: 2},
}

func printSubnetMembers(w *screen, groups []api.SubnetGroup) {
	var rows []subnetMember
	for _, g := range groups {
		for _, m := range g.Members {
			rows = append(rows, subnetMember{g, m})
		}
	}
	columns := subnetMemberColumns
	if !slices.ContainsFunc(rows, func(m subnetMember) bool { return m.Flag != "" }) {
		columns = slices.DeleteFunc(slices.Clone(columns), func(c column[subnetMember]) bool { return c.head == "FLAG" })
	}
	writeTable(w, "no members", columns, rows)
	for _, m := range rows {
		if m.Flag != "" {
			printDiffers(w, portText(m.PortGUID, m.Name)+" in "+m.MGID, m.Differs, "weft fabric nodes; weft sm")
		}
	}
}

func mcastJoin(a *app) *cobra.Command {
	var j api.GroupJoin
	cmd := &cobra.Command{
		Use:   "join MGID [PORT…]",
		Short: "make a multicast group permanent, with these ports as members",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			j.MGID, j.Members = args[0], args[1:]
			if j.PKey != "" {
				if _, err := parsePKey(j.PKey); err != nil {
					return pkeyError("cannot join the multicast group", "weft mcast join "+strings.Join(args, " ")+
						" --pkey %s", "weft mcast join --help", err)
				}
			}
			if err := do(cmd.Context(), a, api.JoinGroup, j); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Out, "group %s is permanent, with %s joined to it\n", printable(j.MGID),
				plural(len(j.Members), "port"))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&j.PKey, "pkey", "", "P_Key of a new group, such as 0x8001; the default partition if not given")
	f.Uint32Var(&j.QKey, "qkey", 0, "Q_Key of a new group; 0x0b1b if not given, and for groups of IP links that of their broadcast group")
	f.IntVar(&j.MTU, "mtu", 0, "MTU of a new group in bytes; 2048 if not given")
	return cmd
}

func mcastLeave(a *app) *cobra.Command {
	return confirmable(a, &cobra.Command{
		Use:   "leave MGID [PORT…]",
		Short: "undo join for these ports; without ports, for the group",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := do(cmd.Context(), a, api.LeaveGroup, api.GroupJoin{MGID: args[0],
				Members: args[1:]}); err != nil {
				return err
			}
			if len(args) == 1 {
				fmt.Fprintf(a.env.Out, "group %s is not permanent any more\n", printable(args[0]))
			} else {
				fmt.Fprintf(a.env.Out, "%s left group %s\n", plural(len(args)-1, "port"), printable(args[0]))
			}
			return nil
		},
	})
}
