// SPDX-License-Identifier: Apache-2.0

// Package rmpp is the reliable multi-packet protocol: messages longer than a MAD, such as the tables and the multi-path
// queries of subnet administration (IBA volume 1, 13.6).
//
// What comes in: messages to send, MADs that arrived, the current time. What goes out: MADs to send, complete messages,
// deadlines. Sender and Receiver are one transfer each; an Endpoint has those of all peers of a port, for most callers.
// The owner of queue pair 1 of the port calls it on one goroutine. It never sends, waits or reads a clock, and its
// Config bounds its memory, whatever peers do.
package rmpp

import (
	"errors"
	"fmt"
	"time"

	"weft/internal/proto/mad"
)

// Offsets in a MAD with an RMPP header.
const (
	rmppAt  = mad.HeaderLen
	classAt = mad.HeaderLen + mad.RMPPLen
	// segment is the part of a MAD that PayloadLength counts: all after the RMPP header, the header of the class
	// included.
	segment = mad.Len - classAt
)

// HeaderLen returns the length of the headers of a MAD of class c, which each segment repeats. It is 0 of a class
// without RMPP.
func HeaderLen(c mad.Class) int {
	switch {
	case c == mad.ClassSA:
		return mad.SAHeaderLen
	case c == mad.ClassDevAdm || c == mad.ClassBIS:
		return 64
	case c.HasRMPP():
		return classAt + 4 // a reserved octet and the OUI
	}
	return 0
}

// Status is the reason of the end of a transfer, in STOP and ABORT.
type Status uint8

// Statuses. Those from AbortTooLong on are of ABORT.
const (
	StatusOK        Status = 0
	StopNoResources Status = 1
	AbortTooLong    Status = 118 // total time
	AbortLast       Status = 119 // last flag and length are inconsistent
	AbortFirst      Status = 120 // first flag and segment number are inconsistent
	AbortType       Status = 121 // bad type
	AbortWindow     Status = 122 // NewWindowLast is too small
	AbortSegment    Status = 123 // segment number is too big
	AbortStatus     Status = 124 // illegal status
	AbortVersion    Status = 125
	AbortRetries    Status = 126 // too many
	AbortOther      Status = 127
)

var statusNames = map[Status]string{StatusOK: "success", StopNoResources: "resources exhausted",
	AbortTooLong: "total time too long",
	AbortLast:    "inconsistent last flag and length", AbortFirst: "inconsistent first flag and segment number", AbortType: "bad type",
	AbortWindow: "new window too small", AbortSegment: "segment number too big", AbortStatus: "illegal status",
	AbortVersion: "unsupported version", AbortRetries: "too many retries", AbortOther: "unspecified"}

func (s Status) String() string {
	if n, ok := statusNames[s]; ok {
		return n
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}

// Errors of calls.
var (
	ErrClass = errors.New("rmpp: the management class has no RMPP")
	ErrFull  = errors.New("rmpp: too many transfers")
	ErrBusy  = errors.New("rmpp: a transfer with this peer and transaction is under way")
	ErrSize  = errors.New("rmpp: message too long")
)

// Config are the limits of transfers; a zero field takes its default.
type Config struct {
	Window    int           // window of a receiver, in segments; 64, at most 64
	Resend    time.Duration // time after which a sender repeats unacknowledged segments; 2 s
	Retries   int           // repetitions without progress until a sender aborts; 3
	Stall     time.Duration // time without a new segment after which a receiver aborts; 40 s
	Linger    time.Duration // time in which a complete receiver acknowledges late segments; 10 s
	MaxBytes  int           // of a message; 4 MiB
	Transfers int           // of an Endpoint, in each direction; 256
	// PeerTransfers bounds the transfers with one LID, of any of its queue pairs: a peer that does not finish leaves
	// room for others. 0 is no bound.
	PeerTransfers int
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	span := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&c.Window, maxWindow)
	c.Window = min(c.Window, maxWindow)
	def(&c.Retries, 3)
	def(&c.MaxBytes, 4<<20)
	def(&c.Transfers, 256)
	span(&c.Resend, 2*time.Second)
	span(&c.Stall, 40*time.Second)
	span(&c.Linger, 10*time.Second)
	return c
}

// maxWindow is the number of bits in the map of out-of-order segments of a receiver.
const maxWindow = 64

// State is the progress of a transfer.
type State uint8

// States of a transfer.
const (
	Active   State = iota
	Complete       // all segments have arrived
	Failed         // Status has the reason
)

// control writes a segment without data: kind, with status, segment number and new window. head are the headers of a
// MAD; turn inverts the response bit of its method.
func control(b *[mad.Len]byte, head []byte, turn bool, kind mad.RMPPType, status Status, seg, window uint32) {
	clear(b[copy(b[:], head):])
	if turn {
		b[3] ^= byte(mad.MethodResponse)
	}
	r := mad.RMPP{Version: mad.RMPPVersion, Type: kind, RRespTime: mad.RMPPRespTimeNone, Flags: mad.RMPPActive,
		Status: uint8(status),
		Data1:  seg, Data2: window}
	r.Append(b[rmppAt:rmppAt])
}
