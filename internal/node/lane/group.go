// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"weft/internal/fabric/link/fabric"
	"weft/internal/fabric/link/roce"
	"weft/internal/proto/mono"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/hca/replicate"
)

const (
	// RoCEBurst is the payload of a burst by RoCEv2: what the link gathers with one call, in bytes.
	RoCEBurst = roce.MaxRun
	// LocalBurst is the payload of a burst within the node, in bytes.
	LocalBurst = 256 << 10
)

// Config is what the lanes of a node are made of.
type Config struct {
	Count     int
	Functions *hca.Functions
	Multicast replicate.Config
	// RoCE is the configuration of the link of lane 0; the other lanes only send.
	RoCE roce.Config
	Now  func() mono.Time
	// Spin is the longest time that a lane without work polls before it sleeps.
	Spin     time.Duration
	RealTime bool
	Log      *slog.Logger
	// MemoryOwner returns the owner of the memory that holds an address, nil where there is none. It is called on any
	// lane.
	MemoryOwner func(addr uintptr) MemoryOwner
	// Prepare completes an adapter's lane before it runs; it may be nil.
	Prepare func(*hca.Lane)
	// Fabric makes the way of a lane into the subnet, with the descriptors that wake the lane for input and for room;
	// nil: the node is in no subnet.
	Fabric func(h *hca.Lane, of *Link) (f *fabric.Link, in, out []int)
}

// Group is the lanes of a node. Lane 0 receives from the network; every lane sends by itself. Its methods may be called
// on any goroutine.
type Group struct {
	lanes []*Lane
	mcast *hca.Multicast
}

// Open makes the lanes, the pipes between them and their links. They run from Start on; Close ends them.
func Open(c Config) (_ *Group, err error) {
	pipes := make([][]*pipe, c.Count) // [from][to]
	for from := range pipes {
		pipes[from] = make([]*pipe, c.Count)
		for to := range pipes[from] {
			if from != to {
				pipes[from][to] = newPipe()
			}
		}
	}
	g := &Group{lanes: make([]*Lane, c.Count)}
	defer func() {
		if err != nil {
			g.discard()
		}
	}()
	g.mcast = hca.NewMulticast(c.Functions, c.Count, c.Multicast, func(lane int) { g.lanes[lane].Wake() })
	for i := range g.lanes {
		rc := c.RoCE
		rc.SendOnly = i > 0
		rl, err := roce.Open(rc)
		if err != nil {
			return nil, err
		}
		sib := &siblings{lanes: g.lanes, out: pipes[i]}
		for from := range pipes {
			sib.in = append(sib.in, pipes[from][i])
		}
		if g.lanes[i], err = c.lane(i, rl, sib, g.mcast); err != nil {
			rl.Close()
			return nil, fmt.Errorf("start lane %d: %w", i, err)
		}
	}
	return g, nil
}

// lane makes lane i.
func (c *Config) lane(i int, rl *roce.Link, sib *siblings, mcast *hca.Multicast) (*Lane, error) {
	var of [2]sockets
	of[0].in, of[0].out = rl.FDs()
	nl := newLink(rl)
	var others hca.Others
	if c.Count > 1 {
		others = sib
	}
	h := hca.NewLane(c.Functions, i, nl, others)
	nl.setHCA(h)
	h.SetMulticast(mcast)
	if c.Prepare != nil {
		c.Prepare(h)
	}
	if c.Fabric != nil {
		nl.Fabric, of[1].in, of[1].out = c.Fabric(h, nl)
	}
	l, err := newLane(h, nl, of, c.Now, c.Spin, c.Log.With("lane", i))
	if err != nil {
		return nil, err
	}
	l.Net, l.fab, l.wantRT, l.memoryOwner = nl, nl.Fabric, c.RealTime, c.MemoryOwner
	l.holdsP = runtime.GOMAXPROCS(0) > c.Count
	sib.self = l
	if c.Count > 1 {
		l.siblings = sib
	}
	return l, nil
}

// discard closes what Open opened.
func (g *Group) discard() {
	for _, l := range g.lanes {
		if l != nil {
			l.Net.RoCE.Close()
			l.closeFDs()
		}
	}
}

// Start starts the goroutines of the lanes, which Close ends.
func (g *Group) Start() {
	for _, l := range g.lanes {
		go l.run()
	}
}

// Close ends the lanes, then the links they used. No lane may call it.
func (g *Group) Close() {
	for _, l := range g.lanes {
		l.Stop()
	}
	g.mcast.Close()
	for _, l := range g.lanes {
		l.Net.RoCE.Close()
	}
}

// All lists the lanes in the order of their numbers. The slice is the group's.
func (g *Group) All() []*Lane { return g.lanes }

// First is the lane that receives from the network and has the links of all Ethernet ports.
func (g *Group) First() *Lane { return g.lanes[0] }

// Multicast is the replication of the node's groups, which the lanes share.
func (g *Group) Multicast() *hca.Multicast { return g.mcast }

// ICRC returns how packets of the host's addresses are validated, and why so.
func (g *Group) ICRC() (mode roce.ICRCMode, why string) { return g.First().Net.RoCE.ICRC() }

// Quietest returns the lane with the least load, a lane that is stuck only where all are. load is by lane.
func (g *Group) Quietest(load []int) *Lane {
	best := 0
	for i, l := range g.lanes {
		switch was := g.lanes[best].Stuck(); {
		case l.Stuck() != was:
			if was {
				best = i
			}
		case load[i] < load[best]:
			best = i
		}
	}
	return g.lanes[best]
}

// Quiesce returns when every lane has finished the turn it was in. No lane may call it.
func (g *Group) Quiesce() {
	for _, l := range g.lanes {
		l.Do(func() {})
	}
}

// Counters sums what the lanes counted for every function, indexed by its number. It is an error if a lane is stuck or
// has ended: without its counts, the sums would be lower than before. No lane may call it.
func (g *Group) Counters() (sum []hca.FunctionCounters, err error) {
	for _, l := range g.lanes {
		list := sum // a stuck lane may set it after Query has returned
		var sweep hca.Sweep
		for done := false; !done; {
			if err := l.Query(func() { list, done = l.HCA.AppendCounters(&sweep, list) }); err != nil {
				return nil, err
			}
		}
		sum = list
	}
	return sum, nil
}

// PortCounters sums what the lanes counted for the port of a function, without lanes that are stuck, which the error
// names. No lane may call it.
func (g *Group) PortCounters(function uint16) (sum hca.PortCounters, err error) {
	for _, l := range g.lanes {
		var c hca.PortCounters
		if e := l.Query(func() { c = l.HCA.PortCounters(function) }); e != nil {
			err = errors.Join(err, e)
			continue
		}
		sum.Add(&c)
	}
	return sum, err
}
