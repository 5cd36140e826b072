// SPDX-License-Identifier: Apache-2.0

package ib

import "fmt"

// WROp is a send work request operation, with verbs numbers.
type WROp uint8

// Send work request operations.
const (
	WRWrite    WROp = 0
	WRWriteImm WROp = 1
	WRSend     WROp = 2
	WRSendImm  WROp = 3
	WRRead     WROp = 4
	WRCmpSwap  WROp = 5
	WRFetchAdd WROp = 6
	WRLocalInv WROp = 7
	WRBindMW   WROp = 8
	WRSendInv  WROp = 9
	// WRRegMR registers a region by a request of the send queue. It has no number in verbs: only
	// kernels and drivers use it.
	WRRegMR WROp = 10
	// WRAtomicWrite has number 15 in verbs.
	WRAtomicWrite WROp = 11

	numWROps = 12
)

var wrNames = [numWROps]string{"WRITE", "WRITE_IMM", "SEND", "SEND_IMM", "READ", "CMP_SWAP", "FETCH_ADD", "LOCAL_INV",
	"BIND_MW", "SEND_INV", "REG_MR", "ATOMIC_WRITE"}

func (o WROp) String() string {
	if int(o) < len(wrNames) {
		return wrNames[o]
	}
	return fmt.Sprintf("WROp(%d)", uint8(o))
}

// HasImm reports whether o carries immediate data.
func (o WROp) HasImm() bool { return o == WRWriteImm || o == WRSendImm }

// IsSend reports whether o is any SEND.
func (o WROp) IsSend() bool { return o == WRSend || o == WRSendImm || o == WRSendInv }

// IsAtomic reports whether o is an atomic operation.
func (o WROp) IsAtomic() bool { return o == WRCmpSwap || o == WRFetchAdd }

// NeedsResponse reports whether o is answered with data (READ and atomics):
// the operations that max_rd_atomic bounds and that a fence waits for.
func (o WROp) NeedsResponse() bool { return o == WRRead || o.IsAtomic() || o == WRAtomicWrite }

// Fetches reports whether o brings data to this end.
func (o WROp) Fetches() bool { return o == WRRead || o.IsAtomic() }

// IsLocal reports whether o concerns this end alone: it changes what a key
// means, and no packet leaves.
func (o WROp) IsLocal() bool { return o == WRLocalInv || o == WRBindMW || o == WRRegMR }

// AllowedOn reports whether a queue pair of type t may execute o (IBA volume 1,
// table 81): SEND with invalidate has opcodes for RC alone.
func (o WROp) AllowedOn(t QPType) bool {
	switch t {
	case RC:
		return o < numWROps
	case UC:
		return o <= WRSendImm || o.IsLocal()
	case UD, GSI:
		return o == WRSend || o == WRSendImm
	}
	return false
}

// WCOp returns the completion opcode that the sender's completion of o bears.
func (o WROp) WCOp() WCOp {
	switch o {
	case WRWrite, WRWriteImm:
		return WCWrite
	case WRRead:
		return WCRead
	case WRCmpSwap:
		return WCCmpSwap
	case WRFetchAdd:
		return WCFetchAdd
	case WRBindMW:
		return WCBindMW
	case WRLocalInv:
		return WCLocalInv
	case WRRegMR:
		return WCRegMR
	case WRAtomicWrite:
		return WCAtomicWrite
	}
	return WCSend
}

// SendFlags modify a send work request; the virtio RoCE ABI numbers, which
// are also those of verbs.
type SendFlags uint8

// Send flags.
const (
	Fence     SendFlags = 1
	Signaled  SendFlags = 2
	Solicited SendFlags = 4
	Inline    SendFlags = 8
)

// WCOp is a completion opcode, with verbs numbers.
type WCOp uint8

// Completion opcodes.
const (
	WCSend        WCOp = 0
	WCWrite       WCOp = 1
	WCRead        WCOp = 2
	WCCmpSwap     WCOp = 3
	WCFetchAdd    WCOp = 4
	WCBindMW      WCOp = 5
	WCLocalInv    WCOp = 6
	WCRegMR       WCOp = 7 // programs do not see it, see WRRegMR
	WCAtomicWrite WCOp = 9
	WCRecv        WCOp = 128
	WCRecvWithImm WCOp = 129 // receive completion of WRITE with immediate
)

// WCFlags mark the valid optional fields of a completion (verbs numbers).
type WCFlags uint16

// Completion flags.
const (
	WCGRH     WCFlags = 1
	WCWithImm WCFlags = 2
	WCWithInv WCFlags = 8 // Imm is the key that the message invalidated
)

// Status is a completion status, with verbs numbers.
type Status uint8

// Completion statuses.
const (
	Success Status = iota
	LocLenErr
	LocQPOpErr
	LocEECOpErr
	LocProtErr
	WRFlushErr
	MWBindErr
	BadRespErr
	LocAccessErr
	RemInvReqErr
	RemAccessErr
	RemOpErr
	RetryExcErr
	RNRRetryExcErr
	LocRDDViolErr
	RemInvRDReqErr
	RemAbortErr
	InvEECNErr
	InvEECStateErr
	FatalErr
	RespTimeoutErr
	GeneralErr
)

var statusNames = [...]string{"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR",
	"WR_FLUSH_ERR", "MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR",
	"REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR",
	"REM_ABORT_ERR", "INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR"}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}

// Event is an asynchronous event.
type Event uint8

// Asynchronous events; the numbers are Weft's (docs/notes/virtio-roce.md), those of
// the virtio RoCE extension proposal.
const (
	EventCQErr          Event = 1
	EventQPFatal        Event = 2
	EventQPReqErr       Event = 3
	EventQPAccessErr    Event = 4
	EventCommEst        Event = 5
	EventSQDrained      Event = 6
	EventLastWQEReached Event = 7
	EventSRQErr         Event = 8
	EventSRQLimit       Event = 9
	EventPortActive     Event = 10
	EventPortDown       Event = 11
	EventGIDChange      Event = 12
	EventDeviceFatal    Event = 13
	EventLIDChange      Event = 14
	EventPKeyChange     Event = 15
	EventSMChange       Event = 16
	EventReregister     Event = 17
)

var eventNames = [...]string{"", "CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED",
	"LAST_WQE_REACHED", "SRQ_ERR", "SRQ_LIMIT", "PORT_ACTIVE", "PORT_DOWN", "GID_CHANGE", "DEVICE_FATAL",
	"LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "CLIENT_REREGISTER"}

func (e Event) String() string {
	if int(e) < len(eventNames) && e != 0 {
		return eventNames[e]
	}
	return fmt.Sprintf("Event(%d)", uint8(e))
}
