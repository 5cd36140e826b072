// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

const memberHelp = `A member is a port's GUID, a device of the node, DEVICE@NODE with a node's host name or GUID, or ALL for every port
that is not named.`

func (a *app) pkey() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pkey",
		Short: "show and change partitions",
		Long: `Show and change partitions. Ports of one partition talk to each other, limited members to full ones only.

  weft pkey add 0x8001 --name storage weft_ib0 0200:5e00:53ff:0003=limited
  weft pkey del 0x8001 weft_ib0
  weft pkey del 0x8001

` + memberHelp + `

As soon as there is a partition, every port is a limited member of the default one (0x7fff): it reaches the subnet
manager, and no other port. "weft pkey add 0xffff ALL" makes all of them full members again.`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	list := look(a, &cobra.Command{Use: "list", Short: "list partitions and their members"},
		func(ctx context.Context, c *api.Client) ([]api.Partition, error) {
			return api.Get(ctx, c, api.ListPartitions)
		}, printPartitions)
	cmd.AddCommand(list, a.pkeyAdd(), a.pkeyDel())
	return cmd
}

func printPartitions(w io.Writer, list []api.Partition) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no partitions: every port is a full member of the default one")
		return
	}
	t := table{heads: []string{"PARTITION", "P_KEY", "MEMBER", "AS", "OF"}}
	for _, p := range list {
		for _, m := range p.Members {
			t.row(p.Name, p.PKey, m.Port, m.Membership, m.Name)
		}
		if len(p.Members) == 0 {
			t.row(p.Name, p.PKey, "", "", "")
		}
	}
	t.write(w)
}

func (a *app) pkeyAdd() *cobra.Command {
	var name string
	cmd := a.show(&cobra.Command{
		Use:   "add P_KEY [MEMBER[=full|=limited]…]",
		Short: "make a partition, or add members to it",
		Long:  "Make a partition, or add members to it: full ones unless said otherwise.\n\n" + memberHelp,
		Args:  cobra.MinimumNArgs(1),
	}, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		p := api.Partition{Name: name, PKey: args[0]}
		for _, s := range args[1:] {
			port, as, given := strings.Cut(s, "=")
			if !given {
				as = api.MemberFull
			}
			if as != api.MemberFull && as != api.MemberLimited {
				return usage("weft pkey add --help", "cannot add to the partition: a member is full or limited, not %q", as)
			}
			p.Members = append(p.Members, api.Member{Port: port, Membership: as})
		}
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			p, err := api.Call(ctx, c, api.AddPartition, p)
			if err != nil {
				return err
			}
			return print(p, func() { printPartitions(a.env.Out, []api.Partition{p}) })
		})
	})
	cmd.Flags().StringVar(&name, "name", "", "what the partition is called")
	return cmd
}

func (a *app) pkeyDel() *cobra.Command {
	return &cobra.Command{
		Use:   "del P_KEY [MEMBER…]",
		Short: "take members out of a partition; without members, delete it",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				if err := api.Do(ctx, c, api.DeletePartition, api.PartitionMembers{PKey: args[0], Members: args[1:]}); err != nil {
					return err
				}
				if len(args) > 1 {
					fmt.Fprintf(a.env.Out, "took %s out of partition %s\n", plural(len(args)-1, "member"), printable(args[0]))
				} else {
					fmt.Fprintf(a.env.Out, "deleted partition %s\n", printable(args[0]))
				}
				return nil
			})
		},
	}
}
