// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"errors"
	"fmt"
	"net/netip"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Address is the result of resolving an IP address before there is a path: the port of the node, and
// the destination.
type Address struct {
	Function uint16       // of the port
	Link     ib.LinkLayer // of that port
	Device   string       // IPoIB link that has Src; "" on an Ethernet port
	// Src is the address of this side. Dst is that of the peer; of an address that
	// is only bound to, it is the zero Addr, as DGID is zero.
	Src, Dst   netip.Addr
	SGID, DGID ib.GID
	SGIDIndex  uint8
	PKey       ib.PKey
}

// Path is the path of packets between the ports of two peers: the fields of a path record, and the
// port of the node.
type Path struct {
	Function   uint16
	Link       ib.LinkLayer
	SGID, DGID ib.GID
	SGIDIndex  uint8
	// SLID and DLID are permissive on an Ethernet port. Global means that packets need a GRH on an
	// InfiniBand port; on an Ethernet port it is set.
	SLID, DLID ib.LID
	Global     bool
	PKey       ib.PKey
	PKeyIndex  uint16
	FlowLabel  uint32 // 20 bits
	TClass     uint8
	HopLimit   uint8
	SL         uint8
	MTU        ib.MTU
	Rate       ib.Rate // 0: unknown
	LifeTime   uint8   // of packets, one way: 4.096 µs × 2^LifeTime
}

// Bounds of private data, in bytes. On the wire it has always the full length, padded with
// zeros, and that is what the peer gets.
const (
	MaxRequestData       = 92
	MaxReplyData         = 196
	MaxRejectData        = 148
	MaxEstablishData     = 224
	MaxDisconnectData    = 220
	MaxLookupData        = 216
	MaxLookupAnswerData  = 136
	MaxRejectInformation = 72
)

// ConnectParams are the active side's parameters of a connection. Fields are those of a REQ (IBA
// volume 1, 12.6.5) unless stated otherwise.
type ConnectParams struct {
	ServiceID ServiceID
	Path      Path
	QPType    ib.QPType // RC or UC
	QPN       ib.QPN
	SRQ       bool
	// ResponderResources is the number of concurrent reads and atomics of the peer that this side
	// serves, InitiatorDepth the number that it issues.
	ResponderResources, InitiatorDepth uint8
	FlowControl                        bool
	RetryCount, RNRRetry               uint8 // 3 bits
	PrivateData                        []byte
	// ResponseTimeout is how long the peer may take to answer, as a code: 4.096 µs ×
	// 2^ResponseTimeout; MaxRetries how often a message is sent again. 0 is DefaultTimeout and
	// DefaultRetries.
	ResponseTimeout, MaxRetries uint8
	// AckDelay is how long this side may take to acknowledge a packet, as a code.
	AckDelay uint8
}

// AcceptParams are the passive side's parameters: the fields of a REP (IBA volume 1, 12.6.8).
// ResponderResources and InitiatorDepth are reduced to the peer's offer.
type AcceptParams struct {
	QPN                                ib.QPN
	SRQ                                bool
	ResponderResources, InitiatorDepth uint8
	FlowControl                        bool
	RNRRetry                           uint8 // what the peer is to do with its sends
	AckDelay                           uint8
	PrivateData                        []byte
}

// Defaults of ConnectParams and LookupParams: 4.3 s, 16 times.
const (
	DefaultTimeout = 20
	DefaultRetries = 15
)

// Request is the request of a peer: for a connection, or (a LookupRequest) for the queue pair of a
// datagram service, with only the first group of fields set.
type Request struct {
	ServiceID ServiceID
	Function  uint16 // of the port it arrived at
	// Path leads to the peer. Of a LookupRequest it is that of the answer.
	Path        Path
	PrivateData []byte // at full length; the receiver's
	// IP is the header of the IP service at the beginning of PrivateData, where ServiceID is
	// one of those and it is well formed.
	IP   IPHeader
	IsIP bool

	QPType                             ib.QPType
	QPN                                ib.QPN
	SRQ, FlowControl                   bool
	ResponderResources, InitiatorDepth uint8 // of the peer, as it states them
	RetryCount, RNRRetry               uint8
	CAGUID                             ib.GUID
}

// header reads the IP service's header.
func (q *Request) header() {
	if _, _, ok := q.ServiceID.Space(); ok {
		q.IsIP = q.IP.Parse(q.PrivateData) == nil
	}
	if !q.IsIP {
		q.IP = IPHeader{}
	}
}

// Reply is the reply of the passive side to a request.
type Reply struct {
	QPN                                ib.QPN
	SRQ, FlowControl                   bool
	ResponderResources, InitiatorDepth uint8 // of the peer
	RNRRetry                           uint8
	AckDelay                           uint8
	CAGUID                             ib.GUID
}

// EventKind is the kind of an Event.
type EventKind uint8

// Events of listeners, connections and lookups.
const (
	// ConnectRequest: a peer requests Conn, which is new and belongs to the user from now on: the user
	// must Accept, Reject or Close it. The event goes to the listener's Handler, and so do all later
	// events of Conn, unless the user calls Conn.SetHandler.
	ConnectRequest EventKind = 1 + iota
	// Response: the peer has accepted (Reply). The user readies its queue pair and calls
	// Establish, or Reject.
	Response
	// Established, of the passive side: the peer is ready.
	Established
	// Rejected: there is no connection (Reason, Info). The Conn is at its end.
	Rejected
	// Unreachable: the peer did not answer. The Conn is at its end.
	Unreachable
	// Disconnected: the connection is over, by either side's wish; it comes once.
	Disconnected
	// TimewaitExit: no packet of the connection is under way any more; the queue pair may
	// be used for another. It follows Disconnected. The Conn is at its end.
	TimewaitExit
	// LookupRequest: a peer looks up a service (Inquiry), which the user must Accept or Reject.
	LookupRequest
	// LookupResponse: the answer to a Lookup: Status, and where that is LookupOK
	// QPN and QKey.
	LookupResponse
	// LookupUnreachable: the peer did not reply.
	LookupUnreachable
)

var kindNames = [...]string{"", "connect request", "response", "established", "rejected", "unreachable",
	"disconnected", "timewait exit",
	"lookup request", "lookup response", "lookup unreachable"}

func (k EventKind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is the argument of a Handler. Pointers and slices belong to the receiver; fields that do not
// belong to the Kind are zero.
type Event struct {
	Kind        EventKind
	Conn        *Conn
	Lookup      *Lookup
	Inquiry     *Inquiry
	Request     *Request // ConnectRequest, LookupRequest
	Reply       *Reply   // Response
	Reason      Reason   // Rejected
	Info        []byte   // Rejected, LookupResponse: additional information
	Status      LookupStatus
	QPN         ib.QPN
	QKey        ib.QKey
	PrivateData []byte // at full length; nil where the peer sent none
}

// Handler handles events. It may call every method of the Manager and of its objects; it is called
// from Manager.Handle and Manager.Next only.
type Handler func(now mono.Time, e *Event)

// QPAttr holds attributes of a connected queue pair; the mask that comes with it selects the valid
// ones (IBA volume 1, 11.2.5.2). The StartingPSN that a side states in its REQ or REP is the first PSN
// of the other side's packets (12.7.31): it is the RQPSN of the side that states it.
type QPAttr struct {
	State           ib.QPState
	PKeyIndex       uint16
	Path            Path // makes the address vector
	Access          ib.Access
	PathMTU         ib.MTU
	DestQPN         ib.QPN
	RQPSN, SQPSN    ib.PSN
	MaxDestRdAtomic uint8
	MaxRdAtomic     uint8
	Timeout         uint8
	RetryCnt        uint8
	RNRRetry        uint8
	MinRNRTimer     uint8
}

// LookupParams are the parameters of a lookup of a datagram service.
type LookupParams struct {
	ServiceID                   ServiceID
	Path                        Path
	PrivateData                 []byte
	ResponseTimeout, MaxRetries uint8 // as in ConnectParams
}

// ListenParams select the requests of a listener.
type ListenParams struct {
	ServiceID ServiceID
	// Mask are the bits of the service identifier that count; 0: all of them.
	Mask ServiceID
	// Match, if not nil, reports whether the listener accepts a request: by the port it arrived at,
	// its IP header, or its private data. It must not keep the request, nor call the Manager. Of
	// several listeners that accept a request, those with more bits in Mask have precedence, then
	// those with a Match, then the older one.
	Match func(r *Request) bool
	// Backlog bounds the requests that are neither accepted nor rejected; 0: 128. What
	// goes beyond is dropped: the peer will try again.
	Backlog int
}

// LookupStatus is the status of the answer to a Lookup (IBA volume 1, 12.11.2).
type LookupStatus uint8

// Statuses.
const (
	LookupOK LookupStatus = iota
	LookupNoService
	LookupRejected
	LookupNoQP
	LookupRedirect
	LookupVersion
)

// Errors of calls.
var (
	ErrState   = errors.New("cm: not in this state")
	ErrInvalid = errors.New("cm: invalid argument")
	ErrFull    = errors.New("cm: too many")
	ErrInUse   = errors.New("cm: a listener has the service")
	ErrNoPort  = errors.New("cm: there is no such port")
)

// Errors of resolving an address or a path.
var (
	ErrNoAddress = errors.New("cm: no port of the node has the address")
	ErrNoRoute   = errors.New("cm: no port of the node leads to the address")
	ErrNoPath    = errors.New("cm: there is no path to the peer")
	ErrDenied    = errors.New("cm: the port may not send to the address")
	ErrTimeout   = errors.New("cm: no answer")
)

// Reason is the reason of a rejection (IBA volume 1, 12.6.7.2).
type Reason uint16

// Reasons.
const (
	ReasonNoQP               Reason = 1
	ReasonNoResources        Reason = 3
	ReasonTimeout            Reason = 4
	ReasonUnsupported        Reason = 5
	ReasonInvalidCommID      Reason = 6
	ReasonInvalidCommInst    Reason = 7
	ReasonInvalidServiceID   Reason = 8
	ReasonInvalidTransport   Reason = 9
	ReasonStale              Reason = 10
	ReasonInvalidGID         Reason = 12
	ReasonInvalidLID         Reason = 13
	ReasonInvalidSL          Reason = 14
	ReasonInvalidTClass      Reason = 15
	ReasonInvalidHopLimit    Reason = 16
	ReasonInvalidRate        Reason = 17
	ReasonPortRedirect       Reason = 25
	ReasonInvalidMTU         Reason = 26
	ReasonResponderResources Reason = 27
	ReasonConsumer           Reason = 28
	ReasonRNRRetry           Reason = 29
	ReasonDuplicateCommID    Reason = 30
	ReasonClassVersion       Reason = 31
)

var reasonNames = map[Reason]string{ReasonNoQP: "no queue pair", ReasonNoResources: "no resources",
	ReasonTimeout:     "timeout",
	ReasonUnsupported: "unsupported request", ReasonInvalidCommID: "invalid communication ID", ReasonInvalidCommInst: "invalid communication instance",
	ReasonInvalidServiceID: "invalid service ID", ReasonInvalidTransport: "invalid transport service type", ReasonStale: "stale connection",
	ReasonInvalidGID: "invalid GID", ReasonInvalidLID: "invalid LID", ReasonInvalidSL: "invalid SL", ReasonInvalidTClass: "invalid traffic class",
	ReasonInvalidHopLimit: "invalid hop limit", ReasonInvalidRate: "invalid packet rate", ReasonPortRedirect: "port redirection",
	ReasonInvalidMTU: "invalid path MTU", ReasonResponderResources: "insufficient responder resources", ReasonConsumer: "consumer reject",
	ReasonRNRRetry: "invalid RNR retry count", ReasonDuplicateCommID: "duplicate local communication ID", ReasonClassVersion: "unsupported class version"}

func (r Reason) String() string {
	if n, ok := reasonNames[r]; ok {
		return n
	}
	return fmt.Sprintf("Reason(%d)", uint16(r))
}
