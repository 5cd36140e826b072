// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"runtime"

	"weft/internal/control/config"
	"weft/internal/fabric/link/roce"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/hca/replicate"
)

// neighbours is one lane's side of the pipes to and from every other lane of
// its node. in[i] comes from lane i, out[i] leads to it.
type neighbours struct {
	self  *lane
	lanes []*lane
	in    []*pipe
	out   []*pipe
}

var _ hca.Others = (*neighbours)(nil)

// Forward implements hca.Others.
func (n *neighbours) Forward(to *hca.Lane, r *pkt.Burst, from *hca.QP) bool {
	if !n.out[to.ID].put(r, from) {
		return false
	}
	if l := n.lanes[to.ID]; l.asleep.Load() {
		l.ring()
	}
	return true
}

// Room implements hca.Others.
func (n *neighbours) Room(to *hca.Lane) bool { return n.out[to.ID].room(localRun) }

// Quiesce implements hca.Others. While it waits this lane copies nothing
// itself, so two lanes that wait for each other both go on.
func (n *neighbours) Quiesce() {
	n.self.parked.Store(true)
	defer n.self.parked.Store(false)
	for _, o := range n.lanes {
		if o == n.self {
			continue
		}
		for turn := o.turns.Load(); o.turns.Load() == turn && !o.parked.Load() && !o.asleep.Load(); {
			runtime.Gosched()
		}
	}
}

// recvBytes is the most that one look at the sockets brings.
const recvBytes = 1 << 20

// congested reports that some lane has not yet taken in what it was sent:
// what waits in the sockets had better wait there.
func (n *neighbours) congested() bool {
	for _, p := range n.out {
		if p != nil && !p.room(recvBytes) {
			return true
		}
	}
	return false
}

// receive hands over what other lanes sent; the runs stay valid until settled.
func (n *neighbours) receive(now mono.Time) (busy bool) {
	for i, p := range n.in {
		if p == nil {
			continue
		}
		if p.each(func(t *transfer) {
			n.self.hca.Receive(now, &t.run)
			if t.run.Fault && t.from != nil {
				n.fault(n.lanes[i], t.from, t.run)
			}
		}) {
			busy = true
		}
	}
	return busy
}

// fault tells the lane of from that its memory could not be read. r is a copy:
// the transfer is about to be reused.
func (n *neighbours) fault(owner *lane, from *hca.QP, r pkt.Burst) {
	owner.post(func() { from.SourceFault(owner.clock(), &r) })
}

func (n *neighbours) settled() {
	for _, p := range n.in {
		if p != nil {
			p.done()
		}
	}
}

// empty reports that nothing waits in the pipes to this lane.
func (n *neighbours) empty() bool {
	for _, p := range n.in {
		if p != nil && p.head.Load() != p.tail.Load() {
			return false
		}
	}
	return true
}

// ownerOf finds the session whose mapped memory holds addr, or nil.
func (n *Node) ownerOf(addr uintptr) culprit {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range n.sessions {
		if d.owns(addr) {
			return d
		}
	}
	for _, m := range n.vms {
		if m.owns(addr) {
			return m
		}
	}
	return nil
}

var icrcModes = map[string]roce.ICRCMode{config.ICRCAuto: roce.ICRCAuto, config.ICRCFull: roce.ICRCFull, config.ICRCSolve: roce.ICRCSolve}

// icrc says how the packets that come to a function's port are checked, and why so.
func (n *Node) icrc(f *function) (mode, why string) {
	if f.st != nil {
		return config.ICRCFull, "frames of a virtual Ethernet switch hide nothing"
	}
	if f.a.Port().Link != ib.LinkEthernet {
		return config.ICRCFull, "native packets hide nothing"
	}
	m, why := n.links[0].roce.ICRC() // immutable
	if m == roce.ICRCFull {
		return config.ICRCFull, why
	}
	return config.ICRCSolve, why
}

// openLanes makes the lanes, the pipes between them and their links. Lane 0
// receives from the network; every lane sends by itself.
func (n *Node) openLanes() error {
	count := n.cfg.LaneCount()
	pipes := make([][]*pipe, count) // [from][to]
	for from := range pipes {
		pipes[from] = make([]*pipe, count)
		for to := range pipes[from] {
			if from != to {
				pipes[from][to] = newPipe()
			}
		}
	}
	n.lanes = make([]*lane, count)
	n.mcast = hca.NewMulticast(n.all, count, replicate.Config{Payloads: n.cfg.McastPayloads, Threshold: n.cfg.McastThreshold,
		Requests: replicate.DefaultConfig.Requests}, n.wake)
	for i := range n.lanes {
		link, err := roce.Open(roce.Config{Port: uint16(n.cfg.RoCEPort), ICRC: icrcModes[n.cfg.ICRC], IfIndex: n.ifIndex, SendOnly: i > 0})
		if err != nil {
			n.lanes = n.lanes[:i]
			return err
		}
		nl := newNetLink(link)
		n.links = append(n.links, nl)
		nb := &neighbours{lanes: n.lanes, out: pipes[i]}
		for from := range pipes {
			nb.in = append(nb.in, pipes[from][i])
		}
		var others hca.Others
		if count > 1 {
			others = nb
		}
		var of [2]sockets
		of[0].in, of[0].out = link.FDs()
		h := hca.NewLane(n.all, i, nl, others)
		h.SetMulticast(n.mcast)
		h.SetGeneralServices(n.cm.take(h))
		h.SetDeparted(n.detach)
		if n.sub != nil {
			nl.fabric, of[1].in, of[1].out = n.fabricLink(i, h)
		}
		l, err := newLane(h, nl, of, n.now, n.cfg.Spin, n.log.With("lane", i))
		if err != nil {
			n.lanes = n.lanes[:i]
			return fmt.Errorf("start lane %d: %w", i, err)
		}
		l.fab = nl.fabric
		l.wantRT, l.ownerOf = n.cfg.RealTime, n.ownerOf
		l.dozes = runtime.GOMAXPROCS(0) > count
		nb.self = l
		if count > 1 {
			l.neighbours = nb
		}
		n.lanes[i] = l
	}
	first := n.links[0].roce // which receives
	n.groups = &ipGroups{port: n.adapter.Port, join: first.Join, quit: first.Leave, log: n.log, groups: map[ib.GID]*ipGroup{}}
	n.all.SetIPGroups(portGroups{n})
	for _, l := range n.lanes {
		go l.loop() // ends with close
	}
	return nil
}

// wake rouses a lane that sleeps.
func (n *Node) wake(lane int) {
	if l := n.lanes[lane]; l.asleep.Load() {
		l.ring()
	}
}
