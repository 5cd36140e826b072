// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"cmp"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Times of steps.
const (
	// Settle is how long a trunk is up before it counts.
	Settle = 2 * time.Second
	// Hold bounds the wait for others: a member that is away keeps no trunk of two others for longer, and a trunk that
	// the plan does not have goes when it was down for that long.
	Hold = 2 * time.Minute
)

// Trunk is a trunk that a member has.
type Trunk struct {
	Peer  ib.GUID
	Up    bool
	Since mono.Time // of Up, or of its being down
	// Static: it was configured and is never removed. It needs none of View.Ports.
	Static bool
}

// View is what a member has, and what it read about the others.
type View struct {
	Self  ib.GUID
	Have  []Trunk
	Ports int // for trunks that are not static
	// Settled reports whether a member has reported Mark of this plan.
	Settled func(ib.GUID) bool
	Now     mono.Time
}

// Step is the next change at a member. All of it may be done at once.
type Step struct {
	Add, Remove []ib.GUID
	// Blocked are peers for which no port is free. Trunks that the plan does not have will make room, or the member has
	// fewer ports than it reported.
	Blocked []ib.GUID
	// Down are planned peers with a trunk that is not up.
	Down []ib.GUID
	// Surplus are peers with a trunk that the plan does not have, and that stays for now.
	Surplus []ib.GUID
	// Settled: all planned trunks are up. The member reports Mark then.
	Settled bool
	// Again is when to look again if nothing changes before; 0: never.
	Again mono.Time
}

// Step returns the next change at a member: it adds what is missing, waits until that is up at both ends, and then
// removes what the plan does not have. It removes nothing else while a member of the plan has yet to add, for Hold at
// most. So the fabric stays connected while it changes from plan to plan:
//
//   - A member that has not settled keeps its trunks, and others keep theirs to it.
//   - When all have settled, all trunks of the plan are up, and these connect all members.
//
// Trunks to members that are in no plan are removed at once. Where no port is free for what is missing, a trunk of the
// plan before makes room if the peer has settled, or after Hold.
func (p *Plan) Step(v View) (s Step) {
	if !p.Has(v.Self) {
		return s // not listed yet, or not any more: trunks to it end at the others
	}
	have := slices.Clone(v.Have)
	slices.SortFunc(have, func(a, b Trunk) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Peer, b.Peer))
	})
	free := v.Ports
	settled, some := true, false
	var last mono.Time // when the newest planned trunk came up
	with := map[ib.GUID]bool{}
	var surplus []Trunk
	for _, t := range have {
		if !t.Static {
			free--
		}
		switch {
		case p.Wants(v.Self, t.Peer):
			with[t.Peer] = true
			if !t.Up {
				settled = false
				s.Down = append(s.Down, t.Peer)
				continue
			}
			some = true
			last = max(last, t.Since)
		case t.Static:
		case !p.Has(t.Peer):
			s.Remove = append(s.Remove, t.Peer)
			free++
		default:
			surplus = append(surplus, t)
		}
	}
	missing := p.missing(v.Self, with)
	n := min(max(free, 0), len(missing))
	s.Add, s.Blocked = missing[:n], missing[n:]
	settled = settled && len(missing) == 0
	if at := last.Add(Settle); settled && !at.Due(v.Now) && last != 0 {
		settled, s.Again = false, at
	}
	s.Settled = settled
	all := settled && p.allSettled(v)
	need := len(s.Blocked)
	for _, t := range surplus {
		stale := t.Since.Add(Hold)
		over := last.Add(Hold)
		peer := v.Settled(t.Peer)
		var remove bool
		switch {
		case !t.Up && stale.Due(v.Now):
			remove = true
		case need > 0 && (some && peer || stale.Due(v.Now) && over.Due(v.Now)):
			remove = true
			need--
		case settled && peer && (all || over.Due(v.Now)):
			remove = true
		}
		if remove {
			s.Remove = append(s.Remove, t.Peer)
			continue
		}
		s.Surplus = append(s.Surplus, t.Peer)
		for _, at := range []mono.Time{stale, over} {
			if !at.Due(v.Now) {
				s.Again = mono.Min(s.Again, at)
			}
		}
	}
	return s
}

// missing are the planned peers that are not in with, those of higher levels first.
func (p *Plan) missing(self ib.GUID, with map[ib.GUID]bool) (list []ib.GUID) {
	for _, g := range p.peers[self] {
		if !with[g] {
			list = append(list, g)
		}
	}
	slices.SortStableFunc(list, func(a, b ib.GUID) int { return cmp.Compare(p.places[b].Level, p.places[a].Level) })
	return list
}

// allSettled reports whether all others have settled.
func (p *Plan) allSettled(v View) bool {
	for g := range p.places {
		if g != v.Self && !v.Settled(g) {
			return false
		}
	}
	return true
}
