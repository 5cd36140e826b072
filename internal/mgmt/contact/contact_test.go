// SPDX-License-Identifier: Apache-2.0

package contact

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/sm/sa"
	"weft/internal/proto/ib"
)

func part(name string, key ib.PKey, all sm.Membership, members ...sm.Member) sm.Partition {
	return sm.Partition{Name: name, PKey: key, All: all, Members: members}
}

func full(g ib.GUID) sm.Member    { return sm.Member{PortGUID: g, As: sm.Full} }
func limited(g ib.GUID) sm.Member { return sm.Member{PortGUID: g, As: sm.Limited} }

func vesw(name string, id uint16, key ib.PKey, ports ...ib.GUID) em.VESW {
	v := em.VESW{Name: name, ID: id, PKey: key}
	for i, p := range ports {
		v.Members = append(v.Members, em.Member{Port: p, Num: uint32(i + 1)})
	}
	return v
}

// config makes what the manager makes of partitions and VESWs.
func config(parts []sm.Partition, vesws ...em.VESW) Config {
	c := Config{Partitions: parts, VESWs: vesws}
	for _, v := range vesws {
		if v.OwnPartition() {
			p := sm.Partition{Name: "vesw-" + v.Name, PKey: v.Key(), Apart: true}
			for _, m := range v.Members {
				p.Members = append(p.Members, full(m.Port))
			}
			c.Partitions = append(c.Partitions, p)
		}
	}
	return c
}

// lost is Lost without an end.
func lost(t testing.TB, before, after Config, ports, gone []ib.GUID) *Losses {
	t.Helper()
	l, err := Lost(t.Context(), before, after, ports, gone)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// text is losses as lines: PORT<WITH… BY.
func text(list []Loss) string {
	var lines []string
	for _, l := range list {
		s := fmt.Sprintf("%d<", uint64(l.Port))
		for i, w := range l.With {
			if i > 0 {
				s += ","
			}
			s += fmt.Sprint(uint64(w))
		}
		lines = append(lines, strings.TrimSpace(s+" "+l.By))
	}
	return strings.Join(lines, "; ")
}

func TestLost(t *testing.T) {
	ports := []ib.GUID{1, 2, 3}
	red := func(m ...sm.Member) []sm.Partition { return []sm.Partition{part("red", 0x8001, sm.NotMember, m...)} }
	group := func(m ...ib.GUID) Config {
		g := sa.Group{MGID: ib.GID{0xff, 0x12, 15: 1}}
		for _, p := range m {
			g.Members = append(g.Members, sa.Member{PortGUID: p})
		}
		return Config{Groups: []sa.Group{g}}
	}
	strict := vesw("lab", 1, 0, 1, 2)
	strict.NoUserMACs = true
	jumbo := vesw("lab", 1, 0, 1, 2)
	jumbo.MTU = 9000
	elsewhere := config(nil, vesw("lab", 1, 0, 1, 2))
	elsewhere.FabricID = 5
	other := func(set func(g *sa.Group)) Config {
		c := group(1, 2)
		set(&c.Groups[0])
		return c
	}
	both := append(red(full(1), full(2)), part("all", 0xffff, sm.Full))
	for _, x := range []struct {
		name          string
		before, after Config
		gone          []ib.GUID
		want          string
	}{
		{name: "nothing changes", before: config(red(full(1), full(2))), after: config(red(full(1), full(2)))},
		{name: "the first partition makes the default one limited", after: config(red(full(1), full(2))),
			want: "1<2,3 the default partition; 2<3 the default partition"},
		{name: "the default one opens: the other has no pair", before: config(red(full(1))), after: Config{}},
		{name: "a partition besides a default one that is open", before: config(both), after: config(both[1:]),
			want: "1<2 partition red"},
		{name: "a member leaves", before: config(red(full(1), full(2), full(3))), after: config(red(full(1), full(2))),
			want: "3<1,2 partition red"},
		{name: "a member becomes limited, the other is full", before: config(red(full(1), full(2))),
			after: config(red(full(1), limited(2)))},
		{name: "the second member becomes limited", before: config(red(full(1), limited(2))),
			after: config(red(limited(1), limited(2))), want: "1<2 partition red"},
		{name: "the only partition goes", before: config(red(full(1), limited(2))), want: "1<2 partition red"},
		{name: "a port that is off counts", before: config(red(full(1), full(9))), after: config(red(full(1))),
			want: "1<9 partition red"},
		{name: "a member that every port was", before: config([]sm.Partition{part("r", 0x8001, sm.Limited, full(1))}),
			after: config(red(full(1))), want: "1<2,3 partition r"},
		{name: "a VESW comes", after: config(nil, vesw("lab", 1, 0, 1, 2))},
		{name: "a VESW goes, and so its partition", before: config(nil, vesw("lab", 1, 0, 1, 2, 3)), after: config(nil),
			want: "1<2,3 vesw lab; 2<3 vesw lab"},
		{name: "a port leaves a VESW", before: config(nil, vesw("lab", 1, 0, 1, 2, 3)),
			after: config(nil, vesw("lab", 1, 0, 1, 2)), want: "3<1,2 vesw lab"},
		{name: "a VESW with one port goes", before: config(nil, vesw("lab", 1, 0, 1)), after: config(nil)},
		{name: "a VESW moves to a partition without its ports", before: config(red(full(1)), vesw("lab", 1, 0, 1, 2)),
			after: config(red(full(1)), vesw("lab", 1, 0x8001, 1, 2)), want: "1<2 vesw lab"},
		{name: "a VESW moves to a partition with them",
			before: config(red(full(1), limited(2)), vesw("lab", 1, 0, 1, 2)),
			after:  config(red(full(1), limited(2)), vesw("lab", 1, 0x8001, 1, 2))},
		{name: "the partition of a VESW goes", before: config(red(full(1), full(2)), vesw("lab", 1, 0x8001, 1, 2)),
			after: config(nil, vesw("lab", 1, 0x8001, 1, 2)), want: "1<2 vesw lab; 1<2 partition red"},
		{name: "another MTU", before: config(nil, vesw("lab", 1, 0, 1, 2)), after: config(nil, jumbo)},
		{name: "no MACs of guests any more", before: config(nil, vesw("lab", 1, 0, 1, 2)), after: config(nil, strict),
			want: "1< MACs of its own in vesw lab; 2< MACs of its own in vesw lab"},
		{name: "a member of a group", before: group(1, 2), after: group(2),
			want: "1< group ff12:0000:0000:0000:0000:0000:0000:0001"},
		{name: "another P_Key of a group", before: group(1), after: other(func(g *sa.Group) { g.PKey = 0x8001 }),
			want: "1< group ff12:0000:0000:0000:0000:0000:0000:0001, of which the P_Key changes"},
		{name: "another Q_Key of a group", before: group(1), after: other(func(g *sa.Group) { g.QKey = 5 }),
			want: "1< group ff12:0000:0000:0000:0000:0000:0000:0001, of which the Q_Key changes"},
		{name: "another MTU of a group", before: group(2), after: other(func(g *sa.Group) { g.MTU = ib.MTU256 }),
			want: "2< group ff12:0000:0000:0000:0000:0000:0000:0001, of which the MTU changes"},
		{name: "the full bit of the P_Key of a group", before: group(1),
			after: other(func(g *sa.Group) { g.PKey = 0x8000 })},
		{name: "another number of a VESW", before: config(nil, vesw("lab", 1, 0, 1, 2)),
			after: config(nil, vesw("lab", 2, 0, 1, 2)), want: "1<2 vesw lab, which gets another identifier"},
		{name: "another number of the fabric", before: config(nil, vesw("lab", 1, 0, 1, 2)), after: elsewhere,
			want: "1<2 vesw lab, which gets another identifier"},
		{name: "a group without members", before: group(), after: Config{}},
		{name: "a port is deleted", gone: []ib.GUID{2}, want: "2<1,3 the default partition"},
		{name: "a port is deleted that reaches no other", before: config(red(full(1), full(3))),
			after: config(red(full(1), full(3))), gone: []ib.GUID{2}},
	} {
		if diff := cmp.Diff(x.want, text(lost(t, x.before, x.after, ports, x.gone).List)); diff != "" {
			t.Errorf("%s:\n%s", x.name, diff)
		}
	}
	if n := lost(t, Config{}, config(red(full(1), full(2))), ports, nil).Pairs; n != 3 {
		t.Errorf("%d pairs, want 3", n)
	}
}

// TestLostAgainstModel compares the pairs of random changes of partitions with an obvious count: which ports were in a
// partition with which.
func TestLostAgainstModel(t *testing.T) {
	const n = 7
	r := rand.New(rand.NewPCG(1, 2))
	random := func() (list []sm.Partition) {
		for k := range r.IntN(4) {
			p := part(fmt.Sprint(k), ib.PKey(0x7fff-k), sm.Membership(r.IntN(3)))
			for g := range ib.GUID(n) {
				if r.IntN(2) == 0 {
					p.Members = append(p.Members, sm.Member{PortGUID: g + 1, As: sm.Membership(r.IntN(3))})
				}
			}
			list = append(list, p)
		}
		return list
	}
	// as is the membership of a port in a partition, by its key.
	as := func(list []sm.Partition, key ib.PKey, g ib.GUID) sm.Membership {
		is := sm.NotMember
		if key == 0x7fff {
			if is = sm.Limited; len(list) == 0 {
				is = sm.Full
			}
		}
		for _, p := range list {
			if p.PKey != key {
				continue
			}
			is = max(is, p.All)
			for _, m := range p.Members {
				if m.PortGUID == g {
					if is = m.As; key == 0x7fff {
						is = max(is, sm.Limited)
					}
				}
			}
		}
		return is
	}
	reaches := func(list []sm.Partition, key ib.PKey, a, b ib.GUID) bool {
		return int(as(list, key, a))*int(as(list, key, b)) >= 2
	}
	ports := []ib.GUID{1, 2, 3, 4, 5, 6, 7}
	count := 0
	for i := range 2000 {
		before, after := random(), random()
		type loss struct {
			by   string
			a, b ib.GUID
		}
		want, got := map[loss]bool{}, map[loss]bool{}
		for k := range ib.PKey(4) {
			key := 0x7fff - k
			by := "partition " + fmt.Sprint(k)
			if k == 0 {
				by = "the default partition"
			}
			for _, a := range ports {
				for b := ib.GUID(1); b < a; b++ {
					if reaches(before, key, a, b) && !reaches(after, key, a, b) {
						want[loss{by, b, a}] = true
					}
				}
			}
		}
		all := lost(t, Config{Partitions: before}, Config{Partitions: after}, ports, nil)
		for _, l := range all.List {
			for _, w := range l.With {
				x := loss{l.By, min(l.Port, w), max(l.Port, w)}
				if got[x] {
					t.Fatalf("change %d: %v is named twice", i, x)
				}
				got[x] = true
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("change %d: %+v\nto %+v:\n%s", i, before, after, diff)
		}
		if all.Pairs != len(want) || all.Count() != len(all.List) {
			t.Fatalf("change %d: %d pairs, want %d; %d losses, %d listed", i, all.Pairs, len(want), all.Count(),
				len(all.List))
		}
		count += len(want)
	}
	if count == 0 {
		t.Error("no change took contact away: the test shows nothing")
	}
}

// many are the ports of a large subnet.
func many(n int) (ports []ib.GUID) {
	for i := range n {
		ports = append(ports, ib.GUID(i+1))
	}
	return ports
}

// TestBounds: what is listed is bounded, what is counted is not, and the digest has all of it.
func TestBounds(t *testing.T) {
	const n = 4096
	ports := many(n)
	first := config([]sm.Partition{part("red", 0x8001, sm.NotMember)})
	all := lost(t, Config{}, first, ports, nil)
	if all.Pairs != n*(n-1)/2 || all.Count() != n-1 || len(all.List) != MaxLosses {
		t.Errorf("%d pairs, %d losses, %d listed", all.Pairs, all.Count(), len(all.List))
	}
	if l := all.List[1]; l.Port != 2 || len(l.With) != MaxWith || l.With[0] != 3 || l.More != n-2-MaxWith {
		t.Errorf("%+v", l)
	}
	if again := lost(t, Config{}, first, ports, nil); again.Digest() != all.Digest() {
		t.Error("the same loss has another digest")
	}
	other := slices.Clone(ports)
	other[n-1]++ // listed nowhere
	if another := lost(t, Config{}, first, other, nil); another.Pairs != all.Pairs || another.Digest() == all.Digest() {
		t.Error("another loss has the same digest")
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Lost(ctx, Config{}, first, ports, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("without a caller: %v", err)
	}
}

// BenchmarkLost is the first partition of a subnet with 4096 ports, all pairs of which lose contact, and a switch and
// 32 partitions with all ports that lose each second one.
func BenchmarkLost(b *testing.B) {
	ports := many(4096)
	was, is := []sm.Partition(nil), []sm.Partition(nil)
	for k := range 32 {
		p, half := part("p", ib.PKey(0x8001+k), sm.NotMember), part("p", ib.PKey(0x8001+k), sm.NotMember)
		for i, g := range ports {
			if p.Members = append(p.Members, full(g)); i%2 == 0 {
				half.Members = append(half.Members, full(g))
			}
		}
		was, is = append(was, p), append(is, half)
	}
	lab, none := vesw("lab", 1, 0, ports...), vesw("lab", 1, 0)
	for _, x := range []struct {
		name          string
		before, after Config
	}{
		{"first", Config{}, config(is[:1])},
		{"each second", config(was), config(is)},
		{"vesw", config(nil, lab), config(nil, none)},
	} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if lost(b, x.before, x.after, ports, nil).Pairs == 0 {
					b.Fatal("nothing is lost")
				}
			}
		})
	}
}
