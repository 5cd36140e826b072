// SPDX-License-Identifier: Apache-2.0

package node

import (
	"weft/internal/ib"
	"weft/internal/mad"
	"weft/internal/mono"
)

// gsi is queue pair 1 of the node's InfiniBand ports for users that live in the
// node: requests to subnet administration with their answers, and the notices
// that it reports. The management goroutine's, but for ask and cancel.
//
// It sends a request once: when to repeat it and when to give it up is the
// user's affair. What it holds is bounded by maxAsked.
type gsi struct {
	s     *subnet
	stats gsiStats
	tid   uint32
	asked map[gsiKey]*question
	out   []gsiOutgoing
	head  int // of out
	// listeners hear the notices that are reported to a function's port.
	listeners map[uint16][]*listener
}

// gsiStats count what passed, and what was refused by name.
type gsiStats struct {
	Sent, Answered, Notices        uint64
	DropLate, DropFull, DropNoPort uint64
}

type gsiKey struct {
	function uint16
	tid      uint64
}

type gsiOutgoing struct {
	function uint16
	d        mad.Datagram
}

// question is a request that waits for its answer.
type question struct {
	key    gsiKey
	answer func(now mono.Time, m *mad.SA)
}

// listener is somebody who hears notices.
type listener struct {
	notice func(now mono.Time, n *mad.Notice)
}

// maxAsked bounds the requests of all users that wait for an answer.
const maxAsked = 16384

// gsiTag is the upper half of the transaction identifiers: programs at the
// user-MAD door get numbers from 1 up.
const gsiTag = 0xfffffff0

func newGSI(s *subnet) *gsi {
	return &gsi{s: s, asked: map[gsiKey]*question{}, listeners: map[uint16][]*listener{}}
}

// inquiry is a request under way, by which its user can cancel it.
type inquiry struct {
	g *gsi
	q *question // the management goroutine's; nil: over
}

// ask sends a request to the subnet administration of a function's port: m has
// method, attribute, component mask and data. answer is called at most once, on the management
// goroutine, with what came back, and not after cancel has returned there. ask never waits.
func (g *gsi) ask(function uint16, m *mad.SA, answer func(now mono.Time, m *mad.SA)) *inquiry {
	i, copied := &inquiry{g: g}, *m
	g.s.post(func() { i.q = g.begin(function, &copied, answer) })
	return i
}

// cancel ends the wait for the answer.
func (i *inquiry) cancel() {
	i.g.s.post(func() {
		if i.q != nil && i.g.asked[i.q.key] == i.q {
			delete(i.g.asked, i.q.key)
		}
		i.q = nil
	})
}

// begin sends a request; nil where that is not possible now.
func (g *gsi) begin(function uint16, m *mad.SA, answer func(mono.Time, *mad.SA)) *question {
	c := g.s.byFunc[function]
	if c == nil {
		g.stats.DropNoPort++
		return nil
	}
	p := c.agent.Port(1)
	if p.PortState != ib.PortActive || !p.MasterSMLID.IsUnicast() {
		g.stats.DropNoPort++
		return nil
	}
	if len(g.asked) >= maxAsked {
		g.stats.DropFull++
		return nil
	}
	g.tid++
	m.BaseVersion, m.MgmtClass, m.ClassVersion = mad.BaseVersion, mad.ClassSA, mad.ClassVersionSA
	m.TransactionID = gsiTag<<32 | uint64(g.tid)
	d := mad.Datagram{Port: 1, SLID: p.LID, DLID: p.MasterSMLID, SL: p.MasterSMSL, SrcQPN: ib.QPNGSI, DstQPN: ib.QPNGSI, QKey: ib.GSIQKey,
		PKey: g.pkey(c)}
	m.Append(d.Data[:0])
	q := &question{key: gsiKey{function, m.TransactionID}, answer: answer}
	g.asked[q.key] = q
	g.send(function, &d)
	return q
}

// pkey is the key that management of a port goes by: that of the default
// partition, in which every port is a member.
func (g *gsi) pkey(c *caPort) ib.PKey {
	keys := c.agent.PKeys(1)
	for _, k := range keys {
		if (k^ib.DefaultPKey)&0x7fff == 0 {
			return k
		}
	}
	if len(keys) > 0 && keys[0] != 0 {
		return keys[0]
	}
	return ib.DefaultPKey
}

func (g *gsi) send(function uint16, d *mad.Datagram) {
	g.out = append(g.out, gsiOutgoing{function, *d})
	g.stats.Sent++
}

// next returns a datagram to send, and from whose port.
func (g *gsi) next(d *mad.Datagram) (function uint16, ok bool) {
	if g.head == len(g.out) {
		g.out, g.head = g.out[:0], 0
		return 0, false
	}
	o := &g.out[g.head]
	g.head++
	*d = o.d
	return o.function, true
}

// receive offers a datagram that arrived at a function's port. It is taken
// where it answers a request; a notice goes to programs too, which may have
// asked for others.
func (g *gsi) receive(now mono.Time, function uint16, d *mad.Datagram) (taken bool) {
	if mad.Class(d.Data[1]) != mad.ClassSA || d.DstQPN != ib.QPNGSI {
		return false
	}
	var m mad.SA
	m.Parse(d.Data[:])
	switch {
	case m.Method == mad.MethodReport && m.AttributeID == mad.AttrNotice:
		return g.report(now, function, d, &m)
	case !m.Method.IsResponse() || m.TransactionID>>32 != gsiTag:
		return false
	}
	q := g.asked[gsiKey{function, m.TransactionID}]
	if q == nil {
		g.stats.DropLate++
		return true
	}
	// What does not come from the administration that was asked is not its answer; a
	// new master may have another LID, and is asked anew.
	if c := g.s.byFunc[function]; c == nil || d.SrcQPN != ib.QPNGSI || d.SLID != c.agent.Port(1).MasterSMLID {
		g.stats.DropLate++
		return true
	}
	delete(g.asked, q.key)
	g.stats.Answered++
	q.answer(now, &m)
	return true
}

// report tells the listeners of a notice, and the administration that it
// arrived.
func (g *gsi) report(now mono.Time, function uint16, d *mad.Datagram, m *mad.SA) bool {
	list := g.listeners[function]
	var n mad.Notice
	if len(list) == 0 || n.Parse(m.Data[:]) != nil {
		return false
	}
	g.stats.Notices++
	r := d.Reply()
	m.Reply(mad.StatusOK)
	m.Append(r.Data[:0])
	g.send(function, &r)
	for _, l := range list {
		l.notice(now, &n)
	}
	return false // programs with subscriptions of their own hear it as well
}

// listen has a function called for every notice reported to a port, on the
// management goroutine. What it wants to hear its user subscribes to (InformInfo).
func (g *gsi) listen(function uint16, notice func(now mono.Time, n *mad.Notice)) *listener {
	l := &listener{notice: notice}
	g.s.post(func() { g.listeners[function] = append(g.listeners[function], l) })
	return l
}

// unlisten ends it.
func (g *gsi) unlisten(function uint16, l *listener) {
	g.s.post(func() {
		list := g.listeners[function]
		for i, o := range list {
			if o == l {
				g.listeners[function] = append(list[:i:i], list[i+1:]...)
				break
			}
		}
		if len(g.listeners[function]) == 0 {
			delete(g.listeners, function)
		}
	})
}

// remove forgets a port that is no more.
func (g *gsi) remove(function uint16) {
	for k := range g.asked {
		if k.function == function {
			delete(g.asked, k)
		}
	}
	delete(g.listeners, function)
}
