// SPDX-License-Identifier: Apache-2.0

package rmpp

import (
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Message is a message that arrived whole.
type Message struct {
	// Datagram has the addressing and, in Data, the headers of the first
	// segment with as much of the data as fits.
	Datagram mad.Datagram
	// Data is what follows the headers, of all segments; the caller owns it.
	Data []byte
}

// Counters count what an Endpoint refused or gave up.
type Counters struct {
	Full           uint64 // messages not taken because of too many transfers
	PeerFull       uint64 // because of too many with their peer
	Stray          uint64 // segments, acknowledgements and ends of no known transfer
	SendsFailed    uint64
	ReceivesFailed uint64
}

// key tells transfers apart. Method is that of the segments with data.
type key struct {
	port   uint8
	lid    ib.LID
	qpn    ib.QPN
	gid    ib.GID
	class  mad.Class
	method mad.Method
	tid    uint64
}

// keyOf returns the key of the peer of d; lid, qpn and gid are the peer's.
func keyOf(d *mad.Datagram, h *mad.Header, lid ib.LID, qpn ib.QPN, gid ib.GID) key {
	k := key{port: d.Port, lid: lid, qpn: qpn, class: h.MgmtClass, method: h.Method, tid: h.TransactionID}
	if d.Global {
		k.gid = gid
	}
	return k
}

// turned returns the key of the transfer in the other direction.
func (k key) turned() key {
	k.method ^= mad.MethodResponse
	return k
}

// transfer is a Sender or a Receiver with where its MADs go.
type transfer struct {
	key  key
	to   mad.Datagram // Data means nothing
	s    *Sender
	r    *Receiver
	done func(State, Status)
}

// Endpoint has the transfers of a port with all its peers. The zero Endpoint
// is not usable: see NewEndpoint. It is not safe for concurrent use.
type Endpoint struct {
	Counters  Counters
	cfg       Config
	senders   map[key]*transfer
	receivers map[key]*transfer
	all       []*transfer // in turn for Next
	turn      int
}

// NewEndpoint returns an Endpoint without transfers.
func NewEndpoint(cfg Config) *Endpoint {
	return &Endpoint{cfg: cfg.WithDefaults(), senders: map[key]*transfer{}, receivers: map[key]*transfer{}}
}

// Send begins to send data behind the headers that d.Data begins with, to where d
// is addressed. data belongs to the Endpoint until done, which may be nil, is
// called with Complete or Failed: during a later Handle or Next. A response
// to a message that came whole takes the window that the requester granted.
// doubleSided says that the answer will be such a message as well.
func (e *Endpoint) Send(d *mad.Datagram, data []byte, doubleSided bool, done func(State, Status)) error {
	var h mad.Header
	if err := h.Parse(d.Data[:]); err != nil {
		return err
	}
	k := keyOf(d, &h, d.DLID, d.DstQPN, d.DGID)
	if old := e.senders[k]; old != nil {
		if st, _ := old.s.State(); st == Active {
			return ErrBusy
		}
		e.drop(old)
	}
	if len(e.senders) >= e.cfg.Transfers {
		return ErrFull
	}
	if e.peerFull(e.senders, k.lid) {
		e.Counters.PeerFull++
		return ErrFull
	}
	window := uint32(1)
	if r := e.receivers[k.turned()]; r != nil {
		window = r.r.ResponseWindow()
	}
	s, err := NewSender(e.cfg, d.Data[:], data, window, doubleSided)
	if err != nil {
		return err
	}
	t := &transfer{key: k, to: *d, s: s, done: done}
	e.senders[k] = t
	e.all = append(e.all, t)
	return nil
}

// Handle takes a datagram that arrived. It returns false if d is no part of a
// transfer but a MAD of its own, and a message when d made it whole.
func (e *Endpoint) Handle(now mono.Time, d *mad.Datagram) (*Message, bool) {
	var h mad.Header
	var r mad.RMPP
	if h.Parse(d.Data[:]) != nil || !h.MgmtClass.HasRMPP() || r.Parse(d.Data[rmppAt:]) != nil || r.Flags&mad.RMPPActive == 0 {
		return nil, false
	}
	k := keyOf(d, &h, d.SLID, d.SrcQPN, d.SGID)
	if r.Type == mad.RMPPData {
		return e.data(now, d, k, &r), true
	}
	t := e.senders[k.turned()]
	if t != nil && r.Type != mad.RMPPAck {
		// An end that comes after our message was acknowledged is that of its
		// answer.
		if st, _ := t.s.State(); st != Active {
			t = nil
		}
	}
	if t == nil {
		t = e.receivers[k]
	}
	if t == nil {
		e.Counters.Stray++
		return nil, true
	}
	t.handle(now, d)
	e.settle(t)
	return nil, true
}

func (e *Endpoint) data(now mono.Time, d *mad.Datagram, k key, r *mad.RMPP) *Message {
	t := e.receivers[k]
	if t == nil {
		if r.Data1 != 1 {
			e.Counters.Stray++
			return nil
		}
		if len(e.receivers) >= e.cfg.Transfers {
			e.Counters.Full++
			return nil
		}
		if e.peerFull(e.receivers, k.lid) {
			e.Counters.PeerFull++
			return nil
		}
		recv, err := NewReceiver(e.cfg, now, d.Data[:])
		if err != nil {
			e.Counters.Stray++
			return nil
		}
		t = &transfer{key: k, to: d.Reply(), r: recv}
		e.receivers[k] = t
		e.all = append(e.all, t)
	}
	before, _ := t.r.State()
	t.handle(now, d)
	e.settle(t)
	if st, _ := t.r.State(); st != Complete || before == Complete {
		return nil
	}
	m := &Message{Datagram: *d}
	head, data := t.r.Message()
	m.Data = data
	n := copy(m.Datagram.Data[:], head)
	clear(m.Datagram.Data[n+copy(m.Datagram.Data[n:], data):])
	return m
}

// peerFull reports whether a LID has as many transfers as it may, those counted
// that linger.
func (e *Endpoint) peerFull(all map[key]*transfer, lid ib.LID) bool {
	if e.cfg.PeerTransfers <= 0 {
		return false
	}
	n := 0
	for k := range all {
		if k.lid == lid {
			n++
		}
	}
	return n >= e.cfg.PeerTransfers
}

func (t *transfer) handle(now mono.Time, d *mad.Datagram) {
	if t.s != nil {
		t.s.Handle(now, d.Data[:])
	} else {
		t.r.Handle(now, d.Data[:])
	}
}

// settle tells of a transfer's end, once, and forgets it when nothing more can
// come of it.
func (e *Endpoint) settle(t *transfer) {
	closed := false
	if t.s != nil {
		st, why := t.s.State()
		if closed = t.s.Closed(); st != Active && t.done != nil {
			done := t.done
			t.done = nil
			defer done(st, why)
		}
		if closed && st == Failed {
			e.Counters.SendsFailed++
		}
	} else {
		if closed = t.r.Closed(); closed {
			if st, _ := t.r.State(); st == Failed {
				e.Counters.ReceivesFailed++
			}
		}
	}
	if closed {
		e.drop(t)
	}
}

func (e *Endpoint) drop(t *transfer) {
	if t.s != nil {
		delete(e.senders, t.key)
	} else {
		delete(e.receivers, t.key)
	}
	i := slices.Index(e.all, t)
	e.all = slices.Delete(e.all, i, i+1)
	if e.turn > i {
		e.turn--
	}
}

// Next writes the next datagram to send to d, false if there is none now; d is
// then undefined. Transfers take turns.
func (e *Endpoint) Next(now mono.Time, d *mad.Datagram) bool {
	for range len(e.all) {
		if e.turn >= len(e.all) {
			e.turn = 0
		}
		if len(e.all) == 0 {
			return false
		}
		t := e.all[e.turn]
		e.turn++
		*d = t.to
		more := false
		if t.s != nil {
			more = t.s.Next(now, &d.Data)
		} else {
			more = t.r.Next(now, &d.Data)
		}
		e.settle(t)
		if more {
			return true
		}
	}
	return false
}

// Deadline returns when Next has something to do if nothing arrives.
func (e *Endpoint) Deadline() (at mono.Time) {
	for _, t := range e.all {
		if t.s != nil {
			at = mono.Min(at, t.s.Deadline())
		} else {
			at = mono.Min(at, t.r.Deadline())
		}
	}
	return at
}
