// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

func faultCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fault",
		Short: "inject faults into links",
		Long:  "Inject faults into links. A seed makes the sequence of decisions repeatable.",
		Example: `  weft fault add --drop 5 --reorder 1 --seed 7
  weft fault add --link trunk --drop 100   # as if the cables were pulled
  weft fault delete all`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	cmd.AddCommand(faultAdd(a), list(a, &cobra.Command{Use: "list", Short: "list the active faults and their effects"},
		api.ListFaults, nil, "no faults", faultColumns), faultDelete(a))
	return cmd
}

// percent is a flag value of 0 … 100, with or without a percent sign.
type percent float64

func (p *percent) String() string { return strconv.FormatFloat(float64(*p), 'g', -1, 64) }
func (p *percent) Type() string   { return "percent" }
func (p *percent) Set(s string) error {
	v, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
	if err != nil {
		return fmt.Errorf("%q is not a percentage", s)
	}
	*p = percent(v)
	return nil
}

func faultAdd(a *app) *cobra.Command {
	var drop, duplicate, reorder, corrupt percent
	var spec api.FaultSpec
	cmd := a.show(&cobra.Command{
		Use:   "add",
		Short: "add a fault and print its number, for \"weft fault delete\"",
		Long: `Add a fault and print its number, for "weft fault delete". A fault acts on the
packets of queue pairs: those to other nodes, and those to programs of this
node, which a fault also reaches while they run. --link limits it: roce to the
packets of RoCE devices, trunk to those that leave by a trunk. No fault reaches
management packets within a node, with which connections are made, and frames
between Ethernet ports of a node.`,
		Args: cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print printer) error {
		spec.Drop, spec.Duplicate, spec.Reorder, spec.Corrupt = float64(drop), float64(duplicate), float64(reorder), float64(corrupt)
		if err := spec.Validate(); err != nil {
			return usage("weft fault add --help", "cannot add the fault: %v", err)
		}
		f, err := call(cmd.Context(), a, api.AddFault, spec)
		if err != nil {
			return err
		}
		return print(f, func(w *screen) {
			fmt.Fprintf(w, "fault %d: %s\n", f.ID, printable(faultText(f.FaultSpec)))
		})
	})
	f := cmd.Flags()
	f.Var(&drop, "drop", "packets to drop")
	f.Var(&duplicate, "duplicate", "packets to send twice")
	f.Var(&reorder, "reorder", "packets to send behind later ones")
	f.Var(&corrupt, "corrupt", "packets to change one bit of")
	f.DurationVar(&spec.DelayNS, "delay", 0, "delay of every packet")
	f.Uint64Var(&spec.Seed, "seed", 0, "seed of the random decisions; 0: a random one")
	f.StringVar(&spec.Device, "device", "", "limit the fault to this device")
	f.StringVar(&spec.Peer, "peer", "", "limit the fault to packets to this IP address")
	f.StringVar(&spec.Link, "link", "", "limit the fault to roce (packets of RoCE devices), or to trunk (packets of InfiniBand devices to other nodes)")
	cmd.RegisterFlagCompletionFunc("link", cobra.FixedCompletions([]string{api.LinkRoCE, api.LinkTrunk},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

var faultColumns = []column[api.Fault]{
	{head: ">ID", cell: func(f api.Fault) any { return f.ID }},
	{head: "WHAT", cell: func(f api.Fault) any { return faultText(f.FaultSpec) }},
	{head: ">PACKETS", cell: func(f api.Fault) any { return f.Packets }},
	{head: ">DROPPED", cell: func(f api.Fault) any { return f.Dropped }},
	{head: ">DUPLICATED", cell: func(f api.Fault) any { return f.Duplicated }, wide: 2},
	{head: ">REORDERED", cell: func(f api.Fault) any { return f.Reordered }, wide: 1},
	{head: ">CORRUPTED", cell: func(f api.Fault) any { return f.Corrupted }, wide: 3},
	{head: ">DELAYED", cell: func(f api.Fault) any { return f.Delayed }, wide: 4},
}

// faultText describes a fault.
func faultText(s api.FaultSpec) string {
	var parts []string
	for _, p := range []struct {
		name  string
		value float64
	}{{"drop", s.Drop}, {"duplicate", s.Duplicate}, {"reorder", s.Reorder}, {"corrupt", s.Corrupt}} {
		if p.value != 0 {
			parts = append(parts, fmt.Sprintf("%s %v %%", p.name, p.value))
		}
	}
	if s.DelayNS != 0 {
		parts = append(parts, fmt.Sprintf("delay %v", s.DelayNS))
	}
	text := strings.Join(parts, ", ")
	if s.Device != "" {
		text += " on " + s.Device
	}
	if s.Link != "" {
		text += " on " + s.Link + " links"
	}
	if s.Peer != "" {
		text += " to " + s.Peer
	}
	return fmt.Sprintf("%s (seed %d)", text, s.Seed)
}

func faultDelete(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "delete ID…|all", Aliases: deleteAliases,
		Short: "end faults",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var ids []int
			if len(args) == 1 && args[0] == "all" {
				faults, err := get(cmd.Context(), a, api.ListFaults)
				if err != nil {
					return err
				}
				for _, f := range faults {
					ids = append(ids, f.ID)
				}
				args = nil
			}
			for _, s := range args {
				id, err := strconv.Atoi(s)
				if err != nil {
					return usage("weft fault list", "%q is not a fault's number", s)
				}
				ids = append(ids, id)
			}
			for _, id := range ids {
				if err := do(cmd.Context(), a, api.DeleteFault, id); err != nil {
					return err
				}
			}
			fmt.Fprintf(a.env.Out, "ended %s\n", plural(len(ids), "fault"))
			return nil
		},
	}
}
