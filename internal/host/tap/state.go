// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft/internal/host/ifdev"
	"weft/internal/service/vnic"
)

const (
	// gap is the least time between two readings of the kernel's tables.
	gap = 20 * time.Millisecond
	// quiet is after how long they are read again without a notification: kernels before Linux 6.15 send none for
	// groups, and none sends any for groups that ip-maddress and packet sockets join.
	quiet = time.Second
)

// Groups of rtnetlink for multicast addresses of interfaces, since Linux 6.15.
const (
	groupMcast4 = 37
	groupMcast6 = 38
)

// state is the interface as the kernel's tables describe it. It is immutable.
type state struct {
	vnic.SegmentEvent
	gone    bool
	problem string
}

func (s *state) equal(o *state) bool {
	return s.Up == o.Up && s.MTU == o.MTU && s.MAC == o.MAC && s.gone == o.gone && s.problem == o.problem &&
		slices.Equal(s.Unicast, o.Unicast) && slices.Equal(s.Multicast, o.Multicast)
}

// Event is the state that Notify reports. It refers to lists that never change.
func (d *Device) Event() vnic.SegmentEvent { return d.state.Load().SegmentEvent }

// follow reads the state after a change and reports it.
func (d *Device) follow() {
	if err := d.refresh(); err != nil {
		d.publish(func(s *state) { s.problem = err.Error() })
	}
	d.notify()
}

// notify reports the state if it differs from the one that was reported last.
func (d *Device) notify() {
	if s := d.state.Load(); d.notified == nil || !s.equal(d.notified) {
		if d.notified = s; d.cfg.Notify != nil {
			d.cfg.Notify(s.SegmentEvent)
		}
	}
}

// concerns reports whether a notification of rtnetlink may be about the interface.
func (d *Device) concerns(m *syscall.NetlinkMessage) bool {
	if len(m.Data) < 8 {
		return true
	}
	neighbour := m.Header.Type == unix.RTM_NEWNEIGH || m.Header.Type == unix.RTM_DELNEIGH
	// All structures have the family at 0 and the index at 4.
	return binary.NativeEndian.Uint32(m.Data[4:]) == uint32(d.Index()) && (!neighbour || m.Data[0] == unix.AF_BRIDGE)
}

// publish makes a changed copy of the state the latest.
func (d *Device) publish(change func(*state)) {
	s := *d.state.Load()
	change(&s)
	d.state.Store(&s)
}

// refresh reads the kernel's tables and undoes what the VESW does not allow.
func (d *Device) refresh() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	link, err := d.Netlink.LinkByIndex(d.Index())
	if err == nil && link.Attrs().MTU > d.want.MaxMTU {
		if err := d.Netlink.LinkSetMTU(link, d.want.MaxMTU); err != nil {
			return ifdev.TAP.Explain("restore MTU", err)
		}
		d.Counters.MTURestored.Add(1)
	}
	return d.readState()
}

// readState reads the kernel's tables. mu is held.
func (d *Device) readState() error {
	if d.state.Load().gone {
		return nil
	}
	link, err := d.Netlink.LinkByIndex(d.Index())
	if ifdev.Removed(err) {
		d.state.Store(&state{gone: true, problem: ifdev.ErrRemoved.Error()})
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
	if err := d.readFilters(s); err != nil {
		return err
	}
	if old := d.state.Load(); !s.equal(old) {
		d.state.Store(s)
	}
	return nil
}

// readFilters reads the addresses that the interface receives besides its own: the entries of bridge(8) marked "self",
// and the link groups of ip-maddress.
func (d *Device) readFilters(s *state) error {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
	req.Sockets = d.dumps
	// The header of a link, not of a neighbour: with it the kernel dumps this interface only.
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(d.Index())
	req.AddData(msg)
	var msgs [][]byte
	err := ifdev.Dump(func() (err error) {
		msgs, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
		return err
	})
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, m := range msgs {
		if len(m) < unix.SizeofNdMsg || binary.NativeEndian.Uint32(m[4:]) != uint32(d.Index()) ||
			m[10]&unix.NTF_SELF == 0 {
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
