// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	driver "weft/guest/linux"
	"weft/internal/control/api"
)

func vmCommand(a *app) *cobra.Command {
	const none = "no virtual machines: weft vm add"
	cmd := list(a, &cobra.Command{
		Use:   "vm",
		Short: "network cards of virtual machines",
		Long: `Network cards of virtual machines. Each card is a function of the node with a
port in a virtual Ethernet switch; the guest reaches it by vhost-user.`,
		Example: `  weft vesw create lab                     a virtual Ethernet switch
  weft vm add web --vesw lab               a card in it; prints the options for QEMU and libvirt
  weft vm                                  the cards and their guests
  weft vm show web --memory 4G             the options for QEMU and libvirt
  weft vm driver virtio-roce.tar.gz        the driver of RDMA cards, for Linux guests
  weft vm delete web`,
	}, api.ListVMs, nil, none, vmColumns)
	complete := names(a, api.ListVMs, func(v api.VM) string { return v.Name })
	cmd.AddCommand(list(a, &cobra.Command{Use: "list", Short: "list network cards of virtual machines"}, api.ListVMs,
		nil, none, vmColumns),
		vmAdd(a), vmShow(a, complete), vmDriver(a),
		removal(a, "NAME…", "delete network cards; their guests lose them at once", "virtual machine", api.DeleteVM,
			byName, complete))
	return cmd
}

var vmColumns = []column[api.VM]{
	{head: "VM", cell: func(v api.VM) any { return v.Name }},
	{head: ">VESW", cell: func(v api.VM) any { return numberText(v.VESWNumber) }},
	{head: "MAC", cell: func(v api.VM) any { return v.MAC }},
	{head: ">QUEUES", cell: func(v api.VM) any { return v.Queues }, wide: 2},
	{head: ">MTU", cell: func(v api.VM) any { return v.MTU }, wide: 1},
	{head: "CARRIER", cell: func(v api.VM) any { return whether(v.Carrier, v.CarrierReason) }},
	{head: "GUEST", cell: func(v api.VM) any { return vmGuest(v) }},
	{head: "KEPT", cell: func(v api.VM) any { return yes(v.Kept) }},
}

// vmGuest describes the guest of a card.
func vmGuest(v api.VM) string {
	switch {
	case !v.Guest:
		return "no: " + v.Reason
	case !v.Running:
		return fmt.Sprintf("pid %d, its driver is not ready yet", v.PID)
	}
	return fmt.Sprintf("pid %d", v.PID)
}

// printVM prints a card and the options that give it to a guest. memory, unless empty, replaces that of the card.
func printVM(w *screen, v api.VM, memory string) {
	line := fields{w, 10}.line
	line("vm", "%s: function %d, port GUID %s", v.Name, v.Number, v.PortGUID)
	if v.VESWNumber != 0 {
		line("vesw", "%d, by port %d", v.VESWNumber, v.VPort)
	}
	line("carrier", "%s", whether(v.Carrier, v.CarrierReason))
	if v.VESWNumber == 0 && v.VESW == "" {
		line("note", "the card is in no virtual Ethernet switch. fix: weft vesw port add NAME %s", v.PortGUID)
	}
	line("guest", "%s", vmGuest(v))
	printRoCE(line, v)
	if !v.Kept {
		line("note", "this does not survive the node's end: %s", v.NotKept)
	}
	fmt.Fprint(w, "\nQEMU:\n")
	options := v.QEMU(cmp.Or(memory, v.Memory, vmMemory))
	for i, o := range options {
		end := " \\"
		if i == len(options)-1 {
			end = ""
		}
		fmt.Fprintf(w, "  %s%s\n", printable(o), end)
	}
	if v.RDMA {
		fmt.Fprint(w, "  (QEMU 11 or later. Without reconnection: QEMU does not start with it.)\n")
		return
	}
	fmt.Fprintf(w, "  (QEMU 7.2 without KVM fails unless vectors=0)\n\nlibvirt (the interface below devices):\n%s",
		v.Libvirt())
}

// printRoCE prints the RoCE half of a card.
func printRoCE(line func(name, format string, args ...any), v api.VM) {
	if !v.RDMA {
		return
	}
	line("rdma", "%d queue pairs, %d completion queues; %d virtqueues in all", v.QPs, v.CQs, v.Rings())
	r := v.RoCE
	if r == nil {
		return
	}
	if r.NeedsReset != "" {
		line("", "it stands still until the guest resets it: %s", r.NeedsReset)
	}
	if !r.Negotiated {
		line("", "the driver of the guest does not use it")
		return
	}
	line("", "in use: %d PD, %d MR, %d MW, %d CQ, %d SRQ, %d AH, %d QP", r.PDs, r.MRs, r.MWs, r.CQs, r.SRQs, r.AHs,
		len(r.QPs))
	for _, g := range r.GIDs {
		line("gid", "%d: %s", g.Index, g.Address)
	}
	for _, q := range r.QPs {
		to := ""
		if q.RemoteGID != "" {
			to = fmt.Sprintf(" to %d at %s", q.RemoteQPN, q.RemoteGID)
		}
		line("qp", "%d: %s, %s%s", q.QPN, q.Type, q.State, to)
	}
	for _, b := range r.Broken {
		line("broken", "%s, ring %d: %s", b.Queue, b.Ring, b.Why)
	}
	for _, f := range r.Refused {
		line("refused", "%v ago, %s: %s", time.Duration(f.AgoNS).Round(time.Second), f.Command, f.Why)
	}
}

// vmMemory is the default of --memory.
const vmMemory = "2G"

// memoryFlag adds --memory: the memory of the machine, in the options that are printed.
func memoryFlag(cmd *cobra.Command, memory *string, without string) {
	cmd.Flags().StringVar(memory, "memory", "",
		"memory of the machine in the options that are printed, as QEMU's -m takes it (default "+without+")")
}

func checkMemory(what, help, memory string) error {
	if memory == "" {
		return nil
	}
	if err := api.ValidateMemory(memory); err != nil {
		return usage(help+" --memory "+vmMemory, "%s: --memory: %v", what, err)
	}
	return nil
}

func vmAdd(a *app) *cobra.Command {
	var v api.NewVM
	cmd := a.show(&cobra.Command{
		Use:   "add NAME",
		Short: "give a virtual machine a network card",
		Long: `Give a virtual machine a network card: a function of the node, which the
machine's emulator reaches by a vhost-user socket. With --connect the emulator
is the server of that socket: the node may restart while the machine runs.

With --rdma the card is an Ethernet card and a RoCE adapter at once, by the
virtio-net RoCE RFC: the guest's driver gives it its addresses. It needs QEMU 11
and a driver of that RFC, for Linux guests that of weft vm driver. When the node
ends, its guests lose such cards.`,
		Example: `  weft vm add web --vesw lab --queues 2
  weft vm add db --vesw lab --mac 52:54:00:12:34:56 --packed
  weft vm add hpc --vesw lab --rdma
  weft vm add old --vesw lab --connect /run/qemu/old.sock`,
		Args: cobra.ExactArgs(1),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		v.Name = args[0]
		if err := checkMemory("cannot add the virtual machine", "weft vm add "+v.Name, v.Memory); err != nil {
			return err
		}
		if err := v.Validate(); err != nil {
			return usage("weft vm add --help", "cannot add the virtual machine: %v", err)
		}
		got, err := call(cmd.Context(), a, api.AddVM, v)
		if err != nil {
			return err
		}
		return print(got, func(w *screen) { printVM(w, got, "") })
	})
	f := cmd.Flags()
	f.StringVar(&v.VESW, "vesw", "", "virtual Ethernet switch of the card, by name or number; without it, weft vesw port add")
	f.StringVar(&v.MAC, "mac", "", "MAC address of the card; without it, the node chooses one")
	f.IntVar(&v.Queues, "queues", 0, "queue pairs, at most one per processor of the machine (default 1)")
	f.StringVar(&v.Socket, "socket", "", "socket that the node makes and the emulator connects to (default vm/NAME.sock in the node's directory)")
	f.IntVar(&v.AllowUID, "allow-uid", 0, "user that may connect to the socket, besides root and the node's own user")
	f.StringVar(&v.Connect, "connect", "", "socket that the emulator makes and the node connects to, repeatedly")
	f.BoolVar(&v.Packed, "packed", false, "offer packed virtqueues")
	f.BoolVar(&v.RDMA, "rdma", false, "give the card a RoCE half: an adapter in the guest (VIRTIO_NET_F_ROCE)")
	f.IntVar(&v.QPs, "qp", 0,
		fmt.Sprintf("queue pairs for programs of the guest, with --rdma (default %d)", api.DefaultVMQPs))
	f.IntVar(&v.CQs, "cq", 0,
		fmt.Sprintf("completion queues of the guest, with --rdma (default %d)", api.DefaultVMCQs))
	memoryFlag(cmd, &v.Memory, vmMemory)
	return cmd
}

func vmShow(a *app, complete completion) *cobra.Command {
	var memory string
	const what = "cannot show the virtual machine"
	cmd := a.show(&cobra.Command{
		Use:   "show NAME",
		Short: "show a network card, and the options for QEMU and libvirt",
		Args:  cobra.ExactArgs(1), ValidArgsFunction: complete,
	}, func(cmd *cobra.Command, args []string, print printer) error {
		if err := checkMemory(what, "weft vm show "+args[0], memory); err != nil {
			return err
		}
		all, err := get(cmd.Context(), a, api.ListVMs)
		if err != nil {
			return err
		}
		for _, v := range all {
			if v.Name == args[0] {
				return print(v, func(w *screen) { printVM(w, v, memory) })
			}
		}
		return missing(what, "virtual machine", "weft vm")(args[0])
	})
	memoryFlag(cmd, &memory, "that of weft vm add")
	return cmd
}

func vmDriver(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "driver FILE",
		Short: "write the driver of RDMA cards for Linux guests",
		Long: `Write the source of the driver that a Linux guest needs for the RoCE half of its
card: a kernel module and a provider for libibverbs, as a tar.gz file; - is
standard output. Copy the file to the guest, unpack it, and run ./install there.
Needs no node.`,
		Example: `  weft vm driver virtio-roce.tar.gz
  weft vm driver - | ssh root@guest tar xz`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			const what = "cannot write the driver"
			if args[0] == "-" {
				if err := driver.WriteArchive(a.env.Out, driverVersion()); err != nil {
					return fmt.Errorf("%s: %w", what, err)
				}
				return nil
			}
			var archive bytes.Buffer
			if err := driver.WriteArchive(&archive, driverVersion()); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			if err := os.WriteFile(args[0], archive.Bytes(), 0o644); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		},
	}
}

// driverVersion is the version of this program as DKMS accepts it.
func driverVersion() string {
	version := strings.FieldsFunc(ThisBuild().Version, func(r rune) bool {
		return r != '.' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
	return strings.TrimPrefix(strings.Join(version, "."), "v")
}
