// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

// veswLocal are the commands about this node's ports of virtual Ethernet switches.
func (a *app) veswLocal() []*cobra.Command {
	return []*cobra.Command{a.veswInterfaces(), a.veswAttach(), a.veswNetstack(), a.veswDetach(), a.veswStats()}
}

func (a *app) veswInterfaces() *cobra.Command {
	return a.show(&cobra.Command{
		Use:     "interfaces",
		Aliases: []string{"if"},
		Short:   "list this node's ports of virtual Ethernet switches, and why one carries nothing",
		Args:    cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print printer) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			l, err := api.Get(ctx, c, api.ListVESWInterfaces)
			if err != nil {
				return err
			}
			return print(l, func() { printVESWInterfaces(a.env.Out, l) })
		})
	})
}

func printVESWInterfaces(w io.Writer, list []api.VESWInterface) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no ports: the Ethernet Manager makes them (weft vesw port add)")
		return
	}
	t := table{heads: []string{"INTERFACE", "DEVICE", ">VPORT", ">VESW", "ON", ">MTU", "MAC", "P_KEY", ">MACS", "STATE"}}
	for _, v := range list {
		name := v.Name
		if name == "" {
			name = "-"
		}
		t.row(name, v.Device, v.VPort, v.VESW, v.Backend, fmt.Sprintf("%d of %d", v.MTU, v.MaxMTU), v.MAC, v.PKey, v.Known, veswStateText(v))
	}
	t.write(w)
}

// veswStateText is the state with what it is for.
func veswStateText(v api.VESWInterface) string {
	switch {
	case v.Failed != "":
		return v.State + ": " + v.Failed
	case v.Reason != "":
		return v.State + ": " + v.Reason
	}
	return v.State
}

// completePorts completes names of interfaces.
func (a *app) completePorts(cmd *cobra.Command, args []string, _ string) (names []string, d cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
		l, err := api.Get(ctx, c, api.ListVESWInterfaces)
		for _, v := range l {
			if v.Name != "" {
				names = append(names, v.Name)
			}
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) veswAttach() *cobra.Command {
	r := api.VESWRequest{Backend: api.BackendTAP}
	outside := ""
	cmd := a.show(&cobra.Command{
		Use:   "attach DEVICE --vesw ID --name INTERFACE | --gateway INTERFACE",
		Short: "say what this node's port in a virtual Ethernet switch is for",
		Long: `Say what this node's port in a virtual Ethernet switch is for, by the identifier of that, before the port is there or
later; it is so too when the node starts again. Without this command the port is a TAP device opaFvV of this host by itself, of function F and port V there. --name names
the device; --gateway makes the port a gateway to the network at an interface of the host, which weft vesw port add --gateway tells the manager.

  weft vesw attach weft_ib0 --vesw 5 --name lab0
  weft vesw attach weft_ib0 --vesw 5 --gateway eth1`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeDevices,
	}, func(cmd *cobra.Command, args []string, print printer) error {
		r.Device = args[0]
		if outside != "" {
			if r.Name != "" {
				return usage("weft vesw attach --help", "cannot attach the port: --name is of a device that is made, --gateway of one that is there")
			}
			r.Backend, r.Name = api.BackendGateway, outside
		}
		if err := r.Validate(); err != nil {
			return usage("weft vesw attach --help", "cannot attach the port: %v", err)
		}
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			l, err := api.Call(ctx, c, api.AttachVESW, r)
			if err != nil {
				return err
			}
			return print(l, func() {
				if len(l) == 0 {
					fmt.Fprintf(a.env.Out, "the Ethernet Manager has made no port of %s in VESW %d yet: weft vesw interfaces\n", printable(r.Device), r.VESW)
					return
				}
				printVESWInterfaces(a.env.Out, l)
				if !l[0].Kept {
					fmt.Fprintf(a.env.Out, "note: this does not survive the node's end: %s\n", printable(l[0].NotKept))
				}
			})
		})
	})
	cmd.Flags().IntVar(&r.VESW, "vesw", 0, "identifier of the virtual Ethernet switch (weft vesw list)")
	cmd.Flags().StringVar(&r.Name, "name", "", "name of the interface")
	cmd.Flags().StringVar(&outside, "gateway", "", "interface of the host with the network that the port is a gateway to")
	return cmd
}

func (a *app) veswNetstack() *cobra.Command {
	r := api.VESWRequest{Backend: api.BackendNetstack}
	var local, remote []string
	cmd := &cobra.Command{
		Use:   "netstack DEVICE --vesw ID --addr ADDRESS/LENGTH",
		Short: "a port without privileges: an IP stack in the node, port forwards and a SOCKS5 proxy",
		Long: `A port of a virtual Ethernet switch without privileges: an IP stack in the node instead of a network interface. Programs of
this host reach the switch by ports that are forwarded, or by the SOCKS5 proxy; hosts on the switch reach this host by ports
forwarded the other way. It ends with the command, and is there again when the node has ended and started anew.

  weft vesw netstack weft_ib0 --vesw 5 --addr 10.5.0.3/24 --socks 127.0.0.1:1080
  weft vesw netstack weft_ib0 --vesw 5 --addr 10.5.0.3/24 -L tcp:127.0.0.1:8080=10.5.0.1:80
  weft vesw netstack weft_ib0 --vesw 5 --addr 10.5.0.3/24 -R tcp:10.5.0.3:2222=127.0.0.1:22 -R udp:10.5.0.3:53=127.0.0.1:53`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeDevices,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Device = args[0]
			var errs []error
			for i, list := range [][]string{local, remote} {
				for _, s := range list {
					f, err := parseForward(s, i == 1)
					errs = append(errs, err)
					r.Forwards = append(r.Forwards, f)
				}
			}
			if err := errors.Join(append(errs, r.Validate())...); err != nil {
				return usage("weft vesw netstack --help", "cannot start the IP stack: %v", err)
			}
			return a.veswStack(cmd.Context(), r)
		},
	}
	f := cmd.Flags()
	f.IntVar(&r.VESW, "vesw", 0, "identifier of the virtual Ethernet switch (weft vesw list)")
	f.StringSliceVar(&r.Addrs, "addr", nil, "IP address of the port, with prefix length (may be repeated)")
	f.StringSliceVar(&r.Routes, "route", nil, "route by the port: PREFIX=GATEWAY (may be repeated)")
	f.StringArrayVarP(&local, "local", "L", nil, "tcp:LISTEN=TO or udp:LISTEN=TO: from an address of this host to one of the switch")
	f.StringArrayVarP(&remote, "remote", "R", nil, "tcp:LISTEN=TO or udp:LISTEN=TO: from an address of the port to one of this host")
	f.StringVar(&r.SOCKS, "socks", "", "address of this host to serve SOCKS5 at")
	return cmd
}

// veswStack keeps a port's IP stack as long as the command runs, also where the node ends and starts again.
func (a *app) veswStack(ctx context.Context, r api.VESWRequest) error {
	ctx, stop := signalContext(ctx)
	defer stop()
	return a.query(ctx, func(ctx context.Context, c *api.Client) error {
		var life time.Time // of the node: when it started
		defer func() {
			if life.IsZero() {
				return
			}
			ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
			defer stop()
			api.Do(ctx, c, api.DetachVESW, r.Key())
		}()
		said := ""
		for {
			now, err := veswStackState(ctx, c, &r, &life)
			if ctx.Err() != nil {
				return nil
			}
			var e *api.Error
			if !life.IsZero() && errors.As(err, &e) && (e.Code == api.CodeNoNode || e.Code == api.CodeNotReady || e.Code == api.CodeNoAnswer) {
				now = "waiting for the node"
			} else if err != nil {
				return err
			}
			if now != said {
				said = now
				fmt.Fprintf(a.env.Out, "%s: %s: %s\n", r.Key(), strings.Join(r.Addrs, ", "), printable(now))
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(followInterval):
			}
		}
	})
}

// veswStackState asks for a stack where a node does not have it yet, and tells of its port.
func veswStackState(ctx context.Context, c *api.Client, r *api.VESWRequest, life *time.Time) (string, error) {
	st, err := api.Get(ctx, c, api.GetStatus)
	if err != nil {
		return "", err
	}
	if !st.StartedAt.Equal(*life) {
		if _, err := api.Call(ctx, c, api.AttachVESW, *r); err != nil {
			return "", err
		}
		*life = st.StartedAt
	}
	l, err := api.Get(ctx, c, api.ListVESWInterfaces)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(l, func(v api.VESWInterface) bool { return v.Device == r.Device && v.VESW == r.VESW })
	if i < 0 {
		return "the Ethernet Manager has made no port of it yet", nil
	}
	if now := veswStateText(l[i]); now != api.StateForwarding {
		return now, nil
	}
	return "ready", nil
}

func (a *app) veswDetach() *cobra.Command {
	return &cobra.Command{
		Use:   "detach INTERFACE|DEVICE:ID…",
		Short: "undo weft vesw attach",
		Args:  cobra.MinimumNArgs(1), ValidArgsFunction: a.completePorts,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				for _, name := range args {
					if err := api.Do(ctx, c, api.DetachVESW, name); err != nil {
						return err
					}
					fmt.Fprintf(a.env.Out, "detached %s\n", printable(name))
				}
				return nil
			})
		},
	}
}

func (a *app) veswStats() *cobra.Command {
	var all bool
	cmd := a.show(&cobra.Command{
		Use:   "stats [INTERFACE]",
		Short: "show the counters of this node's ports",
		Args:  cobra.MaximumNArgs(1), ValidArgsFunction: a.completePorts,
	}, func(cmd *cobra.Command, args []string, print printer) error {
		name := ""
		if len(args) > 0 {
			name = args[0]
		}
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			l, err := api.Call(ctx, c, api.ListVESWCounters, name)
			if err != nil {
				return err
			}
			return print(l, func() {
				t := table{heads: []string{"INTERFACE", "COUNTER", ">VALUE"}}
				for _, v := range l {
					if v.Value != 0 || all {
						t.row(v.Instance, v.Name, v.Value)
					}
				}
				if len(t.rows) == 0 {
					fmt.Fprintln(a.env.Out, "every counter is zero")
					return
				}
				t.write(a.env.Out)
			})
		})
	})
	cmd.Flags().BoolVar(&all, "all", false, "also those that are zero")
	return cmd
}
