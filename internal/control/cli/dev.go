// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

// devices is "weft dev" with its subcommands.
func (a *app) devices() *cobra.Command {
	cmd := a.devShow()
	cmd.AddCommand(a.devDetails(), a.devList(), a.devAdd(), a.devSet(), a.devDel())
	return cmd
}

func (a *app) devList() *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "list",
		Short: "list devices with their quotas and shares",
		Args:  cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			list, err := api.Get(ctx, c, api.ListFunctions)
			if err != nil {
				return err
			}
			return print(list, func() { printFunctions(a.env.Out, list) })
		})
	})
}

func printFunctions(w io.Writer, list []api.Function) {
	t := table{heads: []string{"DEVICE", ">NUMBER", "KIND", "LINK", "SEGMENT", "STATE", ">LID", ">SESSIONS", ">OF", ">WEIGHT", "QOS", ">QP", ">MR", ">MEMORY", "KEPT"}}
	for _, f := range list {
		kind, state, kept := "physical", f.PortState, "no"
		if f.Virtual {
			kind = "virtual"
		}
		switch {
		case !f.Enabled:
			state = "disabled"
		case !f.AdapterEnabled:
			state = "adapter disabled"
		}
		if f.Kept {
			kept = "yes"
		}
		t.row(f.Name, f.Number, kind, f.LinkLayer, dash(f.Segment), state, f.LID, f.Sessions, f.Quotas.Sessions, f.Weight, qosText(f.QoS), f.Quotas.QPs, f.Quotas.MRs,
			f.Quotas.MemoryBytes, kept)
	}
	t.write(w)
}

// dash stands for what is not there.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// printNotKept says why the node will not know of a change when it starts again.
func printNotKept(w io.Writer, f api.Function) {
	if !f.Kept {
		fmt.Fprintf(w, "note: this does not survive the node's end: %s\n", printable(f.NotKept))
	}
}

// qosText prints the weights of levels, the common one once.
func qosText(qos []int) string {
	count := map[int]int{}
	most := 0
	for _, w := range qos {
		if count[w]++; count[w] > count[most] {
			most = w
		}
	}
	parts := []string{strconv.Itoa(most)}
	for level, w := range qos {
		if w != most {
			parts = append(parts, fmt.Sprintf("%d:%d", level, w))
		}
	}
	return strings.Join(parts, " ")
}

// changeFlags are the flags that state a change of a device.
type changeFlags struct {
	enabled bool
	adapter string // enabled or disabled; empty: as it is
	c       api.FunctionChange
	qos     map[string]int
}

func (f *changeFlags) add(cmd *cobra.Command) {
	l := cmd.Flags()
	l.BoolVar(&f.enabled, "enabled", true, "let its port come up; false takes it down, queue pairs stay")
	l.IntVar(&f.c.Weight, "weight", 0, fmt.Sprintf("its share of what the node sends, 1 to %d", api.MaxWeight))
	l.StringToIntVar(&f.qos, "qos", nil, "shares of its QoS levels (service levels), such as 0=10,1=30")
	q := &f.c.Quotas
	l.IntVar(&q.Sessions, "sessions", 0, "most sessions")
	l.IntVar(&q.PDs, "pd", 0, "most protection domains of a session")
	l.IntVar(&q.MRs, "mr", 0, "most memory regions of a session")
	l.IntVar(&q.CQs, "cq", 0, "most completion queues of a session")
	l.IntVar(&q.QPs, "qp", 0, "most queue pairs of a session")
	l.IntVar(&q.SRQs, "srq", 0, "most shared receive queues of a session")
	l.IntVar(&q.AHs, "ah", 0, "most address handles of a session")
	l.Int64Var(&q.MemoryBytes, "memory", 0, "most bytes of the node that the queues of a session take")
}

// change returns what the flags ask for.
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

func (a *app) devAdd() *cobra.Command {
	var flags changeFlags
	var n api.NewFunction
	cmd := a.show(&cobra.Command{
		Use:   "add NAME",
		Short: "add a virtual function: a device with an InfiniBand port, or an Ethernet port in a virtual Ethernet switch",
		Long: `Add a virtual function: a device with an InfiniBand port, or with an Ethernet port in a virtual Ethernet switch.

With --segment vesw:NAME programs get a device with an Ethernet port (RoCEv2) whose packets are frames in that switch. Its
addresses are those of --addr, and an IPv6 link-local one made of the port's MAC; the node answers ARP, Neighbor Discovery and ping for
them and joins multicast groups. No network interface is made and no privilege is needed.

  weft dev add vf0
  weft vesw create blue
  weft dev add blue0 --segment vesw:blue --addr 10.9.0.7/24 --addr fd09::7/64
  weft dev add blue0 --segment vesw:blue --addr 10.9.0.7/24 --route 10.0.0.0/8=10.9.0.1
  weft dev show blue0                     its GIDs, and the neighbours it sends to

Where another node manages switches, --segment vesw by itself, and there weft vesw port add with the GUID of the port.`,
		Args: cobra.ExactArgs(1),
	}, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		change, err := flags.change(cmd)
		n.Name, n.FunctionChange = args[0], change
		if err == nil {
			err = n.Validate()
		}
		if err != nil {
			return usage("weft dev add --help", "cannot add the device: %v", err)
		}
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			f, err := api.Call(ctx, c, api.AddFunction, n)
			if err != nil {
				return err
			}
			return print(f, func() {
				fmt.Fprintf(a.env.Out, "device %s: function %d, node GUID %s\n", f.Name, f.Number, f.NodeGUID)
				if api.InVESW(f.Segment) {
					fmt.Fprintf(a.env.Out, "port %s: %s, port GUID %s\n", f.Segment, printable(ethernetText(f.VESW)), f.PortGUID)
				}
				printNotKept(a.env.Out, f)
			})
		})
	})
	flags.add(cmd)
	cmd.Flags().StringVar(&n.Segment, "segment", "", "vesw:NAME: an Ethernet port in that virtual Ethernet switch, by name or number; vesw: in the one that weft vesw port add names")
	cmd.Flags().StringSliceVar(&n.Addrs, "addr", nil, "IP address of the Ethernet port, with prefix length (may be repeated)")
	cmd.Flags().StringSliceVar(&n.Routes, "route", nil, "route by the Ethernet port: PREFIX=GATEWAY (may be repeated)")
	return cmd
}

// ethernetText says whether an Ethernet port in a switch carries packets.
func ethernetText(v api.EthernetPort) string {
	if !v.Carrier {
		return "no carrier: " + v.CarrierReason
	}
	return fmt.Sprintf("VESW %d, MAC %s, carrier", v.Number, v.MAC)
}

func (a *app) devSet() *cobra.Command {
	var flags changeFlags
	cmd := a.show(&cobra.Command{
		Use:   "set NAME",
		Short: "change quotas and shares of a device, enable or disable it or the adapter",
		Long: `Change quotas and shares of a device, enable or disable it, while it is in use.

A device of the physical function enables and disables the whole adapter: the ports of all devices go down, programs
get IBV_EVENT_PORT_ERR, packets are dropped and counted (drop_port), and the subnet manager sees the ports leave. Queue
pairs stay, and ports have the LIDs they had when the adapter is enabled again.

  weft dev set weft_ib0 --weight 300 --qos 0=10,1=40
  weft dev set weft0 --enabled=false
  weft dev set weft_ib0 --adapter=disabled`,
		Args: cobra.ExactArgs(1),
	}, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		change, err := flags.change(cmd)
		if err == nil {
			err = change.Validate()
		}
		if err != nil {
			return usage("weft dev set --help", "cannot change the device: %v", err)
		}
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			f, err := api.Call(ctx, c, api.ChangeFunction, api.Named[api.FunctionChange]{Name: args[0], Value: change})
			if err != nil {
				return err
			}
			return print(f, func() {
				printFunctions(a.env.Out, []api.Function{f})
				printNotKept(a.env.Out, f)
			})
		})
	})
	flags.add(cmd)
	cmd.Flags().StringVar(&flags.adapter, "adapter", "", "enabled or disabled: the whole adapter, through a device of the physical function")
	return cmd
}

func (a *app) devDel() *cobra.Command {
	return &cobra.Command{
		Use:   "del NAME…",
		Short: "delete virtual functions; their sessions end",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				for _, name := range args {
					if err := api.Do(ctx, c, api.DeleteFunction, name); err != nil {
						return err
					}
				}
				fmt.Fprintf(a.env.Out, "deleted %s\n", plural(len(args), "device"))
				return nil
			})
		},
	}
}
