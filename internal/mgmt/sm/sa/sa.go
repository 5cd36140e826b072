// SPDX-License-Identifier: Apache-2.0

// Package sa is subnet administration: it answers queries about the subnet and keeps multicast groups, services
// and subscriptions.
//
// What comes in: datagrams of management class 3, the newest model of the subnet, traps, and the time. What goes
// out: answers, reports, and notifications of changed groups. The manager at the same port owns an SA and calls it;
// simulations do too. It trusts no client: the source LID identifies the port of the requester, which sees what its
// partitions allow and changes only its own records. It never reads a clock and never sends by itself. Rules are
// those of IBA volume 1, chapter 15.2.
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
	// GroupsChanged reports that the multicast trees must be computed again. It returns a number greater than any
	// before; the owner passes it to Written when all switches have the tables.
	GroupsChanged() uint64
	// Kept reports that State has changed and must be stored.
	Kept()
	// Managers lists the managers of the subnet, this one first.
	Managers() []mad.SMInfoRecord
}

// Limits bound the state that clients can create in the SA.
type Limits struct {
	Groups, Members         int // groups, and members of one
	Services, Subscriptions int
	Reports                 int // waiting for their answer
	Records                 int // of one answer
	Joins                   int // waiting for switches to have the group
}

// DefaultLimits fit a subnet of some thousand ports.
var DefaultLimits = Limits{Groups: 8192, Members: 16384, Services: 4096, Subscriptions: 4096, Reports: 4096,
	Records: 65535, Joins: 4096}

// Config describes an SA.
type Config struct {
	Limits Limits
	// SMKey makes a request trusted; requests with another one are dropped.
	SMKey uint64
	// Life is the packet life time of every path, 4.096 µs × 2^Life.
	Life uint8
	// ReportTimeout is the time after which an unanswered report is repeated, ReportRetries the number of
	// repetitions.
	ReportTimeout time.Duration
	ReportRetries int
	// TableWait bounds the delay of the answer to a join until switches have the group.
	TableWait time.Duration
	RMPP      rmpp.Config
}

// Counters count requests and reports; each reason of a drop has a counter.
type Counters struct {
	Requests, Reports, ReportsLost                                 uint64
	DropNotReady, DropVersion, DropKey, DropUnknown, DropTruncated uint64
	Refused                                                        uint64 // answered with a status
	DropTransfers                                                  uint64 // long requests beyond peerTransfers
	JoinsEarly                                                     uint64 // answered before switches had the group
}

// SA is the subnet administration of one subnet. It has one owner goroutine.
type SA struct {
	Counters Counters
	cfg      Config
	owner    Owner
	ready    bool // this is the SA of the master, after its first sweep
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

	// Joins that wait, the oldest first. written is the greatest number passed to Written, changes are the groups
	// that need a greater one.
	joins   []waitingJoin
	written uint64
	changes map[ib.GID]uint64

	// The request in progress.
	req       mad.SA
	requester topo.Ref // the port that sent it
}

// New returns an SA without a subnet, which drops every request.
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
		groups: map[ib.GID]*Group{}, mlids: map[ib.LID]*Group{}, changes: map[ib.GID]uint64{}, requester: topo.None}
}

// tableWait is shorter than the interval at which clients repeat a request: 300 ms and more.
const tableWait = 250 * time.Millisecond

// peerTransfers is the largest number of tables, and of long requests, in progress for one LID, of 256 in all.
const peerTransfers = 32

// SetReady sets whether this is the SA of the master and its subnet is up. Until then the SA drops requests, and
// clients repeat them.
func (a *SA) SetReady(on bool) {
	if a.ready = on; !on {
		a.joins = nil
	}
}

// SetSubnet replaces the model of the subnet; the new one must be indexed. Ports that are not in it any more are
// removed from their groups. Subscribers receive a report of each port that came or went.
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

// Handle handles a datagram of class 3.
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

// request handles a whole request; data follows its header.
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
	// The requester must be a port of this subnet: answers are routed by its LID.
	if a.requester = a.net.PortByLID(d.SLID); a.requester.IsNone() {
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

// refuse answers the request in progress with a status and no record.
func (a *SA) refuse(d *mad.Datagram, status mad.Status) {
	a.Counters.Refused++
	a.reply(d, status, nil)
}

// reply answers the request in progress with a single MAD.
func (a *SA) reply(d *mad.Datagram, status mad.Status, record []byte) {
	a.out = append(a.out, a.answerTo(d, status, record))
}

// answerTo returns the single MAD that answers the request in progress.
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

// add appends a record if it matches the query.
func (t *table) add(record []byte) {
	r := &t.a.req
	if !mad.Match(r.AttributeID, r.AttributeModifier, r.ComponentMask, r.Data[:], record) {
		return
	}
	t.put(record)
}

// put appends a record that matches.
func (t *table) put(record []byte) {
	if t.count >= t.a.cfg.Limits.Records {
		t.full = true
		return
	}
	start := len(t.bytes)
	t.bytes = mad.AppendPadding(append(t.bytes, record...), start)
	t.count++
}

// answer sends the records of a query.
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

// Deadline returns when Next must be called next if no datagram arrives.
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

// shares reports whether two ports have a partition in common, and the key of a path between them: that of a full
// member if both are full members.
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

// sees reports whether the answer to the requester may contain r.
func (a *SA) sees(r topo.Ref) bool {
	if a.trusted() || r == a.requester {
		return true
	}
	_, ok := a.shares(a.requester, r, 0)
	return ok
}
