// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
)

// Connector is what a link in connected mode (RFC 4755) needs beside an AL: reliable
// connections, made by the communication manager, and one shared receive queue. It is called on
// the link's lane. No call blocks, and none calls the Link back: what comes of it is told later
// with Link.ConnEvent. What a call cannot do it refuses with an error, and has then
// changed nothing.
//
// A connection has a number. Those of Connect are the Link's choice, below PassiveConn;
// those of requests that arrive are the Connector's, from PassiveConn on. A number names its
// connection until DestroyConn or RejectConn.
type Connector interface {
	// OpenConns makes what all connections have in common: memory of tx send slots and rx receive
	// slots of slotLen octets each, and the shared receive queue. From then on it listens for requests to the
	// interface of queue pair qpn, at both its service IDs (wire.CMServiceIDs).
	OpenConns(qpn ib.QPN, tx, rx, slotLen int) (txMem, rxMem []byte, err error)
	// CloseConns is called when there is no connection any more.
	CloseConns()
	// Connect makes a queue pair and asks a peer to connect it.
	Connect(r *ConnRequest) (ib.QPN, error)
	// ReadyConn takes the queue pair of a connection that the peer accepted to RTS, and tells the peer.
	ReadyConn(id uint32) error
	// AcceptConn makes a queue pair in RTS for a request and says yes to it; RejectConn says no,
	// for want of room (full) or for another reason.
	AcceptConn(id uint32, private []byte) (ib.QPN, error)
	RejectConn(id uint32, full bool, private []byte)
	// HeardConn tells that a message came by an accepted connection before the peer said that it
	// is ready.
	HeardConn(id uint32)
	// StopConn ends a connection, in whatever state: the peer is told, the queue pair goes to ERR, so that what is
	// posted completes as flushed, and no event comes of it any more.
	StopConn(id uint32)
	// DestroyConn destroys the queue pair of a connection that was stopped.
	DestroyConn(id uint32)
	// PostConn posts messages, whose AH, QPN and QKey mean nothing, in their order and returns how many were taken.
	// Off of one that is not mapped is in the memory of OpenConns.
	PostConn(id uint32, wrs []SendWR) int
	// PostConnRecv posts receive slots to the shared receive queue.
	PostConnRecv(slots []RecvWR) int
}

// PassiveConn is the first of the numbers of connections that peers asked for.
const PassiveConn = 1 << 31

// ConnRequest asks for a connection.
type ConnRequest struct {
	ID        uint32
	ServiceID uint64
	GID       ib.GID         // of the peer
	Path      mad.PathRecord // to it
	Private   []byte         // valid during the call
}

// ConnEventKind is what happened to a connection.
type ConnEventKind uint8

// Events of connections.
const (
	// ConnAsked: a peer wants one; ID is new. AcceptConn or RejectConn follows from within Link.ConnEvent.
	ConnAsked ConnEventKind = iota + 1
	// ConnAccepted: the peer said yes to a Connect. ReadyConn or StopConn follows.
	ConnAccepted
	// ConnReady: the peer of an accepted connection is ready.
	ConnReady
	// ConnNoService: the peer does not listen at the service ID that was asked for.
	ConnNoService
	// ConnRefused: the peer said no.
	ConnRefused
	// ConnUnreachable: the peer did not answer.
	ConnUnreachable
	// ConnOver: the peer ended it, or the queue pair is in error.
	ConnOver
)

// ConnEvent is something that happened to a connection.
type ConnEvent struct {
	ID      uint32
	Kind    ConnEventKind
	Service uint64 // ConnAsked: the service ID that was asked for
	GID     ib.GID // ConnAsked: of the peer
	LID     ib.LID // ConnAsked: of its port
	Private []byte // ConnAsked, ConnAccepted; valid during the call
}

// Lengths of connected mode. The MTU is that of other implementations: with the
// encapsulation header a message is as long as an IP packet can be at most, less what aligns it.
const (
	// ConnMTU is the longest packet that goes by a connection.
	ConnMTU = 65520
	// connRecvMTU is the longest message that a connection receives.
	connRecvMTU = ConnMTU + wire.EncapLen
	// connSlotLen is the length of a slot. A message lies where a datagram does, behind as much
	// as the GRH of one would take.
	connSlotLen = 65536 + 64
	connTxSlots = 128
	connRxSlots = 256
)
