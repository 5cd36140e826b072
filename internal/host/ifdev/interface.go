// SPDX-License-Identifier: Apache-2.0

// Package ifdev is the part that all kernel interfaces of a node have in common: creation of TUN and TAP devices, the
// descriptor that a lane polls, the rtnetlink socket that reports changes, and the errors of a missing privilege.
//
// What comes in: a name, and which rtnetlink groups matter. What goes out: an Interface with its index, and a call of
// the owner's function after each change. Packages tun, tap and gateway embed an Interface and keep what differs;
// package hostnet uses the Monitor alone. This package never reads or writes a packet, and never changes an interface.
package ifdev

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrRemoved means that the interface was deleted or moved to another namespace.
var ErrRemoved = errors.New("the interface was removed")

// Alias is the alias (ip link show) of each TUN and TAP interface of a node. It marks the traffic of a fabric: such an
// interface is no way for RoCE packets of any node of this host, which would send a fabric's packets through itself.
const Alias = "weft fabric"

// Interface is an interface of the network namespace of the thread that called New, and the goroutine that follows
// its changes. All methods may be called from any goroutine.
type Interface struct {
	// Netlink makes requests in the interface's namespace. It is nil before New and closed by Close.
	Netlink *netlink.Handle

	name    string
	index   int
	monitor *Monitor

	closed   atomic.Bool
	cancel   context.CancelFunc // nil before Follow
	followed chan struct{}      // closed when the goroutine of Follow has ended
}

// New opens the sockets of an interface: requests, and changes in the groups (RTNLGRP_…). No change after New is
// missed, so that New comes before the interface is made.
func New(groups ...uint) (*Interface, error) {
	monitor, err := NewMonitor(groups...)
	if err != nil {
		return nil, err
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		monitor.Close()
		return nil, fmt.Errorf("rtnetlink: %w", err)
	}
	return &Interface{Netlink: handle, monitor: monitor}, nil
}

// Find looks the interface up by name. Methods Name, Index and Link are valid after it.
func (i *Interface) Find(name string) (*netlink.LinkAttrs, error) {
	link, err := i.Netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find it: %w", err)
	}
	at := link.Attrs()
	i.name, i.index = name, at.Index
	return at, nil
}

// Mark sets Alias. It is called before the interface has an address.
func (i *Interface) Mark() error {
	if err := i.Netlink.LinkSetAlias(i.Link(), Alias); err != nil {
		return fmt.Errorf("set alias: %w", err)
	}
	return nil
}

// Name is the name that Find was called with.
func (i *Interface) Name() string { return i.name }

// Index is the kernel's number of the interface.
func (i *Interface) Index() int { return i.index }

// Link is the interface as Netlink's methods take it.
func (i *Interface) Link() netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: i.index, Name: i.name}}
}

// Closed reports whether Close was called.
func (i *Interface) Closed() bool { return i.closed.Load() }

// Follow starts a goroutine that calls refresh first, and then after changes, at the pace of p. failed gets the error
// of a monitor that ends by itself.
func (i *Interface) Follow(p Pace, refresh func(), failed func(error)) {
	ctx, cancel := context.WithCancel(context.Background())
	i.cancel, i.followed = cancel, make(chan struct{})
	go func() {
		defer close(i.followed)
		if err := i.monitor.Run(ctx, p, refresh); ctx.Err() == nil {
			failed(err)
		}
	}()
}

// Refresh has the goroutine of Follow call refresh soon, as after a change. It does not wait.
func (i *Interface) Refresh() { i.monitor.Refresh() }

// Close waits for the goroutine of Follow, calls release and closes the sockets. A second call does nothing.
func (i *Interface) Close(release func() error) error {
	if i.closed.Swap(true) {
		return nil
	}
	if i.cancel != nil {
		i.cancel()
		<-i.followed
	}
	err := release()
	i.monitor.Close()
	i.Netlink.Close()
	return err
}

// ValidateName reports why an interface cannot have a name: the kernel's dev_valid_name, and '%', which would be
// replaced by a number.
func ValidateName(name string) error {
	if name == "" || len(name) >= unix.IFNAMSIZ || name == "." || name == ".." ||
		strings.ContainsAny(name, "/:% \t\n\x00") {
		return fmt.Errorf("name %q: want 1 to %d characters without '/', ':', '%%' or space", name, unix.IFNAMSIZ-1)
	}
	return nil
}

// Removed reports whether an error of a request means that there is no such interface.
func Removed(err error) bool {
	return errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV)
}

// Dump calls f again, up to ten times, where a change interrupted its dump of a kernel table.
func Dump(f func() error) (err error) {
	for range 10 {
		if err = f(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}
