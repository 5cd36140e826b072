// SPDX-License-Identifier: Apache-2.0

// Package umad is the user-MAD interface of the InfiniBand ports of a node: the functions of the kernel's files
// umadN and issmN for management programs, without the files (docs/notes/umad.md).
//
// What comes in: writes and ioctls of programs on their files, datagrams that arrived at a port, and time. What
// goes out: datagrams to send, and records that programs read, through the Sink of each file. The management
// goroutine of a node calls it. It answers no MAD itself, reads no clock, never blocks, and holds no more for a
// program than the bounds below, whatever programs and peers do.
//
// It behaves as the kernel's user-MAD device, ABI version 5; docs/notes/umad.md lists the differences.
package umad

import (
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mad/rmpp"
	"weft/internal/proto/mono"
)

// ABIVersion is the version of the records and requests.
const ABIVersion = 5

// Bounds of the state that programs can create in the Hub.
const (
	maxAgents   = 32      // registrations of a file
	maxPending  = 4096    // unanswered requests of a registration
	maxOut      = 4096    // queued datagrams of all files
	MaxMessage  = 1 << 20 // bytes of a MAD with RMPP, without its headers
	maxSegments = 64      // transfers of a registration in each direction
	maxWaiters  = 64      // programs that wait for the issm of a port
)

// MaxRecord is the length of the longest record.
const MaxRecord = HeaderLen + mad.Len + MaxMessage

// Errno is an error number of Linux.
type Errno uint32

// Errors that programs receive.
const (
	OK        Errno = 0
	EPERM     Errno = 1
	EIO       Errno = 5
	EAGAIN    Errno = 11
	ENOMEM    Errno = 12
	ENODEV    Errno = 19
	EINVAL    Errno = 22
	ENOTTY    Errno = 25
	ETIMEDOUT Errno = 110
)

// Port is the state of a port that a Hub uses.
type Port struct {
	LID   ib.LID
	LMC   uint8
	PKeys []ib.PKey // the table, 0 where empty
	// Of GIDs: the prefix, and the GUIDs by index, 0 where empty.
	Prefix uint64
	GUIDs  []ib.GUID
}

// gid returns an entry of the GID table.
func (p *Port) gid(i uint8) (ib.GID, bool) {
	if int(i) >= len(p.GUIDs) || p.GUIDs[i] == 0 {
		return ib.GID{}, false
	}
	return ib.MakeGID(p.Prefix, p.GUIDs[i]), true
}

// gidIndex returns the index of a GID in the table, 0 if it is not there.
func (p *Port) gidIndex(g ib.GID) uint8 {
	if g.Prefix() != p.Prefix {
		return 0
	}
	return uint8(max(0, slices.Index(p.GUIDs, g.GUID())))
}

// Ports is the ports of a node by the number of their function.
type Ports interface {
	// Port returns the current state of a port, which the Hub only reads and does not keep. It reports false if
	// there is no such port.
	Port(function uint16) (Port, bool)
	// SetIsSM sets or clears the capability IsSM of a port.
	SetIsSM(now mono.Time, function uint16, on bool)
	// Manages reports whether programs of this node may manage the subnet. If not, they only read.
	Manages() bool
}

// Sink receives the records of a file.
type Sink interface {
	// Put receives a record, which it owns from then on, and returns at once. It reports false if it has no room:
	// the record is dropped.
	Put(record []byte) bool
	// Gone reports that the port of the file was removed: the file neither sends nor receives any more.
	Gone()
}

// Stats count MADs, and those refused or dropped by reason.
type Stats struct {
	Sent, Received, TimedOut, Retried uint64
	// Records that programs wrote: too short to be answered; returned with a status.
	DropMalformed, Refused uint64
	// Datagrams that arrived: of another base version; a response without a request; without a registration for
	// them; for a program that does not read.
	DropVersion, DropLate, DropUnclaimed, DropReaderFull uint64
	// Records too long for the transport to the program.
	DropTooLong uint64
	// Subnet management requests, and opens of issmN, of programs at a node that may not manage the subnet.
	NotManager uint64
}

// Hub has the files of all ports. It has one owner goroutine.
type Hub struct {
	Stats Stats
	// NotManagerAt is when Stats.NotManager grew last.
	NotManagerAt mono.Time
	view         Ports
	ports        map[uint16]*port
	now          mono.Time // of the current call
	tag          uint32
	tags         map[uint32]*agent
	out          []outgoing
	head         int                     // of out
	timers       mono.Heap[*transaction] // of unanswered requests
	rmpp         []*agent                // with transfers
	turn         int
}

// outgoing is a queued datagram with the function of its port.
type outgoing struct {
	function uint16
	d        mad.Datagram
}

// port is a port with its files.
type port struct {
	files  []*File
	routes map[route]*agent
	isSM   *IsSM   // the open issm
	queue  []*IsSM // opens that wait
}

// route selects the registration of an unsolicited MAD.
type route struct {
	class   mad.Class
	version uint8
	method  mad.Method
	oui     uint32
}

// New returns a Hub without files.
func New(view Ports) *Hub {
	return &Hub{view: view, ports: map[uint16]*port{}, tags: map[uint32]*agent{}}
}

// port returns the files of the port of a function.
func (h *Hub) port(function uint16) *port {
	p := h.ports[function]
	if p == nil {
		p = &port{routes: map[route]*agent{}}
		h.ports[function] = p
	}
	return p
}

// Remove closes the files of a removed port and notifies their sinks.
func (h *Hub) Remove(now mono.Time, function uint16) {
	p := h.ports[function]
	if p == nil {
		return
	}
	for len(p.files) > 0 {
		f := p.files[0]
		f.Close()
		f.sink.Gone()
	}
	queue := p.queue
	p.queue = nil
	for _, w := range queue {
		w.granted(ENODEV)
	}
	if p.isSM != nil {
		p.isSM.Close(now)
	}
	delete(h.ports, function)
}

// Receive handles a datagram that arrived at the port of a function. It reports false if no program is registered
// for it.
func (h *Hub) Receive(now mono.Time, function uint16, d *mad.Datagram) bool {
	p := h.ports[function]
	if p == nil || len(p.files) == 0 {
		return false
	}
	h.now = now
	var m mad.Header
	m.Parse(d.Data[:])
	if m.BaseVersion != mad.BaseVersion && d.Long == nil {
		h.Stats.DropVersion++
		return true
	}
	a := h.claim(p, &m, d)
	if a == nil || a.qpn != d.DstQPN {
		h.Stats.DropUnclaimed++
		return false
	}
	var data []byte
	if a.rmpp != nil && d.Long == nil {
		a.extend(&m, d)
		msg, ours := a.rmpp.Handle(now, d)
		switch {
		case ours && msg == nil:
			return true
		case ours:
			d, data = &msg.Datagram, msg.Data
			if data == nil {
				data = []byte{}
			}
		}
	}
	if isResponse(&m) && !a.answered(&m, d) {
		h.Stats.DropLate++
		return true
	}
	h.Stats.Received++
	a.deliver(d, data)
	return true
}

// claim returns the registration of a MAD: of a response that of the tag in its transaction identifier, of another
// MAD that of its route.
func (h *Hub) claim(p *port, m *mad.Header, d *mad.Datagram) *agent {
	if isResponse(m) {
		if a := h.tags[uint32(m.TransactionID>>32)]; a != nil && a.file.port == p {
			return a
		}
		return nil
	}
	return p.routes[route{m.MgmtClass, m.ClassVersion, m.Method, ouiOf(d)}]
}

// bmResponse is the bit of a baseboard management MAD's attribute modifier that
// marks responses (IBA volume 1, 16.2.1.3).
const bmResponse = 1

// isResponse reports whether a MAD answers another: its transaction identifier is that of the requester.
func isResponse(m *mad.Header) bool {
	return m.Method.IsResponse() || m.MgmtClass == mad.ClassBM && m.AttributeModifier&bmResponse != 0
}

// ouiOf returns the OUI that a MAD of vendor range 2 bears, 0 of others.
func ouiOf(d *mad.Datagram) uint32 {
	if !hasOUI(mad.Class(d.Data[1])) {
		return 0
	}
	const at = mad.HeaderLen + mad.RMPPLen + 1
	return uint32(d.Data[at])<<16 | uint32(d.Data[at+1])<<8 | uint32(d.Data[at+2])
}

// hasOUI reports whether c is of vendor range 2.
func hasOUI(c mad.Class) bool { return c >= 0x30 && c <= 0x4f }

// Next writes the next datagram of a program to d, and returns the function of its port. The caller calls it until
// it reports false: there is none.
func (h *Hub) Next(now mono.Time, d *mad.Datagram) (function uint16, ok bool) {
	h.now = now
	h.expire()
	if h.head < len(h.out) {
		o := &h.out[h.head]
		*d, function = o.d, o.function
		if h.head++; h.head == len(h.out) {
			h.out, h.head = h.out[:0], 0
		}
		h.Stats.Sent++
		return function, true
	}
	for range len(h.rmpp) {
		if h.turn >= len(h.rmpp) {
			h.turn = 0
		}
		a := h.rmpp[h.turn]
		h.turn++
		if a.rmpp.Next(now, d) {
			h.Stats.Sent++
			return a.file.function, true
		}
	}
	return 0, false
}

// Deadline returns when Next must be called next if nothing else happens.
func (h *Hub) Deadline() mono.Time {
	at := h.timers.Next()
	for _, a := range h.rmpp {
		at = mono.Min(at, a.rmpp.Deadline())
	}
	return at
}

// send queues a datagram. It reports false if the queue is full.
func (h *Hub) send(function uint16, d *mad.Datagram) bool {
	if len(h.out)-h.head >= maxOut {
		return false
	}
	h.out = append(h.out, outgoing{function, *d})
	return true
}

// rmppConfig bounds the state that peers can create in a registration.
var rmppConfig = rmpp.Config{MaxBytes: MaxMessage, Transfers: maxSegments}
