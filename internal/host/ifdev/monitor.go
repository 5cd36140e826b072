// SPDX-License-Identifier: Apache-2.0

package ifdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Monitor is an rtnetlink socket that receives notifications of changes.
type Monitor struct {
	file      *os.File
	requested atomic.Bool // by Refresh
}

// Pace selects which notifications count, and when Run calls its function after them.
type Pace struct {
	// Concerns reports whether a notification counts; nil: all do.
	Concerns func(m *syscall.NetlinkMessage) bool
	// Gap is the least time between two calls: changes come in bursts, and kernel tables may be long. The first change
	// after a quiet time is served at once.
	Gap time.Duration
	// Settle is how long there must be no further notification before a call.
	Settle time.Duration
	// Period, unless 0, is the time after a call until the next without any notification.
	Period time.Duration
}

// NewMonitor opens a socket in the network namespace of the calling thread that receives the notifications of groups
// (RTNLGRP_…). Groups that an older kernel does not have are left out.
func NewMonitor(groups ...uint) (*Monitor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", err)
	}
	m := &Monitor{file: os.NewFile(uintptr(fd), "rtnetlink")}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for _, g := range groups {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(g))
		}
		if errors.Is(err, unix.EINVAL) {
			err = nil
		}
	}
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("rtnetlink: %w", err)
	}
	return m, nil
}

// Close closes the socket. Run has returned.
func (m *Monitor) Close() error { return m.file.Close() }

// past is a deadline that makes a read return at once.
var past = time.Unix(1, 0)

// Refresh has Run call its function soon, as after a notification. It does not wait.
func (m *Monitor) Refresh() {
	m.requested.Store(true)
	_ = m.file.SetReadDeadline(past)
}

// Run calls refresh at once, and then after changes, at the pace of p. It returns the error of ctx when ctx ends, or
// that of the socket.
func (m *Monitor) Run(ctx context.Context, p Pace, refresh func()) error {
	defer context.AfterFunc(ctx, func() { _ = m.file.SetReadDeadline(past) })()
	buf := make([]byte, 64<<10)
	changed := true // what changed before there was a socket
	var last, due time.Time
	if p.Settle > 0 {
		due = time.Now().Add(p.Settle)
	}
	for {
		var deadline time.Time // none
		switch {
		case changed:
			deadline = due
		case p.Period > 0:
			deadline = last.Add(p.Period)
		}
		if changed && deadline.IsZero() {
			deadline = past
		}
		if err := m.file.SetReadDeadline(deadline); err != nil {
			return fmt.Errorf("rtnetlink: %w", err)
		}
		// Refresh and the end of ctx set a deadline too, which the line above may just have overwritten; then the flag
		// is set, or ctx has ended, by now.
		if err := ctx.Err(); err != nil {
			return err
		}
		if m.requested.Swap(false) {
			changed, due = true, m.due(last, p)
			continue
		}
		if !deadline.IsZero() && !time.Now().Before(deadline) {
			changed, last = false, time.Now()
			refresh()
			continue
		}
		n, err := m.file.Read(buf)
		switch {
		case err == nil && !p.counts(buf[:n]):
		case err == nil, errors.Is(err, unix.ENOBUFS): // more notifications than the socket has room for
			changed, due = true, m.due(last, p)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("rtnetlink: %w", err)
		}
	}
}

// due is when refresh is called after a notification that came just now. last is the time of the last call.
func (m *Monitor) due(last time.Time, p Pace) time.Time {
	due := last.Add(p.Gap)
	if p.Settle > 0 {
		if t := time.Now().Add(p.Settle); t.After(due) {
			due = t
		}
	}
	return due
}

// counts reports whether one of the notifications in b counts.
func (p *Pace) counts(b []byte) bool {
	if p.Concerns == nil {
		return true
	}
	msgs, err := syscall.ParseNetlinkMessage(b)
	return err != nil || slices.ContainsFunc(msgs, func(m syscall.NetlinkMessage) bool { return p.Concerns(&m) })
}
