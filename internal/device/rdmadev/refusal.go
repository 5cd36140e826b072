// SPDX-License-Identifier: Apache-2.0

package rdmadev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"weft/internal/proto/abi"
	"weft/internal/proto/mono"
	"weft/internal/verbs/hca"
)

// Refusal describes to people a command that the device refused, or the fault that ended the service of the device.
type Refusal struct {
	At      mono.Time
	Command string // its name; "device" for a fault of the client that ended the service
	Errno   syscall.Errno
	Reason  string // one line
}

// keptRefusals is how many refusals a device remembers.
const keptRefusals = 16

// refusals are the last refusals of a device: list[:n%keptRefusals] are the latest, in the order of time.
type refusals struct {
	list [keptRefusals]Refusal
	n    int // in all
}

// Refusals returns the last refusals, the oldest first.
func (d *Device) Refusals() []Refusal {
	r := &d.refused
	if r.n <= keptRefusals {
		return append([]Refusal(nil), r.list[:r.n]...)
	}
	at := r.n % keptRefusals
	return append(append([]Refusal(nil), r.list[at:]...), r.list[:at]...)
}

func (d *Device) note(command string, e syscall.Errno, reason string) {
	d.refused.list[d.refused.n%keptRefusals] = Refusal{d.now(), command, e, reason}
	d.refused.n++
}

// worded is a refusal with its reason in words.
type worded struct {
	is     error // a syscall.Errno, or one of the errors below
	reason string
}

func (w *worded) Error() string { return w.reason }
func (w *worded) Unwrap() error { return w.is }

// refuse returns the error is, a syscall.Errno or a kind of refusal, with a reason that people read.
func refuse(is error, format string, args ...any) error {
	return &worded{is, fmt.Sprintf(format, args...)}
}

// Kinds of refusal that have no errno of their own.
var (
	errFraming = fmt.Errorf("malformed command: %w", syscall.EINVAL)
	errCommand = fmt.Errorf("unknown command: %w", syscall.EOPNOTSUPP)
)

// meaning is the reason of an errno of which nothing more is known.
var meaning = map[syscall.Errno]string{
	syscall.ENOENT:     "a handle names no object of its kind",
	syscall.EBUSY:      "the object is in use",
	syscall.ENOSPC:     "the function has as many objects of this kind as its quota allows",
	syscall.ENOMEM:     "the objects of the session need as much memory as its quota allows",
	syscall.EFAULT:     "an address is not in the memory of the client",
	syscall.EACCES:     "the port does not exchange packets with that address",
	syscall.EPERM:      "the client may not do that",
	syscall.EINVAL:     "a value is not valid",
	syscall.EOPNOTSUPP: "the device does not have that",
}

// subjects are the objects that commands name by the first handle of their data.
var subjects = map[abi.Cmd]string{
	abi.CmdDestroyCQ: "completion queue", abi.CmdReqNotifyCQ: "completion queue", abi.CmdDestroyPD: "protection domain",
	abi.CmdGetDMAMR: "protection domain", abi.CmdRegUserMR: "protection domain", abi.CmdCreateAH: "protection domain",
	abi.CmdDeregMR: "memory region", abi.CmdModifyQP: "queue pair", abi.CmdQueryQP: "queue pair",
	abi.CmdDestroyQP: "queue pair",
}

// reasonOf returns the reason of a refusal of which nothing but the errno is known.
func reasonOf(command []byte, e syscall.Errno) string {
	if len(command) >= abi.CtrlHeaderSize+4 {
		subject := subjects[abi.Cmd(command[1])]
		handle := binary.LittleEndian.Uint32(command[abi.CtrlHeaderSize:])
		switch {
		case subject != "" && e == syscall.ENOENT:
			return fmt.Sprintf("there is no %s %d", subject, handle)
		case subject != "" && e == syscall.EBUSY:
			return fmt.Sprintf("%s %d is in use", subject, handle)
		}
	}
	if reason := meaning[e]; reason != "" {
		return reason
	}
	return e.Error()
}

// refusal notes and counts the refusal of a command, and returns its errno.
func (d *Device) refusal(command []byte, err error) syscall.Errno {
	e := syscall.EINVAL
	errors.As(err, &e)
	name := "no command"
	if len(command) >= 2 {
		name = abi.Cmd(command[1]).String()
		if command[0] != abi.ClassRoCE {
			name = fmt.Sprintf("class %d command %d", command[0], command[1])
		}
	}
	reason := err.Error()
	if err == error(e) {
		reason = reasonOf(command, e)
	}
	d.note(name, e, reason)
	d.log.Debug("control command refused", "command", command[:min(len(command), 64)], "errno", int(e),
		"reason", reason)
	d.Stats.CtrlErrors++
	*d.counterOf(e, err)++
	return e
}

// counterOf returns the counter of a kind of refusal.
func (d *Device) counterOf(e syscall.Errno, err error) *uint64 {
	s := &d.Stats
	switch {
	case errors.Is(err, errFraming):
		return &s.RefusedFraming
	case errors.Is(err, errCommand):
		return &s.RefusedCommand
	}
	switch e {
	case syscall.ENOENT:
		return &s.RefusedHandle
	case syscall.EBUSY:
		return &s.RefusedInUse
	case syscall.ENOSPC, syscall.ENOMEM:
		return &s.RefusedQuota
	case syscall.EFAULT:
		return &s.RefusedAddress
	case syscall.EPERM, syscall.EACCES:
		return &s.RefusedRight
	case syscall.EOPNOTSUPP:
		return &s.RefusedCommand
	}
	return &s.RefusedValue
}

// limits returns the quotas of the function, with queues no longer than the largest ring.
func (d *Device) limits() hca.Limits {
	l := *d.adapter.Limits()
	if n := d.cfg.MaxRing; n != 0 {
		l.QPWR, l.CQE, l.SRQWR = min(l.QPWR, n), min(l.CQE, n), min(l.SRQWR, n)
	}
	return l
}
