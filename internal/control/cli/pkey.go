// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

const memberHelp = `A member is the GUID of a port, a device of the node, DEVICE@NODE with a node's
host name or GUID, or ALL for every port that is not named.`

func pkeyCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pkey",
		Short: "show and change partitions",
		Long: `Show and change partitions. Full members of a partition communicate with all of
its members, limited members with full members only.

A P_Key is a hexadecimal number that begins with 0x, as in 0x8001. Its top bit,
the membership, does not count: 0x1 and 0x8001 are the same partition.

` + memberHelp + `

The list shows what members are intended to be (AS) beside what their ports have
by their own answers (HAS), and flags a difference: missing, extra, or not yet
where no sweep has applied the newest change. Only the master knows what ports
have.

As soon as there is a partition, every port becomes a limited member of the
default partition (0x7fff): it reaches the subnet manager, and no other port.
"weft pkey add 0xffff ALL" makes all ports full members again.`,
		Example: `  weft pkey add 0x8001 --name storage weft_ib0 0200:5e00:53ff:0003=limited
  weft pkey delete 0x8001 weft_ib0
  weft pkey delete 0x8001`,
		Args: cobra.ArbitraryArgs,
	}
	partitions := view(a, stateOrder[api.Partition](&cobra.Command{Use: "list",
		Short: "list partitions and their members"}),
		api.ListPartitions, nil, printPartitions)
	listing(cmd, partitions)
	cmd.AddCommand(partitions, pkeyAdd(a), pkeyDelete(a))
	return cmd
}

// parsePKey reads a P_Key of the command line. OpenSM's partitions.conf and ibtools write P_Keys in hexadecimal with
// 0x. A number without 0x is refused: 8001 could be decimal or hexadecimal.
func parsePKey(s string) (string, error) {
	v, err := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(s), "0x"), 16, 16)
	switch {
	case err != nil || v&0x7fff == 0:
		return "", fmt.Errorf("a P_Key is a number of 0x0001 to 0xffff, and not 0x8000, unlike %q", s)
	case !strings.HasPrefix(strings.ToLower(s), "0x"):
		return "", &ambiguousPKey{s}
	}
	return s, nil
}

// ambiguousPKey is the refusal of a P_Key without 0x.
type ambiguousPKey struct{ text string }

func (e *ambiguousPKey) Error() string {
	return fmt.Sprintf("the P_Key %s may be decimal or hexadecimal", e.text)
}

// pkeyError returns a usage error for what parsePKey refuses. command is the command line with %s for the P_Key.
func pkeyError(what, command, help string, err error) error {
	if e, ok := err.(*ambiguousPKey); ok {
		return usage(fmt.Sprintf(command, "0x"+e.text), "%s: %v", what, err)
	}
	return usage(help, "%s: %v", what, err)
}

// operands are further operands of a command line.
func operands(args []string) string { return strings.Join(append([]string{""}, args...), " ") }

// partitionMember is a row of the table: a member, or a partition without one.
type partitionMember struct {
	of     api.Partition
	member api.Member
}

var partitionColumns = []column[partitionMember]{
	{head: "PARTITION", cell: func(m partitionMember) any { return m.of.Name }},
	{head: "P_KEY", cell: func(m partitionMember) any { return m.of.PKey }},
	{head: "MEMBER", cell: func(m partitionMember) any { return m.member.Port }},
	{head: "AS", cell: func(m partitionMember) any { return m.member.Membership }},
	{head: "HAS", cell: func(m partitionMember) any { return m.member.Has }},
	{head: "FLAG", cell: func(m partitionMember) any { return m.member.Flag }},
	{head: "OF", cell: func(m partitionMember) any { return m.member.Name }, wide: 1},
}

// intendedColumns are the columns of a node that does not know what ports have.
var intendedColumns = slices.DeleteFunc(slices.Clone(partitionColumns), func(c column[partitionMember]) bool {
	return c.head == "HAS" || c.head == "FLAG"
})

func printPartitions(w *screen, partitions []api.Partition) {
	var rows []partitionMember
	for _, p := range partitions {
		for _, m := range p.Members {
			rows = append(rows, partitionMember{p, m})
		}
		if len(p.Members) == 0 {
			rows = append(rows, partitionMember{of: p})
		}
	}
	columns := intendedColumns
	if slices.ContainsFunc(rows, func(m partitionMember) bool { return m.member.Has != "" }) {
		columns = partitionColumns
	}
	writeTable(w, "no partitions: every port is a full member of the default one", columns, rows)
	for _, m := range rows {
		if m.member.Flag != "" {
			printDiffers(w, portText(m.member.Port, m.member.Name)+" in "+m.of.PKey, m.member.Differs,
				memberFix(m.of.PKey, &m.member))
		}
	}
}

// portText is the name of a port's node, or its GUID.
func portText(guid, name string) string {
	if name == "" {
		return guid
	}
	return name
}

// printDiffers prints how something differs from its intent, with the reason and the fix.
func printDiffers(w *screen, what string, d api.Differs, fix string) {
	text := what + ": " + d.Flag
	if d.Why != "" {
		text += ": " + d.Why
	}
	fields{w, 5}.line("note:", "%s. fix: %s", text, fix)
}

// memberFix is the fix of a member that differs.
func memberFix(pkey string, m *api.Member) string {
	switch {
	case m.Flag == api.FlagNotYet:
		return "wait; weft sm"
	case m.Why == absentText:
		return "start its node, or weft pkey delete " + pkey + " " + m.Port
	}
	return "weft sm shows its problems; weft fabric sweep tries again"
}

// absentText is the reason of a member that the subnet does not have.
const absentText = "the port is not in the subnet"

func pkeyAdd(a *app) *cobra.Command {
	const what = "cannot add to the partition"
	var name string
	cmd := a.show(&cobra.Command{
		Use:   "add P_KEY [MEMBER[=full|=limited]…]",
		Short: "make a partition, or add members to it",
		Long: "Make a partition, or add members to it. A member is a full member, unless\n=limited follows it.\n\n" +
			memberHelp,
		Args: cobra.MinimumNArgs(1),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		key, err := parsePKey(args[0])
		if err != nil {
			return pkeyError(what, "weft pkey add %s"+operands(args[1:]), "weft pkey add --help", err)
		}
		p := api.Partition{Name: name, PKey: key}
		for _, s := range args[1:] {
			port, as, given := strings.Cut(s, "=")
			if !given {
				as = api.MemberFull
			}
			if as != api.MemberFull && as != api.MemberLimited {
				return usage("weft pkey add --help", "%s: a member is full or limited, not %q", what, as)
			}
			p.Members = append(p.Members, api.Member{Port: port, Membership: as})
		}
		before, unknown := get(cmd.Context(), a, api.ListPartitions)
		added, err := call(cmd.Context(), a, api.AddPartition, p)
		if err != nil {
			return err
		}
		return print(added, func(w *screen) {
			printPartitions(w, []api.Partition{added})
			if unknown == nil && len(before) == 0 {
				fields{w, 5}.line("note:", "ports are now limited members of the default partition and reach each other only within "+
					"partitions that they share. weft pkey add 0xffff ALL undoes that")
			}
		})
	})
	cmd.Flags().StringVar(&name, "name", "", "name of the partition")
	return confirmable(a, cmd)
}

// partitionNamed returns the P_Key of the partition of a name, or wrong where there is none.
func (a *app) partitionNamed(ctx context.Context, name string, wrong error) (string, error) {
	all, err := get(ctx, a, api.ListPartitions)
	if err != nil {
		return "", err
	}
	for _, p := range all {
		if p.Name == name {
			return p.PKey, nil
		}
	}
	return "", wrong
}

func pkeyDelete(a *app) *cobra.Command {
	const what = "cannot delete from the partition"
	return confirmable(a, &cobra.Command{
		Use: "delete P_KEY|NAME [MEMBER…]", Aliases: deleteAliases,
		Short: "remove members from a partition; without members, delete the partition",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := parsePKey(args[0])
			if err != nil {
				key, err = a.partitionNamed(cmd.Context(), args[0], err)
			}
			var failed *api.Error
			if errors.As(err, &failed) {
				return err
			}
			if err != nil {
				return pkeyError(what, "weft pkey delete %s"+operands(args[1:]), "weft pkey delete --help", err)
			}
			if err := do(cmd.Context(), a, api.DeletePartition, api.PartitionMembers{PKey: key,
				Members: args[1:]}); err != nil {
				return err
			}
			if len(args) > 1 {
				fmt.Fprintf(a.env.Out, "removed %s from partition %s\n", plural(len(args)-1, "member"), key)
			} else {
				fmt.Fprintf(a.env.Out, "deleted partition %s\n", key)
			}
			return nil
		},
	})
}
