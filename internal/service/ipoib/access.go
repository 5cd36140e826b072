// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/service/ipoib/connected"
)

// Handle names an address vector of AddressVectors. 0 is none.
type Handle uint32

// Access is the access layer: what a Link needs of the channel adapter and of the subnet administration, and no more
// than every user of verbs has. One value usually implements all of it. A Link calls it on its lane. No call blocks,
// and none calls the Link back: completions are fetched with Poll, answers arrive with Link.SAResponse, events of
// connections with Link.ConnEvent. A call that returns an error has changed nothing.
type Access struct {
	Objects Objects
	Service DatagramService
	Memory  Memory
	Frames  connected.Mapper
	Vectors AddressVectors
	Groups  GroupAttachment
	Queues  Queues
	SA      Administration
	// Conns is for connected mode; its Frames are the ones above. In datagram mode it may be empty.
	Conns connected.Ports
}

// Objects are the completion queue and the queue pair.
type Objects interface {
	// CreateCQ makes the one completion queue, with depth entries.
	CreateCQ(depth int) error
	DestroyCQ()
	// CreateQP makes the one queue pair, of datagram service, in RESET; both its queues complete into the completion
	// queue.
	CreateQP(sq, rq int) (ib.QPN, error)
	DestroyQP()
}

// DatagramService is the state of the queue pair.
type DatagramService interface {
	// InitUD takes the queue pair, from any state and through RESET, to RTS with an entry of the port's P_Key
	// table and a Q_Key. What was posted before is forgotten; completions of it that were not polled may or may
	// not come.
	InitUD(pkeyIndex uint16, qkey ib.QKey) error
	// StopQP takes the queue pair to ERR: what is posted completes as flushed.
	StopQP()
	// SetQKey and SetPKeyIndex modify the queue pair in RTS.
	SetQKey(qkey ib.QKey) error
	SetPKeyIndex(i uint16) error
}

// Memory is the memory of the send and receive slots.
type Memory interface {
	// Register allocates and registers the memory of tx send slots of txLen octets and rx receive slots of rxLen
	// octets; slot i begins at i*txLen or i*rxLen. It is the Link's until Deregister. Frames may still be mapped
	// after Deregister, when sends did not complete.
	Register(tx, txLen, rx, rxLen int) (txMem, rxMem []byte, err error)
	Deregister()
}

// AddressVectors makes address vectors.
type AddressVectors interface {
	CreateAH(a *AH) (Handle, error)
	// DestroyAH destroys h. Precondition: no posted work request uses it.
	DestroyAH(h Handle)
}

// GroupAttachment attaches the queue pair to multicast groups.
type GroupAttachment interface {
	Attach(mgid ib.GID, mlid ib.LID) error
	Detach(mgid ib.GID, mlid ib.LID)
}

// SendQueue posts sends.
type SendQueue interface {
	// PostSend posts work requests in order and returns how many were accepted. Each completes once.
	PostSend(wrs []SendWR) int
}

// RecvQueue posts receives.
type RecvQueue interface {
	// PostRecv posts receive slots, the whole of each, and returns how many were accepted.
	PostRecv(slots []RecvWR) int
	// Arrived returns the datagram of a completion of the last Poll if it lies elsewhere than in its slot, which
	// begins at off; nil where it lies in the slot, behind room for a GRH. It is the Link's until the call that
	// polled returns.
	Arrived(off uint32) []byte
}

// CompletionQueue returns completions.
type CompletionQueue interface {
	// Poll fetches completions of sends and receives, in the order in which they came.
	Poll(wcs []WC) int
}

// Queues are the work queues and the completion queue.
type Queues interface {
	SendQueue
	RecvQueue
	CompletionQueue
}

// Administration sends requests to the subnet administration.
type Administration interface {
	// SA sends a request once: the Link repeats it. The record is valid during the call. Requests with the same
	// ID are one transaction: an answer to any of them is Link.SAResponse(id).
	SA(r *SARequest)
}

// AH is an address vector.
type AH struct {
	DLID        ib.LID
	SL          uint8
	Rate        ib.Rate // 0: the port's
	SrcPathBits uint8
	// Global adds a GRH, with the port's first GID as source.
	Global    bool
	DGID      ib.GID
	FlowLabel uint32
	HopLimit  uint8
	TClass    uint8
}

// SendWR is a datagram to send.
type SendWR struct {
	ID   uint64 // of its completion
	AH   Handle
	QPN  ib.QPN
	QKey ib.QKey
	// Off and Len are in the send slots' memory, or, where Mapped is set, in the mapped frame Ref.
	Off    uint32
	Len    uint32
	Mapped bool
	Ref    uint64
}

// RecvWR is a receive slot to post.
type RecvWR struct {
	ID  uint64 // of its completion
	Off uint32 // in the receive slots' memory
	Len uint32
}

// WC is a completion.
type WC struct {
	ID     uint64
	Status ib.Status
	Recv   bool
	// QPN is the queue pair that completed it.
	QPN ib.QPN
	// The following are valid for successful receives. ByteLen includes the 40 octets of the GRH, also where there is
	// none; a message of a connection has no room for one.
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

// Port is the port of a Link.
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
