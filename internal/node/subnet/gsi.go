// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// gsi is queue pair 1 of the node's InfiniBand ports for users that live in the node: requests to subnet administration
// with their answers, and the notices that it reports. It belongs to the management goroutine.
//
// It sends a request once and keeps nothing of it: the transaction identifier names user and request. Users repeat
// requests and give them up.
type gsi struct {
	s     *Subnet
	stats GSIStats
	last  uint32           // number of a user
	users map[uint32]*User // by number
	subs  map[uint16]*subscription
	out   []gsiOutgoing
	head  int // of out
}

// GSIStats count datagrams, and dropped ones by reason.
type GSIStats struct {
	Sent, Answered, Notices         uint64
	DropStray, DropFull, DropNoPort uint64
}

type gsiOutgoing struct {
	function uint16
	d        mad.Datagram
}

// maxGSI bounds the datagrams that wait to be sent.
const maxGSI = 4096

// The upper half of a transaction identifier is gsiTag and the user's number.
// Programs at the user-MAD socket get numbers from 1 up.
const (
	gsiTag     = 0xf0000000
	gsiTagMask = 0xf0000000
)

func newGSI(s *Subnet) *gsi {
	return &gsi{s: s, users: map[uint32]*User{}, subs: map[uint16]*subscription{}}
}

// User is a user in the node of a function's port. Its functions are called on the management goroutine; its methods
// may be called on any goroutine, and never wait.
type User struct {
	g        *gsi
	number   uint32 // the management goroutine's, as what follows
	function uint16
	answer   func(now mono.Time, id uint32, m *mad.SA)
	notice   func(now mono.Time, n *mad.Notice)
}

// OpenUser adds a user of a function's port. answer is called with each answer to Request of the administration that
// the port is under; notice, where it is not nil, with notices of groups that are created and deleted and of ports that
// come and go (traps 64 to 67). Any goroutine may call it.
func (s *Subnet) OpenUser(function uint16, answer func(now mono.Time, id uint32, m *mad.SA),
	notice func(now mono.Time, n *mad.Notice)) *User {
	g := s.gsi
	u := &User{g: g, function: function, answer: answer, notice: notice}
	s.Post(func() {
		for u.number == 0 || g.users[u.number] != nil {
			g.last = (g.last + 1) &^ gsiTagMask
			u.number = g.last
		}
		g.users[u.number] = u
		g.subscribePort(function)
	})
	return u
}

// Close ends the user: none of its functions is called after the management goroutine has run the removal.
func (u *User) Close() {
	u.g.s.Post(func() {
		delete(u.g.users, u.number)
		u.g.subscribePort(u.function)
	})
}

// Request sends a request: m has method, attribute, component mask and data. Requests with the same id are one to the
// administration.
func (u *User) Request(id uint32, m *mad.SA) {
	copied := *m
	u.g.s.Post(func() {
		if u.g.users[u.number] == u {
			u.g.request(u.function, uint64(gsiTag|u.number)<<32|uint64(id), &copied)
		}
	})
}

// SendGSI sends a datagram from queue pair 1 of a function's port. Any goroutine may call it.
func (s *Subnet) SendGSI(function uint16, d mad.Datagram) {
	s.Post(func() { s.gsi.send(function, &d) })
}

// GSIStats returns the counters of queue pair 1; it runs on the management goroutine.
func (s *Subnet) GSIStats() GSIStats { return s.gsi.stats }

// Subscribed reports whether a function's port has a subscription to notices, and whether the administration has
// confirmed it. It runs on the management goroutine.
func (s *Subnet) Subscribed(function uint16) (on, confirmed bool) {
	sub := s.gsi.subs[function]
	return sub != nil, sub != nil && sub.missing == 0 && sub.due == 0
}

// request sends a request from a function's port; false where it cannot be sent now.
func (g *gsi) request(function uint16, tid uint64, m *mad.SA) bool {
	c := g.s.Functions[function]
	if c == nil {
		g.stats.DropNoPort++
		return false
	}
	p := c.Agent.Port(1)
	if p.PortState != ib.PortActive || !p.MasterSMLID.IsUnicast() {
		g.stats.DropNoPort++
		return false
	}
	m.BaseVersion, m.MgmtClass, m.ClassVersion, m.TransactionID = mad.BaseVersion, mad.ClassSA, mad.ClassVersionSA, tid
	d := mad.Datagram{Port: 1, SLID: p.LID, DLID: p.MasterSMLID, SL: p.MasterSMSL, SrcQPN: ib.QPNGSI,
		DstQPN: ib.QPNGSI, QKey: ib.GSIQKey,
		PKey: managementPKey(c.Agent.PKeys(1))}
	m.Append(d.Data[:0])
	return g.send(function, &d)
}

// managementPKey is the key of requests to subnet administration: that of the default partition, which every port is
// in.
func managementPKey(table []ib.PKey) ib.PKey {
	if i := slices.IndexFunc(table, func(k ib.PKey) bool { return (k^ib.DefaultPKey)&0x7fff == 0 }); i >= 0 {
		return table[i]
	}
	if len(table) > 0 && table[0] != 0 {
		return table[0]
	}
	return ib.DefaultPKey
}

func (g *gsi) send(function uint16, d *mad.Datagram) bool {
	if len(g.out)-g.head >= maxGSI {
		g.stats.DropFull++
		return false
	}
	g.out = append(g.out, gsiOutgoing{function, *d})
	g.stats.Sent++
	return true
}

// next returns a datagram to send, and the function of its port.
func (g *gsi) next(now mono.Time, d *mad.Datagram) (function uint16, ok bool) {
	for f, s := range g.subs {
		if s.due.Due(now) {
			g.subscribe(now, f, s)
		}
	}
	if g.head == len(g.out) {
		g.out, g.head = g.out[:0], 0
		return 0, false
	}
	o := &g.out[g.head]
	g.head++
	*d = o.d
	return o.function, true
}

// deadline is when next has something to do if nothing else happens.
func (g *gsi) deadline() (d mono.Time) {
	for _, s := range g.subs {
		d = mono.Min(d, s.due)
	}
	return d
}

// receive offers a datagram that arrived at a function's port. An answer to a request of a user is accepted; a notice
// goes to programs too, which may have subscriptions of their own.
func (g *gsi) receive(now mono.Time, function uint16, d *mad.Datagram) (accepted bool) {
	if mad.Class(d.Data[1]) != mad.ClassSA || d.DstQPN != ib.QPNGSI || d.Long != nil {
		return false
	}
	var m mad.SA
	m.Parse(d.Data[:])
	if m.Method == mad.MethodReport && m.AttributeID == mad.AttrNotice {
		return g.report(now, function, d, &m)
	}
	tag, id := uint32(m.TransactionID>>32), uint32(m.TransactionID)
	if !m.Method.IsResponse() || tag&gsiTagMask != gsiTag {
		return false
	}
	// A datagram that is not from the administration that the port is under is no answer; after a change of the master
	// the user sends the request again.
	c := g.s.Functions[function]
	if c == nil || d.SrcQPN != ib.QPNGSI || d.SLID != c.Agent.Port(1).MasterSMLID {
		g.stats.DropStray++
		return true
	}
	if tag == gsiTag {
		g.subscribed(function, id, &m)
		return true
	}
	u := g.users[tag&^gsiTagMask]
	if u == nil || u.function != function {
		g.stats.DropStray++
		return true
	}
	g.stats.Answered++
	u.answer(now, id, &m)
	return true
}

// report passes a notice to the users, and confirms it to the administration.
func (g *gsi) report(now mono.Time, function uint16, d *mad.Datagram, m *mad.SA) bool {
	var n mad.Notice
	if g.subs[function] == nil || n.Parse(m.Data[:]) != nil {
		return false
	}
	g.stats.Notices++
	r := d.Reply()
	m.Reply(mad.StatusOK)
	m.Append(r.Data[:0])
	g.send(function, &r)
	for _, u := range g.users {
		if u.function == function && u.notice != nil {
			u.notice(now, &n)
		}
	}
	return false
}

// subscription is to the notices of a function's port, of traps 64 to 67: bit n of missing is trap 64+n, for which the
// administration has not confirmed the subscription yet.
type subscription struct {
	missing uint8
	tries   int
	due     mono.Time // when to send again; 0: there is no need
}

const (
	firstTrap = 64
	allTraps  = 0xf
	// A request that is not answered is sent again after informWait, at growing intervals up to informMost.
	informWait = time.Second
	informMost = 30 * time.Second
)

// subscribePort subscribes for a port as long as it has users with a notice function.
func (g *gsi) subscribePort(function uint16) {
	wanted := false
	for _, u := range g.users {
		wanted = wanted || u.function == function && u.notice != nil
	}
	switch s := g.subs[function]; {
	case wanted && s == nil:
		g.subs[function] = &subscription{}
		g.renew(function)
	case !wanted && s != nil:
		delete(g.subs, function)
		for i := range 4 {
			g.inform(function, i, 0)
		}
	}
}

// renew subscribes anew: the administration may have lost the subscription, or be another.
func (g *gsi) renew(function uint16) {
	if s := g.subs[function]; s != nil {
		s.missing, s.tries, s.due = allTraps, 0, g.s.cfg.Now()
	}
}

func (g *gsi) subscribe(now mono.Time, function uint16, s *subscription) {
	for i := range 4 {
		if s.missing>>i&1 != 0 {
			g.inform(function, i, 1)
		}
	}
	s.due = now.Add(min(informWait<<min(s.tries, 5), informMost))
	s.tries++
}

// inform subscribes to the notices of a trap, or unsubscribes.
func (g *gsi) inform(function uint16, i int, on uint8) {
	f := mad.InformInfo{LIDBegin: mad.InformAllLIDs, IsGeneric: 1, Subscribe: on, Type: mad.InformAllTypes,
		TrapNumber: firstTrap + mad.TrapNumber(i),
		RespTime:   18, Producer: mad.InformAllProducers}
	if on == 0 {
		f.QPN = ib.QPNGSI
	}
	m := mad.SA{SAHeader: mad.SAHeader{Header: mad.Header{Method: mad.MethodSet, AttributeID: mad.AttrInformInfo}}}
	f.Append(m.Data[:0])
	g.request(function, gsiTag<<32|uint64(i), &m)
}

// subscribed handles the answer to inform.
func (g *gsi) subscribed(function uint16, id uint32, m *mad.SA) {
	s := g.subs[function]
	if s == nil || id > 3 || m.Status != mad.StatusOK {
		return
	}
	if s.missing &^= 1 << id; s.missing == 0 {
		s.due = 0
	}
}

// remove removes a port that is unplugged.
func (g *gsi) remove(function uint16) { delete(g.subs, function) }
