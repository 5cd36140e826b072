// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

// ipTable is a command that prints one of the tables of a link, or of all links.
func ipTable[T any](a *app, name, short, none string, op api.Op[string, []T], columns []column[T]) *cobra.Command {
	cmd := &cobra.Command{Use: name + " [LINK]", Short: short, Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: completeLinks(a)}
	return list(a, cmd, op, optional, none, columns)
}

// ipDo is a command that changes a link.
func ipDo(a *app, use, short, op string, args int, fill func(v *api.IPAction, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1 + args), ValidArgsFunction: completeLinks(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			v := api.IPAction{Op: op}
			if fill != nil {
				if err := fill(&v, args[1:]); err != nil {
					return usage(cmd.CommandPath()+" --help", "%v", err)
				}
			}
			return do(cmd.Context(), a, api.ChangeIPLink, api.Named[api.IPAction]{Name: args[0], Value: v})
		},
	}
}

// withAddr reads an IP address, withHW a hardware address.
func withAddr(v *api.IPAction, args []string) error {
	if _, err := netip.ParseAddr(args[0]); err != nil {
		return fmt.Errorf("%q is not an IP address", args[0])
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

func ipDebug(a *app) *cobra.Command {
	return ipDo(a, "debug LINK MASK", "add events: 1 control, 2 multicast, 4 data, 8 path, or their sum", api.IPDebug,
		1,
		func(v *api.IPAction, args []string) error {
			n, err := strconv.ParseUint(args[0], 0, 4)
			if err != nil {
				return fmt.Errorf("%q is not a number in 0 … 15", args[0])
			}
			v.Mask = uint(n)
			return nil
		})
}

func ipNeigh(a *app) *cobra.Command {
	cmd := ipTable(a, "neigh", "show IP neighbours and their hardware addresses", "no neighbours",
		api.ListIPNeighbours, ipNeighbourColumns)
	cmd.AddCommand(ipDo(a, "flush LINK", "delete the neighbours of a link", api.IPFlushNeighbours, 0, nil),
		ipDo(a, "probe LINK ADDRESS", "resolve an address again", api.IPProbe, 1, withAddr),
		ipDo(a, "add LINK ADDRESS HWADDRESS", "add a permanent neighbour", api.IPAddNeighbour, 2,
			func(v *api.IPAction, args []string) error {
				return errors.Join(withAddr(v, args), withHW(v, args[1:]))
			}))
	return cmd
}

var ipNeighbourColumns = []column[api.IPNeighbour]{
	{head: "LINK", cell: func(n api.IPNeighbour) any { return n.Link }},
	{head: "ADDRESS", cell: func(n api.IPNeighbour) any { return n.Addr }},
	{head: "STATE", cell: func(n api.IPNeighbour) any {
		if n.Router {
			return n.State + ", router"
		}
		return n.State
	}},
	{head: "HARDWARE ADDRESS", cell: func(n api.IPNeighbour) any { return n.HWAddr }},
	{head: "MODE", cell: func(n api.IPNeighbour) any { return n.Mode }, wide: 1},
	{head: ">FOR", cell: func(n api.IPNeighbour) any { return expiry(n.ExpiresNS) }, wide: 2},
	{head: ">PROBES", cell: func(n api.IPNeighbour) any { return n.Probes }, wide: 3},
	{head: ">QUEUED", cell: func(n api.IPNeighbour) any { return n.Queued }, wide: 4},
}

// expiry prints how long a state lasts, nothing where it does not end by itself.
func expiry(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return round(d).String()
}

func ipShadow(a *app) *cobra.Command {
	cmd := ipTable(a, "shadow", "show hardware addresses with their address vectors", "no entries", api.ListIPShadow,
		ipShadowColumns)
	cmd.AddCommand(ipDo(a, "purge LINK HWADDRESS", "delete an entry", api.IPPurgeShadow, 1, withHW))
	return cmd
}

var ipShadowColumns = []column[api.IPShadow]{
	{head: "LINK", cell: func(s api.IPShadow) any { return s.Link }},
	{head: "HARDWARE ADDRESS", cell: func(s api.IPShadow) any { return s.HWAddr }},
	{head: "STATE", cell: func(s api.IPShadow) any { return s.State }},
	{head: "MODE", cell: func(s api.IPShadow) any { return s.Mode }, wide: 2},
	{head: "ADDRESSES", cell: func(s api.IPShadow) any { return strings.Join(s.Addrs, ",") }},
	{head: ">DLID", cell: func(s api.IPShadow) any { return s.DLID }, wide: 1},
	{head: ">SL", cell: func(s api.IPShadow) any { return s.SL }, wide: 6},
	{head: ">MTU", cell: func(s api.IPShadow) any { return s.MTU }, wide: 4},
	{head: rateHead, cell: func(s api.IPShadow) any { return s.Gbps }, wide: 5},
	{head: "GRH", cell: func(s api.IPShadow) any { return yes(s.GRH) }, wide: 7},
	{head: ">QUEUED", cell: func(s api.IPShadow) any { return s.Queued }, wide: 8},
	{head: ">IDLE", cell: func(s api.IPShadow) any { return round(s.IdleNS) }, wide: 3},
}

func ipMcast(a *app) *cobra.Command {
	cmd := ipTable(a, "mcast", "show the multicast groups of links", "no groups", api.ListIPGroups, ipGroupColumns)
	cmd.AddCommand(ipDo(a, "join LINK GROUP", "join an IP group manually", api.IPJoin, 1, withAddr),
		ipDo(a, "leave LINK GROUP", "undo join", api.IPLeave, 1, withAddr))
	return cmd
}

var ipGroupColumns = []column[api.IPGroup]{
	{head: "LINK", cell: func(g api.IPGroup) any { return g.Link }},
	{head: "MGID", cell: func(g api.IPGroup) any { return gidText(g.MGID) }},
	{head: "MLID", cell: func(g api.IPGroup) any { return mlidText(g.MLID) }},
	{head: "STATE", cell: func(g api.IPGroup) any {
		if g.SendOnly {
			return g.State + ", send only"
		}
		return g.State
	}},
	{head: "ADDRESSES", cell: func(g api.IPGroup) any { return strings.Join(g.Addrs, ",") }},
	{head: ">QUEUED", cell: func(g api.IPGroup) any { return g.Queued }, wide: 2},
	{head: "REASON", cell: func(g api.IPGroup) any { return g.Reason }, wide: 1},
}

func ipStats(a *app) *cobra.Command {
	var all bool
	cmd := view(a, &cobra.Command{
		Use: "stats [LINK]", Short: "show the counters of links", Args: cobra.MaximumNArgs(1), ValidArgsFunction: completeLinks(a),
	}, api.ListIPCounters, optional, func(w *screen, c []api.Counter) {
		writeTable(w, "every counter is zero", instanceColumns("LINK"), nonZero(c, all))
	})
	cmd.Flags().BoolVar(&all, "all", false, "include counters that are zero")
	return cmd
}

// instanceColumns are those of counters of instances of one kind.
func instanceColumns(kind string) []column[api.Counter] {
	return []column[api.Counter]{
		{head: kind, cell: func(c api.Counter) any { return c.Instance }},
		{head: "COUNTER", cell: func(c api.Counter) any { return c.Name }},
		{head: ">VALUE", cell: func(c api.Counter) any { return c.Value }},
	}
}

func ipParams(a *app) *cobra.Command {
	return ipTable(a, "params", "show the parameters of links, or those of new links", "no parameters",
		api.ListIPParams, ipParamColumns)
}

var ipParamColumns = []column[api.IPParam]{
	{head: "LINK", cell: func(p api.IPParam) any { return p.Link }},
	{head: "PARAMETER", cell: func(p api.IPParam) any { return p.Name }},
	{head: "VALUE", cell: func(p api.IPParam) any { return p.Value }},
	{head: "MEANING", cell: func(p api.IPParam) any { return p.Help }},
}

var ipPathColumns = []column[api.IPPath]{
	{head: "LINK", cell: func(p api.IPPath) any { return p.Link }},
	{head: "DGID", cell: func(p api.IPPath) any { return p.DGID }},
	{head: "STATE", cell: func(p api.IPPath) any { return p.State }},
	{head: ">DLID", cell: func(p api.IPPath) any { return p.DLID }},
	{head: ">SL", cell: func(p api.IPPath) any { return p.SL }, wide: 3},
	{head: ">MTU", cell: func(p api.IPPath) any { return p.MTU }, wide: 1},
	{head: rateHead, cell: func(p api.IPPath) any { return p.Gbps }, wide: 2},
	{head: ">USED", cell: func(p api.IPPath) any { return p.Users }, wide: 4},
}

// completeLinks completes names of links.
func completeLinks(a *app) completion {
	return names(a, api.ListIPLinks, func(l api.IPLink) string { return l.Name })
}
