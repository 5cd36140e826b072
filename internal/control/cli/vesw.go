// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

// New ports of a switch get veswWait to reach their state, which is polled every veswPoll. A port that is down in
// veswDown polls in sequence stays down.
const (
	veswWait = 2 * time.Second
	veswPoll = 50 * time.Millisecond
	veswDown = 6
)

// settledVESW returns the switch once the ports that were added to it forward, at the latest after veswWait. Before
// that its only state is that the ports are new.
func settledVESW(ctx context.Context, a *app, was *api.VESW, v api.VESW) api.VESW {
	old := map[string]bool{}
	key := func(p *api.VESWPort) string { return fmt.Sprintf("%s:%d", p.GUID, p.VPort) }
	for i := range was.Ports {
		old[key(&was.Ports[i])] = true
	}
	down := 0
	for end := time.Now().Add(veswWait); v.State != api.VESWUnknown && time.Now().Before(end); {
		waits, isDown := false, false
		for i := range v.Ports {
			if p := &v.Ports[i]; !old[key(p)] && p.State != api.StateForwarding {
				waits, isDown = waits || p.State != "down", true
			}
		}
		if down++; waits {
			down = 0
		}
		if !isDown || down == veswDown {
			break
		}
		select {
		case <-ctx.Done():
			return v
		case <-time.After(veswPoll):
		}
		now, err := call(ctx, a, api.GetVESW, v.Name)
		if err != nil {
			break
		}
		v = now
	}
	return v
}

func veswCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vesw",
		Short: "virtual Ethernet switches over the fabric",
		Long: `Virtual Ethernet switches over the fabric (Ethernet over Omni-Path): the hosts
on one switch are on one Ethernet, separate from every other. The Ethernet
Manager, part of the subnet manager, assigns ports of devices to switches.`,
		Example: `  weft vesw create lab --mtu 9000
  weft vesw port add lab weft_ib0
  weft vesw port add lab weft_ib0@otherhost
  weft vesw show lab
  weft vesw interfaces                            this node's ports, and the reason of one that drops frames`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	complete := completeVESWs(a)
	cmd.AddCommand(view(a, stateOrder[api.VESW](&cobra.Command{Use: "list", Short: "list virtual Ethernet switches"}),
		api.ListVESWs, nil,
		printVESWs),
		view(a, &cobra.Command{Use: "show NAME", Short: "show a virtual Ethernet switch with its ports and problems",
			Args:              cobra.ExactArgs(1),
			ValidArgsFunction: complete}, api.GetVESW, optional, printVESW),
		veswCreate(a), veswSet(a),
		confirmable(a, removal(a, "NAME…", "delete virtual Ethernet switches with their ports",
			"virtual Ethernet switch", api.DeleteVESW, byName, complete)),
		veswPort(a))
	cmd.AddCommand(veswLocal(a)...)
	return cmd
}

// known is a value that only the master has, nothing at other nodes.
func known(f func(v api.VESW) any) func(v api.VESW) any {
	return func(v api.VESW) any {
		if v.State == api.VESWUnknown {
			return ""
		}
		return f(v)
	}
}

var veswColumns = []column[api.VESW]{
	{head: "NAME", cell: func(v api.VESW) any { return v.Name }},
	{head: ">ID", cell: func(v api.VESW) any { return v.ID }},
	{head: "P_KEY", cell: func(v api.VESW) any { return v.PKey }, wide: 2},
	{head: "MLID", cell: known(func(v api.VESW) any { return v.MLID }), wide: 4},
	{head: ">MTU", cell: func(v api.VESW) any {
		if v.ActiveMTU != 0 {
			return v.ActiveMTU
		}
		return v.MTU
	}, wide: 1},
	{head: ">PORTS", cell: func(v api.VESW) any { return len(v.Ports) }},
	{head: ">FORWARDING", cell: known(func(v api.VESW) any {
		n := 0
		for _, p := range v.Ports {
			if p.State == api.StateForwarding {
				n++
			}
		}
		return n
	})},
	{head: ">MACS", cell: known(func(v api.VESW) any { return v.MACs }), wide: 3},
	{head: "STATE", cell: func(v api.VESW) any { return v.State }},
}

func printVESWs(w *screen, switches []api.VESW) {
	writeTable(w, "no virtual Ethernet switches: weft vesw create NAME makes one", veswColumns, switches)
	for _, v := range switches {
		if len(v.Problems) > 0 {
			fmt.Fprintf(w, "%s: %s\n", printable(v.Name), veswProblem(v, v.Problems[0]))
			if n := len(v.Problems) - 1; n > 0 {
				fmt.Fprintf(w, "%s: %d more: weft vesw show %s\n", printable(v.Name), n, printable(v.Name))
			}
		}
	}
}

// veswProblem is a problem of v in a line.
func veswProblem(v api.VESW, p api.VESWProblem) string {
	where := ""
	if p.Port != "" {
		where = p.Port + ": "
		for _, x := range v.Ports {
			if x.GUID == p.Port && x.Name != "" {
				where = x.Name + ": "
			}
		}
	}
	return printable(fmt.Sprintf("%s%s. fix: %s", where, p.What, p.Fix))
}

// printVESW prints a switch with its ports and problems.
func printVESW(w *screen, v api.VESW) {
	fmt.Fprintf(w, "%s: id %d, %s\n", printable(v.Name), v.ID, v.State)
	line := fields{w, 12}.line
	partition := "given"
	if v.OwnPartition {
		partition = "its own"
	}
	line("  partition", "%s, %s", v.PKey, partition)
	mtu := strconv.Itoa(v.MTU)
	if v.ActiveMTU != 0 && v.ActiveMTU != v.MTU {
		mtu = fmt.Sprintf("%d, wanted %d", v.ActiveMTU, v.MTU)
	}
	line("  mtu", "%s", mtu)
	if v.MLID != "" {
		line("  group", "%s", v.MLID)
	}
	gateways := 0
	for _, p := range v.Ports {
		if p.Gateway {
			gateways++
		}
	}
	unknown := "to an unknown MAC: dropped"
	switch {
	case gateways > 0:
		unknown = "to an unknown MAC: to " + plural(gateways, "gateway")
	case v.Flood:
		unknown = "to an unknown MAC: flooded"
	}
	line("  frames", "%s; service level %s", unknown, veswLevels(v))
	macs := fmt.Sprintf("%d in its tables; at most %d per port", v.MACs, v.MaxMACs)
	if !v.UserMACs {
		macs = "only those that ports are given"
	}
	line("  macs", "%s", macs)
	if len(v.Ports) > 0 {
		fmt.Fprintln(w)
		columns := veswPortColumns
		if !slices.ContainsFunc(v.Ports, func(p api.VESWPort) bool { return p.Flag != "" }) {
			columns = slices.DeleteFunc(slices.Clone(columns), func(c column[api.VESWPort]) bool { return c.head == "FLAG" })
		}
		writeTable(w, "", columns, v.Ports)
	}
	for i, p := range v.Problems {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, veswProblem(v, p))
	}
	if v.State == api.VESWUnknown {
		fmt.Fprintln(w, "\nonly the subnet's master has its state: weft sm names the master")
	}
}

// veswLevels describes the service levels of frames.
func veswLevels(v api.VESW) string {
	if len(v.PCP) == 0 {
		return strconv.Itoa(v.SL)
	}
	return fmt.Sprintf("%d, of tagged frames by priority %s", v.SL, strings.Trim(fmt.Sprint(v.PCP), "[]"))
}

var veswPortColumns = []column[api.VESWPort]{
	{head: ">NO", cell: func(p api.VESWPort) any { return p.Number }, wide: 3},
	{head: "PORT", cell: func(p api.VESWPort) any { return p.GUID }},
	{head: ">VPORT", cell: func(p api.VESWPort) any { return p.VPort }, wide: 2},
	{head: ">LID", cell: func(p api.VESWPort) any { return lidText(uint16(p.LID)) }},
	{head: "BASE MAC", cell: func(p api.VESWPort) any { return p.BaseMAC }, wide: 1},
	{head: ">MACS", cell: func(p api.VESWPort) any { return len(p.MACs) }, wide: 5},
	{head: "AGENT", cell: func(p api.VESWPort) any { return p.Agent }, wide: 4},
	{head: "STATE", cell: func(p api.VESWPort) any {
		switch {
		case p.Default:
			return p.State + ", default"
		case p.Gateway:
			return p.State + ", gateway"
		}
		return p.State
	}},
	{head: "FLAG", cell: func(p api.VESWPort) any { return p.Flag }},
	{head: "OF", cell: func(p api.VESWPort) any { return p.Name }},
}

// completeVESWs completes names of virtual Ethernet switches.
func completeVESWs(a *app) completion {
	return names(a, api.ListVESWs, func(v api.VESW) string { return v.Name })
}

func veswCreate(a *app) *cobra.Command {
	const what = "cannot create the virtual Ethernet switch"
	var c api.VESWCreate
	var fabric int
	var byteIDs bool
	cmd := a.show(&cobra.Command{
		Use:   "create NAME",
		Short: "make a virtual Ethernet switch",
		Long: `Make a virtual Ethernet switch without ports. It gets an identifier, and a
partition of its own with its ports as members. --id and --pkey choose others.
Switches that share a partition are separated by the identifier alone, which a
hostile node can forge.`,
		Example: `  weft vesw create lab
  weft vesw create storage --mtu 9000 --pkey 0x8005`,
		Args: cobra.ExactArgs(1),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		c.Name = args[0]
		if cmd.Flags().Changed("fabric-id") {
			c.FabricID = &fabric
		}
		if cmd.Flags().Changed("byte-ids") {
			c.ByteIDs = &byteIDs
		}
		if c.PKey != "" {
			if _, err := parsePKey(c.PKey); err != nil {
				return pkeyError(what, "weft vesw create "+c.Name+" --pkey %s", "weft vesw create --help", err)
			}
		}
		v, err := call(cmd.Context(), a, api.CreateVESW, c)
		if err != nil {
			return err
		}
		return print(v, func(w *screen) {
			fmt.Fprintf(w, "created %s: id %d, partition %s. add ports with: weft vesw port add %s DEVICE\n",
				printable(v.Name), v.ID, v.PKey, printable(v.Name))
		})
	})
	f := cmd.Flags()
	f.IntVar(&c.ID, "id", 0, "identifier, 1 to 4095; 0: the next free one")
	f.StringVar(&c.PKey, "pkey", "", "P_Key of a partition of which its ports are members, such as 0x8005; without it, a partition of its own")
	f.IntVar(&c.MTU, "mtu", 0, "MTU of its ports, 68 to 10222; 0: 1500")
	f.BoolVar(&c.Flood, "flood", false, "flood frames to an unknown MAC, if there is no gateway")
	f.BoolVar(&c.NoUserMACs, "no-user-macs", false, "allow ports only the MAC that they are given")
	f.IntVar(&c.MaxMACs, "max-macs", 0, "limit of MACs per port, up to 2048; 0: 512")
	f.IntVar(&c.SL, "sl", 0, "service level of frames, 0 to 14")
	f.IntSliceVar(&c.PCP, "pcp", nil, "service levels of tagged frames, by priority 0 to 7: eight numbers, separated by commas")
	f.IntVar(&fabric, "fabric-id", 0, "number of the fabric in MACs, 0 to 1023, for all virtual Ethernet switches")
	f.BoolVar(&byteIDs, "byte-ids", false, "choose identifiers that differ in their low eight bits, the only ones that some ports compare")
	return cmd
}

func veswSet(a *app) *cobra.Command {
	const what = "cannot change the virtual Ethernet switch"
	var pkey string
	var mtu, maxMACs, sl int
	var flood, user bool
	cmd := a.show(&cobra.Command{
		Use:               "set NAME",
		Short:             "change a virtual Ethernet switch while it runs",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeVESWs(a),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		var c api.VESWChange
		for name, set := range map[string]func(){
			"pkey": func() { c.PKey = &pkey }, "mtu": func() { c.MTU = &mtu }, "max-macs": func() { c.MaxMACs = &maxMACs },
			"sl": func() { c.SL = &sl }, "flood": func() { c.Flood = &flood }, "user-macs": func() { c.UserMACs = &user },
		} {
			if cmd.Flags().Changed(name) {
				set()
			}
		}
		if err := c.Validate(); err != nil {
			return usage("weft vesw set --help", "%s: %v", what, err)
		}
		if pkey != "" {
			if _, err := parsePKey(pkey); err != nil {
				return pkeyError(what, "weft vesw set "+args[0]+" --pkey %s", "weft vesw set --help", err)
			}
		}
		v, err := call(cmd.Context(), a, api.ChangeVESW, api.Named[api.VESWChange]{Name: args[0], Value: c})
		if err != nil {
			return err
		}
		return print(v, func(w *screen) { printVESW(w, v) })
	})
	f := cmd.Flags()
	f.StringVar(&pkey, "pkey", "", "P_Key of a partition of which its ports are members; empty: a partition of its own")
	f.IntVar(&mtu, "mtu", 0, "MTU of its ports, 68 to 10222; 0: 1500. ports lower theirs by themselves; their hosts raise it")
	f.IntVar(&maxMACs, "max-macs", 0, "limit of MACs per port, up to 2048; 0: 512")
	f.IntVar(&sl, "sl", 0, "service level of frames, 0 to 14")
	f.BoolVar(&flood, "flood", false, "flood frames to an unknown MAC, if there is no gateway")
	f.BoolVar(&user, "user-macs", true, "allow ports MACs of their own")
	return confirmable(a, cmd)
}

const veswPortHelp = `PORT is a device of the node, DEVICE@NODE with a node's host name or GUID, or
the GUID of a port. PORT:N is vport N of that port.`

func veswPort(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "port", Short: "add ports to a virtual Ethernet switch, or remove them",
		Args: cobra.ArbitraryArgs, RunE: group}
	cmd.AddCommand(veswPortAdd(a), veswPortDelete(a))
	return cmd
}

func veswPortAdd(a *app) *cobra.Command {
	const what = "cannot add the port to the virtual Ethernet switch"
	var gateway bool
	var tap string
	cmd := a.show(&cobra.Command{
		Use:   "add NAME PORT…",
		Short: "add ports of devices to a virtual Ethernet switch",
		Long: `Add ports of devices to a virtual Ethernet switch: an interface appears at the
node of each.

` + veswPortHelp + `
Without :N it is the lowest vport that is free.

A gateway receives frames to unknown MACs. For a port that is in the switch
already, --gateway makes it a gateway and --gateway=false undoes that. --tap
names the interface of a device of this node; at another node, weft vesw attach
does.`,
		Example: `  weft vesw port add lab weft_ib0 weft_ib0@otherhost
  weft vesw port add lab 0200:5e00:53ff:0003 --gateway`,
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: completeVESWs(a),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		var ports []api.VESWPortAdd
		for _, s := range args[1:] {
			p, err := veswPortOf(s)
			if err != nil {
				return usage("weft vesw port add --help", "%s: %v", what, err)
			}
			p.Gateway = gateway
			ports = append(ports, p)
		}
		if tap != "" && (len(ports) != 1 || strings.ContainsAny(ports[0].Port, "@:")) {
			return usage("weft vesw attach --help", "%s: --tap is for one device of this node", what)
		}
		was, err := call(cmd.Context(), a, api.GetVESW, args[0])
		if err != nil {
			return err
		}
		var v api.VESW
		for _, p := range ports {
			if v, err = call(cmd.Context(), a, api.AddVESWPort, api.Named[api.VESWPortAdd]{Name: args[0],
				Value: p}); err != nil {
				return err
			}
		}
		if tap != "" { // before the Ethernet Manager makes the port, which takes longer
			r := api.VESWRequest{Device: ports[0].Port, VESW: v.ID, Backend: api.BackendTAP, Name: tap}
			if _, err := call(cmd.Context(), a, api.AttachVESW, r); err != nil {
				return err
			}
		}
		v = settledVESW(cmd.Context(), a, &was, v)
		return print(v, func(w *screen) { printVESW(w, v) })
	})
	cmd.Flags().BoolVar(&gateway, "gateway", false, "send frames to unknown MACs to this port")
	cmd.Flags().StringVar(&tap, "tap", "", "name of the interface, for a device of this node; without it opaFvV")
	return cmd
}

func veswPortDelete(a *app) *cobra.Command {
	return confirmable(a, &cobra.Command{
		Use: "delete NAME PORT…", Aliases: deleteAliases,
		Short: "remove ports from a virtual Ethernet switch",
		Long:  "Remove ports from a virtual Ethernet switch, and their interfaces.\n\n" + veswPortHelp,
		Args:  cobra.MinimumNArgs(2), ValidArgsFunction: completeVESWs(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, s := range args[1:] {
				p, err := veswPortOf(s)
				if err != nil {
					return usage("weft vesw port delete --help",
						"cannot take the port out of the virtual Ethernet switch: %v", err)
				}
				port := api.VESWPortDelete{Name: args[0], Port: p.Port}
				if p.VPort != nil {
					vport := uint(*p.VPort)
					port.VPort = &vport
				}
				if err := do(cmd.Context(), a, api.DeleteVESWPort, port); err != nil {
					return err
				}
				fmt.Fprintf(a.env.Out, "removed %s from %s\n", printable(s), printable(args[0]))
			}
			return nil
		},
	})
}

// veswPortOf reads a port with the vport behind it. A GUID has colons of its own.
func veswPortOf(s string) (p api.VESWPortAdd, err error) {
	p.Port = s
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.Count(s, ":") == 3 {
		return p, nil
	}
	n, err := strconv.Atoi(s[i+1:])
	if err != nil || n < 0 {
		return p, fmt.Errorf("%q is not the number of a vport", s[i+1:])
	}
	p.Port, p.VPort = s[:i], &n
	return p, nil
}
