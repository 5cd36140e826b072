// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"cmp"
	"fmt"
	"slices"
)

// layout is which members are where, by index of the member.
type layout struct {
	cores  [][]int // core pods, of two members, or of one where no other can be
	spines [][]int // pods of spines, likewise
	leaves []int
	up     []int // by pod: its core pod
	pod    []int // by leaf: its pod
}

// levels plans leaves and spines, and cores where two levels do not suffice. It reports whether the ports allow it.
//
// Members that are spines or cores stay it, if the ports of those suffice.
func (b *builder) levels(in []int) bool {
	was := 0
	for _, i := range in {
		if b.m[i].Place.Level == Core {
			was++
		}
	}
	// Room for an eighth more members takes cores away: one join and leave in turn do not change the form each time.
	n := len(in)
	if was > 0 {
		n += n / 8
	}
	for _, keep := range []bool{true, false} {
		if l, ok := b.two(in, n, keep); ok {
			b.build(Spines, l)
			return true
		}
	}
	for _, keep := range []bool{true, false} {
		if l, ok := b.three(in, keep); ok {
			b.build(Cores, l)
			b.noteLevels(in)
			return true
		}
	}
	if l, ok := b.two(in, len(in), false); ok {
		b.build(Spines, l)
		return true
	}
	return false
}

// candidates are the members that can be spines or cores, the best first. keep: those that are spines come before
// larger ones.
func (b *builder) candidates(in []int, keep bool) []int {
	var list []int
	for _, i := range in {
		if b.m[i].transits() && b.m[i].Ports >= 2 {
			list = append(list, i)
		}
	}
	first := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(list, func(i, j int) int {
		x, y := &b.m[i], &b.m[j]
		return cmp.Or(cmp.Compare(first(!x.Drained), first(!y.Drained)),
			cmp.Compare(first(x.Role == SpineRole), first(y.Role == SpineRole)),
			cmp.Compare(first(keep && x.Place.Level >= Spine), first(keep && y.Place.Level >= Spine)),
			cmp.Compare(y.Ports, x.Ports))
	})
	return list
}

// seats puts members into pods: those that were in one of them at that level stay there.
func (b *builder) seats(list []int, pods int, level Level) [][]int {
	at := make([][]int, pods)
	var rest []int
	for _, i := range list {
		if p := b.m[i].Place; p.Level == level && int(p.Pod) < pods && len(at[p.Pod]) < 2 {
			at[p.Pod] = append(at[p.Pod], i)
		} else {
			rest = append(rest, i)
		}
	}
	for _, i := range rest { // members with equal ports share a pod
		p := slices.IndexFunc(at, func(pod []int) bool { return len(pod) == 1 })
		if p < 0 {
			p = slices.IndexFunc(at, func(pod []int) bool { return len(pod) == 0 })
		}
		at[p] = append(at[p], i)
	}
	return at
}

// least is the fewest ports of a pod's members.
func (b *builder) least(pod []int) int {
	n := MaxPorts
	for _, i := range pod {
		n = min(n, b.m[i].Ports)
	}
	return n
}

// room is how many more trunks each member of a pod has ports for, beside the used ones: by pod, and in all. In all it
// is -1 where a pod has no ports for the used ones.
func (b *builder) room(pods [][]int, used int) (room []int, sum int) {
	room = make([]int, len(pods))
	for p := range pods {
		if room[p] = b.least(pods[p]) - used; room[p] < 0 {
			return room, -1
		}
		sum += room[p]
	}
	return room, sum
}

// steady chooses a number: was, if it is at least enough and at most ample; else the nearer one of these.
func steady(was, enough, ample int) int { return min(max(was, enough), max(ample, enough)) }

// was counts the pods of a level in the places.
func (b *builder) was(in []int, level Level) int {
	pods := 0
	for _, i := range in {
		if p := b.m[i].Place; p.Level == level {
			pods = max(pods, int(p.Pod)+1)
		}
	}
	return pods
}

// smallest is the smallest number from lowest to highest that fits, 0 if none does.
func smallest(lowest, highest int, fits func(int) bool) int {
	for n := lowest; n <= highest; n++ {
		if fits(n) {
			return n
		}
	}
	return 0
}

// two lays out leaves and spines with room for n members. It reports whether the ports allow it. Where there are
// members with the role spine, no others are spines, but for one to make their number even, or if the ports of those
// do not suffice.
func (b *builder) two(in []int, n int, keep bool) (*layout, bool) {
	list := b.candidates(in, keep)
	named := 0
	for _, i := range list {
		if b.m[i].Role == SpineRole && !b.m[i].Drained {
			named++
		}
	}
	if named > 0 {
		if l, ok := b.twoOf(list[:min(max(2, named+named%2), len(list))], named, in, n); ok {
			return l, true
		}
	}
	return b.twoOf(list, named, in, n)
}

// twoOf is two with the first members of list as spines; the first named ones are spines in any case.
func (b *builder) twoOf(list []int, named int, in []int, n int) (*layout, bool) {
	if len(list) == 0 {
		return nil, false
	}
	most := min(maxPods, max(1, len(list)/2))
	pods := func(p int) [][]int { return b.seats(list[:min(2*p, len(list))], p, Spine) }
	fits := func(p, n int) bool {
		spines := min(2*p, len(list))
		leaves := n - spines
		_, sum := b.room(pods(p), spines-1)
		return leaves >= 0 && sum >= leaves && (leaves <= PodLeaves*p || p == most)
	}
	lowest := min(most, max(1, ceil(named, 2)))
	enough := smallest(lowest, most, func(p int) bool { return fits(p, n) })
	if enough == 0 {
		return nil, false
	}
	ample := smallest(enough, most, func(p int) bool { return fits(p, n+n/8) })
	if ample == 0 {
		ample = most
	}
	p := steady(b.was(in, Spine), enough, ample)
	if !fits(p, n) {
		p = enough
	}
	l := &layout{spines: pods(p)}
	room, _ := b.room(l.spines, min(2*p, len(list))-1)
	return l, b.fill(l, in, room)
}

// three lays out leaves, spines and cores.
func (b *builder) three(in []int, keep bool) (*layout, bool) {
	list := b.candidates(in, keep)
	slices.SortStableFunc(list, func(i, j int) int { // cores first, and members that are spines last
		rank := func(k int) int {
			switch level := b.m[k].Place.Level; {
			case b.m[k].Drained:
				return 3
			case !keep:
				return 0
			case level == Core:
				return 0
			case level == Spine:
				return 2
			}
			return 1
		}
		return cmp.Compare(rank(i), rank(j))
	})
	widest := 0
	for _, i := range list {
		widest = max(widest, b.m[i].Ports)
	}
	behind := make([][]int, len(list)/2+1) // by q: the members for spines, in their order
	spines := func(q, p int) [][]int {
		if behind[q] == nil {
			behind[q] = b.behind(list[2*q:], keep)
		}
		return b.seats(behind[q][:2*p], p, Spine)
	}
	// fits returns the number of pods for n members with q core pods, 0 if there is none.
	fits := func(q, n int) int {
		cores := b.roomForPods(b.seats(list[:2*q], q, Core))
		lowest := max(1, ceil(n-2*q, max(widest-3, 0)+2)) // fewer have no room in any case
		return smallest(lowest, min(cores, (len(list)-2*q)/2), func(p int) bool {
			_, below := b.room(spines(q, p), 3) // two cores and the other spine
			return below >= max(0, n-2*q-2*p)
		})
	}
	n := len(in)
	most := min(maxPods, len(list)/4)
	enough := smallest(1, most, func(q int) bool { return fits(q, n) > 0 })
	if enough == 0 {
		return nil, false
	}
	ample := smallest(enough, most, func(q int) bool { return fits(q, n+n/8) > 0 })
	q := steady(b.was(in, Core), enough, max(ample, enough))
	p := fits(q, n)
	if p == 0 {
		q, p = enough, fits(enough, n)
	}
	cores := b.seats(list[:2*q], q, Core)
	if more := fits(q, n+n/8); more > 0 {
		if s := steady(b.was(in, Spine), p, more); s <= b.roomForPods(cores) && 2*(q+s) <= len(list) {
			p = s
		}
	}
	l := &layout{cores: cores, spines: spines(q, p)}
	wishes := make([]int, p)
	for k, pod := range l.spines {
		wishes[k] = -1
		for _, i := range pod {
			if w := b.m[i].Place; w.Level == Spine && int(w.Pod) == k && b.was(in, Core) > 0 && wishes[k] < 0 {
				wishes[k] = int(w.Up)
			}
		}
	}
	room, _ := b.room(cores, 2*q-1)
	for k := range room {
		room[k] /= 2
	}
	var left bool
	l.up, left = spread(wishes, room)
	below, _ := b.room(l.spines, 3)
	return l, !left && b.fill(l, in, below)
}

// behind orders the members that are no cores for the seats of spines.
func (b *builder) behind(list []int, keep bool) []int {
	rest := slices.Clone(list)
	if keep {
		slices.SortStableFunc(rest, func(i, j int) int {
			x := b.m[i].Place.Level == Spine && !b.m[i].Drained
			y := b.m[j].Place.Level == Spine && !b.m[j].Drained
			switch {
			case x == y:
				return 0
			case x:
				return -1
			}
			return 1
		})
	}
	return rest
}

// roomForPods is how many pods of spines the ports of the cores have room for.
func (b *builder) roomForPods(cores [][]int) (sum int) {
	room, sum := b.room(cores, 2*len(cores)-1)
	if sum < 0 {
		return 0
	}
	sum = 0
	for _, r := range room {
		sum += r / 2
	}
	return sum
}

// fill puts all members that are no spine or core into pods. It reports whether there was room.
func (b *builder) fill(l *layout, in, room []int) bool {
	upper := map[int]bool{}
	for _, i := range slices.Concat(slices.Concat(l.cores...), slices.Concat(l.spines...)) {
		upper[i] = true
	}
	var wishes []int
	for _, i := range in {
		if upper[i] {
			continue
		}
		l.leaves = append(l.leaves, i)
		wish := -1
		if p := b.m[i].Place; p.Level == Leaf {
			wish = int(p.Pod)
		}
		wishes = append(wishes, wish)
	}
	var left bool
	l.pod, left = spread(wishes, room)
	return !left
}

// spread distributes things over bins with room: each to its wish while that has room, else to the emptiest; then the
// last ones move until the bins differ by at most one, but for those that are full. It reports whether some are left,
// with bin -1.
func spread(wishes, room []int) (bin []int, left bool) {
	load := make([]int, len(room))
	bin = make([]int, len(wishes))
	for i, w := range wishes {
		bin[i] = -1
		if w >= 0 && w < len(room) && load[w] < room[w] {
			bin[i] = w
			load[w]++
		}
	}
	emptiest := func() int {
		best := -1
		for k := range room {
			if load[k] < room[k] && (best < 0 || load[k] < load[best]) {
				best = k
			}
		}
		return best
	}
	for i := range bin {
		if bin[i] >= 0 {
			continue
		}
		if bin[i] = emptiest(); bin[i] < 0 {
			left = true
			continue
		}
		load[bin[i]]++
	}
	for {
		fullest := 0
		for k := range load {
			if load[k] > load[fullest] {
				fullest = k
			}
		}
		to := emptiest()
		if to < 0 || load[fullest]-load[to] <= 1 {
			return bin, left
		}
		for i := len(bin) - 1; i >= 0; i-- {
			if bin[i] == fullest {
				bin[i] = to
				break
			}
		}
		load[fullest]--
		load[to]++
	}
}

// build makes the trunks of a layout, and notes the places.
func (b *builder) build(form Form, l *layout) {
	b.form = form
	top := l.spines
	if form == Cores {
		top = l.cores
	}
	all := slices.Concat(top...)
	for k, i := range all {
		for _, j := range all[:k] {
			b.link(i, j)
		}
	}
	for p, pod := range l.cores {
		for _, i := range pod {
			b.place[i] = Place{Level: Core, Pod: uint8(p)}
		}
	}
	for p, pod := range l.spines {
		for _, i := range pod {
			b.place[i] = Place{Level: Spine, Pod: uint8(p)}
			if form != Cores {
				continue
			}
			b.place[i].Up = uint8(l.up[p])
			for _, j := range slices.Concat(pod, l.cores[l.up[p]]) {
				b.link(i, j)
			}
		}
	}
	var single []int
	for k, i := range l.leaves {
		b.place[i] = Place{Level: Leaf, Pod: uint8(l.pod[k])}
		for _, j := range l.spines[l.pod[k]] {
			b.link(i, j)
		}
		if b.m[i].Ports == 1 && len(l.spines[l.pod[k]]) > 1 {
			single = append(single, i)
		}
	}
	b.limit(SingleTrunk, single, "the switch has one port for trunks: the end of one spine cuts the member off",
		fmt.Sprintf("weft up --switch-ports %d, there", 2+DevicePorts))
	if len(all) == 1 {
		b.single(all[0])
	}
}

// noteLevels notes that larger switches would make a level less.
func (b *builder) noteLevels(in []int) {
	n := len(in)
	list := b.transit(in)
	why := fmt.Sprintf("the ports of the switches suffice for %d members in three levels: paths have up to 5 trunks, "+
		"with two levels 3", n)
	b.limit(ThreeLevels, list[:min(len(list), 2*podsFor(n))], why, b.larger(in))
}

// larger is the command that gives members two levels.
func (b *builder) larger(in []int) string {
	n := len(in)
	spines := 2 * podsFor(n)
	if len(b.transit(in)) < spines {
		return fmt.Sprintf("weft token --role manager,spine; weft join; weft up --switch-ports %d, on more hosts, so "+
			"that %d members have these roles", b.enough(n), spines)
	}
	return fmt.Sprintf("weft up --switch-ports %d, on %d members; weft member set NAME --role spine, for each of them",
		b.enough(n), spines)
}
