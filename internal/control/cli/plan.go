// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

func planCommand(a *app) *cobra.Command {
	var all bool
	cmd := a.show(&cobra.Command{
		Use:   "plan",
		Short: "show which members shall have trunks to each other, and which trunks are missing",
		Long: `Show which members shall have trunks to each other, and the trunks that are not
as planned. Up to 16 members have a trunk each to each. Beyond that there are
leaves with a trunk to both spines of a pod, and where ports do not suffice,
cores above the spines.

Each member plans by itself, from the same records. The state of this node's
trunks is as they are, that of others as they have reported.`,
		Example: `  weft fabric plan
  weft fabric plan --all             each trunk
  weft member set b1 --role spine    choose a spine`,
		Args: cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print printer) error {
		p, err := get(cmd.Context(), a, api.GetTrunkPlan)
		if err != nil {
			return err
		}
		return print(p, func(w *screen) { printPlan(w, p, all) })
	})
	cmd.Flags().BoolVar(&all, "all", false, "list trunks that are up as well")
	return cmd
}

// forms are the forms of plans in a sentence.
var forms = map[string]string{"mesh": "a trunk each to each", "spines": "leaves and spines",
	"cores": "leaves, spines and cores", "narrow": "a tree: the ports do not suffice for two ways to each"}

func printPlan(w *screen, p api.TrunkPlan, all bool) {
	if p.Form == "" {
		paragraph(w, "no plan: this host is in no fabric. weft token makes one, weft join enters one")
		return
	}
	var up, surplus int
	var shown []api.PlannedTrunk
	for _, t := range p.Trunks {
		switch t.State {
		case api.TrunkUp:
			up++
		case api.TrunkSurplus:
			surplus++
		}
		if all || t.State != api.TrunkUp {
			shown = append(shown, t)
		}
	}
	paragraph(w, "%s, %s: %d of %s up", plural(len(p.Members), "member"), forms[p.Form], up,
		plural(len(p.Trunks)-surplus, "trunk"))
	fmt.Fprintln(w)
	writeTable(w, "", planMemberColumns, p.Members)
	if len(shown) > 0 {
		fmt.Fprintln(w)
		writeTable(w, "", planTrunkColumns, shown)
	}
	for _, l := range p.Limits {
		what := l.What
		if l.Note {
			what = "note, " + what
		}
		fmt.Fprintln(w)
		paragraph(w, "%s: %s: %s. fix: %s", what, fewNames(l.Members), l.Why, l.Fix)
	}
}

// fewNames lists names, at most sixteen of them.
func fewNames(list []string) string {
	const few = 16
	s := strings.Join(list[:min(few, len(list))], ", ")
	if more := len(list) - few; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

var planMemberColumns = []column[api.PlannedMember]{
	{head: "MEMBER", cell: func(m api.PlannedMember) any { return m.Name }},
	{head: "LEVEL", cell: func(m api.PlannedMember) any { return m.Level }},
	{head: ">POD", cell: func(m api.PlannedMember) any {
		if m.Pod == nil {
			return ""
		}
		return *m.Pod
	}},
	{head: ">TRUNKS", cell: func(m api.PlannedMember) any { return m.Trunks }},
	{head: ">PORTS", cell: func(m api.PlannedMember) any { return numberText(m.Ports) }},
	{head: "ALL UP", cell: func(m api.PlannedMember) any {
		switch {
		case m.Settled:
			return "yes"
		case m.Trunks == 0:
			return ""
		}
		return "not reported"
	}},
}

var planTrunkColumns = []column[api.PlannedTrunk]{
	{head: "FROM", cell: func(t api.PlannedTrunk) any { return t.A }},
	{head: "TO", cell: func(t api.PlannedTrunk) any { return t.B }},
	{head: "STATE", cell: func(t api.PlannedTrunk) any { return t.State }},
	{head: "WHY", cell: func(t api.PlannedTrunk) any { return t.Why }},
}
