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

// How long new ports of a switch are given until they are what they will be, and how often that is looked at.
const (
	veswPatience = 2 * time.Second
	veswLook     = 50 * time.Millisecond
	veswDown     = 6 // looks in a row, after which a port that is down remains so
)

// settledVESW is a switch once the ports that were added to it forward, or when they have had their time. What is told of
// them before is only that they are new.
func settledVESW(ctx context.Context, c *api.Client, was *api.VESW, v api.VESW) api.VESW {
	old := map[string]bool{}
	key := func(p *api.VESWPort) string { return fmt.Sprintf("%s:%d", p.GUID, p.VPort) }
	for i := range was.Ports {
		old[key(&was.Ports[i])] = true
	}
	down := 0
	for end := time.Now().Add(veswPatience); v.State != api.VESWUnknown && time.Now().Before(end); {
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
		case <-time.After(veswLook):
		}
		now, err := api.Call(ctx, c, api.GetVESW, v.Name)
		if err != nil {
			break
		}
		v = now
	}
	return v
}

func (a *app) vesw() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vesw",
		Short: "virtual Ethernet switches over the fabric",
		Long: `Virtual Ethernet switches over the fabric (Ethernet over Omni-Path): hosts on one are on one Ethernet, and see nothing of
another. The Ethernet Manager, which is part of the subnet manager, makes a port of a device a port of a switch.

  weft vesw create lab --mtu 9000
  weft vesw port add lab weft_ib0
  weft vesw port add lab weft_ib0@otherhost
  weft vesw show lab
  weft vesw interfaces                            this node's ports, and why one carries nothing`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	list := look(a, &cobra.Command{Use: "list", Short: "list virtual Ethernet switches"},
		func(ctx context.Context, c *api.Client) ([]api.VESW, error) { return api.Get(ctx, c, api.ListVESWs) }, printVESWs)
	cmd.AddCommand(list, a.veswShow(), a.veswCreate(), a.veswSet(), a.veswDelete(), a.veswPort())
	cmd.AddCommand(a.veswLocal()...)
	return cmd
}

// printVESWs prints a line for each.
func printVESWs(w io.Writer, list []api.VESW) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no virtual Ethernet switches: weft vesw create NAME makes one")
		return
	}
	t := table{heads: []string{"NAME", ">ID", "P_KEY", "MLID", ">MTU", ">PORTS", ">FORWARDING", ">MACS", "STATE"}}
	for _, v := range list {
		forwarding := 0
		for _, p := range v.Ports {
			if p.State == "forwarding" {
				forwarding++
			}
		}
		mtu := v.MTU
		if v.ActiveMTU != 0 {
			mtu = v.ActiveMTU
		}
		if v.State == api.VESWUnknown {
			t.row(v.Name, v.ID, v.PKey, "", mtu, len(v.Ports), "", "", v.State)
			continue
		}
		t.row(v.Name, v.ID, v.PKey, v.MLID, mtu, len(v.Ports), forwarding, v.MACs, v.State)
	}
	t.write(w)
	for _, v := range list {
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
	who := ""
	if p.Port != "" {
		who = p.Port + ": "
		for _, x := range v.Ports {
			if x.GUID == p.Port && x.Name != "" {
				who = x.Name + ": "
			}
		}
	}
	return printable(fmt.Sprintf("%s%s. fix: %s", who, p.What, p.Fix))
}

func (a *app) veswShow() *cobra.Command {
	return a.show(&cobra.Command{Use: "show NAME", Short: "show a virtual Ethernet switch with its ports and what is wrong", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeVESWs},
		func(cmd *cobra.Command, args []string, print printer) error {
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				v, err := api.Call(ctx, c, api.GetVESW, args[0])
				if err != nil {
					return err
				}
				return print(v, func() { printVESW(a.env.Out, v) })
			})
		})
}

// printVESW prints all of one.
func printVESW(w io.Writer, v api.VESW) {
	fmt.Fprintf(w, "%s: id %d, %s\n", printable(v.Name), v.ID, v.State)
	partition := "given"
	if v.OwnPartition {
		partition = "its own"
	}
	fmt.Fprintf(w, "  partition  %s, %s\n", v.PKey, partition)
	mtu := strconv.Itoa(v.MTU)
	if v.ActiveMTU != 0 && v.ActiveMTU != v.MTU {
		mtu = fmt.Sprintf("%d, wanted %d", v.ActiveMTU, v.MTU)
	}
	fmt.Fprintf(w, "  mtu        %s\n", mtu)
	if v.MLID != "" {
		fmt.Fprintf(w, "  group      %s\n", v.MLID)
	}
	gateways := 0
	for _, p := range v.Ports {
		if p.Gateway {
			gateways++
		}
	}
	unknown := "to a MAC that nobody has: dropped"
	switch {
	case gateways > 0:
		unknown = "to a MAC that nobody has: to " + plural(gateways, "gateway")
	case v.Flood:
		unknown = "to a MAC that nobody has: flooded"
	}
	fmt.Fprintf(w, "  frames     %s; service level %s\n", unknown, veswLevels(v))
	macs := fmt.Sprintf("%d in its tables; of a port %d at most", v.MACs, v.MaxMACs)
	if !v.UserMACs {
		macs = "none but those that ports are given"
	}
	fmt.Fprintf(w, "  macs       %s\n", macs)
	if len(v.Ports) > 0 {
		fmt.Fprintln(w)
		t := table{heads: []string{">NO", "PORT", ">VPORT", ">LID", "BASE MAC", ">MACS", "AGENT", "STATE", "OF"}}
		for _, p := range v.Ports {
			state := p.State
			switch {
			case p.Default:
				state += ", default"
			case p.Gateway:
				state += ", gateway"
			}
			t.row(p.Number, p.GUID, p.VPort, lidText(uint16(p.LID)), p.BaseMAC, len(p.MACs), p.Agent, strings.TrimPrefix(state, ", "), p.Name)
		}
		t.write(w)
	}
	for i, p := range v.Problems {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, veswProblem(v, p))
	}
	if v.State == api.VESWUnknown {
		fmt.Fprintln(w, "\nthe subnet's master knows what became of it: weft sm tells who that is")
	}
}

// veswLevels tells the service levels of frames.
func veswLevels(v api.VESW) string {
	if len(v.PCP) == 0 {
		return strconv.Itoa(v.SL)
	}
	return fmt.Sprintf("%d, of tagged frames by priority %s", v.SL, strings.Trim(fmt.Sprint(v.PCP), "[]"))
}

// completeVESWs completes names of virtual Ethernet switches.
func (a *app) completeVESWs(cmd *cobra.Command, args []string, _ string) (names []string, d cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
		l, err := api.Get(ctx, c, api.ListVESWs)
		for _, v := range l {
			names = append(names, v.Name)
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) veswCreate() *cobra.Command {
	var c api.VESWCreate
	var pcp []int
	var fabric int
	var byteIDs bool
	cmd := a.show(&cobra.Command{
		Use:   "create NAME",
		Short: "make a virtual Ethernet switch",
		Long: `Make a virtual Ethernet switch, without ports. It gets an identifier and a partition of its own, with its ports as
members, unless --id and --pkey give others: who shares a partition is kept apart by the identifier alone, which a hostile node can forge.

  weft vesw create lab
  weft vesw create storage --mtu 9000 --pkey 0x8005`,
		Args: cobra.ExactArgs(1),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		c.Name, c.PCP = args[0], pcp
		if cmd.Flags().Changed("fabric-id") {
			c.FabricID = &fabric
		}
		if cmd.Flags().Changed("byte-ids") {
			c.ByteIDs = &byteIDs
		}
		return a.query(cmd.Context(), func(ctx context.Context, cl *api.Client) error {
			v, err := api.Call(ctx, cl, api.CreateVESW, c)
			if err != nil {
				return err
			}
			return print(v, func() {
				fmt.Fprintf(a.env.Out, "created %s: id %d, partition %s. add ports with: weft vesw port add %s DEVICE\n", printable(v.Name), v.ID, v.PKey, printable(v.Name))
			})
		})
	})
	f := cmd.Flags()
	f.IntVar(&c.ID, "id", 0, "identifier, 1 to 4095; 0: the next")
	f.StringVar(&c.PKey, "pkey", "", "P_Key of a partition that its ports are members of; without it, a partition of its own")
	f.IntVar(&c.MTU, "mtu", 0, "MTU of its ports, 68 to 10222; 0: 1500")
	f.BoolVar(&c.Flood, "flood", false, "send frames to a MAC that nobody has to all ports, where there is no gateway")
	f.BoolVar(&c.NoUserMACs, "no-user-macs", false, "allow ports no MAC but the one that they are given")
	f.IntVar(&c.MaxMACs, "max-macs", 0, "MACs that a port may have, up to 2048; 0: 512")
	f.IntVar(&c.SL, "sl", 0, "service level of frames, 0 to 14")
	f.IntSliceVar(&pcp, "pcp", nil, "service levels of tagged frames, by priority 0 to 7: eight numbers with commas between them")
	f.IntVar(&fabric, "fabric-id", 0, "number of the fabric in MACs, 0 to 1023, of all virtual Ethernet switches")
	f.BoolVar(&byteIDs, "byte-ids", false, "from now on identifiers differ in their low eight bits: ports of other makes tell no others apart")
	return cmd
}

func (a *app) veswSet() *cobra.Command {
	var pkey string
	var mtu, max, sl int
	var flood, user bool
	cmd := a.show(&cobra.Command{
		Use:               "set NAME",
		Short:             "change a virtual Ethernet switch while it runs",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeVESWs,
	}, func(cmd *cobra.Command, args []string, print printer) error {
		var c api.VESWChange
		given := cmd.Flags().Changed
		if given("pkey") {
			c.PKey = &pkey
		}
		if given("mtu") {
			c.MTU = &mtu
		}
		if given("max-macs") {
			c.MaxMACs = &max
		}
		if given("sl") {
			c.SL = &sl
		}
		if given("flood") {
			c.Flood = &flood
		}
		if given("user-macs") {
			c.UserMACs = &user
		}
		if err := c.Validate(); err != nil {
			return usage("weft vesw set --help", "cannot change the virtual Ethernet switch: %v", err)
		}
		return a.query(cmd.Context(), func(ctx context.Context, cl *api.Client) error {
			v, err := api.Call(ctx, cl, api.ChangeVESW, api.Named[api.VESWChange]{Name: args[0], Value: c})
			if err != nil {
				return err
			}
			return print(v, func() { printVESW(a.env.Out, v) })
		})
	})
	f := cmd.Flags()
	f.StringVar(&pkey, "pkey", "", "P_Key of a partition that its ports are members of; empty: a partition of its own")
	f.IntVar(&mtu, "mtu", 0, "MTU of its ports, 68 to 10222; 0: 1500. ports follow it down by themselves, and up where their hosts raise it")
	f.IntVar(&max, "max-macs", 0, "MACs that a port may have, up to 2048; 0: 512")
	f.IntVar(&sl, "sl", 0, "service level of frames, 0 to 14")
	f.BoolVar(&flood, "flood", false, "send frames to a MAC that nobody has to all ports, where there is no gateway")
	f.BoolVar(&user, "user-macs", true, "allow ports MACs of their own")
	return cmd
}

func (a *app) veswDelete() *cobra.Command {
	return &cobra.Command{Use: "delete NAME", Short: "delete a virtual Ethernet switch with its ports", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeVESWs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				if err := api.Do(ctx, c, api.DeleteVESW, args[0]); err != nil {
					return err
				}
				fmt.Fprintf(a.env.Out, "deleted virtual Ethernet switch %s\n", printable(args[0]))
				return nil
			})
		}}
}

const veswPortHelp = `PORT is a device of the node, DEVICE@NODE with a node's host name or GUID, or a port's GUID; with :N behind it, it is vport N there.`

func (a *app) veswPort() *cobra.Command {
	cmd := &cobra.Command{Use: "port", Short: "add ports to a virtual Ethernet switch, or take them out", Args: cobra.ArbitraryArgs, RunE: group}
	var gateway bool
	var tap string
	add := a.show(&cobra.Command{
		Use:   "add NAME PORT…",
		Short: "make ports of devices ports of a virtual Ethernet switch",
		Long: `Make ports of devices ports of a virtual Ethernet switch: an interface appears at the node of each.

` + veswPortHelp + `
Without it, the lowest is taken that no virtual Ethernet switch has. A gateway gets frames to MACs that nobody has; a port that is in the
switch already becomes one, or with --gateway=false none. --tap names the interface of a device of this node: another node's weft vesw attach
does that there.

  weft vesw port add lab weft_ib0 weft_ib0@otherhost
  weft vesw port add lab 0200:5e00:53ff:0003 --gateway`,
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.completeVESWs,
	}, func(cmd *cobra.Command, args []string, print printer) error {
		var list []api.VESWPortAdd
		for _, s := range args[1:] {
			p, err := veswPortOf(s)
			if err != nil {
				return usage("weft vesw port add --help", "cannot add the port to the virtual Ethernet switch: %v", err)
			}
			p.Gateway = gateway
			list = append(list, p)
		}
		if tap != "" && (len(list) != 1 || strings.ContainsAny(list[0].Port, "@:")) {
			return usage("weft vesw attach --help", "cannot add the port to the virtual Ethernet switch: --tap is for one device of this node")
		}
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			was, err := api.Call(ctx, c, api.GetVESW, args[0])
			if err != nil {
				return err
			}
			var v api.VESW
			for _, p := range list {
				if v, err = api.Call(ctx, c, api.AddVESWPort, api.Named[api.VESWPortAdd]{Name: args[0], Value: p}); err != nil {
					return err
				}
			}
			if tap != "" { // it takes longer to make the port
				if _, err := api.Call(ctx, c, api.AttachVESW, api.VESWRequest{Device: list[0].Port, VESW: v.ID, Backend: api.BackendTAP, Name: tap}); err != nil {
					return err
				}
			}
			v = settledVESW(ctx, c, &was, v)
			return print(v, func() { printVESW(a.env.Out, v) })
		})
	})
	add.Flags().BoolVar(&gateway, "gateway", false, "frames to MACs that nobody has go there")
	add.Flags().StringVar(&tap, "tap", "", "name of the interface, of a device of this node; without it opaFvV")
	del := &cobra.Command{
		Use: "del NAME PORT…", Short: "take ports out of a virtual Ethernet switch", Long: "Take ports out of a virtual Ethernet switch: their interfaces go.\n\n" + veswPortHelp,
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.completeVESWs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				for _, s := range args[1:] {
					p, err := veswPortOf(s)
					if err != nil {
						return usage("weft vesw port del --help", "cannot take the port out of the virtual Ethernet switch: %v", err)
					}
					del := api.VESWPortDelete{Name: args[0], Port: p.Port}
					if p.VPort != nil {
						vport := uint(*p.VPort)
						del.VPort = &vport
					}
					if err := api.Do(ctx, c, api.DeleteVESWPort, del); err != nil {
						return err
					}
					fmt.Fprintf(a.env.Out, "took %s out of %s\n", printable(s), printable(args[0]))
				}
				return nil
			})
		}}
	cmd.AddCommand(add, del)
	return cmd
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
		return p, fmt.Errorf("%q is no number of a vport", s[i+1:])
	}
	p.Port, p.VPort = s[:i], &n
	return p, nil
}
