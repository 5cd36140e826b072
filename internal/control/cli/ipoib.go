// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
	"weft/internal/proto/wire"
)

func ipoibCommand(a *app) *cobra.Command {
	const none = "no IP links: weft ipoib add"
	cmd := list(a, &cobra.Command{
		Use:   "ipoib",
		Short: "IP links over the fabric",
		Long: `IP links over the fabric: network interfaces in the partitions of InfiniBand
ports, for ordinary IP programs.`,
		Example: `  weft ipoib add weft_ib0 --addr 10.1.0.1/24      an interface ib0_1_7fff in the default partition
  weft ipoib add weft_ib0 --pkey 0x8014           another, ib0_1_14, in partition 0x14
  weft ipoib                                      the links, and the reason of one without carrier
  weft ipoib path 10.1.0.2                        the path to an address
  weft ipoib netstack weft_ib0 --addr 10.1.0.3/24 -L tcp:127.0.0.1:8080=10.1.0.1:80
                                                  an IP stack in the node, without privilege`,
	}, api.ListIPLinks, nil, none, ipLinkColumns)
	cmd.AddCommand(list(a, &cobra.Command{Use: "list", Short: "list IP links"}, api.ListIPLinks, nil, none,
		ipLinkColumns),
		ipAdd(a), ipSet(a), ipNetstack(a), ipDelete(a), ipShow(a), ipPath(a), ipNeigh(a), ipShadow(a), ipMcast(a), ipStats(a), ipParams(a),
		ipEvents(a), ipDebug(a))
	return cmd
}

var ipLinkColumns = []column[api.IPLink]{
	{head: "LINK", cell: func(l api.IPLink) any { return l.Name }},
	{head: "DEVICE", cell: func(l api.IPLink) any { return l.Device }, wide: 1},
	{head: "P_KEY", cell: func(l api.IPLink) any { return l.PKey }, wide: 2},
	{head: "ON", cell: func(l api.IPLink) any { return l.Backend }, wide: 5},
	{head: "STATE", cell: func(l api.IPLink) any { return l.State }},
	{head: "MODE", cell: func(l api.IPLink) any { return l.Mode }, wide: 3},
	{head: ">MTU", cell: func(l api.IPLink) any { return l.MTU }},
	{head: ">QPN", cell: func(l api.IPLink) any { return l.QPN }, wide: 4},
	{head: "ADDRESSES", cell: func(l api.IPLink) any { return strings.Join(l.Addrs, ",") }},
	{head: "CARRIER", cell: func(l api.IPLink) any { return whether(l.Carrier, l.Reason) }},
}

// requestFlags adds the flags of the links that are requested.
func requestFlags(cmd *cobra.Command, r *api.IPRequest, mode *string) {
	f := cmd.Flags()
	f.StringSliceVar(&r.PKeys, "pkey", nil, "partition of the link, such as 0x8014 (may be repeated); without it, every partition with a broadcast group")
	f.StringSliceVar(&r.Addrs, "addr", nil, "IP address of the link, with prefix length (may be repeated)")
	f.StringSliceVar(&r.Routes, "route", nil, "route through the link: PREFIX, or PREFIX=GATEWAY (may be repeated)")
	f.StringSliceVar(&r.Params, "set", nil, "parameter of the link: NAME=VALUE (may be repeated); weft ipoib params lists them")
	f.StringVar(mode, "mode", "", "datagram (the default), or connected: packets of up to 65520 octets to neighbours that accept a connection")
	cmd.RegisterFlagCompletionFunc("mode", completeModes)
}

// defaultPartition is the partition of a link with an address where no other is given.
const defaultPartition = "0x7fff"

// complete fills in a request from arguments and --mode.
func complete(r *api.IPRequest, args []string, mode string) error {
	if mode != "" {
		r.Params = append(r.Params, "mode="+mode)
	}
	r.Device = optional(args)
	if len(r.Addrs)+len(r.Routes) > 0 && len(r.PKeys) == 0 {
		r.PKeys = []string{defaultPartition}
	}
	for _, k := range r.PKeys {
		if _, err := parsePKey(k); err != nil {
			return err
		}
	}
	return r.Validate()
}

func ipAdd(a *app) *cobra.Command {
	const what = "cannot add IP links"
	r, mode := api.IPRequest{Backend: api.BackendTUN}, ""
	cmd := a.show(&cobra.Command{
		Use:   "add [DEVICE]",
		Short: "add IP links to the partitions of a device, or of all devices",
		Long: `Add IP links to the partitions of an InfiniBand device, or of all such devices.
Each link is a network interface of this host, which needs CAP_NET_ADMIN. It
appears when its partition has a broadcast group and goes when the partition
goes. Without --pkey there is a link for every partition with a broadcast group.

A node with a store on disk keeps the links: they are there again after it
restarts.`,
		Example: `  weft ipoib add
  weft ipoib add weft_ib0 --addr 10.1.0.1/24 --addr fd00::1/64
  weft ipoib add weft_ib0 --mode connected --addr 10.1.0.1/24
  weft ipoib add weft_ib0 --pkey 0x8014 --addr 10.2.0.1/24 --route 10.3.0.0/16=10.2.0.9 --set sq_depth=1024`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: completeDevices(a),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		if err := complete(&r, args, mode); err != nil {
			return pkeyError(what, "weft ipoib add "+strings.Join(args, " ")+" --pkey %s", "weft ipoib add --help", err)
		}
		links, err := call(cmd.Context(), a, api.AddIPLinks, r)
		if err != nil {
			return err
		}
		return print(links, func(w *screen) {
			writeTable(w, "IP links will appear with their partitions: weft ipoib", ipLinkColumns, links)
			if len(links) > 0 {
				notKept(w, links[0].Kept, links[0].NotKept)
			}
		})
	})
	requestFlags(cmd, &r, &mode)
	return cmd
}

func ipNetstack(a *app) *cobra.Command {
	const what = "cannot start the IP stack"
	r, mode := api.IPRequest{Backend: api.BackendNetstack}, ""
	var forwards forwardFlags
	cmd := &cobra.Command{
		Use:   "netstack DEVICE --addr ADDRESS/LENGTH",
		Short: "run an IP stack in the node, with port forwards and a SOCKS5 proxy",
		Long: `Run an IP stack in the node, in place of a network interface. This needs no
privilege. Programs of this host reach the fabric by forwarded ports, or by the
SOCKS5 proxy; programs on the fabric reach this host by ports forwarded in the
other direction. The IP stack ends with this command.`,
		Example: `  weft ipoib netstack weft_ib0 --addr 10.1.0.3/24 --socks 127.0.0.1:1080
  weft ipoib netstack weft_ib0 --addr 10.1.0.3/24 -L tcp:127.0.0.1:8080=10.1.0.1:80
  weft ipoib netstack weft_ib0 --addr 10.1.0.3/24 -R tcp:10.1.0.3:2222=127.0.0.1:22 -R udp:10.1.0.3:53=127.0.0.1:53`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: completeDevices(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := forwards.parse()
			r.Forwards = list
			if len(r.Addrs) == 0 {
				err = errors.Join(err, errors.New("an IP stack of its own needs an address: --addr"))
			}
			if err == nil {
				err = complete(&r, args, mode)
			}
			if err != nil {
				return pkeyError(what, "weft ipoib netstack "+args[0]+" --pkey %s", "weft ipoib netstack --help", err)
			}
			return a.netstack(cmd.Context(), r)
		},
	}
	requestFlags(cmd, &r, &mode)
	forwards.add(cmd, "the fabric", "the link", &r.SOCKS)
	return cmd
}

// forwardFlags are the port forwards of an IP stack.
type forwardFlags struct{ local, remote []string }

func (f *forwardFlags) add(cmd *cobra.Command, far, near string, socks *string) {
	l := cmd.Flags()
	l.StringArrayVarP(&f.local, "local", "L", nil,
		"tcp:LISTEN=TO or udp:LISTEN=TO: from an address of this host to one of "+far)
	l.StringArrayVarP(&f.remote, "remote", "R", nil, "tcp:LISTEN=TO or udp:LISTEN=TO: from an address of "+near+
		" to one of this host")
	l.StringVar(socks, "socks", "", "address of this host for a SOCKS5 proxy")
}

// parse reads all forwards, each NETWORK:LISTEN=TO.
func (f *forwardFlags) parse() (list []api.IPForward, err error) {
	var errs []error
	for i, flags := range [][]string{f.local, f.remote} {
		for _, s := range flags {
			network, rest, ok := strings.Cut(s, ":")
			listen, to, both := strings.Cut(rest, "=")
			if !ok || !both {
				errs = append(errs, fmt.Errorf("a forward is tcp:LISTEN=TO or udp:LISTEN=TO, not %q", s))
			}
			list = append(list, api.IPForward{Network: network, Listen: listen, To: to, Remote: i == 1})
		}
	}
	return list, errors.Join(errs...)
}

// netstack keeps a link as long as the command runs.
func (a *app) netstack(ctx context.Context, r api.IPRequest) error {
	ctx, stop := signalContext(ctx)
	defer stop()
	l, err := call(ctx, a, api.AddIPLinks, r)
	if err != nil {
		return err
	}
	if len(l) != 1 {
		return &api.Error{Code: api.CodeInternal, What: "cannot start the IP stack",
			Why: fmt.Sprintf("%d links instead of one", len(l)), Fix: "weft ipoib"}
	}
	name := l[0].Name
	defer func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer stop()
		do(ctx, a, api.DeleteIPLinks, api.IPLinkDelete{Name: name})
	}()
	printed := ""
	for {
		l, err := get(ctx, a, api.ListIPLinks)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		i := slices.IndexFunc(l, func(l api.IPLink) bool { return l.Name == name })
		if i < 0 {
			return &api.Error{Code: api.CodeNotFound, What: "the IP stack ended", Why: name + " was deleted",
				Fix: "weft ipoib; then the same again"}
		}
		now := "no carrier: " + l[i].Reason
		if l[i].Carrier {
			now = "ready"
		}
		if now != printed {
			printed = now
			fmt.Fprintf(a.env.Out, "%s: %s: %s\n", name, strings.Join(l[i].Addrs, ", "), printable(now))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followInterval):
		}
	}
}

// followInterval is the time between two reads of the state of a link.
const followInterval = 250 * time.Millisecond

func ipDelete(a *app) *cobra.Command {
	var keys []string
	input := func(arg string) (api.IPLinkDelete, error) { return api.IPLinkDelete{Name: arg, PKeys: keys}, nil }
	cmd := removal(a, "DEVICE|LINK…", "delete the IP links of a device, or one link, also links that are pending",
		"IP link", api.DeleteIPLinks,
		input, completeLinks(a))
	cmd.Flags().StringSliceVar(&keys, "pkey", nil, "of a device, only the link in this partition (may be repeated)")
	return cmd
}

func ipShow(a *app) *cobra.Command {
	return find(a, &cobra.Command{
		Use:   "show LINK",
		Short: "show all of an IP link",
		Args:  cobra.ExactArgs(1), ValidArgsFunction: completeLinks(a),
	}, api.ListIPLinks, func(l api.IPLink, name string) bool {
		if ca, port, k, err := wire.ParseIPoIBName(name); err == nil {
			name = wire.IPoIBName(ca, port, k)
		}
		return l.Name == name
	}, missing("cannot show the IP link", "link", "weft ipoib"), func(w *screen, l []api.IPLink) {
		printIPLink(w,
			l[0])
	})
}

func printIPLink(w *screen, l api.IPLink) {
	line := fields{w, 10}.line
	line("link", "%s, type %d, <%s>, on %s", l.Name, l.Type, strings.Join(l.Flags, ","), l.Backend)
	line("of", "%s port %d, P_Key %s, session %d on lane %d", l.Device, l.Port, l.PKey, l.Session, l.Lane)
	line("state", "%s, carrier %s", l.State, whether(l.Carrier, l.Reason))
	if l.Problem != "" {
		line("problem", "%s", l.Problem)
	}
	line("mode", "%s", modeText(l))
	line("mtu", "%d, queue of %d", l.MTU, l.QueueLen)
	line("address", "%s (%d octets)", l.Address, l.AddrLen)
	line("broadcast", "%s", l.Broadcast)
	joined := "not joined"
	if l.Joined {
		joined = fmt.Sprintf("joined, LID 0x%04x", l.MLID)
	}
	line("group", "%s, %s, Q_Key 0x%08x", l.MGID, joined, l.QKey)
	line("qp", "0x%06x", l.QPN)
	for _, p := range l.Addrs {
		line("ip", "%s", p)
	}
}

func modeText(l api.IPLink) string {
	if l.Mode != modeConnected {
		return l.Mode
	}
	return fmt.Sprintf("%s, %d connections, datagrams of %d", l.Mode, l.Connections, l.DatagramMTU)
}

// Modes of links.
const (
	modeDatagram  = "datagram"
	modeConnected = "connected"
)

// completeModes completes modes.
func completeModes(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{modeDatagram, modeConnected}, cobra.ShellCompDirectiveNoFileComp
}

func ipSet(a *app) *cobra.Command {
	var mode string
	cmd := ipDo(a, "set LINK --mode datagram|connected", "change the mode of a link; the link restarts", api.IPMode, 0,
		func(v *api.IPAction, _ []string) error {
			if v.Mode = mode; mode != modeDatagram && mode != modeConnected {
				return fmt.Errorf("the mode is %s or %s, not %q", modeDatagram, modeConnected, mode)
			}
			return nil
		})
	cmd.Flags().StringVar(&mode, "mode", "", "datagram, or connected: by a connection to each neighbour that accepts one")
	cmd.RegisterFlagCompletionFunc("mode", completeModes)
	return cmd
}

func ipEvents(a *app) *cobra.Command {
	var follow bool
	cmd := a.show(&cobra.Command{
		Use:   "events",
		Short: "show the events of links",
		Args:  cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print printer) error {
		ctx, stop := signalContext(cmd.Context())
		defer stop()
		events, err := call(ctx, a, api.ListIPEvents, api.EventQuery{})
		if err != nil {
			return err
		}
		for after := uint64(0); ; {
			if err := print(events, func(w *screen) { printIPEvents(w, events) }); err != nil || !follow {
				return err
			}
			if len(events) > 0 {
				after = events[len(events)-1].Number
			}
			if events, err = call(ctx, a, api.ListIPEvents, api.EventQuery{After: after, Wait: true}); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
		}
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new events, until interrupted")
	return cmd
}

func printIPEvents(w *screen, list []api.IPEvent) {
	for _, e := range list {
		fmt.Fprintf(w, "%s  %-12s %-10s %s\n", clock(e.At), e.Link, e.Kind, printable(e.Text))
	}
}

func ipPath(a *app) *cobra.Command {
	var q api.IPPathQuery
	cmd := a.show(&cobra.Command{
		Use:   "path ADDRESS",
		Short: "resolve the path to an IP address; path list shows the paths of links",
		Long: `Resolve the path to an IP address of the fabric: of an end node, not of a
gateway. The exit code is 0, or the number of the error: 6 no such node, 11 not
known yet (--nonblock), 22 not the address of one node, 100 the link is down.`,
		Args: cobra.ExactArgs(1),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		q.Addr = args[0]
		if _, err := netip.ParseAddr(q.Addr); err != nil {
			return usage("weft ipoib path --help", "%q is not an IP address", q.Addr)
		}
		p, err := call(cmd.Context(), a, api.ResolveIPPath, q)
		if err != nil {
			return err
		}
		if err := print(p, func(w *screen) { printIPPath(w, p) }); err != nil {
			return err
		}
		if p.Errno != 0 {
			return &codeError{p.Errno, &api.Error{What: "no path to " + q.Addr, Why: p.Error, Fix: pathFix(p)}}
		}
		return nil
	})
	f := cmd.Flags()
	f.StringVar(&q.Link, "link", "", "link of the path; without it, the link with a prefix that contains the address")
	f.BoolVar(&q.NonBlocking, "nonblock", false, "return at once where the path is not known yet")
	f.DurationVar(&q.TimeoutNS, "timeout", 5*time.Second, "time limit of the resolution")
	cmd.AddCommand(ipTable(a, "list", "show the paths of links", "no paths", api.ListIPPaths, ipPathColumns),
		ipDo(a, "flush LINK", "delete the paths of a link", api.IPFlushPaths, 0, nil))
	return cmd
}

func pathFix(p api.IPPathInfo) string {
	switch syscall.Errno(p.Errno) {
	case syscall.EAGAIN:
		return "repeat the command, or omit --nonblock"
	case syscall.ENETDOWN:
		return "weft ipoib"
	case syscall.EINVAL:
		return "the address of a node"
	}
	return "weft ipoib neigh"
}

func printIPPath(w *screen, p api.IPPathInfo) {
	if p.Errno != 0 {
		return
	}
	line := fields{w, 8}.line
	line("to", "%s by %s", p.Addr, p.Link)
	line("dgid", "%s", p.DGID)
	line("sgid", "%s", p.SGID)
	line("lids", "%d to %d, SL %d, P_Key %s", p.SLID, p.DLID, p.SL, p.PKey)
	line("mtu", "%d, %s, packet lifetime %v", p.MTU, rateText(p.Gbps), p.LifeNS)
	line("grh", "flow label %d, traffic class %d, hop limit %d", p.FlowLabel, p.TClass, p.HopLimit)
}

// signalContext ends with an interrupt.
func signalContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
}
