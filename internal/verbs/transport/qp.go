// SPDX-License-Identifier: Apache-2.0

// Package transport is the queue pair: requester, responder and completer of the RC, UC and UD services as pure state
// machines.
//
// What comes in: work requests, bursts of packets (package pkt) and the time; what goes out: bursts, completions and
// events through Regions and Queues. Package hca calls it. It must never read a clock, take a lock, start a goroutine,
// log, or allocate per packet. The rules are those of IBA volume 1 chapters 9 to 11.
//
// A lane drives a queue pair in this order, over and over:
//
//	Handle   each inbound burst; payload goes to the batch
//	(flush)  the lane flushes the batch: payload is in place
//	Commit   completions of what was handled become visible
//	Next     until false: acknowledgements, responses, requests, resends
//	Deadline when to call Next again if nothing else happens
//
// so that no completion and no acknowledgement ever overtakes its data. The payload of a burst that Next produced must
// have been read (and, where another queue pair handled it, flushed) before the next Commit of the queue pair that
// produced it; SourceFault for it comes before that Commit. Unreliable sends complete in that Commit, so every queue
// pair needs one when its Next returned true. Commit without anything to do is cheap. Modify, Destroy, Post and
// RecvPosted are not called between Handle and Commit.
//
// Where to look: endpoint is what both halves share; requester sends (window, gaps and timers are its loss recovery,
// completer.go handles responses); responder receives (receives, answers, the out-of-order buffer); QP joins them;
// orphan is what is left of a queue pair after its program died.
package transport

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
)

// SendWR is one send work request, in the slot of the send queue that the
// queue pair owns. The poster fills it in place (SendSlot, Post); it stays
// untouched by the poster until SendDone returns it.
type SendWR struct {
	ID       uint64 // wr_id
	Cookie   uint32 // the poster's: identifies the ring element
	Op       ib.WROp
	Flags    ib.SendFlags
	BadWQE   bool // the poster found the request malformed: it completes with LocQPOpErr in its turn
	Imm      uint32
	RemoteVA uint64
	RKey     ib.Key // SEND_INV, LOCAL_INV: what to invalidate
	Compare  uint64 // CMP_SWAP; the other operand is SwapAdd
	SwapAdd  uint64 // swap value, or FETCH_ADD's addend
	// BIND_MW and REG_MR: the window or region starts at RemoteVA, is Compare
	// bytes long and is named RKey from now on. Its rights, the L_Key of the
	// region to bind to or the number of the region to register, and how many
	// pages the list has that InlineData or SGE leads to.
	Access ib.Access
	Object uint32
	Pages  uint32
	// Datagram services.
	Path    *ib.Path // address handle; nil is an invalid handle
	DestQPN ib.QPN
	QKey    ib.QKey
	// SGE is the gather list (READ, atomics: where the result goes); its
	// capacity is Cap.MaxSendSGE and it is the slot's for good. Inline data
	// stands in InlineData instead when Flags has Inline, and must stay
	// unchanged in length, not in content, until SendDone.
	SGE        []ib.SGE
	InlineData []byte

	// What the queue pair adds when the request's turn comes.
	segs              []mem.Seg
	mad               *[madLen]byte // QP 1: what is sent; allocated with the first request of the slot
	length            uint64
	firstPSN, lastPSN ib.PSN
	readPSN           ib.PSN    // READ: where it was last resumed
	status            ib.Status // a local error, reported when everything earlier is done
	started           bool      // has its PSNs
}

// RecvWR is one receive work request. It belongs to the receive queue; a
// queue pair holds it from TakeRecv to RecvDone.
type RecvWR struct {
	ID     uint64
	Cookie uint32
	BadWQE bool // the poster found it malformed: LocQPOpErr when a message needs it
	SGE    []ib.SGE
}

// Completion is the outcome of a work request. Where Status is not Success
// only Status, and for a receive that was in progress nothing else, is valid.
type Completion struct {
	Status    ib.Status
	Op        ib.WCOp
	Flags     ib.WCFlags
	ByteLen   uint32
	Imm       uint32
	SrcQPN    ib.QPN
	Solicited bool   // the message requests a solicited event
	VendorErr uint32 // why, for people: one of the Reason constants
	// Of a datagram: SL, and from an InfiniBand port where the sender is, which
	// of the table's keys matched, and the DLID's low bits, of which the port's
	// LMC defines how many count.
	SL        uint8
	SLID      ib.LID
	PathBits  uint8
	PKeyIndex uint16
	// Discard marks a request that was dropped without a completion: RESET or destruction. Only the ring element
	// must be returned.
	Discard bool
}

// Regions is what a queue pair needs of the adapter's protection domains. Calls come from within the queue pair's own
// calls, never concurrently.
type Regions interface {
	// LocalRegion returns the region that lkey names if it belongs to the queue pair's PD and [addr, addr+n)
	// lies inside with the rights need.
	LocalRegion(lkey ib.Key, addr, n uint64, need ib.Access) *mem.Region
	// RemoteRegion is the same for an R_Key that a peer stated.
	RemoteRegion(rkey ib.Key, addr, n uint64, need ib.Access) *mem.Region
	// Local executes a request that concerns this end alone: LOCAL_INV, BIND_MW or REG_MR. Where it fails nothing has
	// changed.
	Local(wr *SendWR) (ib.Status, uint32)
	// Invalidate invalidates rkey because of a peer's message; false where the peer has no right to.
	Invalidate(rkey ib.Key) bool
}

// Queues is what a queue pair needs of the adapter's work and completion queues. Calls come as those of Regions do.
type Queues interface {
	// TakeRecv removes the oldest receive request from the receive queue or SRQ; nil where there is none.
	TakeRecv() *RecvWR
	// SendDone returns the oldest send request. signal reports whether a completion is owed (Signaled, or not
	// successful); c.Discard never signals.
	SendDone(wr *SendWR, signal bool, c *Completion)
	// RecvDone returns a receive request with its completion.
	RecvDone(wr *RecvWR, c *Completion)
	// Event raises an asynchronous event for this queue pair.
	Event(e ib.Event)
}

// Cap are the capacities a queue pair was created with.
type Cap struct {
	MaxSendWR, MaxRecvWR   uint32
	MaxSendSGE, MaxRecvSGE uint32
	MaxInline              uint32
}

// Config describes a queue pair at creation.
type Config struct {
	Type    ib.QPType
	QPN     ib.QPN // as it stands on the wire
	Cap     Cap
	SigAll  bool
	SRQ     bool // receives come from a shared receive queue
	PortMTU ib.MTU
	// PKey is the port's partition key table; index 0 unless Attr states another.
	PKeys []ib.PKey
	// MaxRdAtomic bounds both depths that Modify accepts.
	MaxRdAtomic uint8
	// Window bounds the unacknowledged bytes of a path that can lose packets,
	// and MinWindow what remains of it after losses.
	Window, MinWindow uint32
	// Buffers are where packets are kept that arrive behind a gap, and READ responses that must be copied; nil:
	// nowhere.
	Buffers *Buffers
}

// Attr are the attributes of a queue pair (verbs names). Path is the resolved
// address vector of AttrAV.
type Attr struct {
	State, CurState  ib.QPState
	EnSQDAsyncNotify bool
	SQDraining       bool // query only
	Access           ib.Access
	PKeyIndex        uint16
	Port             uint8
	QKey             ib.QKey
	Path             *ib.Path
	PathMTU          ib.MTU
	Timeout          uint8
	RetryCnt         uint8
	RNRRetry         uint8
	RQPSN, SQPSN     ib.PSN
	MaxRdAtomic      uint8
	MaxDestRdAtomic  uint8
	MinRNRTimer      uint8
	DestQPN          ib.QPN
	PathMigState     uint8
}

// Counters count what a queue pair saw; names follow the rdma tool and the
// hw_counters of Linux. Each refusal has its own.
type Counters struct {
	SentPackets, RcvdPackets, SentBytes, RcvdBytes uint64
	DuplicateRequest, OutOfSequence                uint64
	OOOBuffered, OOORefused                        uint64 // packets behind a gap: kept; dropped for lack of room
	// READ responses that were copied before a request behind them was executed, and requests deferred for lack
	// of room.
	ReadCopies, ReadCopyRefused                         uint64
	RNRNakSent, RNRNakRcvd, SeqNakSent, SeqNakRcvd      uint64
	LocalAckTimeout, Retransmits, Probes                uint64
	RetryExceeded, RNRRetryExceeded                     uint64
	DropState, DropPKey, DropQKey, DropPath, DropNoRecv uint64
	DropLength, DropOpcode, DropPSN, BadResponse        uint64
	RemoteAccessErr, RemoteInvalidReq, RemoteOpErr      uint64
	LocalOps, RemoteInvalidated, BindErr                uint64
	GSIRefused                                          uint64 // requests of QP 1 that are no MADs, or only QP 0's
}
