// SPDX-License-Identifier: Apache-2.0

package connected

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// The interfaces of this file are called on the link's lane. No call blocks, and none calls Conns back: results arrive
// later, with Conns.HandleEvent. A call that returns an error has changed nothing.
//
// A connection has a number. Numbers of Connect are chosen by Conns and lie below FirstPassive; numbers of incoming
// requests are chosen by the Handshake and begin at FirstPassive. A number is in use until DestroyConn or RejectConn.

// FirstPassive is the smallest number of connections that peers requested.
const FirstPassive = 1 << 31

// SharedQueue is what all connections of a link share: memory and a shared receive queue.
type SharedQueue interface {
	// OpenConns allocates and registers tx send slots and rx receive slots of slotLen octets each, makes the shared
	// receive queue and listens for requests to the interface of queue pair qpn, at both its service IDs
	// (wire.CMServiceIDs). The memory is the caller's until CloseConns.
	OpenConns(qpn ib.QPN, tx, rx, slotLen int) (txMem, rxMem []byte, err error)
	// CloseConns releases what OpenConns made. Precondition: no connection is left.
	CloseConns()
	// PostConnRecv posts receive slots to the shared receive queue, in order, and returns how many were accepted.
	PostConnRecv(slots []RecvSlot) int
}

// Handshake makes queue pairs and connects them through the communication manager.
type Handshake interface {
	// Connect makes a queue pair and sends a REQ.
	Connect(r *Request) (ib.QPN, error)
	// ReadyConn takes the queue pair of a connection that the peer accepted to RTS, and sends an RTU.
	ReadyConn(id uint32) error
	// AcceptConn makes a queue pair in RTS for a REQ and sends a REP.
	AcceptConn(id uint32, private []byte) (ib.QPN, error)
	// RejectConn sends a REJ: for want of resources (full) or for another reason.
	RejectConn(id uint32, full bool, private []byte)
	// EstablishConn reports that a message arrived by an accepted connection before its RTU did (IBA volume 1, 12.9.7).
	EstablishConn(id uint32)
}

// QueuePairs are the queue pairs of connections.
type QueuePairs interface {
	// PostConn posts messages in order and returns how many were accepted.
	PostConn(id uint32, messages []Message) int
	// StopConn ends a connection in whatever state it is: it sends a DREQ or REJ and takes the queue pair to ERR, so
	// that posted work completes as flushed. No event follows.
	StopConn(id uint32)
	// DestroyConn destroys the queue pair of a stopped connection.
	DestroyConn(id uint32)
}

// Mapper sends frames from where they lie.
type Mapper interface {
	// Map prepares a frame outside of the send slots to be sent from where it lies; false where that is not possible.
	// After true the frame must not be changed until Unmap is called with the same reference.
	Map(frame []byte) (ref uint64, ok bool)
	Unmap(ref uint64)
}

// Ports are the implementations that a link in connected mode uses.
type Ports struct {
	Shared    SharedQueue
	Handshake Handshake
	QPs       QueuePairs
	Frames    Mapper
}

// Request requests a connection.
type Request struct {
	ID        uint32
	ServiceID uint64
	GID       ib.GID         // of the peer
	Path      mad.PathRecord // to the peer
	Private   []byte         // valid during the call
}

// Message is a message to send.
type Message struct {
	ID uint64 // of its completion
	// Off and Len are in the send slots' memory, or, where Mapped is set, in the mapped frame Ref.
	Off    uint32
	Len    uint32
	Mapped bool
	Ref    uint64
}

// RecvSlot is a receive slot to post.
type RecvSlot struct {
	ID  uint64 // of its completion
	Off uint32 // in the receive slots' memory
	Len uint32
}

// EventKind is the kind of an Event.
type EventKind uint8

// Kinds of events.
const (
	// Requested: a REQ arrived; ID is new. Conns.HandleEvent calls AcceptConn or RejectConn before it returns.
	Requested EventKind = iota + 1
	// Accepted: the REP to a Connect arrived. ReadyConn or StopConn follows.
	Accepted
	// Ready: the RTU of an accepted connection arrived.
	Ready
	// NoService: the peer rejected the REQ because it does not listen at that service ID.
	NoService
	// Rejected: the peer rejected the REQ for another reason.
	Rejected
	// Unreachable: the peer did not answer.
	Unreachable
	// Disconnected: a DREQ arrived, or the queue pair is in ERR.
	Disconnected
)

// Event is an event of a connection.
type Event struct {
	ID      uint32
	Kind    EventKind
	Service uint64 // Requested: the service ID in the REQ
	GID     ib.GID // Requested: of the peer
	LID     ib.LID // Requested: of the peer's port
	Private []byte // Requested, Accepted; valid during the call
}

// Link is the part of the link that sends frames which do not go by a connection.
type Link interface {
	// SendUnicast sends a frame to a neighbour again, by the shadow table. It drops the frame where that has no entry.
	SendUnicast(now mono.Time, hw wire.HWAddr, frame []byte)
	// SendDatagram sends a frame to a neighbour as a datagram; false where the neighbour has no address vector.
	SendDatagram(hw wire.HWAddr, frame []byte) bool
	// RejectTooBig drops a frame and reports the MTU to the IP stack.
	RejectTooBig(now mono.Time, frame []byte, mtu int)
}

// Neighbours is the shadow table.
type Neighbours interface {
	// Attempts returns the attempts to connect a neighbour; nil where the table has no entry for it.
	Attempts(hw wire.HWAddr) *Attempts
	// Touch notes that the entry of a neighbour is in use.
	Touch(now mono.Time, hw wire.HWAddr)
	// PathLID returns the destination LID of the valid path to a GID; false where there is none.
	PathLID(gid ib.GID) (ib.LID, bool)
	// VerifyPath queries the path to a neighbour because a frame from port lid contradicts it.
	VerifyPath(now mono.Time, hw wire.HWAddr, lid ib.LID)
	// Rediscover queries the path to a neighbour again and probes its IP addresses: its connection broke.
	Rediscover(now mono.Time, hw wire.HWAddr)
}

// Budget bounds the octets of all frames that wait in the queues of a link.
type Budget interface {
	// Reserve counts octets that will wait; false where that would exceed the bound.
	Reserve(octets int) bool
	// Release undoes a Reserve.
	Release(octets int)
}

// Reporter logs what happens.
type Reporter interface {
	// Logf reports a failure; failures of one cause are limited in rate.
	Logf(now mono.Time, cause, format string, args ...any)
	// Debugf reports a step that parameter debug selects.
	Debugf(now mono.Time, format string, args ...any)
}
