// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

func (a *app) fault() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fault",
		Short: "inject faults into links",
		Long: `Inject faults into links. A seed makes the sequence of decisions repeatable.

  weft fault add --drop 5 --reorder 1 --seed 7
  weft fault add --link trunk --drop 100   # as if the cables were pulled
  weft fault del all`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	cmd.AddCommand(a.faultAdd(), a.faultList(), a.faultDel())
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

func (a *app) faultAdd() *cobra.Command {
	var drop, duplicate, reorder, corrupt percent
	var delay time.Duration
	var seed uint64
	var device, peer, link string
	cmd := a.show(&cobra.Command{
		Use:   "add",
		Short: "add a fault; its number goes to \"weft fault del\"",
		Args:  cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print func(any, func()) error) error {
		spec := api.FaultSpec{Drop: float64(drop), Duplicate: float64(duplicate), Reorder: float64(reorder), Corrupt: float64(corrupt),
			DelayNS: delay, Seed: seed, Device: device, Peer: peer, Link: link}
		if err := spec.Validate(); err != nil {
			return usage("weft fault add --help", "cannot add the fault: %v", err)
		}
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			f, err := api.Call(ctx, c, api.AddFault, spec)
			if err != nil {
				return err
			}
			return print(f, func() { fmt.Fprintf(a.env.Out, "fault %d: %s\n", f.ID, printable(faultText(f.FaultSpec))) })
		})
	})
	f := cmd.Flags()
	f.Var(&drop, "drop", "packets to drop")
	f.Var(&duplicate, "duplicate", "packets to send twice")
	f.Var(&reorder, "reorder", "packets to let others overtake")
	f.Var(&corrupt, "corrupt", "packets to change one bit of")
	f.DurationVar(&delay, "delay", 0, "how long to hold every packet")
	f.Uint64Var(&seed, "seed", 0, "of the random decisions; 0: draw one")
	f.StringVar(&device, "device", "", "only of this device")
	f.StringVar(&peer, "peer", "", "only to this IP address")
	f.StringVar(&link, "link", "", "only on links of one kind: roce, or trunk (what InfiniBand devices send to other nodes)")
	return cmd
}

func (a *app) faultList() *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "list",
		Short: "list the active faults and what they did",
		Args:  cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			faults, err := api.Get(ctx, c, api.ListFaults)
			if err != nil {
				return err
			}
			return print(faults, func() { printFaults(a.env.Out, faults) })
		})
	})
}

func printFaults(w io.Writer, faults []api.Fault) {
	if len(faults) == 0 {
		fmt.Fprintln(w, "no faults")
		return
	}
	t := table{heads: []string{">ID", "WHAT", ">PACKETS", ">DROPPED", ">DUPLICATED", ">REORDERED", ">CORRUPTED", ">DELAYED"}}
	for _, f := range faults {
		t.row(f.ID, faultText(f.FaultSpec), f.Packets, f.Dropped, f.Duplicated, f.Reordered, f.Corrupted, f.Delayed)
	}
	t.write(w)
}

// faultText says in words what a fault does.
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

func (a *app) faultDel() *cobra.Command {
	return &cobra.Command{
		Use:   "del ID…|all",
		Short: "end faults",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				ids, err := faultIDs(ctx, c, args)
				if err != nil {
					return err
				}
				for _, id := range ids {
					if err := api.Do(ctx, c, api.DeleteFault, id); err != nil {
						return err
					}
				}
				fmt.Fprintf(a.env.Out, "ended %s\n", plural(len(ids), "fault"))
				return nil
			})
		},
	}
}

func faultIDs(ctx context.Context, c *api.Client, args []string) ([]int, error) {
	var ids []int
	if len(args) == 1 && args[0] == "all" {
		faults, err := api.Get(ctx, c, api.ListFaults)
		for _, f := range faults {
			ids = append(ids, f.ID)
		}
		return ids, err
	}
	for _, s := range args {
		id, err := strconv.Atoi(s)
		if err != nil {
			return nil, usage("weft fault list", "%q is not a fault's number", s)
		}
		ids = append(ids, id)
	}
	return ids, nil
}
