// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"math/bits"

	"weft/internal/proto/ib"
)

// UmadOp is the operation in the first record of a connection to umad.sock (docs/notes/umad.md).
type UmadOp uint32

// CMOp is the operation in the first record of a connection to rdmacm.sock (docs/notes/rdmacm.md).
type CMOp uint32

// AttrMask is queue pair attributes with the dense numbers of the RFC.
type AttrMask uint32

// verbsAttr is the verbs bit of each RFC bit.
var verbsAttr = [...]ib.AttrMask{ib.AttrState, ib.AttrCurState, ib.AttrAccessFlags, ib.AttrQKey, ib.AttrAV,
	ib.AttrPathMTU, ib.AttrTimeout, ib.AttrRetryCnt, ib.AttrRNRRetry, ib.AttrRQPSN, ib.AttrMaxQPRdAtomic,
	ib.AttrMinRNRTimer, ib.AttrSQPSN, ib.AttrMaxDestRdAtomic, ib.AttrCap, ib.AttrDestQPN, ib.AttrRateLimit}

// Verbs translates m; ok is false if a bit has no meaning.
func (m AttrMask) Verbs() (v ib.AttrMask, ok bool) {
	for r := m & AttrAll; r != 0; r &= r - 1 {
		v |= verbsAttr[bits.TrailingZeros32(uint32(r))]
	}
	return v, m&^AttrAll == 0
}

// FromVerbs translates a verbs mask; rest are the bits without a number in the RFC (partition key index, port, path
// migration, alternate path, …).
func FromVerbs(v ib.AttrMask) (m AttrMask, rest ib.AttrMask) {
	for i, b := range verbsAttr {
		if v&b != 0 {
			m |= 1 << i
		}
		v &^= b
	}
	return m, v
}

// verbsStatus is the verbs status of each status of the RFC: mapped by name.
var verbsStatus = [...]ib.Status{WCSuccess: ib.Success, WCLocLenErr: ib.LocLenErr, WCLocQPOpErr: ib.LocQPOpErr,
	WCLocProtErr: ib.LocProtErr, WCWRFlushErr: ib.WRFlushErr, WCBadRespErr: ib.BadRespErr,
	WCLocAccessErr: ib.LocAccessErr, WCRemInvReqErr: ib.RemInvReqErr, WCRemAccessErr: ib.RemAccessErr,
	WCRemOpErr: ib.RemOpErr, WCRetryExcErr: ib.RetryExcErr, WCRNRRetryExcErr: ib.RNRRetryExcErr,
	WCRemAbortErr: ib.RemAbortErr, WCFatalErr: ib.FatalErr, WCRespTimeoutErr: ib.RespTimeoutErr,
	WCGeneralErr: ib.GeneralErr}

var wireStatus = func() (t [ib.GeneralErr + 1]uint8) {
	for i := range t {
		t[i] = WCGeneralErr // statuses that are not in the RFC
	}
	for w, s := range verbsStatus {
		t[s] = uint8(w)
	}
	t[ib.MWBindErr] = WCMWBindErr
	return t
}()

// WireStatus returns the status of a completion element; a status without a number there becomes GENERAL_ERR.
func WireStatus(s ib.Status) uint8 {
	if int(s) < len(wireStatus) {
		return wireStatus[s]
	}
	return WCGeneralErr
}

// VerbsStatus translates the status of a completion element; ok is false if it is not assigned.
func VerbsStatus(w uint8) (s ib.Status, ok bool) {
	if int(w) < len(verbsStatus) {
		return verbsStatus[w], true
	}
	if w == WCMWBindErr {
		return ib.MWBindErr, true
	}
	return ib.GeneralErr, false
}

var sendOps = [...]struct {
	wire uint8
	op   ib.WROp
}{
	{OpCmpSwap, ib.WRCmpSwap}, {OpFetchAdd, ib.WRFetchAdd}, {OpSendInv, ib.WRSendInv}, {OpLocalInv, ib.WRLocalInv},
	{OpRegMR, ib.WRRegMR}, {OpBindMW, ib.WRBindMW}, {OpAtomicWrite, ib.WRAtomicWrite},
}

// SendOp translates the opcode of a send element; ok is false if it is not assigned.
func SendOp(op uint8) (o ib.WROp, ok bool) {
	if op <= OpRead {
		return ib.WROp(op), true
	}
	for i := range sendOps {
		if sendOps[i].wire == op {
			return sendOps[i].op, true
		}
	}
	return 0, false
}

// WireSendOp returns the opcode of a send element; ok is false of an operation without an opcode in this version.
func WireSendOp(o ib.WROp) (op uint8, ok bool) {
	if o <= ib.WRRead {
		return uint8(o), true
	}
	for i := range sendOps {
		if sendOps[i].op == o {
			return sendOps[i].wire, true
		}
	}
	return 0, false
}

var wcOps = [...]struct {
	wire uint8
	op   ib.WCOp
}{
	{WCOpSend, ib.WCSend}, {WCOpWrite, ib.WCWrite}, {WCOpRead, ib.WCRead}, {WCOpRecv, ib.WCRecv},
	{WCOpRecvWithImm, ib.WCRecvWithImm}, {WCOpCmpSwap, ib.WCCmpSwap}, {WCOpFetchAdd, ib.WCFetchAdd},
	{WCOpLocalInv, ib.WCLocalInv}, {WCOpRegMR, ib.WCRegMR}, {WCOpBindMW, ib.WCBindMW},
	{WCOpAtomicWrite, ib.WCAtomicWrite},
}

// WireWCOp returns the opcode of a completion element; an operation without an opcode in this version becomes SEND.
func WireWCOp(o ib.WCOp) uint8 {
	for i := range wcOps {
		if wcOps[i].op == o {
			return wcOps[i].wire
		}
	}
	return WCOpSend
}

// VerbsWCOp translates the opcode of a completion element; ok is false if it is not assigned.
func VerbsWCOp(w uint8) (o ib.WCOp, ok bool) {
	for i := range wcOps {
		if wcOps[i].wire == w {
			return wcOps[i].op, true
		}
	}
	return 0, false
}
