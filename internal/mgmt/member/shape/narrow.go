// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"cmp"
	"fmt"
	"slices"
)

// narrow plans a tree, the members with the most ports at its top, and then second trunks where ports are left. If any
// tree of these members exists in which only members that may do so carry packets of others, it finds one. At least one
// may.
func (b *builder) narrow(in []int) {
	b.form = Narrow
	order := slices.Clone(in)
	slices.SortStableFunc(order, func(i, j int) int {
		x, y := &b.m[i], &b.m[j]
		if x.transits() != y.transits() {
			if x.transits() {
				return -1
			}
			return 1
		}
		return cmp.Compare(y.Ports, x.Ports)
	})
	// In this order, each member goes to the first that has a port: so the tree is as low as it can be.
	attached := []int{order[0]}
	var out []int
	for _, i := range order[1:] {
		k := slices.IndexFunc(attached, func(j int) bool { return b.m[j].transits() && b.free(j) > 0 })
		if k < 0 {
			out = append(out, i)
			continue
		}
		b.link(i, attached[k])
		attached = append(attached, i)
	}
	var single []int
	for _, i := range attached {
		for k := 0; k < len(attached) && b.ways(i) < 2; k++ {
			if b.m[i].transits() || b.m[attached[k]].transits() {
				b.link(i, attached[k])
			}
		}
		if b.ways(i) < 2 {
			single = append(single, i)
		}
	}
	n := len(in)
	b.limit(NarrowForm, slices.Clone(order[:min(len(order), 2*podsFor(n))]), fmt.Sprintf(
		"the ports of the switches do not suffice for %d members with two ways each", n), b.fixNarrow(in))
	b.limit(Unplaced, out, "no member that may carry packets of others has a port left for them", b.fixNarrow(in))
	if t := b.transit(in); len(t) == 1 {
		b.single(t[0])
		return
	}
	b.limit(SingleTrunk, single, "no second port is left for them: the end of one member cuts them off",
		b.fixNarrow(in))
}

// ways is the number of the trunks of a member that lead to members other than their other end.
func (b *builder) ways(i int) (n int) {
	if b.m[i].transits() {
		return len(b.peers[i])
	}
	for _, j := range b.peers[i] {
		if b.m[j].transits() {
			n++
		}
	}
	return n
}

// fixNarrow is the command that gives two ways to each.
func (b *builder) fixNarrow(in []int) string {
	if len(in) > MeshLimit {
		return b.larger(in)
	}
	return fmt.Sprintf("weft up --switch-ports %d, on each member", b.enough(len(in)))
}
