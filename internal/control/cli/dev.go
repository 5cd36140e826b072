// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

// devices is "weft dev" with its subcommands.
func devicesCommand(a *app) *cobra.Command {
	cmd := view(a, &cobra.Command{Use: "dev", Short: "show devices, ports and GIDs"}, api.ListDevices, nil,
		printDevices)
	details := find(a, &cobra.Command{
		Use:   "show [NAME]",
		Short: "show devices, ports and GIDs, of all devices or of one",
		Args:  cobra.MaximumNArgs(1), ValidArgsFunction: completeFunctions(a),
	}, api.ListDevices, func(d api.Device, name string) bool { return d.Name == name },
		missing("cannot show the device", "device", "weft dev"), printDevices)
	functions := list(a, &cobra.Command{Use: "list", Short: "list devices with their quotas and weights"},
		api.ListFunctions, nil, "", functionColumns)
	cmd.AddCommand(details, functions, devAdd(a), devSet(a),
		confirmable(a, removal(a, "NAME…", "delete virtual functions and end their sessions", "device",
			api.DeleteFunction, byName, completeFunctions(a))))
	return cmd
}

func completeFunctions(a *app) completion {
	return names(a, api.ListFunctions, func(f api.Function) string { return f.Name })
}

// completeDevices completes names of InfiniBand devices.
func completeDevices(a *app) completion {
	return names(a, api.ListFunctions, func(f api.Function) string {
		if f.LinkLayer != "InfiniBand" {
			return ""
		}
		return f.Name
	})
}

// devicePort is a port with its device, devicePortGID and devicePortNeighbour with one of its entries.
type devicePort struct {
	api.Device
	api.Port
}

type devicePortGID struct {
	devicePort
	api.GID
}

type devicePortNeighbour struct {
	devicePort
	api.Neighbour
}

var portColumns = []column[devicePort]{
	{head: "DEVICE", cell: func(p devicePort) any { return p.Device.Name }},
	{head: ">PORT", cell: func(p devicePort) any { return p.Port.Number }},
	{head: "STATE", cell: func(p devicePort) any { return p.Port.State }},
	{head: "PHYSICAL", cell: func(p devicePort) any { return p.PhysState }, wide: 1},
	{head: "LINK", cell: func(p devicePort) any { return p.Port.LinkLayer }},
	{head: ">LID", cell: func(p devicePort) any { return p.LID }},
	{head: ">MTU", cell: func(p devicePort) any { return p.ActiveMTU }},
	{head: "NETDEV", cell: func(p devicePort) any { return p.Port.NetDev }, wide: 2},
	{head: "NODE GUID", cell: func(p devicePort) any { return p.NodeGUID }},
}

var gidColumns = []column[devicePortGID]{
	{head: "DEVICE", cell: func(g devicePortGID) any { return g.Device.Name }},
	{head: ">PORT", cell: func(g devicePortGID) any { return g.Port.Number }, wide: 1},
	{head: ">GID", cell: func(g devicePortGID) any { return g.GID.Index }},
	{head: "ADDRESS", cell: func(g devicePortGID) any { return g.Address }},
	{head: "TYPE", cell: func(g devicePortGID) any { return g.Type }},
	{head: "NETDEV", cell: func(g devicePortGID) any { return g.GID.NetDev }},
	{head: "VALUE", cell: func(g devicePortGID) any { return g.GID.GID }, wide: 2},
}

var deviceNeighbourColumns = []column[devicePortNeighbour]{
	{head: "DEVICE", cell: func(n devicePortNeighbour) any { return n.Device.Name }},
	{head: "NEIGHBOUR", cell: func(n devicePortNeighbour) any { return n.Address }},
	{head: "STATE", cell: func(n devicePortNeighbour) any { return n.Neighbour.State }},
	{head: "MAC", cell: func(n devicePortNeighbour) any { return n.Neighbour.MAC }},
	{head: ">ASKED", cell: func(n devicePortNeighbour) any {
		if n.SinceNS == 0 {
			return ""
		}
		return fmt.Sprintf("%v ago", round(n.SinceNS))
	}, wide: 1},
	{head: ">WAITING", cell: func(n devicePortNeighbour) any { return n.Frames }, wide: 2},
}

func printDevices(w *screen, devs []api.Device) {
	var ports []devicePort
	var gids []devicePortGID
	var neighbours []devicePortNeighbour
	var segments []string
	for _, d := range devs {
		for _, p := range d.Ports {
			port := devicePort{d, p}
			ports = append(ports, port)
			for _, g := range p.GIDs {
				gids = append(gids, devicePortGID{port, g})
			}
			if e := p.Ethernet; api.InVESW(p.Segment) {
				segments = append(segments, fmt.Sprintf("%s in %s: %s", d.Name, p.Segment, printable(ethernetText(e))))
				for _, n := range e.Neighbours {
					neighbours = append(neighbours, devicePortNeighbour{port, n})
				}
			}
		}
	}
	writeTable(w, "no devices", portColumns, ports)
	if len(gids) > 0 {
		fmt.Fprintln(w)
		writeTable(w, "", gidColumns, gids)
	}
	if len(segments) > 0 {
		fmt.Fprintln(w)
	}
	for _, s := range segments {
		fmt.Fprintln(w, s)
	}
	if len(neighbours) > 0 {
		fmt.Fprintln(w)
		writeTable(w, "", deviceNeighbourColumns, neighbours)
	}
	if slices.ContainsFunc(devs, func(d api.Device) bool { return !d.AdapterEnabled }) {
		fmt.Fprintln(w, "\nthe adapter is disabled: every port is down (weft status has the fix)")
	}
	for _, d := range devs {
		if !d.Enabled {
			fmt.Fprintf(w, "\n%s is disabled: its port is down. fix: weft dev set %s --enabled\n", d.Name, d.Name)
		}
	}
}

var functionColumns = []column[api.Function]{
	{head: "DEVICE", cell: func(f api.Function) any { return f.Name }},
	{head: ">NUMBER", cell: func(f api.Function) any { return f.Number }, wide: 9},
	{head: "KIND", cell: func(f api.Function) any {
		if f.Virtual {
			return "virtual"
		}
		return "physical"
	}},
	{head: "LINK", cell: func(f api.Function) any { return f.LinkLayer }},
	{head: "SEGMENT", cell: func(f api.Function) any { return f.Segment }, wide: 1},
	{head: "STATE", cell: func(f api.Function) any {
		switch {
		case !f.Enabled:
			return "disabled"
		case !f.AdapterEnabled:
			return "adapter disabled"
		}
		return f.PortState
	}},
	{head: ">LID", cell: func(f api.Function) any { return f.LID }, wide: 2},
	{head: ">SESSIONS", cell: func(f api.Function) any { return f.Sessions }},
	{head: ">OF", cell: func(f api.Function) any { return f.Quotas.Sessions }, wide: 4},
	{head: ">WEIGHT", cell: func(f api.Function) any { return f.Weight }},
	{head: "QOS", cell: func(f api.Function) any { return qosText(f.QoS) }, wide: 3},
	{head: ">QP", cell: func(f api.Function) any { return f.Quotas.QPs }, wide: 6},
	{head: ">MR", cell: func(f api.Function) any { return f.Quotas.MRs }, wide: 7},
	{head: ">MEMORY", cell: func(f api.Function) any { return sizeText(uint64(f.Quotas.MemoryBytes)) }, wide: 8},
	{head: "KEPT", cell: func(f api.Function) any { return yes(f.Kept) }},
}

// qosText prints the weights of levels, the common one once.
func qosText(qos []int) string {
	count := map[int]int{}
	common := 0
	for _, w := range qos {
		if count[w]++; count[w] > count[common] {
			common = w
		}
	}
	parts := []string{strconv.Itoa(common)}
	for level, w := range qos {
		if w != common {
			parts = append(parts, fmt.Sprintf("%d:%d", level, w))
		}
	}
	return strings.Join(parts, " ")
}

// ethernetText describes an Ethernet port in a switch: its switch and MAC, or why it has no carrier.
func ethernetText(v api.EthernetPort) string {
	if !v.Carrier {
		return "no carrier: " + v.CarrierReason
	}
	return fmt.Sprintf("VESW %d, MAC %s, carrier", v.Number, v.MAC)
}

// changeFlags are the flags of a change of a device.
type changeFlags struct {
	enabled bool
	adapter string // enabled or disabled; empty: no change
	c       api.FunctionChange
	qos     map[string]int
}

func (f *changeFlags) add(cmd *cobra.Command) {
	l := cmd.Flags()
	l.BoolVar(&f.enabled, "enabled", true, "enable the port; with =false the port goes down and queue pairs stay")
	l.IntVar(&f.c.Weight, "weight", 0, fmt.Sprintf("weight in the node's scheduler, 1 to %d", api.MaxWeight))
	l.StringToIntVar(&f.qos, "qos", nil, "weights of QoS levels (service levels), such as 0=10,1=30")
	q := &f.c.Quotas
	l.IntVar(&q.Sessions, "sessions", 0, "limit of sessions")
	l.IntVar(&q.PDs, "pd", 0, "limit of protection domains per session")
	l.IntVar(&q.MRs, "mr", 0, "limit of memory regions per session")
	l.IntVar(&q.CQs, "cq", 0, "limit of completion queues per session")
	l.IntVar(&q.QPs, "qp", 0, "limit of queue pairs per session")
	l.IntVar(&q.SRQs, "srq", 0, "limit of shared receive queues per session")
	l.IntVar(&q.AHs, "ah", 0, "limit of address handles per session")
	l.Int64Var(&q.MemoryBytes, "memory", 0, "limit of the node's memory for the queues of a session, in bytes")
}

// change returns the change that the flags make.
func (f *changeFlags) change(cmd *cobra.Command) (api.FunctionChange, error) {
	if cmd.Flags().Changed("enabled") {
		f.c.Enabled = &f.enabled
	}
	if cmd.Flags().Changed("adapter") {
		on := f.adapter == "enabled"
		if !on && f.adapter != "disabled" {
			return f.c, fmt.Errorf("--adapter must be enabled or disabled, not %q", f.adapter)
		}
		f.c.AdapterEnabled = &on
	}
	for level, w := range f.qos {
		n, err := strconv.Atoi(level)
		if err != nil {
			return f.c, fmt.Errorf("%q is not a QoS level", level)
		}
		if f.c.QoS == nil {
			f.c.QoS = map[int]int{}
		}
		f.c.QoS[n] = w
	}
	if cmd.Flags().Changed("weight") && f.c.Weight == 0 {
		return f.c, fmt.Errorf("the weight must be 1 to %d, not 0", api.MaxWeight)
	}
	return f.c, nil
}

func devAdd(a *app) *cobra.Command {
	var flags changeFlags
	var n api.NewFunction
	cmd := a.show(&cobra.Command{
		Use:   "add NAME",
		Short: "add a virtual function: a device with an InfiniBand or an Ethernet port",
		Long: `Add a virtual function: a device with an InfiniBand port, or with an Ethernet
port in a virtual Ethernet switch.

With --segment vesw:NAME the device has an Ethernet port (RoCEv2), and its
packets are frames in that switch. Its addresses are those of --addr and an
IPv6 link-local address that is formed from the MAC of the port. The node
answers ARP, Neighbor Discovery and ping for them and joins multicast groups.
This makes no network interface and needs no privilege.

With --segment vesw alone, the node that manages the switches adds the port:
weft vesw port add NAME GUID.`,
		Example: `  weft dev add vf0
  weft vesw create blue
  weft dev add blue0 --segment vesw:blue --addr 10.9.0.7/24 --addr fd09::7/64
  weft dev add blue0 --segment vesw:blue --addr 10.9.0.7/24 --route 10.0.0.0/8=10.9.0.1
  weft dev show blue0                     its GIDs and its neighbours`,
		Args: cobra.ExactArgs(1),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		change, err := flags.change(cmd)
		n.Name, n.FunctionChange = args[0], change
		if err == nil {
			err = n.Validate()
		}
		if err != nil {
			return usage("weft dev add --help", "cannot add the device: %v", err)
		}
		f, err := call(cmd.Context(), a, api.AddFunction, n)
		if err != nil {
			return err
		}
		return print(f, func(w *screen) {
			fmt.Fprintf(w, "device %s: function %d, node GUID %s\n", f.Name, f.Number, f.NodeGUID)
			if api.InVESW(f.Segment) {
				fmt.Fprintf(w, "port %s: %s, port GUID %s\n", f.Segment, printable(ethernetText(f.VESW)), f.PortGUID)
			}
			notKept(w, f.Kept, f.NotKept)
		})
	})
	flags.add(cmd)
	l := cmd.Flags()
	l.StringVar(&n.Segment, "segment", "", "vesw:NAME: an Ethernet port in that virtual Ethernet switch, "+
		"by name or number; vesw: in the one of weft vesw port add")
	l.StringSliceVar(&n.Addrs, "addr", nil, "IP address of the Ethernet port, with prefix length (may be repeated)")
	l.StringSliceVar(&n.Routes, "route", nil, "route through the Ethernet port: PREFIX=GATEWAY (may be repeated)")
	return cmd
}

func devSet(a *app) *cobra.Command {
	var flags changeFlags
	cmd := a.show(&cobra.Command{
		Use:   "set NAME",
		Short: "change quotas and weights of a device, enable or disable it or the adapter",
		Long: `Change quotas and weights of a device, enable or disable it, while programs
use it.

--adapter on a device of the physical function enables or disables the whole
adapter: the ports of all devices go down, programs get IBV_EVENT_PORT_ERR,
packets are dropped and counted (drop_port), and the subnet manager removes
the ports. Queue pairs stay. When the adapter is enabled again, the ports have
their previous LIDs.`,
		Example: `  weft dev set weft_ib0 --weight 300 --qos 0=10,1=40
  weft dev set weft0 --enabled=false
  weft dev set weft_ib0 --adapter=disabled`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: completeFunctions(a),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		change, err := flags.change(cmd)
		if err == nil {
			err = change.Validate()
		}
		if err != nil {
			return usage("weft dev set --help", "cannot change the device: %v", err)
		}
		f, err := call(cmd.Context(), a, api.ChangeFunction, api.Named[api.FunctionChange]{Name: args[0],
			Value: change})
		if err != nil {
			return err
		}
		return print(f, func(w *screen) {
			writeTable(w, "", functionColumns, []api.Function{f})
			notKept(w, f.Kept, f.NotKept)
		})
	})
	flags.add(cmd)
	cmd.Flags().StringVar(&flags.adapter, "adapter", "",
		"enabled or disabled: the whole adapter, through a device of the physical function")
	return cmd
}
