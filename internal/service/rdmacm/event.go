// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"slices"

	"weft/internal/service/cm"
)

// eventKind is the kind of an event, by its number in the ABI.
type eventKind uint32

// Events.
const (
	evAddrResolved eventKind = iota
	evAddrError
	evRouteResolved
	evRouteError
	evConnectRequest
	evConnectResponse
	evConnectError
	evUnreachable
	evRejected
	evEstablished
	evDisconnected
	evDeviceRemoval
	evMulticastJoin
	evMulticastError
	evAddrChange
	evTimewaitExit
	evAddrInfoResolved // librdmacm makes these two of evInternal
	evAddrInfoError
	evUser // what programs write, and librdmacm for itself
	evInternal
)

// event waits to be read.
type event struct {
	id     *id
	group  *member // of evMulticastJoin and evMulticastError
	kind   eventKind
	status int32
	conn   connParam
	ud     *udParam // instead of conn
	arg    *uint64  // instead of conn, of an event that the program wrote
	// Of evConnectRequest: its new identifier, and the parameters of the request. It has no number
	// before it is read.
	child *id
}

// queue adds an event to the identifier's channel.
func (i *id) queue(e *event) {
	h := i.hub
	e.id = i
	if e.child == nil {
		if i.full() {
			h.Stats.DropEvents++
			return
		}
		i.waiting++
	}
	i.file.events = append(i.file.events, e)
	i.file.notify()
}

// writeEvent queues an event of the program itself, as rdma_write_cm_event and rdma_resolve_addrinfo do.
func (i *id) writeEvent(kind eventKind, status int32, arg uint64) Errno {
	switch {
	case kind != evUser && kind != evInternal:
		return EINVAL
	case i.full():
		return ENOMEM
	}
	i.queue(&event{kind: kind, status: status, arg: &arg})
	return OK
}

// full reports whether the identifier has as many events that were not read as it may have.
func (i *id) full() bool { return i.waiting >= maxEvents+2*len(i.groups) }

// status returns an error as events have it.
func status(e Errno) int32 { return -int32(e) }

// event reads the oldest event. Events of an identifier that has no user number yet were never
// enqueued.
func (f *File) event(room int, b []byte) ([]byte, Errno) {
	h := f.hub
	var e *event
	for {
		if len(f.events) == 0 {
			return b, EAGAIN
		}
		e = f.events[0]
		f.events[0] = nil
		if f.events = f.events[1:]; len(f.events) == 0 {
			f.events = nil
		}
		if e.child == nil {
			e.id.waiting--
			break
		}
		e.id.backlog++
		e.id.requests--
		if h.number(e.child, f) == OK {
			break
		}
		// If the user has no identifier left for it, the peer is rejected, and later events are not
		// delayed.
		e.child.refuse(cm.ReasonNoResources)
	}
	f.notify()
	h.Stats.Events++
	e.id.reported++
	uid, n := e.id.uid, e.id.n
	switch {
	case e.child != nil:
		n = e.child.n
	case e.group != nil:
		e.group.reported++
		uid, n = e.group.uid, e.group.n
	}
	at := len(b)
	b = le.AppendUint64(b, uid)
	b = le.AppendUint32(b, n)
	b = le.AppendUint32(b, uint32(e.kind))
	b = le.AppendUint32(b, uint32(e.status))
	switch {
	case e.arg != nil:
		b = le.AppendUint64(b, *e.arg)
		b = append(b, make([]byte, udLen-8)...)
	case e.ud != nil:
		b = e.ud.append(b)
	default:
		b = e.conn.append(b)
		b = append(b, make([]byte, udLen-connLen)...)
	}
	b = append(b, make([]byte, eventLen-eventLeast)...)
	return b[:min(len(b), at+room)], OK
}

// refuse rejects a request of a peer that no program has received.
func (i *id) refuse(why cm.Reason) {
	if i.conn != nil {
		i.conn.Reject(i.hub.now, why, nil, nil)
	}
	i.abandon()
}

// purge drops the events that match, and ends the requests of peers among them.
func (f *File) purge(match func(e *event) bool) {
	f.events = slices.DeleteFunc(f.events, func(e *event) bool {
		if !match(e) {
			return false
		}
		if e.child != nil {
			e.id.backlog++
			e.id.requests--
			e.child.abandon()
		} else {
			e.id.waiting--
		}
		return true
	})
}

// migrate moves an identifier, and its events, here from another channel.
func (f *File) migrate(n uint32, from *File, b []byte) ([]byte, Errno) {
	if from == nil {
		f.hub.Stats.DropForeign++
		return b, ENOENT
	}
	i, err := from.lookup(n)
	if err != OK {
		return b, err
	}
	if from != f {
		var moved []*event
		from.events = slices.DeleteFunc(from.events, func(e *event) bool {
			if e.id == i {
				moved = append(moved, e)
			}
			return e.id == i
		})
		delete(from.ids, i)
		f.ids[i] = struct{}{}
		f.hub.charge(from.owner, -1)
		f.hub.charge(f.owner, 1)
		i.file = f
		f.events = append(f.events, moved...)
		f.notify()
	}
	return le.AppendUint32(b, i.reported), OK
}
