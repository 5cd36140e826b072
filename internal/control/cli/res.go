// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

// resourceKind is a kind of object: its list for programs, its table for people, and its owners.
type resourceKind struct {
	name   string
	list   func(r api.Resources) any
	print  func(w *screen, r api.Resources)
	owners func(r api.Resources) []api.Owner
}

// kindOf describes a kind of object. Every table begins with the owner.
func kindOf[T any](name string, list func(r api.Resources) []T, owner func(v T) api.Owner,
	columns ...column[T]) resourceKind {
	columns = append([]column[T]{
		{head: "DEVICE", cell: func(v T) any { return owner(v).Device }},
		{head: ">PID", cell: func(v T) any { return owner(v).PID }},
		{head: "COMMAND", cell: func(v T) any { return owner(v).Comm }, wide: 1},
	}, columns...)
	return resourceKind{name, func(r api.Resources) any { return list(r) },
		func(w *screen, r api.Resources) { writeTable(w, "no "+name, columns, list(r)) },
		func(r api.Resources) (owners []api.Owner) {
			for _, v := range list(r) {
				owners = append(owners, owner(v))
			}
			return owners
		}}
}

// resourceKinds are in the order of the columns of "weft res". Numbers of objects are decimal as in the rdma tool,
// addresses hexadecimal.
var resourceKinds = []resourceKind{
	kindOf("pd", func(r api.Resources) []api.PD { return r.PDs }, func(x api.PD) api.Owner { return x.Owner },
		column[api.PD]{head: ">PDN", cell: func(x api.PD) any { return x.PDN }},
		column[api.PD]{head: ">USERS", cell: func(x api.PD) any { return x.Users }}),
	kindOf("mr", func(r api.Resources) []api.MR { return r.MRs }, func(x api.MR) api.Owner { return x.Owner },
		column[api.MR]{head: ">MRN", cell: func(x api.MR) any { return x.MRN }},
		column[api.MR]{head: ">PDN", cell: func(x api.MR) any { return x.PDN }, wide: 2},
		column[api.MR]{head: ">IOVA", cell: func(x api.MR) any { return fmt.Sprintf("%#x", x.IOVA) }},
		column[api.MR]{head: ">LENGTH", cell: func(x api.MR) any { return sizeText(x.Length) }},
		column[api.MR]{head: "MEMORY", cell: func(x api.MR) any { return x.Memory }, wide: 3},
		column[api.MR]{head: "ACCESS", cell: func(x api.MR) any { return strings.Join(x.Access, ",") }}),
	kindOf("mw", func(r api.Resources) []api.MW { return r.MWs }, func(x api.MW) api.Owner { return x.Owner },
		column[api.MW]{head: ">MWN", cell: func(x api.MW) any { return x.MWN }},
		column[api.MW]{head: ">PDN", cell: func(x api.MW) any { return x.PDN }, wide: 3},
		column[api.MW]{head: ">TYPE", cell: func(x api.MW) any { return x.Type }, wide: 2},
		column[api.MW]{head: ">MRN", cell: func(x api.MW) any { return numberText(x.MRN) }},
		column[api.MW]{head: ">IOVA", cell: func(x api.MW) any { return ifBound(x, fmt.Sprintf("%#x", x.IOVA)) }},
		column[api.MW]{head: ">LENGTH", cell: func(x api.MW) any { return ifBound(x, sizeText(x.Length)) }},
		column[api.MW]{head: "ACCESS", cell: func(x api.MW) any {
			if x.MRN == 0 {
				return "not bound"
			}
			return strings.Join(x.Access, ",")
		}}),
	kindOf("cq", func(r api.Resources) []api.CQ { return r.CQs }, func(x api.CQ) api.Owner { return x.Owner },
		column[api.CQ]{head: ">CQN", cell: func(x api.CQ) any { return x.CQN }},
		column[api.CQ]{head: ">CQE", cell: func(x api.CQ) any { return x.CQE }},
		column[api.CQ]{head: ">USERS", cell: func(x api.CQ) any { return x.Users }},
		column[api.CQ]{head: "STATE", cell: func(x api.CQ) any {
			switch {
			case x.Overrun:
				return "overrun"
			case x.Armed:
				return "armed"
			}
			return "polled"
		}}),
	kindOf("qp", func(r api.Resources) []api.QP { return r.QPs }, func(x api.QP) api.Owner { return x.Owner },
		column[api.QP]{head: ">LQPN", cell: func(x api.QP) any { return x.LQPN }},
		column[api.QP]{head: "TYPE", cell: func(x api.QP) any { return x.Type }},
		column[api.QP]{head: "STATE", cell: func(x api.QP) any { return x.State }},
		column[api.QP]{head: ">RQPN", cell: func(x api.QP) any { return x.RQPN }},
		column[api.QP]{head: ">SQ PSN", cell: func(x api.QP) any { return x.SQPSN }, wide: 4},
		column[api.QP]{head: ">RQ PSN", cell: func(x api.QP) any { return x.RQPSN }, wide: 5},
		column[api.QP]{head: ">MTU", cell: func(x api.QP) any { return x.PathMTU }, wide: 2},
		column[api.QP]{head: "PATH", cell: func(x api.QP) any {
			switch {
			case x.RemoteGID == "":
				return ""
			case x.SameNode:
				return "node"
			}
			return "wire"
		}, wide: 3},
		column[api.QP]{head: "REMOTE", cell: func(x api.QP) any { return gidAddress(x.RemoteGID) }}),
	kindOf("srq", func(r api.Resources) []api.SRQ { return r.SRQs }, func(x api.SRQ) api.Owner { return x.Owner },
		column[api.SRQ]{head: ">SRQN", cell: func(x api.SRQ) any { return x.SRQN }},
		column[api.SRQ]{head: ">PDN", cell: func(x api.SRQ) any { return x.PDN }},
		column[api.SRQ]{head: ">MAX", cell: func(x api.SRQ) any { return x.MaxWR }},
		column[api.SRQ]{head: ">POSTED", cell: func(x api.SRQ) any { return x.Outstanding }},
		column[api.SRQ]{head: ">LIMIT", cell: func(x api.SRQ) any { return x.Limit }}),
	kindOf("ah", func(r api.Resources) []api.AH { return r.AHs }, func(x api.AH) api.Owner { return x.Owner },
		column[api.AH]{head: ">AHN", cell: func(x api.AH) any { return x.AHN }},
		column[api.AH]{head: ">PDN", cell: func(x api.AH) any { return x.PDN }},
		column[api.AH]{head: "REMOTE", cell: func(x api.AH) any { return gidAddress(x.RemoteGID) }}),
	kindOf("cm_id", func(r api.Resources) []api.CMID { return r.CMIDs }, func(x api.CMID) api.Owner { return x.Owner },
		column[api.CMID]{head: ">CM_IDN", cell: func(x api.CMID) any { return x.CMIDN }, wide: 2},
		column[api.CMID]{head: ">LQPN", cell: func(x api.CMID) any { return numberText(x.LQPN) }, wide: 4},
		column[api.CMID]{head: "TYPE", cell: func(x api.CMID) any { return x.Type }, wide: 3},
		column[api.CMID]{head: "STATE", cell: func(x api.CMID) any { return x.State }},
		column[api.CMID]{head: "PS", cell: func(x api.CMID) any { return x.PS }, wide: 5},
		column[api.CMID]{head: "SRC-ADDR", cell: func(x api.CMID) any { return x.Src }},
		column[api.CMID]{head: "DST-ADDR", cell: func(x api.CMID) any { return x.Dst }}),
}

// ifBound is text of a memory window that is bound to a region.
func ifBound(x api.MW, text string) string {
	if x.MRN == 0 {
		return ""
	}
	return text
}

// gidAddress returns the address of a RoCEv2 GID, and any other GID as it is. There is none where the GID is zero.
func gidAddress(gid string) string {
	a, err := netip.ParseAddr(gid)
	switch {
	case err != nil:
		return gid
	case a.IsUnspecified():
		return ""
	}
	return a.Unmap().String()
}

func resourcesCommand(a *app) *cobra.Command {
	var kinds []string
	for _, k := range resourceKinds {
		kinds = append(kinds, k.name)
	}
	return a.show(&cobra.Command{
		Use:       "res [" + strings.Join(kinds, "|") + "]",
		Short:     "show the verbs objects of programs",
		Long:      "Show the number of verbs objects of each program, or the objects of one kind.",
		ValidArgs: kinds,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && !slices.Contains(kinds, args[0]) {
				return usage("weft res qp", "weft res takes one of %s, not %q", strings.Join(kinds, ", "),
					strings.Join(args, " "))
			}
			return nil
		},
	}, func(cmd *cobra.Command, args []string, print printer) error {
		r, err := get(cmd.Context(), a, api.GetResources)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			return print(r, func(w *screen) { printTotals(w, r) })
		}
		k := resourceKinds[slices.Index(kinds, args[0])]
		return print(k.list(r), func(w *screen) { k.print(w, r) })
	})
}

// objectCount is the number of objects of each kind of a session. Identifiers of the connection manager belong to no
// session: they have a row of their own for each program and device.
type objectCount struct {
	owner api.Owner
	n     map[string]int
}

// printTotals prints one row per session with its number of objects, in the order of owners in a list of objects.
func printTotals(w *screen, r api.Resources) {
	rows := map[api.Owner]*objectCount{}
	for _, k := range resourceKinds {
		for _, o := range k.owners(r) {
			if rows[o] == nil {
				rows[o] = &objectCount{o, map[string]int{}}
			}
			rows[o].n[k.name]++
		}
	}
	var sorted []*objectCount
	for _, x := range rows {
		sorted = append(sorted, x)
	}
	slices.SortFunc(sorted, func(x, y *objectCount) int {
		return cmp.Or(api.CompareText(x.owner.Device, y.owner.Device), cmp.Compare(x.owner.Session, y.owner.Session),
			cmp.Compare(x.owner.PID, y.owner.PID), cmp.Compare(x.owner.Comm, y.owner.Comm),
			cmp.Compare(x.owner.UID, y.owner.UID))
	})
	columns := []column[*objectCount]{
		{head: "DEVICE", cell: func(x *objectCount) any { return x.owner.Device }},
		{head: ">SESSION", cell: func(x *objectCount) any { return numberText(x.owner.Session) }, wide: 1},
		{head: ">PID", cell: func(x *objectCount) any { return x.owner.PID }},
		{head: "COMMAND", cell: func(x *objectCount) any { return x.owner.Comm }},
	}
	for _, k := range resourceKinds {
		columns = append(columns, column[*objectCount]{head: ">" + strings.ToUpper(k.name),
			cell: func(x *objectCount) any { return x.n[k.name] }})
	}
	writeTable(w, "no objects", columns, sorted)
}
