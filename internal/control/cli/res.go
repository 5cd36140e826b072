// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

var resourceKinds = []string{"pd", "mr", "mw", "cq", "qp", "srq", "ah", "cm_id"}

func (a *app) resources() *cobra.Command {
	return a.show(&cobra.Command{
		Use:       "res [pd|mr|mw|cq|qp|srq|ah|cm_id]",
		Short:     "show the objects programs have made",
		Long:      "Show how many objects each program has, or one kind of object in detail.",
		ValidArgs: resourceKinds,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && !slices.Contains(resourceKinds, args[0]) {
				return usage("weft res qp", "weft res takes one of %s, not %q", strings.Join(resourceKinds, ", "), strings.Join(args, " "))
			}
			return nil
		},
	}, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			r, err := api.Get(ctx, c, api.GetResources)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return print(r, func() { printTotals(a.env.Out, r) })
			}
			v, t := resourceTable(r, args[0])
			return print(v, func() {
				if len(t.rows) == 0 {
					fmt.Fprintf(a.env.Out, "no %s\n", args[0])
				}
				t.write(a.env.Out)
			})
		})
	})
}

// printTotals prints one row per session with its number of objects.
func printTotals(w io.Writer, r api.Resources) {
	type row struct {
		owner api.Owner
		n     [8]int
	}
	// Identifiers of the connection manager belong to no session: they have a row of
	// their own for each program and device.
	rows := map[api.Owner]*row{}
	count := func(o api.Owner, kind int) {
		if rows[o] == nil {
			rows[o] = &row{owner: o}
		}
		rows[o].n[kind]++
	}
	for _, x := range r.PDs {
		count(x.Owner, 0)
	}
	for _, x := range r.MRs {
		count(x.Owner, 1)
	}
	for _, x := range r.MWs {
		count(x.Owner, 2)
	}
	for _, x := range r.CQs {
		count(x.Owner, 3)
	}
	for _, x := range r.QPs {
		count(x.Owner, 4)
	}
	for _, x := range r.SRQs {
		count(x.Owner, 5)
	}
	for _, x := range r.AHs {
		count(x.Owner, 6)
	}
	for _, x := range r.CMIDs {
		count(x.Owner, 7)
	}
	if len(rows) == 0 {
		fmt.Fprintln(w, "no objects")
		return
	}
	sorted := make([]*row, 0, len(rows))
	for _, x := range rows {
		sorted = append(sorted, x)
	}
	slices.SortFunc(sorted, func(x, y *row) int {
		return cmp.Or(cmp.Compare(x.owner.Session, y.owner.Session), cmp.Compare(x.owner.PID, y.owner.PID), cmp.Compare(x.owner.Device, y.owner.Device))
	})
	t := table{heads: []string{"DEVICE", ">SESSION", ">PID", "COMMAND", ">PD", ">MR", ">MW", ">CQ", ">QP", ">SRQ", ">AH", ">CM_ID"}}
	for _, x := range sorted {
		var session any = x.owner.Session
		if x.owner.Session == 0 {
			session = ""
		}
		t.row(x.owner.Device, session, x.owner.PID, x.owner.Comm, x.n[0], x.n[1], x.n[2], x.n[3], x.n[4], x.n[5], x.n[6], x.n[7])
	}
	t.write(w)
}

// resourceTable returns the objects of one kind, for programs and for people.
// Numbers of objects are decimal as in the rdma tool, addresses hexadecimal.
func resourceTable(r api.Resources, kind string) (any, *table) {
	t := &table{heads: []string{"DEVICE", ">PID", "COMMAND"}}
	heads := func(h ...string) { t.heads = append(t.heads, h...) }
	row := func(o api.Owner, cells ...any) { t.row(append([]any{o.Device, o.PID, o.Comm}, cells...)...) }
	switch kind {
	case "pd":
		heads(">PDN", ">USERS")
		for _, x := range r.PDs {
			row(x.Owner, x.PDN, x.Users)
		}
		return r.PDs, t
	case "mr":
		heads(">MRN", ">PDN", ">IOVA", ">LENGTH", "MEMORY", "ACCESS")
		for _, x := range r.MRs {
			row(x.Owner, x.MRN, x.PDN, fmt.Sprintf("%#x", x.IOVA), sizeText(x.Length), x.Memory, strings.Join(x.Access, ","))
		}
		return r.MRs, t
	case "mw":
		heads(">MWN", ">PDN", ">TYPE", ">MRN", ">IOVA", ">LENGTH", "ACCESS")
		for _, x := range r.MWs {
			if x.MRN == 0 {
				row(x.Owner, x.MWN, x.PDN, x.Type, "", "", "", "not bound")
				continue
			}
			row(x.Owner, x.MWN, x.PDN, x.Type, x.MRN, fmt.Sprintf("%#x", x.IOVA), sizeText(x.Length), strings.Join(x.Access, ","))
		}
		return r.MWs, t
	case "cq":
		heads(">CQN", ">CQE", ">USERS", "STATE")
		for _, x := range r.CQs {
			state := "polled"
			if x.Armed {
				state = "armed"
			}
			if x.Overrun {
				state = "overrun"
			}
			row(x.Owner, x.CQN, x.CQE, x.Users, state)
		}
		return r.CQs, t
	case "srq":
		heads(">SRQN", ">PDN", ">MAX", ">POSTED", ">LIMIT")
		for _, x := range r.SRQs {
			row(x.Owner, x.SRQN, x.PDN, x.MaxWR, x.Outstanding, x.Limit)
		}
		return r.SRQs, t
	case "ah":
		heads(">AHN", ">PDN", "REMOTE")
		for _, x := range r.AHs {
			row(x.Owner, x.AHN, x.PDN, gidAddress(x.RemoteGID))
		}
		return r.AHs, t
	case "cm_id":
		heads(">CM_IDN", ">LQPN", "TYPE", "STATE", "PS", "SRC-ADDR", "DST-ADDR")
		for _, x := range r.CMIDs {
			var lqpn any = x.LQPN
			if x.LQPN == 0 {
				lqpn = ""
			}
			row(x.Owner, x.CMIDN, lqpn, x.Type, x.State, x.PS, x.Src, x.Dst)
		}
		return r.CMIDs, t
	}
	heads(">LQPN", "TYPE", "STATE", ">RQPN", ">SQ PSN", ">RQ PSN", ">MTU", "PATH", "REMOTE")
	for _, x := range r.QPs {
		path := "wire"
		if x.SameNode {
			path = "node"
		}
		if x.RemoteGID == "" {
			path = ""
		}
		row(x.Owner, x.LQPN, x.Type, x.State, x.RQPN, x.SQPSN, x.RQPSN, x.PathMTU, path, gidAddress(x.RemoteGID))
	}
	return r.QPs, t
}

// gidAddress returns the address a RoCEv2 GID stands for, or gid itself.
func gidAddress(gid string) string {
	a, err := netip.ParseAddr(gid)
	if err != nil {
		return gid
	}
	return a.Unmap().String()
}
