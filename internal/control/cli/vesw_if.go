// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

// veswLocal are the commands about this node's ports of virtual Ethernet switches.
func veswLocal(a *app) []*cobra.Command {
	interfaces := list(a, &cobra.Command{
		Use:     "interfaces",
		Aliases: []string{"if"},
		Short:   "list this node's ports of virtual Ethernet switches",
	}, api.ListVESWInterfaces, nil, "no ports: the Ethernet Manager makes them (weft vesw port add)",
		veswInterfaceColumns)
	return []*cobra.Command{interfaces, veswAttach(a), veswNetstack(a), veswDetach(a), veswStats(a)}
}

var veswInterfaceColumns = []column[api.VESWInterface]{
	{head: "INTERFACE", cell: func(v api.VESWInterface) any { return v.Name }},
	{head: "DEVICE", cell: func(v api.VESWInterface) any { return v.Device }},
	{head: ">VPORT", cell: func(v api.VESWInterface) any { return v.VPort }, wide: 4},
	{head: ">VESW", cell: func(v api.VESWInterface) any { return v.VESW }},
	{head: "ON", cell: func(v api.VESWInterface) any { return v.Backend }, wide: 2},
	{head: ">MTU", cell: func(v api.VESWInterface) any { return fmt.Sprintf("%d of %d", v.MTU, v.MaxMTU) }, wide: 1},
	{head: "MAC", cell: func(v api.VESWInterface) any { return v.MAC }},
	{head: "P_KEY", cell: func(v api.VESWInterface) any { return v.PKey }, wide: 3},
	{head: ">MACS", cell: func(v api.VESWInterface) any { return v.Known }, wide: 5},
	{head: "STATE", cell: func(v api.VESWInterface) any { return veswStateText(v) }},
}

// completePorts completes names of interfaces.
func completePorts(a *app) completion {
	return names(a, api.ListVESWInterfaces, func(v api.VESWInterface) string { return v.Name })
}

func veswAttach(a *app) *cobra.Command {
	const what, help = "cannot attach the port", "weft vesw attach --help"
	r := api.VESWRequest{Backend: api.BackendTAP}
	outside := ""
	cmd := a.show(&cobra.Command{
		Use:   "attach DEVICE --vesw ID --name INTERFACE | --gateway INTERFACE",
		Short: "choose the interface of this node's port in a virtual Ethernet switch",
		Long: `Choose the interface of this node's port in a virtual Ethernet switch, before or
after the Ethernet Manager makes the port. The node keeps the choice when it
restarts.

Without this command the interface is a TAP device opaFvV of this host, for
function F and port V. --name names it. --gateway makes the port a gateway to
the network at an interface of the host; weft vesw port add --gateway reports
that to the manager.`,
		Example: `  weft vesw attach weft_ib0 --vesw 5 --name lab0
  weft vesw attach weft_ib0 --vesw 5 --gateway eth1`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: completeDevices(a),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		r.Device = args[0]
		if outside != "" {
			if r.Name != "" {
				return usage(help, "%s: --name is for an interface that the node makes, --gateway for one that exists", what)
			}
			r.Backend, r.Name = api.BackendGateway, outside
		}
		if err := r.Validate(); err != nil {
			return usage(help, "%s: %v", what, err)
		}
		l, err := call(cmd.Context(), a, api.AttachVESW, r)
		if err != nil {
			return err
		}
		return print(l, func(w *screen) {
			if len(l) == 0 {
				fmt.Fprintf(w, "the Ethernet Manager has made no port of %s in VESW %d yet: weft vesw interfaces\n",
					printable(r.Device), r.VESW)
				return
			}
			writeTable(w, "", veswInterfaceColumns, l)
			notKept(w, l[0].Kept, l[0].NotKept)
		})
	})
	cmd.Flags().IntVar(&r.VESW, "vesw", 0, "identifier of the virtual Ethernet switch (weft vesw list)")
	cmd.Flags().StringVar(&r.Name, "name", "", "name of the interface")
	cmd.Flags().StringVar(&outside, "gateway", "", "interface of the host: the port is a gateway to its network")
	return cmd
}

func veswNetstack(a *app) *cobra.Command {
	r := api.VESWRequest{Backend: api.BackendNetstack}
	var forwards forwardFlags
	cmd := &cobra.Command{
		Use:   "netstack DEVICE --vesw ID --addr ADDRESS/LENGTH",
		Short: "run an IP stack in the node, with port forwards and a SOCKS5 proxy",
		Long: `Run an IP stack in the node at a port of a virtual Ethernet switch, in place of
a network interface. This needs no privilege. Programs of this host reach the
switch by forwarded ports, or by the SOCKS5 proxy; hosts on the switch reach
this host by ports forwarded in the other direction. The IP stack ends with this
command. When the node restarts, the command adds it again.`,
		Example: `  weft vesw netstack weft_ib0 --vesw 5 --addr 10.5.0.3/24 --socks 127.0.0.1:1080
  weft vesw netstack weft_ib0 --vesw 5 --addr 10.5.0.3/24 -L tcp:127.0.0.1:8080=10.5.0.1:80
  weft vesw netstack weft_ib0 --vesw 5 --addr 10.5.0.3/24 -R tcp:10.5.0.3:2222=127.0.0.1:22`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: completeDevices(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := forwards.parse()
			r.Device, r.Forwards = args[0], list
			if err := errors.Join(err, r.Validate()); err != nil {
				return usage("weft vesw netstack --help", "cannot start the IP stack: %v", err)
			}
			return a.veswStack(cmd.Context(), r)
		},
	}
	f := cmd.Flags()
	f.IntVar(&r.VESW, "vesw", 0, "identifier of the virtual Ethernet switch (weft vesw list)")
	f.StringSliceVar(&r.Addrs, "addr", nil, "IP address of the port, with prefix length (may be repeated)")
	f.StringSliceVar(&r.Routes, "route", nil, "route through the port: PREFIX=GATEWAY (may be repeated)")
	forwards.add(cmd, "the switch", "the port", &r.SOCKS)
	return cmd
}

// veswStack keeps the IP stack of a port as long as the command runs, also when the node restarts.
func (a *app) veswStack(ctx context.Context, r api.VESWRequest) error {
	ctx, stop := signalContext(ctx)
	defer stop()
	var life time.Time // when the node started
	defer func() {
		if life.IsZero() {
			return
		}
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer stop()
		do(ctx, a, api.DetachVESW, r.Key())
	}()
	printed := ""
	for {
		now, err := a.veswStackState(ctx, &r, &life)
		if ctx.Err() != nil {
			return nil
		}
		var e *api.Error
		if !life.IsZero() && errors.As(err, &e) && (e.Code == api.CodeNoNode || e.Code == api.CodeNotReady ||
			e.Code == api.CodeNoAnswer) {
			now = "waiting for the node"
		} else if err != nil {
			return err
		}
		if now != printed {
			printed = now
			fmt.Fprintf(a.env.Out, "%s: %s: %s\n", r.Key(), strings.Join(r.Addrs, ", "), printable(now))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followInterval):
		}
	}
}

// veswStackState requests the stack from a node that does not have it yet, and returns the state of its port.
func (a *app) veswStackState(ctx context.Context, r *api.VESWRequest, life *time.Time) (string, error) {
	st, err := get(ctx, a, api.GetStatus)
	if err != nil {
		return "", err
	}
	if !st.StartedAt.Equal(*life) {
		if _, err := call(ctx, a, api.AttachVESW, *r); err != nil {
			return "", err
		}
		*life = st.StartedAt
	}
	l, err := get(ctx, a, api.ListVESWInterfaces)
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

func veswDetach(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "detach INTERFACE|DEVICE:ID…",
		Short: "undo weft vesw attach",
		Args:  cobra.MinimumNArgs(1), ValidArgsFunction: completePorts(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := do(cmd.Context(), a, api.DetachVESW, name); err != nil {
					return err
				}
				fmt.Fprintf(a.env.Out, "detached %s\n", printable(name))
			}
			return nil
		},
	}
}

func veswStats(a *app) *cobra.Command {
	var all bool
	cmd := view(a, &cobra.Command{
		Use:   "stats [INTERFACE]",
		Short: "show the counters of this node's ports",
		Args:  cobra.MaximumNArgs(1), ValidArgsFunction: completePorts(a),
	}, api.ListVESWCounters, optional, func(w *screen, c []api.Counter) {
		writeTable(w, "every counter is zero", instanceColumns("INTERFACE"), nonZero(c, all))
	})
	cmd.Flags().BoolVar(&all, "all", false, "include counters that are zero")
	return cmd
}
