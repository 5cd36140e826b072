// SPDX-License-Identifier: Apache-2.0

// Package sa is subnet administration: it answers queries about the subnet
// and keeps multicast groups, services and subscriptions.
//
// What comes in: datagrams of management class 3, the newest model of the
// subnet, traps, and the time. What goes out: answers, reports, and the word
// that groups have changed. The manager at the same port owns an SA and calls
// it; simulations do too. It trusts nobody: who asks is found by the source
// LID, sees what its partitions allow, and changes what is its own. It never
// reads a clock and never sends by itself. Rules are those of IBA volume 1,
// chapter 15.2.
package sa

import (
	"time"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mad/rmpp"
	"weft/internal/proto/mono"
)

// Owner is the manager that the SA belongs to.
type Owner interface {
	// GroupsChanged tells that the multicast trees must be looked at again. The
	// number it returns, greater than any before, is told to Written when switches
	// have the tables.
	GroupsChanged() uint64
	// Kept tells that State has changed and is worth keeping.
	Kept()
	// Managers lists the managers of the subnet, this one first.
	Managers() []mad.SMInfoRecord
}

// Limits bound what clients can make the SA keep.
type Limits struct {
	Groups, Members         int // groups, and members of one
	Services, Subscriptions int
	Reports                 int // waiting for their answer
	Records                 int // of one answer
	Joins                   int // waiting for switches to have the group
}

// DefaultLimits fit a subnet of some thousand ports.
var DefaultLimits = Limits{Groups: 8192, Members: 16384, Services: 4096, Subscriptions: 4096, Reports: 4096, Records: 65535, Joins: 4096}

// Config describes an SA.
type Config struct {
	Limits Limits
	// SMKey makes a request trusted; requests with another one are dropped.
	SMKey uint64
	// Life is the packet life time of every path, 4.096 µs × 2^Life.
	Life uint8
	// ReportTimeout is how long a report waits for its answer before it is
	// sent again, ReportRetries how often.
	ReportTimeout time.Duration
	ReportRetries int
	// TableWait bounds how long a join is not answered because switches do not
	// have the group yet.
	TableWait time.Duration
	RMPP      rmpp.Config
}

// Counters count what the SA did; every refusal has a name.
type Counters struct {
	Requests, Reports, ReportsLost                                 uint64
	DropNotReady, DropVersion, DropKey, DropUnknown, DropTruncated uint64
	Refused                                                        uint64 // answered with a status
	DropTransfers                                                  uint64 // long requests of who has too many under way
	JoinsEarly                                                     uint64 // answered before switches had the group
}

// SA is the subnet administration of one subnet. It has one owner goroutine.
type SA struct {
	Counters Counters
	cfg      Config
	owner    Owner
	ready    bool // this is the master, and its first sweep is done
	net      *topo.Subnet
	rmpp     *rmpp.Endpoint
	out      []mad.Datagram

	groups   map[ib.GID]*Group
	mlids    map[ib.LID]*Group
	assigned uint64 // number of the last MGID made up
	services []*service
	subs     []*subscription
	reports  []*report
	tid      uint64

	// Joins that wait: the oldest first. written is the newest number that
	// Written was told, changes are the groups that need a newer one.
	joins   []waitingJoin
	written uint64
	changes map[ib.GID]uint64

	// The request in work.
	req mad.SA
	who topo.Ref // the port that asks
}

// New returns an SA that knows no subnet yet and answers nobody.
func New(cfg Config, owner Owner) *SA {
	if cfg.Limits == (Limits{}) {
		cfg.Limits = DefaultLimits
	}
	if cfg.Life == 0 {
		cfg.Life = 18
	}
	if cfg.ReportTimeout == 0 {
		cfg.ReportTimeout = time.Second
	}
	if cfg.ReportRetries == 0 {
		cfg.ReportRetries = 3
	}
	if cfg.TableWait == 0 {
		cfg.TableWait = tableWait
	}
	if cfg.RMPP.PeerTransfers == 0 {
		cfg.RMPP.PeerTransfers = peerTransfers
	}
	return &SA{cfg: cfg, owner: owner, net: &topo.Subnet{Self: topo.None}, rmpp: rmpp.NewEndpoint(cfg.RMPP),
		groups: map[ib.GID]*Group{}, mlids: map[ib.LID]*Group{}, changes: map[ib.GID]uint64{}, who: topo.None}
}

// tableWait is less than clients wait before they ask again: 300 ms and more.
const tableWait = 250 * time.Millisecond

// peerTransfers is how many tables, and how many long requests, a LID may have
// under way, of 256 in all.
const peerTransfers = 32

// SetReady says whether this is the master's SA and its subnet is up: until
// then requests are dropped, and clients ask again.
func (a *SA) SetReady(on bool) {
	if a.ready = on; !on {
		a.joins = nil
	}
}

// SetSubnet gives the SA a new model, which must be indexed. Ports that have
// gone leave their groups; who subscribed hears of those that came and went.
func (a *SA) SetSubnet(now mono.Time, net *topo.Subnet) {
	old := a.net
	a.net = net
	a.prune(now)
	if old.Self.IsNone() {
		return
	}
	for r := range net.EndPorts() {
		if old.PortByGUID(net.Port(r).GUID).IsNone() {
			a.Notify(now, mad.GIDNotice(mad.TrapGIDInService, a.selfLID(), net.GID(r)), a.selfGID())
		}
	}
	for r := range old.EndPorts() {
		if net.PortByGUID(old.Port(r).GUID).IsNone() {
			a.Notify(now, mad.GIDNotice(mad.TrapGIDOutOfService, a.selfLID(), old.GID(r)), a.selfGID())
		}
	}
}

func (a *SA) selfGID() ib.GID { return a.net.GID(a.net.Self) }

func (a *SA) selfLID() ib.LID {
	if p := a.net.Port(a.net.Self); p != nil {
		return p.Info.LID
	}
	return 0
}

// Handle takes a datagram of class 3.
func (a *SA) Handle(now mono.Time, d *mad.Datagram) {
	m, part := a.rmpp.Handle(now, d)
	a.Counters.DropTransfers = a.rmpp.Counters.Full + a.rmpp.Counters.PeerFull
	if part {
		if m == nil {
			return
		}
		a.request(now, &m.Datagram, m.Data)
		return
	}
	a.request(now, d, d.Data[mad.SAHeaderLen:])
}

// request handles a whole request; data is what follows its header.
func (a *SA) request(now mono.Time, d *mad.Datagram, data []byte) {
	r := &a.req
	if r.Parse(d.Data[:]) != nil || r.BaseVersion != mad.BaseVersion {
		a.Counters.DropVersion++
		return
	}
	if r.Method == mad.MethodReport.Response() {
		a.reported(r.TransactionID)
		return
	}
	switch {
	case r.Method.IsResponse():
		a.Counters.DropUnknown++
		return
	case !a.ready:
		a.Counters.DropNotReady++
		return
	case r.SMKey != 0 && r.SMKey != a.cfg.SMKey:
		a.Counters.DropKey++
		return
	}
	// Who asks must be a port of this subnet: answers go where the LIDs say.
	if a.who = a.net.PortByLID(d.SLID); a.who.IsNone() {
		a.Counters.DropUnknown++
		return
	}
	a.Counters.Requests++
	if r.ClassVersion != mad.ClassVersionSA {
		a.refuse(d, mad.StatusBadVersion)
		return
	}
	switch r.Method {
	case mad.MethodGet, mad.MethodGetTable:
		a.query(d)
	case mad.MethodGetMulti:
		a.multiPath(d, data)
	case mad.MethodSet, mad.MethodDelete:
		a.change(now, d)
	default:
		a.refuse(d, mad.StatusBadMethod)
	}
}

func (a *SA) trusted() bool { return a.req.SMKey != 0 && a.req.SMKey == a.cfg.SMKey }

// change handles Set and Delete.
func (a *SA) change(now mono.Time, d *mad.Datagram) {
	set := a.req.Method == mad.MethodSet
	switch a.req.AttributeID {
	case mad.AttrMCMemberRecord:
		if set {
			a.join(now, d)
		} else {
			a.leave(now, d)
		}
	case mad.AttrServiceRecord:
		if set {
			a.register(now, d)
		} else {
			a.unregister(d)
		}
	case mad.AttrInformInfo:
		if set {
			a.subscribe(d)
		} else {
			a.refuse(d, mad.StatusBadMethodAttr)
		}
	default:
		a.refuse(d, mad.StatusBadMethodAttr)
	}
}

// refuse answers the request in work with a status and no record.
func (a *SA) refuse(d *mad.Datagram, status mad.Status) {
	a.Counters.Refused++
	a.reply(d, status, nil)
}

// reply answers the request in work with a single MAD.
func (a *SA) reply(d *mad.Datagram, status mad.Status, record []byte) {
	a.out = append(a.out, a.answerTo(d, status, record))
}

// answerTo makes the single MAD that answers the request in work.
func (a *SA) answerTo(d *mad.Datagram, status mad.Status, record []byte) mad.Datagram {
	s := &a.req
	s.Reply(status)
	s.AttributeOffset = 0
	s.Data = [mad.SADataLen]byte{}
	if record != nil {
		if mad.RecordLen(s.AttributeID) > 0 {
			s.AttributeOffset = uint16((len(record) + 7) / 8)
		}
		copy(s.Data[:], record)
	}
	out := d.Reply()
	s.Append(out.Data[:0])
	return out
}

// table is the records that answer a query.
type table struct {
	a     *SA
	attr  mad.AttributeID
	bytes []byte
	count int
	full  bool
}

// add appends a record if it is what the query asks for.
func (t *table) add(record []byte) {
	r := &t.a.req
	if !mad.Match(r.AttributeID, r.AttributeModifier, r.ComponentMask, r.Data[:], record) {
		return
	}
	t.put(record)
}

// put appends a record that has been found to match.
func (t *table) put(record []byte) {
	if t.count >= t.a.cfg.Limits.Records {
		t.full = true
		return
	}
	start := len(t.bytes)
	t.bytes = mad.AppendPadding(append(t.bytes, record...), start)
	t.count++
}

// answer sends what a query found.
func (a *SA) answer(d *mad.Datagram, t *table) {
	r := &a.req
	n := mad.RecordLen(t.attr)
	if r.Method == mad.MethodGet {
		switch {
		case t.count == 0:
			a.refuse(d, mad.StatusSANoRecords)
		case t.count > 1:
			a.refuse(d, mad.StatusSATooMany)
		default:
			a.reply(d, mad.StatusOK, t.bytes[:n])
		}
		return
	}
	if t.full {
		a.refuse(d, mad.StatusSANoResources)
		return
	}
	r.Reply(mad.StatusOK)
	r.AttributeID = t.attr
	r.AttributeOffset = 0
	if t.count > 0 {
		r.AttributeOffset = uint16((n + 7) / 8)
	}
	r.Data = [mad.SADataLen]byte{}
	out := d.Reply()
	r.Append(out.Data[:0])
	if err := a.rmpp.Send(&out, t.bytes, false, nil); err != nil {
		a.refuse(d, mad.StatusSANoResources)
	}
}

// Next writes the next datagram to send to d; false if there is none now.
func (a *SA) Next(now mono.Time, d *mad.Datagram) bool {
	a.expireJoins(now)
	if len(a.out) > 0 {
		*d = a.out[0]
		a.out = a.out[1:]
		if len(a.out) == 0 {
			a.out = nil
		}
		return true
	}
	if a.rmpp.Next(now, d) {
		return true
	}
	a.expire(now)
	return a.nextReport(now, d)
}

// Deadline returns when Next has something to do if nothing arrives.
func (a *SA) Deadline() mono.Time {
	at := a.rmpp.Deadline()
	if len(a.joins) > 0 {
		at = mono.Min(at, a.joins[0].until)
	}
	for _, r := range a.reports {
		at = mono.Min(at, r.due)
	}
	for _, s := range a.services {
		if !s.forever {
			at = mono.Min(at, s.end)
		}
	}
	return at
}

// shares reports whether two ports have a partition in common, and the key
// that a path between them bears: the full member's where both are.
func (a *SA) shares(x, y topo.Ref, want ib.PKey) (ib.PKey, bool) {
	p, q := a.net.Port(x), a.net.Port(y)
	if p == nil || q == nil {
		return 0, false
	}
	var best ib.PKey
	for _, k := range p.PKeys {
		if k&0x7fff == 0 || want != 0 && (k^want)&0x7fff != 0 {
			continue
		}
		for _, l := range q.PKeys {
			if !k.Match(l) {
				continue
			}
			if both := k & l; best == 0 || both&0x8000 != 0 && best&0x8000 == 0 {
				best = both
			}
		}
	}
	return best, best != 0
}

// sees reports whether the port that asks may know of r.
func (a *SA) sees(r topo.Ref) bool {
	if a.trusted() || r == a.who {
		return true
	}
	_, ok := a.shares(a.who, r, 0)
	return ok
}
