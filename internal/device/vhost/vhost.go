// SPDX-License-Identifier: Apache-2.0

// Package vhost is the back-end of vhost-user: the socket through which a virtual machine or a program
// uses a device.
//
// What comes in: messages and descriptors of a front-end; what goes out: a memory table that is a
// mem.Space and a virtio.Memory, and calls of a Device that another package implements. Package node
// runs a Server per device socket. A session's goroutine parses and validates one message, calls the
// Device, which does the work on its lane and returns, and sends the reply. The package must never
// access a ring's elements, block a lane, or let a front-end's mistake cost more than its session.
//
// docs/notes/abi.md holds the private requests. Protocol features offered: MQ, REPLY_ACK, BACKEND_REQ,
// CONFIG, RESET_DEVICE, CONFIGURE_MEM_SLOTS, STATUS; WEFT to a front-end that sent WEFT_HELLO; RARP and MTU
// for a device with an Ethernet half, and LOG_SHMFD for one that offers to log. There is no region for
// requests in flight: Ethernet rings need none, and RoCE rings do not survive a session.
package vhost

import (
	"fmt"
	"os"

	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
)

// Device is the device of a session, by its parts. All calls except Retire come from the session's goroutine, one at
// a time; each returns when its effect is complete on the lane. An error that is (or wraps) a
// unix.Errno is sent to the front-end; any other becomes EINVAL.
type Device struct {
	Registers Registers
	Rings     Rings
	Lifetime  Lifetime
	Program   Program  // nil: the private requests of programs are refused with EOPNOTSUPP
	Ethernet  Ethernet // nil: there is no Ethernet half
}

// Registers are the features, the configuration space and the status of a device.
type Registers interface {
	// Features returns the virtio feature bits offered, without the bit of
	// vhost-user itself.
	Features() uint64
	// Config returns the configuration space.
	Config() abi.Config
	// SetFeatures receives the bits the driver chose, a subset of those
	// offered; an error keeps FEATURES_OK from being set.
	SetFeatures(features uint64) error
	// SetStatus receives the device status; 0 is a reset of the device, which keeps ring indices (the
	// front-end still reads them).
	SetStatus(status uint8) error
	// Reset forgets everything but the session's memory and features.
	Reset()
}

// Rings are the rings of a device.
type Rings interface {
	// Rings returns how many rings there are.
	Rings() int
	// SetRing starts ring i or, with r.Move, moves a running ring to other memory. Kick, Call and Err
	// of r belong to the session and are valid until ChangeRing or StopRing of the same ring returns,
	// or Lifetime.Closed.
	SetRing(i int, r Ring) error
	// ChangeRing replaces Kick, Call, Err and Enabled of a running ring. A kick may have been missed:
	// the device must poll the ring.
	ChangeRing(i int, r Ring)
	// StopRing stops a running ring; nothing touches it afterwards. It returns
	// virtio.Ring.State.
	StopRing(i int) uint32
}

// Lifetime is the end of memory and of the session.
type Lifetime interface {
	// Retire calls unmap once no lane is in the midst of using what it looked
	// up in the memory table before this call. What is kept for longer is safe
	// while the session lives (MemTable); after Closed nothing may be. It may
	// be called from any goroutine but a lane, and after Closed.
	Retire(unmap func())
	// Closed reports the end of the session and its reason. When it returns, the device uses neither
	// rings nor descriptors of the session.
	Closed(reason error)
}

// Program is the part of a device that serves programs (WEFT_HELLO).
type Program interface {
	// SetDoorbell sets the doorbell area of the program (abi.md, section 3). The kick is valid until
	// Lifetime.Closed.
	SetDoorbell(gpa uint64, nbits uint32, kick *Kick) error
	// ProcMem passes the memory of the process, verified: the word at probeAddr reads as probeValue
	// while the process lives. The device owns f from here on, also on error.
	ProcMem(f *os.File, probeAddr, probeValue uint64) error
}

// Ethernet is the part of a device that has an Ethernet half.
type Ethernet interface {
	// Announce announces mac to the network after a migration to this host.
	Announce(mac [6]byte)
	// SetMTU receives the MTU of the driver's configuration; an error refuses it.
	SetMTU(mtu uint16) error
}

// Ring is how to reach one ring.
type Ring struct {
	virtio.Config       // addresses are GPAs
	Kick          *Kick // nil: a doorbell or polling instead
	Call          *Call // nil: no notification
	Err           *Call // notifies that the ring is broken; nil: not configured
	Enabled       bool  // false: hold the ring, do not take elements
	Weft          bool  // set by WEFT_SET_RING
	// Move moves a running ring, with its available elements, to this memory. If the device refuses,
	// nothing has changed.
	Move bool
}

// Reason is why a session ended; each is the name of a counter.
type Reason uint8

// Reasons. All except Gone and Shutdown are mistakes of the front-end, or a Device's refusal of a
// request.
const (
	Gone           Reason = iota // the front-end closed the connection
	Shutdown                     // the server closed
	BadHeader                    // version, flags
	BadSize                      // payload length is not the request's
	BadDescriptors               // number of descriptors is not the request's, or they were cut off
	BadKind                      // a descriptor is not an eventfd or pipe
	BadRequest                   // unknown or not negotiated, without a reply requested
	BadVersion                   // another version of the ABI
	BadMemory                    // memory region refused
	BadRing                      // ring index or address refused
	BadState                     // request at the wrong time
	BrokenRing                   // the device found a ring broken
	Refused                      // the device refused, without a reply requested
	Truncated                    // connection ended within a message
	NoDevice                     // the device could not be made
	StuckMemory                  // a copy from or to the process did not end
	numReasons
)

var reasonNames = [numReasons]string{"gone", "shutdown", "bad_header", "bad_size", "bad_descriptors", "bad_kind",
	"bad_request", "bad_version", "bad_memory", "bad_ring", "bad_state", "broken_ring", "refused", "truncated", "no_device", "stuck_memory"}

// Name is the name of the counter.
func (r Reason) Name() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason_%d", uint8(r))
}

func (r Reason) Error() string { return "session ended: " + r.Name() }

// end is an error that ends the session.
type end struct {
	Reason
	detail string
	cause  error
}

func (e *end) Error() string {
	s := e.Reason.Error()
	if e.detail != "" {
		s += ": " + e.detail
	}
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

func (e *end) Unwrap() []error {
	if e.cause != nil {
		return []error{e.Reason, e.cause}
	}
	return []error{e.Reason}
}

func fatal(r Reason, format string, args ...any) error {
	return &end{Reason: r, detail: fmt.Sprintf(format, args...)}
}
