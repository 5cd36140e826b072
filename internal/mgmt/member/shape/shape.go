// SPDX-License-Identifier: Apache-2.0

// Package shape plans which members of a fabric have trunks to each other.
//
// What comes in: the members with their roles, switch ports and places (New), and the trunks that a member has (Step);
// what goes out: the set of trunks that shall exist, what the ports of the switches left out, and the next change at
// one member. Callers: the node, which adds and removes trunks; voters, which keep the places in the records; the
// command line, which shows the plan. It keeps no state, never reads a clock, and never does I/O. Equal members give
// equal plans, in any order, so each member plans by itself.
//
// # Forms
//
// Up to MeshLimit members have a trunk each to each. Beyond that there are leaves and spines. Spines come in pods of
// two, each leaf is in one pod and has a trunk to both of its spines, and all spines have trunks to each other. Where
// the ports of the spines do not suffice, spines have trunks to both cores of a core pod instead, and all cores have
// trunks to each other. Where that does not suffice either, the members are a tree (Narrow).
//
// Shortest paths of all but Narrow go up, at most once across between two switches of one level, and down. So they have
// no cyclic wait for buffers: route.MinHop is deadlock-free on them while all trunks are up.
//
// docs/adr/0022-shape.md has the reasons.
package shape

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"weft/internal/proto/ib"
)

// Limits of plans.
const (
	// MeshLimit is the most members that have a trunk each to each, and the most spines or cores that do.
	MeshLimit = 16
	// PodLeaves is the most leaves in a pod while the number of pods can grow.
	PodLeaves = 16
	// DevicePorts are the ports of a switch that are not planned for trunks, so that devices can be added: see
	// TrunkPorts.
	DevicePorts = 4
	// MaxPorts is the most ports of a switch.
	MaxPorts = 254

	maxPods = MeshLimit / 2
)

// TrunkPorts is the number of ports that a member has for planned trunks: those of its switch without DevicePorts, and
// without those of static trunks and of more devices than that.
func TrunkPorts(switchPorts, devices, static int) int {
	return max(0, switchPorts-max(DevicePorts, devices)-static)
}

// Role is what an administrator chose for a member.
type Role uint8

// Roles.
const (
	AnyRole   Role = iota // the plan chooses
	LeafRole              // never a spine or a core, and unreachable: it begins all of its trunks
	SpineRole             // a spine or a core before all members without this role
)

// Level is the place of a member in a plan with leaves.
type Level uint8

// Levels.
const (
	NoLevel Level = iota // of a mesh, a tree, or a member that is left out
	Leaf
	Spine
	Core
)

var levelNames = []string{"", "leaf", "spine", "core"}

// String is the level in a word, empty for NoLevel.
func (l Level) String() string {
	if int(l) < len(levelNames) {
		return levelNames[l]
	}
	return fmt.Sprintf("level %d", uint8(l))
}

// MarshalText implements encoding.TextMarshaler.
func (l Level) MarshalText() ([]byte, error) {
	if int(l) >= len(levelNames) {
		return nil, fmt.Errorf("there is no level %d of a member", uint8(l))
	}
	return []byte(levelNames[l]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Level) UnmarshalText(b []byte) error {
	i := slices.Index(levelNames, string(b))
	if i < 0 {
		return fmt.Errorf("a member's level is leaf, spine or core, not %.16q", b)
	}
	*l = Level(i)
	return nil
}

// Place is where a plan puts a member. Plans for changed members keep places as far as possible.
type Place struct {
	Level Level `json:"level,omitempty"`
	// Pod is that of a leaf or a spine, or the core pod of a core.
	Pod uint8 `json:"pod,omitempty"`
	// Up is the core pod of a spine.
	Up uint8 `json:"up,omitempty"`
}

// Member is a member as plans have it.
type Member struct {
	GUID   ib.GUID // of its node, unique
	Name   string
	Joined time.Time
	Role   Role
	// Confined: no path of others leads through the member, so it is never a spine or a core.
	Confined bool
	// Drained: it is a spine or a core only if there are not enough others.
	Drained bool
	// Ports is the number of switch ports for planned trunks (TrunkPorts).
	Ports int
	// Place is that of the plan before, the zero Place if there was none.
	Place Place
}

// reachable reports whether others can begin a trunk to a member.
func (m *Member) reachable() bool { return m.Role != LeafRole }

// transits reports whether paths of others may lead through a member. Others can begin a trunk to it.
func (m *Member) transits() bool { return !m.Confined && m.reachable() }

// Pair is two members with a trunk; A is the lower GUID.
type Pair struct{ A, B ib.GUID }

// NewPair returns the pair of two members.
func NewPair(a, b ib.GUID) Pair { return Pair{min(a, b), max(a, b)} }

// Form is the form of a plan.
type Form uint8

// Forms.
const (
	Mesh   Form = iota // each to each
	Spines             // leaves and spines
	Cores              // leaves, spines and cores
	Narrow             // a tree with some more trunks: the ports suffice for nothing better
)

// String is the form in a word.
func (f Form) String() string {
	if names := []string{"mesh", "spines", "cores", "narrow"}; int(f) < len(names) {
		return names[f]
	}
	return fmt.Sprintf("form %d", uint8(f))
}

// Kind is a kind of Limit.
type Kind uint8

// Kinds of limits.
const (
	// NoPort: a member has no port for a trunk, and gets none.
	NoPort Kind = iota
	// Unplaced: the ports of the others do not suffice for these members, which get no trunk.
	Unplaced
	// SingleTrunk: these members have one trunk; the end of its other end cuts them off.
	SingleTrunk
	// NarrowForm: the ports do not suffice for leaves with two spines each.
	NarrowForm
	// SingleSpine: paths of others can lead through one member alone, and its end cuts all that have no trunk to each
	// other.
	SingleSpine
	// NoReachable: no member can be reached, so there is no trunk; or paths of others can lead through none, so there
	// are trunks only between some.
	NoReachable
	// ThreeLevels: larger switches would make the paths shorter. It is a note, not a defect.
	ThreeLevels
	// SpareRoles: members with the role spine are none, since there are enough. It is a note.
	SpareRoles
)

var kindNames = []string{"no_port", "unplaced", "single_trunk", "narrow", "single_spine", "no_reachable",
	"three_levels", "spare_roles"}

// String is the name of the kind, as status has it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Note reports whether a limit of this kind leaves nothing out.
func (k Kind) Note() bool { return k >= ThreeLevels }

// Limit is what a plan could not do for want of ports, reachable members or roles.
type Limit struct {
	Kind    Kind
	Members []ib.GUID // which it concerns, in the order of their age
	Why     string
	Fix     string
}

// Plan is the trunks that shall exist. It is immutable.
type Plan struct {
	Form   Form
	Trunks []Pair // in order, each once
	Limits []Limit

	names  map[ib.GUID]string
	places map[ib.GUID]Place
	peers  map[ib.GUID][]ib.GUID // in order
}

// New plans the trunks of members with different GUIDs. It does not change them.
func New(members []Member) *Plan {
	b := newBuilder(members)
	b.plan()
	return b.result()
}

// Place is the place of a member, the zero Place of one that has none.
func (p *Plan) Place(g ib.GUID) Place { return p.places[g] }

// Has reports whether a member is in the plan.
func (p *Plan) Has(g ib.GUID) bool { _, ok := p.places[g]; return ok }

// Name is the name of a member, its GUID if it is in no plan.
func (p *Plan) Name(g ib.GUID) string { return cmp.Or(p.names[g], g.String()) }

// Peers are the members that a member shall have trunks to, in the order of their GUIDs. The caller must not change
// them.
func (p *Plan) Peers(g ib.GUID) []ib.GUID { return p.peers[g] }

// Wants reports whether two members shall have a trunk.
func (p *Plan) Wants(a, b ib.GUID) bool {
	_, ok := slices.BinarySearch(p.peers[a], b)
	return ok
}

// Mark identifies Peers of a member: two plans with equal marks have equal peers of it, but for collisions of 64 bits.
// It is never 0. A member reports it when all those trunks are up.
func (p *Plan) Mark(g ib.GUID) uint64 {
	h := fnv.New64a()
	for _, o := range p.peers[g] {
		fmt.Fprintf(h, "%016x", uint64(o))
	}
	return h.Sum64() | 1
}

// builder makes a plan. Members are by index, in the order of their age.
type builder struct {
	m []Member

	place  []Place
	peers  [][]int
	form   Form
	limits []Limit
}

func newBuilder(members []Member) *builder {
	b := &builder{m: slices.Clone(members)}
	slices.SortFunc(b.m, func(x, y Member) int {
		return cmp.Or(x.Joined.Compare(y.Joined), cmp.Compare(x.GUID, y.GUID))
	})
	for i := range b.m {
		b.m[i].Ports = min(max(b.m[i].Ports, 0), MaxPorts)
	}
	b.place, b.peers = make([]Place, len(b.m)), make([][]int, len(b.m))
	return b
}

// plan chooses the form and makes its trunks.
func (b *builder) plan() {
	var in []int
	var without []int
	reachable := 0
	for i := range b.m {
		switch {
		case b.m[i].Ports == 0:
			without = append(without, i)
			continue
		case b.m[i].reachable():
			reachable++
		}
		in = append(in, i)
	}
	if len(b.m) < 2 {
		return
	}
	b.limit(NoPort, without, "the switch has no port for a trunk beside devices and static trunks",
		fmt.Sprintf("weft up --switch-ports %d, there", b.enough(len(b.m))))
	switch {
	case len(in) < 2:
		b.limit(Unplaced, in, "no other member has a port for a trunk", "weft up --switch-ports 36, on the others")
	case reachable == 0:
		b.limit(NoReachable, in, "all members have the role leaf, so no member can be reached",
			"weft member set NAME --role any, for one that can be reached")
	case b.mesh(in):
	case len(b.transit(in)) == 0:
		b.noTransit(in)
	case b.levels(in):
	default:
		b.narrow(in)
	}
	b.noteRoles()
}

// enough is the size of switches with which a plan for n members has leaves with two spines each, if as many members as
// there are spines then have it.
func (b *builder) enough(n int) int {
	if n <= MeshLimit {
		return n - 1 + DevicePorts
	}
	pods := podsFor(n)
	return min(MaxPorts, ceil(n-2*pods, pods)+2*pods-1+DevicePorts)
}

// podsFor is the number of pods for n members in two levels, where ports do not matter.
func podsFor(n int) int { return min(maxPods, ceil(n, PodLeaves+2)) }

func ceil(a, b int) int { return (a + b - 1) / b }

// mesh plans a trunk each to each, if members and ports allow.
func (b *builder) mesh(in []int) bool {
	if len(in) > MeshLimit {
		return false
	}
	for _, i := range in {
		n := 0
		for _, j := range in {
			if i != j && b.pairs(i, j) {
				n++
			}
		}
		if n > b.m[i].Ports {
			return false
		}
	}
	for k, i := range in {
		for _, j := range in[:k] {
			if b.pairs(i, j) {
				b.link(i, j)
			}
		}
	}
	b.form = Mesh
	b.limitMesh(in)
	return true
}

// limitMesh notes that members of a mesh without a trunk to each other depend on one member, or on none.
func (b *builder) limitMesh(in []int) {
	apart := false
	for k, i := range in {
		for _, j := range in[:k] {
			apart = apart || !b.pairs(i, j)
		}
	}
	if !apart {
		return
	}
	switch t := b.transit(in); len(t) {
	case 0:
		b.noTransit(in)
	case 1:
		b.single(t[0])
	}
}

func (b *builder) transit(in []int) (list []int) {
	for _, i := range in {
		if b.m[i].transits() {
			list = append(list, i)
		}
	}
	return list
}

func (b *builder) single(i int) {
	b.limit(SingleSpine, []int{i}, "no other member may carry packets of others and can be reached, so all of them "+
		"pass this one", "weft token --role manager,spine; weft join, on another host that can be reached")
}

func (b *builder) noTransit(in []int) {
	b.limit(NoReachable, in, "no member may carry packets of others",
		"weft token --role manager,spine; weft join, on two hosts that can be reached")
}

// pairs reports whether two members can have a trunk: one begins, so the other must be reachable.
func (b *builder) pairs(i, j int) bool { return b.m[i].reachable() || b.m[j].reachable() }

// free is the number of ports of a member without a planned trunk.
func (b *builder) free(i int) int { return b.m[i].Ports - len(b.peers[i]) }

// link plans a trunk, where it is possible and not planned yet; it reports whether it was.
func (b *builder) link(i, j int) bool {
	if i == j || !b.pairs(i, j) || b.free(i) == 0 || b.free(j) == 0 || slices.Contains(b.peers[i], j) {
		return false
	}
	b.peers[i], b.peers[j] = append(b.peers[i], j), append(b.peers[j], i)
	return true
}

// limit notes a limit of members, if there are any.
func (b *builder) limit(k Kind, of []int, why, fix string) {
	if len(of) == 0 {
		return
	}
	l := Limit{Kind: k, Why: why, Fix: fix}
	slices.Sort(of)
	for _, i := range of {
		l.Members = append(l.Members, b.m[i].GUID)
	}
	b.limits = append(b.limits, l)
}

// noteRoles notes members with the role spine that are leaves.
func (b *builder) noteRoles() {
	var spare []int
	for i := range b.m {
		if b.m[i].Role == SpineRole && b.place[i].Level == Leaf && !b.m[i].Drained {
			spare = append(spare, i)
		}
	}
	b.limit(SpareRoles, spare, fmt.Sprintf("they are leaves: %d spines with trunks to each other are the most",
		MeshLimit), "weft member set NAME --role any")
}

func (b *builder) result() *Plan {
	p := &Plan{Form: b.form, Limits: b.limits, names: map[ib.GUID]string{}, places: map[ib.GUID]Place{},
		peers: map[ib.GUID][]ib.GUID{}}
	for i := range b.m {
		g := b.m[i].GUID
		p.names[g], p.places[g] = b.m[i].Name, b.place[i]
		for _, j := range b.peers[i] {
			o := b.m[j].GUID
			p.peers[g] = append(p.peers[g], o)
			if g < o {
				p.Trunks = append(p.Trunks, Pair{g, o})
			}
		}
		slices.Sort(p.peers[g])
	}
	slices.SortFunc(p.Trunks, func(x, y Pair) int { return cmp.Or(cmp.Compare(x.A, y.A), cmp.Compare(x.B, y.B)) })
	return p
}
