// SPDX-License-Identifier: Apache-2.0

package rmpp

import (
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Message is a complete message.
type Message struct {
	// Datagram has the addressing and, in Data, the headers of the first segment with as much of the data as fits.
	Datagram mad.Datagram
	// Data is the data of all segments; the caller owns it.
	Data []byte
}

// Counters count refused and failed transfers.
type Counters struct {
	Full           uint64 // messages refused because of too many transfers
	PeerFull       uint64 // because of too many with their peer
	Stray          uint64 // segments, acknowledgements and ends of no known transfer
	SendsFailed    uint64
	ReceivesFailed uint64
}

// key identifies a transfer. Method is that of the segments with data.
type key struct {
	port   uint8
	lid    ib.LID
	qpn    ib.QPN
	gid    ib.GID
	class  mad.Class
	method mad.Method
	tid    uint64
}

// keyOf returns the key of the peer of d; lid, qpn and gid are those of the peer.
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

// transfer is a Sender or a Receiver with the address of its peer.
type transfer struct {
	key  key
	to   mad.Datagram // Data is not used
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

// Send starts to send data, after the headers at the start of d.Data, to the destination of d. The Endpoint owns data
// until it calls done, which may be nil, with Complete or Failed: during a later Handle or Next. A response to a
// received message uses the window that the requester granted. doubleSided means that the answer has segments as well.
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

// Handle handles a datagram that arrived. It returns false if d is a single MAD and not part of a transfer, and a
// message if d completed it.
func (e *Endpoint) Handle(now mono.Time, d *mad.Datagram) (*Message, bool) {
	var h mad.Header
	var r mad.RMPP
	if h.Parse(d.Data[:]) != nil || !h.MgmtClass.HasRMPP() || r.Parse(d.Data[rmppAt:]) != nil ||
		r.Flags&mad.RMPPActive == 0 {
		return nil, false
	}
	k := keyOf(d, &h, d.SLID, d.SrcQPN, d.SGID)
	if r.Type == mad.RMPPData {
		return e.data(now, d, k, &r), true
	}
	t := e.senders[k.turned()]
	if t != nil && r.Type != mad.RMPPAck {
		// An end that arrives after the acknowledgement of the message is that of its answer.
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
	e.conclude(t)
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
	e.conclude(t)
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

// peerFull reports whether a LID has the largest number of transfers, lingering ones included.
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

// conclude reports the end of a transfer once, and removes it when it is closed.
func (e *Endpoint) conclude(t *transfer) {
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

// Next writes the next datagram to send to d. It reports false if there is none now; d is then undefined. Transfers
// take turns.
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
		e.conclude(t)
		if more {
			return true
		}
	}
	return false
}

// Deadline returns when Next must be called next if nothing arrives.
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
