// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
	"weft/internal/proto/wire"
)

func (a *app) ipoib() *cobra.Command {
	cmd := a.show(&cobra.Command{
		Use:   "ipoib",
		Short: "IP links over the fabric",
		Long: `IP links over the fabric: interfaces of an InfiniBand port's partitions, for ordinary IP programs.

  weft ipoib add weft_ib0 --addr 10.1.0.1/24      an interface ib0_1_7fff in the default partition
  weft ipoib add weft_ib0 --pkey 0x8014           another, ib0_1_14, in partition 0x14
  weft ipoib                                      the links, and why one has no carrier
  weft ipoib path 10.1.0.2                        how packets get there
  weft ipoib netstack weft_ib0 --addr 10.1.0.3/24 -L tcp:127.0.0.1:8080=10.1.0.1:80
                                                  without any privilege: an IP stack in the node`,
		Args: cobra.NoArgs,
	}, a.ipLinks)
	cmd.AddCommand(a.show(&cobra.Command{Use: "list", Short: "list IP links", Args: cobra.NoArgs}, a.ipLinks),
		a.ipAdd(), a.ipSet(), a.ipNetstack(), a.ipDel(), a.ipShow(), a.ipPath(), a.ipNeigh(), a.ipShadow(), a.ipMcast(), a.ipStats(), a.ipParams(), a.ipEvents(),
		a.ipDebug())
	return cmd
}

// printer is what show gives a command to print with.
type printer = func(any, func()) error

func (a *app) ipLinks(cmd *cobra.Command, _ []string, print printer) error {
	return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
		l, err := api.Get(ctx, c, api.ListIPLinks)
		if err != nil {
			return err
		}
		return print(l, func() { printIPLinks(a.env.Out, l) })
	})
}

func printIPLinks(w io.Writer, list []api.IPLink) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no IP links: weft ipoib add")
		return
	}
	t := table{heads: []string{"LINK", "DEVICE", "P_KEY", "ON", "STATE", "MODE", ">MTU", ">QPN", "ADDRESSES", "CARRIER"}}
	for _, l := range list {
		t.row(l.Name, l.Device, l.PKey, l.Backend, l.State, l.Mode, l.MTU, l.QPN, strings.Join(l.Addrs, ","), carrierText(l))
	}
	t.write(w)
}

func carrierText(l api.IPLink) string {
	if l.Carrier {
		return "yes"
	}
	return "no: " + l.Reason
}

// completeLinks completes names of links.
func (a *app) completeLinks(cmd *cobra.Command, args []string, _ string) (names []string, d cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
		l, err := api.Get(ctx, c, api.ListIPLinks)
		for _, l := range l {
			names = append(names, l.Name)
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeDevices completes names of InfiniBand devices.
func (a *app) completeDevices(cmd *cobra.Command, args []string, _ string) (names []string, d cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
		l, err := api.Get(ctx, c, api.ListFunctions)
		for _, f := range l {
			if f.LinkLayer == "InfiniBand" {
				names = append(names, f.Name)
			}
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

// requestFlags are those that say what links are wanted.
func requestFlags(cmd *cobra.Command, r *api.IPRequest, mode *string) {
	f := cmd.Flags()
	f.StringSliceVar(&r.PKeys, "pkey", nil, "partition of the link (may be repeated); every one that has a broadcast group if none is given")
	f.StringSliceVar(&r.Addrs, "addr", nil, "IP address of the link, with prefix length (may be repeated)")
	f.StringSliceVar(&r.Routes, "route", nil, "route by the link: PREFIX, or PREFIX=GATEWAY (may be repeated)")
	f.StringSliceVar(&r.Params, "set", nil, "parameter of the link: NAME=VALUE (may be repeated); weft ipoib params lists them")
	f.StringVar(mode, "mode", "", "datagram (the default), or connected: by a connection with each neighbour that takes one, packets of up to 65520 octets")
	cmd.RegisterFlagCompletionFunc("mode", completeModes)
}

// defaultPartition is where a link with an address is if nothing else is said.
const defaultPartition = "0x7fff"

func narrow(r *api.IPRequest, args []string, mode string) {
	if mode != "" {
		r.Params = append(r.Params, "mode="+mode)
	}
	if len(args) > 0 {
		r.Device = args[0]
	}
	if len(r.Addrs)+len(r.Routes) > 0 && len(r.PKeys) == 0 {
		r.PKeys = []string{defaultPartition}
	}
}

func (a *app) ipAdd() *cobra.Command {
	r, mode := api.IPRequest{Backend: api.BackendTUN}, ""
	cmd := a.show(&cobra.Command{
		Use:   "add [DEVICE]",
		Short: "have IP links of a device, or of all, come and go with its partitions",
		Long: `Have IP links of a device, or of all InfiniBand devices, come and go with its partitions: each is a network interface of this
host, which takes CAP_NET_ADMIN. Without --pkey there is one for every partition with a broadcast group.

  weft ipoib add
  weft ipoib add weft_ib0 --addr 10.1.0.1/24 --addr fd00::1/64
  weft ipoib add weft_ib0 --mode connected --addr 10.1.0.1/24
  weft ipoib add weft_ib0 --pkey 0x8014 --addr 10.2.0.1/24 --route 10.3.0.0/16=10.2.0.9 --set sq_depth=1024`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeDevices,
	}, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		narrow(&r, args, mode)
		if err := r.Validate(); err != nil {
			return usage("weft ipoib add --help", "cannot add IP links: %v", err)
		}
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			l, err := api.Call(ctx, c, api.AddIPLinks, r)
			if err != nil {
				return err
			}
			return print(l, func() {
				if len(l) == 0 {
					fmt.Fprintln(a.env.Out, "IP links will appear with their partitions: weft ipoib")
					return
				}
				printIPLinks(a.env.Out, l)
			})
		})
	})
	requestFlags(cmd, &r, &mode)
	return cmd
}

func (a *app) ipNetstack() *cobra.Command {
	r, mode := api.IPRequest{Backend: api.BackendNetstack}, ""
	var local, remote []string
	cmd := &cobra.Command{
		Use:   "netstack DEVICE --addr ADDRESS/LENGTH",
		Short: "an IP link without privileges: an IP stack in the node, port forwards and a SOCKS5 proxy",
		Long: `An IP link without privileges: an IP stack in the node instead of a network interface. Programs of this host reach the
fabric by ports that are forwarded, or by the SOCKS5 proxy; programs on the fabric reach this host by ports forwarded the other
way. It ends with the command.

  weft ipoib netstack weft_ib0 --addr 10.1.0.3/24 --socks 127.0.0.1:1080
  weft ipoib netstack weft_ib0 --addr 10.1.0.3/24 -L tcp:127.0.0.1:8080=10.1.0.1:80
  weft ipoib netstack weft_ib0 --addr 10.1.0.3/24 -R tcp:10.1.0.3:2222=127.0.0.1:22 -R udp:10.1.0.3:53=127.0.0.1:53`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeDevices,
		RunE: func(cmd *cobra.Command, args []string) error {
			narrow(&r, args, mode)
			var errs []error
			for i, list := range [][]string{local, remote} {
				for _, s := range list {
					f, err := parseForward(s, i == 1)
					errs = append(errs, err)
					r.Forwards = append(r.Forwards, f)
				}
			}
			if len(r.Addrs) == 0 {
				errs = append(errs, errors.New("an IP stack of its own needs an address: --addr"))
			}
			err := errors.Join(errs...)
			if err == nil {
				err = r.Validate()
			}
			if err != nil {
				return usage("weft ipoib netstack --help", "cannot start the IP stack: %v", err)
			}
			return a.netstack(cmd.Context(), r)
		},
	}
	requestFlags(cmd, &r, &mode)
	f := cmd.Flags()
	f.StringArrayVarP(&local, "local", "L", nil, "tcp:LISTEN=TO or udp:LISTEN=TO: from an address of this host to one of the fabric")
	f.StringArrayVarP(&remote, "remote", "R", nil, "tcp:LISTEN=TO or udp:LISTEN=TO: from an address of the link to one of this host")
	f.StringVar(&r.SOCKS, "socks", "", "address of this host to serve SOCKS5 at")
	return cmd
}

// parseForward reads NETWORK:LISTEN=TO.
func parseForward(s string, remote bool) (f api.IPForward, err error) {
	network, rest, ok := strings.Cut(s, ":")
	listen, to, both := strings.Cut(rest, "=")
	if !ok || !both {
		return f, fmt.Errorf("a forward is tcp:LISTEN=TO or udp:LISTEN=TO, not %q", s)
	}
	return api.IPForward{Network: network, Listen: listen, To: to, Remote: remote}, nil
}

// netstack keeps a link as long as the command runs.
func (a *app) netstack(ctx context.Context, r api.IPRequest) error {
	ctx, stop := signalContext(ctx)
	defer stop()
	return a.query(ctx, func(ctx context.Context, c *api.Client) error {
		l, err := api.Call(ctx, c, api.AddIPLinks, r)
		if err != nil {
			return err
		}
		if len(l) != 1 {
			return &api.Error{Code: api.CodeInternal, What: "cannot start the IP stack", Why: fmt.Sprintf("%d links instead of one", len(l)), Fix: "weft ipoib"}
		}
		name := l[0].Name
		defer func() {
			ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
			defer stop()
			api.Do(ctx, c, api.DeleteIPLinks, name)
		}()
		said := ""
		for {
			l, err := api.Get(ctx, c, api.ListIPLinks)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			i := slices.IndexFunc(l, func(l api.IPLink) bool { return l.Name == name })
			if i < 0 {
				return &api.Error{Code: api.CodeNotFound, What: "the IP stack ended", Why: "somebody deleted " + name, Fix: "weft ipoib netstack"}
			}
			now := "no carrier: " + l[i].Reason
			if l[i].Carrier {
				now = "ready"
			}
			if now != said {
				said = now
				fmt.Fprintf(a.env.Out, "%s: %s: %s\n", name, strings.Join(l[i].Addrs, ", "), printable(now))
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(followInterval):
			}
		}
	})
}

// followInterval is between two looks at a link that is kept.
const followInterval = 250 * time.Millisecond

func (a *app) ipDel() *cobra.Command {
	return &cobra.Command{
		Use:   "del DEVICE|LINK…",
		Short: "have no IP links of a device any more, or not this one",
		Args:  cobra.MinimumNArgs(1), ValidArgsFunction: a.completeLinks,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				for _, name := range args {
					if err := api.Do(ctx, c, api.DeleteIPLinks, name); err != nil {
						return err
					}
					fmt.Fprintf(a.env.Out, "deleted %s\n", printable(name))
				}
				return nil
			})
		},
	}
}

func (a *app) ipShow() *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "show LINK",
		Short: "show a link whole",
		Args:  cobra.ExactArgs(1), ValidArgsFunction: a.completeLinks,
	}, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			list, err := api.Get(ctx, c, api.ListIPLinks)
			if err != nil {
				return err
			}
			name := args[0]
			if ca, port, k, err := wire.ParseIPoIBName(name); err == nil {
				name = wire.IPoIBName(ca, port, k)
			}
			i := slices.IndexFunc(list, func(l api.IPLink) bool { return l.Name == name })
			if i < 0 {
				return &api.Error{Code: api.CodeNotFound, What: "cannot show the IP link", Why: "there is no link " + args[0], Fix: "weft ipoib"}
			}
			return print(list[i], func() { printIPLink(a.env.Out, list[i]) })
		})
	})
}

func printIPLink(w io.Writer, l api.IPLink) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-10s %s\n", name, printable(fmt.Sprintf(format, args...)))
	}
	line("link", "%s, type %d, <%s>, on %s", l.Name, l.Type, strings.Join(l.Flags, ","), l.Backend)
	line("of", "%s port %d, P_Key %s, session %d on lane %d", l.Device, l.Port, l.PKey, l.Session, l.Lane)
	line("state", "%s, carrier %s", l.State, carrierText(l))
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

func (a *app) ipSet() *cobra.Command {
	var mode string
	cmd := a.ipDo("set LINK --mode datagram|connected", "change the mode of a link, which goes for a moment and comes again", api.IPMode, 0,
		func(v *api.IPAction, _ []string) error {
			if v.Mode = mode; mode != modeDatagram && mode != modeConnected {
				return fmt.Errorf("the mode is %s or %s, not %q", modeDatagram, modeConnected, mode)
			}
			return nil
		})
	cmd.Flags().StringVar(&mode, "mode", "", "datagram, or connected: by a connection with each neighbour that takes one")
	cmd.RegisterFlagCompletionFunc("mode", completeModes)
	return cmd
}

// ipTable is a command that prints one of the tables of a link, or of all.
func ipTable[T any](a *app, cmd *cobra.Command, op api.Op[string, []T], none string, heads []string, row func(t *table, v T)) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = cobra.MaximumNArgs(1), a.completeLinks
	return a.show(cmd, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		link := ""
		if len(args) > 0 {
			link = args[0]
		}
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			l, err := api.Call(ctx, c, op, link)
			if err != nil {
				return err
			}
			return print(l, func() {
				t := table{heads: heads}
				for _, v := range l {
					row(&t, v)
				}
				if len(t.rows) == 0 {
					fmt.Fprintln(a.env.Out, none)
				}
				t.write(a.env.Out)
			})
		})
	})
}

// ipDo is a command that does something to a link.
func (a *app) ipDo(use, short, op string, args int, fill func(v *api.IPAction, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1 + args), ValidArgsFunction: a.completeLinks,
		RunE: func(cmd *cobra.Command, args []string) error {
			v := api.IPAction{Op: op}
			if fill != nil {
				if err := fill(&v, args[1:]); err != nil {
					return usage(cmd.CommandPath()+" --help", "%v", err)
				}
			}
			return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
				return api.Do(ctx, c, api.ChangeIPLink, api.Named[api.IPAction]{Name: args[0], Value: v})
			})
		},
	}
}

// withAddr takes an IP address, withHW a hardware address.
func withAddr(v *api.IPAction, args []string) error {
	if _, err := netip.ParseAddr(args[0]); err != nil {
		return fmt.Errorf("%q is no IP address", args[0])
	}
	v.Addr = args[0]
	return nil
}

func withHW(v *api.IPAction, args []string) error {
	v.HWAddr = args[0]
	if hw, err := net.ParseMAC(args[0]); err != nil || len(hw) != 20 {
		return fmt.Errorf("%q is not a hardware address of 20 octets", args[0])
	}
	return nil
}

func (a *app) ipDebug() *cobra.Command {
	return a.ipDo("debug LINK MASK", "tell more as events: 1 control, 2 multicast, 4 data, 8 path, added up", api.IPDebug, 1,
		func(v *api.IPAction, args []string) error {
			n, err := strconv.ParseUint(args[0], 0, 4)
			if err != nil {
				return fmt.Errorf("%q is not a number in 0 … 15", args[0])
			}
			v.Mask = uint(n)
			return nil
		})
}

func (a *app) ipNeigh() *cobra.Command {
	cmd := ipTable(a, &cobra.Command{Use: "neigh [LINK]", Short: "show IP neighbours and their hardware addresses"}, api.ListIPNeighbours, "no neighbours",
		[]string{"LINK", "ADDRESS", "STATE", "HARDWARE ADDRESS", "MODE", ">FOR", ">PROBES", ">QUEUED"}, func(t *table, n api.IPNeighbour) {
			state := n.State
			if n.Router {
				state += ", router"
			}
			t.row(n.Link, n.Addr, state, n.HWAddr, n.Mode, expiry(n.ExpiresNS), n.Probes, n.Queued)
		})
	cmd.AddCommand(a.ipDo("flush LINK", "forget the neighbours of a link", api.IPFlushNeighbours, 0, nil),
		a.ipDo("probe LINK ADDRESS", "ask where an address is", api.IPProbe, 1, withAddr),
		a.ipDo("add LINK ADDRESS HWADDRESS", "say where an address is, for good", api.IPAddNeighbour, 2, func(v *api.IPAction, args []string) error {
			return errors.Join(withAddr(v, args), withHW(v, args[1:]))
		}))
	return cmd
}

// expiry prints how long a state lasts, nothing where it does not end by itself.
func expiry(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return round(d).String()
}

func (a *app) ipShadow() *cobra.Command {
	cmd := ipTable(a, &cobra.Command{Use: "shadow [LINK]", Short: "show hardware addresses and the address vectors that lead to them"}, api.ListIPShadow, "no entries",
		[]string{"LINK", "HARDWARE ADDRESS", "STATE", "MODE", "ADDRESSES", ">DLID", ">SL", ">MTU", ">GB/S", "GRH", ">QUEUED", ">IDLE"},
		func(t *table, s api.IPShadow) {
			t.row(s.Link, s.HWAddr, s.State, s.Mode, strings.Join(s.Addrs, ","), s.DLID, s.SL, s.MTU, s.Gbps/8, yes(s.GRH), s.Queued, round(s.IdleNS))
		})
	cmd.AddCommand(a.ipDo("purge LINK HWADDRESS", "delete an entry", api.IPPurgeShadow, 1, withHW))
	return cmd
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (a *app) ipMcast() *cobra.Command {
	cmd := ipTable(a, &cobra.Command{Use: "mcast [LINK]", Short: "show the multicast groups of links"}, api.ListIPGroups, "no groups",
		[]string{"LINK", "MGID", "MLID", "STATE", "ADDRESSES", ">QUEUED", "REASON"}, func(t *table, g api.IPGroup) {
			state := g.State
			if g.SendOnly {
				state += ", send only"
			}
			t.row(g.Link, g.MGID, lid(g.MLID), state, strings.Join(g.Addrs, ","), g.Queued, g.Reason)
		})
	cmd.AddCommand(a.ipDo("join LINK GROUP", "join an IP group by hand", api.IPJoin, 1, withAddr),
		a.ipDo("leave LINK GROUP", "undo join", api.IPLeave, 1, withAddr))
	return cmd
}

func (a *app) ipStats() *cobra.Command {
	var all bool
	cmd := ipTable(a, &cobra.Command{Use: "stats [LINK]", Short: "show the counters of links"}, api.ListIPCounters, "every counter is zero",
		[]string{"LINK", "COUNTER", ">VALUE"}, func(t *table, c api.Counter) {
			if c.Value != 0 || all {
				t.row(c.Instance, c.Name, c.Value)
			}
		})
	cmd.Flags().BoolVar(&all, "all", false, "also those that are zero")
	return cmd
}

func (a *app) ipParams() *cobra.Command {
	return ipTable(a, &cobra.Command{Use: "params [LINK]", Short: "show the parameters of links, or those that new links get"}, api.ListIPParams, "no parameters",
		[]string{"LINK", "PARAMETER", "VALUE", "MEANING"}, func(t *table, p api.IPParam) { t.row(p.Link, p.Name, p.Value, p.Help) })
}

func (a *app) ipEvents() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "events",
		Short: "show what happened to links",
		Args:  cobra.NoArgs,
	}
	var print printer
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := signalContext(cmd.Context())
		defer stop()
		return a.query(ctx, func(ctx context.Context, c *api.Client) error {
			list, err := api.Call(ctx, c, api.ListIPEvents, api.EventQuery{After: 0})
			if err != nil {
				return err
			}
			if !follow {
				return print(list, func() { printIPEvents(a.env.Out, list) })
			}
			for after := uint64(0); ; {
				if err := print(list, func() { printIPEvents(a.env.Out, list) }); err != nil {
					return err
				}
				if len(list) > 0 {
					after = list[len(list)-1].Number
				}
				if list, err = api.Call(ctx, c, api.ListIPEvents, api.EventQuery{After: after, Wait: true}); err != nil {
					if ctx.Err() != nil {
						return nil
					}
					return err
				}
			}
		})
	}
	print = output(cmd, a.env.Out)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens from now on, until interrupted")
	return cmd
}

func printIPEvents(w io.Writer, list []api.IPEvent) {
	for _, e := range list {
		fmt.Fprintf(w, "%s  %-12s %-10s %s\n", e.At.Format("15:04:05.000"), e.Link, e.Kind, printable(e.Text))
	}
}

func (a *app) ipPath() *cobra.Command {
	var q api.IPPathQuery
	cmd := ipTable(a, &cobra.Command{
		Use:   "path ADDRESS",
		Short: "resolve the path to an IP address; path list shows those that links keep",
		Long: `Resolve the path to an IP address of the fabric: the end node, not a gateway. The exit code is 0, or the number of the error: 6 no such
node, 11 not known yet (--nonblock), 22 not the address of one node, 100 the link is down.`,
	}, api.ListIPPaths, "", nil, func(*table, api.IPPath) {})
	cmd.Args = cobra.ExactArgs(1)
	cmd.ValidArgsFunction = nil
	print := func(v any, people func()) error {
		if f, _ := cmd.Flags().GetString("output"); f == "json" {
			return printJSON(a.env.Out, v)
		}
		people()
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f, _ := cmd.Flags().GetString("output"); f != "table" && f != "json" {
			return usage("weft ipoib path -o json", "-o must be table or json, not %q", f)
		}
		q.Addr = args[0]
		if _, err := netip.ParseAddr(q.Addr); err != nil {
			return usage("weft ipoib path --help", "%q is no IP address", q.Addr)
		}
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			p, err := api.Call(ctx, c, api.ResolveIPPath, q)
			if err != nil {
				return err
			}
			if err := print(p, func() { printIPPath(a.env.Out, p) }); err != nil {
				return err
			}
			if p.Errno != 0 {
				return &codeError{p.Errno, &api.Error{What: "no path to " + q.Addr, Why: p.Error, Fix: pathFix(p)}}
			}
			return nil
		})
	}
	f := cmd.Flags()
	f.StringVar(&q.Link, "link", "", "the link to ask; that whose prefixes have the address if not given")
	f.BoolVar(&q.NonBlocking, "nonblock", false, "do not wait where the path is not known yet")
	f.DurationVar(&q.TimeoutNS, "timeout", 5*time.Second, "how long to wait")
	cmd.AddCommand(ipTable(a, &cobra.Command{Use: "list [LINK]", Short: "show the paths that links keep"}, api.ListIPPaths, "no paths",
		[]string{"LINK", "DGID", "STATE", ">DLID", ">SL", ">MTU", ">GB/S", ">USED"}, func(t *table, p api.IPPath) {
			t.row(p.Link, p.DGID, p.State, p.DLID, p.SL, p.MTU, p.Gbps/8, p.Users)
		}), a.ipDo("flush LINK", "forget the paths of a link", api.IPFlushPaths, 0, nil))
	return cmd
}

func pathFix(p api.IPPathInfo) string {
	switch syscall.Errno(p.Errno) {
	case syscall.EAGAIN:
		return "ask again, or without --nonblock"
	case syscall.ENETDOWN:
		return "weft ipoib"
	case syscall.EINVAL:
		return "give the address of a node"
	}
	return "weft ipoib neigh"
}

func printIPPath(w io.Writer, p api.IPPathInfo) {
	if p.Errno != 0 {
		return
	}
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-8s %s\n", name, printable(fmt.Sprintf(format, args...)))
	}
	line("to", "%s by %s", p.Addr, p.Link)
	line("dgid", "%s", p.DGID)
	line("sgid", "%s", p.SGID)
	line("lids", "%d to %d, SL %d, P_Key %s", p.SLID, p.DLID, p.SL, p.PKey)
	line("mtu", "%d, %g Gb/s, packet lifetime %v", p.MTU, p.Gbps, p.LifeNS)
	line("grh", "flow label %d, traffic class %d, hop limit %d", p.FlowLabel, p.TClass, p.HopLimit)
}

// signalContext ends with an interrupt.
func signalContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
}
