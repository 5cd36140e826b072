// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// Handle names an address vector that AL.CreateAH made. 0 is none.
type Handle uint32

// AL is the access layer: what a Link needs of the channel adapter and of the
// subnet administration, and no more than every user of verbs has. A Link calls it
// on its lane. No call blocks, and none calls the Link back: completions are
// fetched with Poll, answers come later by Link.SAResponse. What a call cannot do it
// refuses with an error, and has then changed nothing.
type AL interface {
	Connector
	// CreateCQ makes the one completion queue, for depth entries.
	CreateCQ(depth int) error
	DestroyCQ()
	// CreateQP makes the one queue pair, of datagram service, in RESET, both of
	// whose queues complete into the completion queue.
	CreateQP(sq, rq int) (ib.QPN, error)
	DestroyQP()
	// InitUD takes the queue pair, from any state and by way of RESET, to RTS
	// with an entry of the port's P_Key table and a Q_Key. What was posted before is
	// forgotten, and completions of it that were not polled may or may not come.
	InitUD(pkeyIndex uint16, qkey ib.QKey) error
	// StopQP takes the queue pair to ERR: what is posted completes as flushed.
	StopQP()
	// SetQKey and SetPKeyIndex modify the queue pair while it works.
	SetQKey(qkey ib.QKey) error
	SetPKeyIndex(i uint16) error

	// Register allocates and registers the memory of tx send slots of txLen octets and
	// rx receive slots of rxLen octets; slot i begins at i*txLen or i*rxLen. It is the
	// Link's until Deregister.
	Register(tx, txLen, rx, rxLen int) (txMem, rxMem []byte, err error)
	Deregister()
	// Map makes a frame outside of that memory fit to be sent from where it
	// is, false where that cannot be. After true the frame must not be touched
	// until Unmap with the same reference, which may come after Deregister when
	// sends do not complete.
	Map(frame []byte) (ref uint64, ok bool)
	Unmap(ref uint64)

	CreateAH(a *AH) (Handle, error)
	// DestroyAH is called when no posted work request uses h any longer.
	DestroyAH(h Handle)
	Attach(mgid ib.GID, mlid ib.LID) error
	Detach(mgid ib.GID, mlid ib.LID)

	// PostSend posts work requests in their order and returns how many were
	// taken. Each completes once.
	PostSend(wrs []SendWR) int
	// PostRecv posts receive slots, the whole of each.
	PostRecv(slots []RecvWR) int
	// Poll fetches completions, of both kinds in the order in which they came.
	Poll(wcs []WC) int
	// Arrived returns the datagram that a completion of the last Poll tells of where it does not lie in its slot, which
	// begins at off, but elsewhere; nil where it is in the slot, behind the room for a GRH. It is the Link's until the call of the
	// Link's that polled returns.
	Arrived(off uint32) []byte

	// SA sends a request to the subnet administration, once: repeating it is the
	// Link's. The record is the AL's only during the call. Requests with the
	// same ID are one transaction: an answer to any of them is
	// Link.SAResponse(id).
	SA(r *SARequest)
}

// AH is an address vector.
type AH struct {
	DLID        ib.LID
	SL          uint8
	Rate        ib.Rate // 0: the port's
	SrcPathBits uint8
	// Global tells that a GRH goes along, with the port's first GID as source.
	Global    bool
	DGID      ib.GID
	FlowLabel uint32
	HopLimit  uint8
	TClass    uint8
}

// SendWR is a datagram to send.
type SendWR struct {
	ID   uint64 // comes back in the completion
	AH   Handle
	QPN  ib.QPN
	QKey ib.QKey
	// Off and Len are of the send slots' memory, or, where Mapped is set, Ref is
	// the frame that was mapped, from its octet Off on.
	Off    uint32
	Len    uint32
	Mapped bool
	Ref    uint64
}

// RecvWR is a receive slot to post.
type RecvWR struct {
	ID  uint64
	Off uint32 // in the receive slots' memory
	Len uint32
}

// WC is a completion.
type WC struct {
	ID     uint64
	Status ib.Status
	Recv   bool
	// QPN is the queue pair's that completed it.
	QPN ib.QPN
	// What follows is of successful receives. ByteLen includes the 40 octets
	// of the GRH, also where there is none; of a message of a connection there is no room for one.
	ByteLen uint32
	GRH     bool
	SrcQPN  ib.QPN
	SLID    ib.LID
}

// SARequest is a request to the subnet administration (IBA volume 1, 15.2).
type SARequest struct {
	ID     uint32
	Method mad.Method
	Attr   mad.AttributeID
	Mask   mad.ComponentMask
	Record []byte
}

// Port is what a Link has to know of its port.
type Port struct {
	State ib.PortState
	LID   ib.LID
	LMC   uint8
	SMLID ib.LID
	GID   ib.GID // of index 0
	MTU   ib.MTU
	Rate  ib.Rate
	PKeys []ib.PKey // the table; 0 is an unused entry
}
