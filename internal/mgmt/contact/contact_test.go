// SPDX-License-Identifier: Apache-2.0

package contact

import (
	"fmt"
	"math/rand/v2"
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
		{name: "a group without members", before: group(), after: Config{}},
		{name: "a port is deleted", gone: []ib.GUID{2}, want: "2<1,3 the default partition"},
		{name: "a port is deleted that reaches no other", before: config(red(full(1), full(3))),
			after: config(red(full(1), full(3))), gone: []ib.GUID{2}},
	} {
		if diff := cmp.Diff(x.want, text(Lost(x.before, x.after, ports, x.gone))); diff != "" {
			t.Errorf("%s:\n%s", x.name, diff)
		}
	}
	if n := Pairs(Lost(Config{}, config(red(full(1), full(2))), ports, nil)); n != 3 {
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
	lost := 0
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
		for _, l := range Lost(Config{Partitions: before}, Config{Partitions: after}, ports, nil) {
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
		lost += len(want)
	}
	if lost == 0 {
		t.Error("no change took contact away: the test shows nothing")
	}
}

// BenchmarkLost is the first partition of a subnet with 200 ports: all pairs but one lose contact.
func BenchmarkLost(b *testing.B) {
	var ports []ib.GUID
	for i := range 200 {
		ports = append(ports, ib.GUID(i+1))
	}
	after := config([]sm.Partition{part("red", 0x8001, sm.NotMember, full(1), full(2))})
	b.ReportAllocs()
	for b.Loop() {
		if n := Pairs(Lost(Config{}, after, ports, nil)); n != 200*199/2 {
			b.Fatal(n)
		}
	}
}
