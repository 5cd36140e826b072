// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

func (a *app) vm() *cobra.Command {
	cmd := a.show(&cobra.Command{
		Use:   "vm",
		Short: "network cards of virtual machines",
		Long: `Network cards of virtual machines: each is a function of the node, whose frames in a virtual Ethernet switch are the machine's.

  weft vesw create lab                     a virtual Ethernet switch
  weft vm add web --vesw lab               a card in it; prints how QEMU and libvirt are told
  weft vm                                  the cards, and whether a machine uses them
  weft vm show web --memory 4G             how QEMU and libvirt are told
  weft vm del web`,
		Args: cobra.NoArgs,
	}, a.vms)
	cmd.AddCommand(a.show(&cobra.Command{Use: "list", Short: "list network cards of virtual machines", Args: cobra.NoArgs}, a.vms),
		a.vmAdd(), a.vmShow(), a.vmDel())
	return cmd
}

func (a *app) vms(cmd *cobra.Command, _ []string, print printer) error {
	return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
		l, err := api.Get(ctx, c, api.ListVMs)
		if err != nil {
			return err
		}
		return print(l, func() { printVMs(a.env.Out, l) })
	})
}

func printVMs(w io.Writer, list []api.VM) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no virtual machines: weft vm add")
		return
	}
	t := table{heads: []string{"VM", ">VESW", "MAC", ">QUEUES", ">MTU", "CARRIER", "GUEST", "KEPT"}}
	for _, v := range list {
		vesw, kept := "-", "yes"
		if v.VESWNumber != 0 {
			vesw = fmt.Sprint(v.VESWNumber)
		}
		if !v.Kept {
			kept = "no"
		}
		t.row(v.Name, vesw, v.MAC, v.Queues, v.MTU, vmCarrier(v), vmGuest(v), kept)
	}
	t.write(w)
}

func vmCarrier(v api.VM) string {
	if v.Carrier {
		return "yes"
	}
	return "no: " + v.CarrierReason
}

// vmGuest says who uses a card.
func vmGuest(v api.VM) string {
	switch {
	case !v.Guest:
		return "no: " + v.Reason
	case !v.Running:
		return fmt.Sprintf("pid %d, its driver is not there yet", v.PID)
	}
	return fmt.Sprintf("pid %d", v.PID)
}

// printVM prints a card and how a machine gets it.
func printVM(w io.Writer, v api.VM, memory string) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-10s %s\n", name, printable(fmt.Sprintf(format, args...)))
	}
	line("vm", "%s: function %d, port GUID %s", v.Name, v.Number, v.PortGUID)
	if v.VESWNumber != 0 {
		line("vesw", "%d, by port %d", v.VESWNumber, v.VPort)
	}
	line("carrier", "%s", vmCarrier(v))
	line("guest", "%s", vmGuest(v))
	if !v.Kept {
		line("note", "this does not survive the node's end: %s", v.NotKept)
	}
	fmt.Fprint(w, "\nQEMU:\n")
	options := v.QEMU(memory)
	for i, o := range options {
		end := " \\"
		if i == len(options)-1 {
			end = ""
		}
		fmt.Fprintf(w, "  %s%s\n", printable(o), end)
	}
	fmt.Fprintf(w, "  (QEMU 7.2 without KVM fails unless vectors=0)\n\nlibvirt (the interface below devices):\n%s", v.Libvirt())
}

// vmMemory is what a machine has if nothing else is said.
const vmMemory = "2G"

func (a *app) vmAdd() *cobra.Command {
	var v api.NewVM
	memory := vmMemory
	cmd := a.show(&cobra.Command{
		Use:   "add NAME",
		Short: "give a virtual machine a network card",
		Long: `Give a virtual machine a network card: a function of the node, which the machine's emulator reaches by a socket of vhost-user.

  weft vm add web --vesw lab --queues 2
  weft vm add db --vesw lab --mac 52:54:00:12:34:56 --packed
  weft vm add old --vesw lab --connect /run/qemu/old.sock     QEMU is the server: the node may start again under the machine`,
		Args: cobra.ExactArgs(1),
	}, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		v.Name = args[0]
		if err := v.Validate(); err != nil {
			return usage("weft vm add --help", "cannot add the virtual machine: %v", err)
		}
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			got, err := api.Call(ctx, c, api.AddVM, v)
			if err != nil {
				return err
			}
			return print(got, func() { printVM(a.env.Out, got, memory) })
		})
	})
	f := cmd.Flags()
	f.StringVar(&v.VESW, "vesw", "", "virtual Ethernet switch to be in, by name or number; else weft vesw port add")
	f.StringVar(&v.MAC, "mac", "", "its MAC address; one is chosen if none is given")
	f.IntVar(&v.Queues, "queues", 0, "queue pairs, as many as the machine has processors at most (default 1)")
	f.StringVar(&v.Socket, "socket", "", "socket that the node makes and the emulator connects to (default vm/NAME.sock in the node's directory)")
	f.StringVar(&v.Connect, "connect", "", "socket that the emulator makes and the node connects to, again and again")
	f.BoolVar(&v.Packed, "packed", false, "have the machine use packed rings")
	f.StringVar(&memory, "memory", memory, "the machine's memory, for what is printed")
	return cmd
}

func (a *app) vmShow() *cobra.Command {
	memory := vmMemory
	cmd := a.show(&cobra.Command{
		Use:   "show NAME",
		Short: "show a network card, and how QEMU and libvirt are told of it",
		Args:  cobra.ExactArgs(1), ValidArgsFunction: a.completeVMs,
	}, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			l, err := api.Get(ctx, c, api.ListVMs)
			if err != nil {
				return err
			}
			for _, v := range l {
				if v.Name == args[0] {
					return print(v, func() { printVM(a.env.Out, v, memory) })
				}
			}
			return &api.Error{Code: api.CodeNotFound, What: "cannot show the virtual machine", Why: "there is no virtual machine " + args[0], Fix: "weft vm"}
		})
	})
	cmd.Flags().StringVar(&memory, "memory", memory, "the machine's memory, for what is printed")
	return cmd
}

func (a *app) vmDel() *cobra.Command {
	return &cobra.Command{
		Use:   "del NAME…",
		Short: "delete network cards; machines lose them at once",
		Args:  cobra.MinimumNArgs(1), ValidArgsFunction: a.completeVMs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				for _, name := range args {
					if err := api.Do(ctx, c, api.DeleteVM, name); err != nil {
						return err
					}
				}
				fmt.Fprintf(a.env.Out, "deleted %s\n", plural(len(args), "virtual machine"))
				return nil
			})
		},
	}
}

// completeVMs completes names of virtual machines.
func (a *app) completeVMs(cmd *cobra.Command, _ []string, _ string) (names []string, d cobra.ShellCompDirective) {
	a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
		l, err := api.Get(ctx, c, api.ListVMs)
		for _, v := range l {
			names = append(names, v.Name)
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}
