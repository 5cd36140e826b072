// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft/internal/service/vnic"
)

const (
	// gap is the least time between two readings of the kernel's tables: changes
	// come in bursts. The first change after a quiet time is read at once.
	gap = 20 * time.Millisecond
	// quiet is after how long they are read again though nothing was heard: kernels before Linux
	// 6.15 do not tell of groups, and none of those that ip-maddress and packet sockets join.
	quiet = time.Second
)

// Groups of rtnetlink for the groups of interfaces, since Linux 6.15.
const (
	groupMcast4 = 37
	groupMcast6 = 38
)

// state is what the kernel says of the interface. It is immutable.
type state struct {
	vnic.SegmentEvent
	gone    bool
	problem string
}

func (s *state) equal(o *state) bool {
	return s.Up == o.Up && s.MTU == o.MTU && s.MAC == o.MAC && s.gone == o.gone && s.problem == o.problem &&
		slices.Equal(s.Unicast, o.Unicast) && slices.Equal(s.Multicast, o.Multicast)
}

// Event is what the interface is now, as Notify is told. It refers to lists that
// never change.
func (d *Device) Event() vnic.SegmentEvent { return d.state.Load().SegmentEvent }

// subscribe opens a socket of the calling thread's namespace that hears of
// changes.
func subscribe() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch interfaces: %w", err)
	}
	f := os.NewFile(uintptr(fd), "rtnetlink")
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK | unix.RTMGRP_NEIGH})
	for _, group := range []int{groupMcast4, groupMcast6} {
		if err == nil {
			if err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); errors.Is(err, unix.EINVAL) {
				err = nil
			}
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("watch interfaces: %w", err)
	}
	return f, nil
}

// watch refreshes the state after changes until ctx ends.
func (d *Device) watch(ctx context.Context) {
	defer close(d.watcher)
	defer context.AfterFunc(ctx, func() { _ = d.events.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 64<<10)
	last, due := time.Now(), time.Time{}
	var told *state
	for {
		if s := d.state.Load(); told == nil || !s.equal(told) {
			told = s
			if d.cfg.Notify != nil {
				d.cfg.Notify(s.SegmentEvent)
			}
		}
		if due.IsZero() {
			due = last.Add(quiet)
		}
		_ = d.events.SetReadDeadline(due)
		// The end of ctx sets a deadline too, which the line above may just have
		// overwritten; then ctx has ended by now.
		if ctx.Err() != nil {
			return
		}
		if !time.Now().Before(due) {
			last, due = time.Now(), time.Time{}
			if err := d.refresh(); err != nil {
				d.publish(func(s *state) { s.problem = err.Error() })
			}
			continue
		}
		n, err := d.events.Read(buf)
		switch {
		case err == nil && !d.concerns(buf[:n]):
		case err == nil, errors.Is(err, unix.ENOBUFS): // the kernel had more to say than fits
			due = last.Add(gap)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			d.publish(func(s *state) { s.problem = "watch interfaces: " + err.Error() })
			return
		}
	}
}

// concerns reports whether rtnetlink messages may be about the interface.
func (d *Device) concerns(b []byte) bool {
	msgs, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return true
	}
	for _, m := range msgs {
		neighbour := m.Header.Type == unix.RTM_NEWNEIGH || m.Header.Type == unix.RTM_DELNEIGH
		// All of them have the family at 0 and the index at 4.
		if len(m.Data) >= 8 && (binary.NativeEndian.Uint32(m.Data[4:]) != uint32(d.index) || neighbour && m.Data[0] != unix.AF_BRIDGE) {
			continue
		}
		return true
	}
	return false
}

// publish makes a changed copy of the state the latest.
func (d *Device) publish(change func(*state)) {
	s := *d.state.Load()
	change(&s)
	d.state.Store(&s)
}

// refresh reads the kernel's tables and takes back what the VESW does not allow.
func (d *Device) refresh() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	link, err := d.nl.LinkByIndex(d.index)
	if err == nil && link.Attrs().MTU > d.want.MaxMTU {
		if err := d.nl.LinkSetMTU(link, d.want.MaxMTU); err != nil {
			return explain("restore MTU", err)
		}
		d.Counters.MTURestored.Add(1)
	}
	return d.look()
}

// look reads the kernel's tables.
func (d *Device) look() error {
	if d.state.Load().gone {
		return nil
	}
	link, err := d.nl.LinkByIndex(d.index)
	if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
		d.state.Store(&state{gone: true, problem: ErrGone.Error()})
		return nil
	}
	if err != nil {
		return fmt.Errorf("read interface: %w", err)
	}
	s := &state{problem: d.problem}
	s.Up, s.MTU = link.Attrs().Flags&net.FlagUp != 0, link.Attrs().MTU
	if d.named {
		copy(s.MAC[:], link.Attrs().HardwareAddr)
	}
	if err := d.filters(s); err != nil {
		return err
	}
	if old := d.state.Load(); !s.equal(old) {
		d.state.Store(s)
	}
	return nil
}

// filters reads the addresses that the interface takes besides its own: what bridge(8) shows as its own
// entries, and ip-maddress as its link groups.
func (d *Device) filters(s *state) error {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
	req.Sockets = d.dumps
	// The header of a link, not of a neighbour: with it the kernel looks at this interface only.
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(d.index)
	req.AddData(msg)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	for i := 0; i < 10 && errors.Is(err, netlink.ErrDumpInterrupted); i++ {
		msgs, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	}
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, m := range msgs {
		if len(m) < unix.SizeofNdMsg || binary.NativeEndian.Uint32(m[4:]) != uint32(d.index) || m[10]&unix.NTF_SELF == 0 {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[unix.SizeofNdMsg:])
		if err != nil {
			return fmt.Errorf("list addresses: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type != unix.NDA_LLADDR || len(a.Value) != 6 {
				continue
			}
			if mac := [6]byte(a.Value); mac[0]&1 == 0 {
				s.Unicast = append(s.Unicast, mac)
			} else {
				s.Multicast = append(s.Multicast, mac)
			}
		}
	}
	for _, list := range []*[][6]byte{&s.Unicast, &s.Multicast} {
		slices.SortFunc(*list, func(a, b [6]byte) int { return bytes.Compare(a[:], b[:]) })
		*list = slices.Compact(*list)
	}
	return nil
}
