// SPDX-License-Identifier: Apache-2.0

// Package tap is the interface of a VESW port as a Linux TAP device.
//
// What comes in: frames of the host's IP stack or bridge, segments whole and checksums to be completed as the kernel
// leaves them; changes that the administrator makes to the interface, from rtnetlink. What goes out: frames from the
// VESW, segments too, in pieces where the caller has them so. Package node opens one per port, and a lane reads and
// writes it. It must never look into a frame, and leaves nothing behind: the interface ends with the descriptor.
package tap

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft/internal/host/ifdev"
	"weft/internal/proto/ether"
	"weft/internal/service/vnic"
)

// Name is the default name of the interface of a port.
func Name(function uint16, vport uint8) string { return fmt.Sprintf("opa%dv%d", function, vport) }

// Config configures the interface.
type Config struct {
	Name string // at most 15 characters
	// Device is the initial configuration. With a zero MAC the kernel generates one, which no event reports before
	// Configure has set another.
	Device vnic.Device
	// QueueLen is how many frames may wait to be read (the tx_queue_len of the interface); 0 means the kernel's
	// default.
	QueueLen int
	// Up sets the interface up, as the administrator may do later.
	Up bool
	// Notify, unless nil, is called with the contents of Event, first and after changes, on a goroutine of the device.
	// Close waits for it. A receiver that acts upon it later should call Event then: Configure may have come between.
	Notify func(vnic.SegmentEvent)
}

// Validate reports every fault of c.
func (c Config) Validate() error {
	var errs []error
	errs = append(errs, ifdev.ValidateName(c.Name))
	if d := c.Device; d.MTU < minMTU || d.MTU > maxMTU || d.MaxMTU < d.MTU || d.MaxMTU > maxMTU {
		errs = append(errs, fmt.Errorf("MTU %d of at most %d: want %d to %d", d.MTU, d.MaxMTU, minMTU, maxMTU))
	}
	if c.Device.MAC[0]&1 != 0 {
		errs = append(errs, fmt.Errorf("MAC %x is a group address", c.Device.MAC))
	}
	if c.QueueLen < 0 {
		errs = append(errs, fmt.Errorf("queue length %d is negative", c.QueueLen))
	}
	return errors.Join(errs...)
}

const (
	minMTU = 68    // RFC 791: every module forwards as much
	maxMTU = 65521 // of the kernel's driver
)

// Counters are frames that were not carried, and repairs of the interface.
type Counters struct {
	NotDelivered atomic.Uint64 // to the host: refused by the kernel, as while the interface is down
	MTURestored  atomic.Uint64 // the MTU was set above the VESW's from outside, and set back
}

// Device is a TAP interface: a vnic.Segment. Its methods TryReadBatch, WriteBatch and WriteFrames belong to one
// goroutine, a lane; any goroutine may call the others.
type Device struct {
	*ifdev.Interface
	Counters Counters

	cfg      Config
	file     *ifdev.Descriptor
	features ether.Features
	dumps    map[int]*nl.SocketHandle // for requests that netlink.Handle does not have

	state    atomic.Pointer[state]
	notified *state // of the goroutine that calls Config.Notify: the last one

	mu      sync.Mutex // guards what follows, and orders changes of the interface
	want    vnic.Device
	named   bool // a MAC was configured
	problem string

	frameIO
}

var (
	_ vnic.Segment        = (*Device)(nil)
	_ vnic.SegmentControl = (*Device)(nil)
	_ vnic.FrameWriter    = (*Device)(nil)
)

// Open makes the interface in the network namespace of the calling thread. On failure nothing is left of it.
func Open(cfg Config) (*Device, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("make interface: %w", err)
	}
	i, err := ifdev.New(unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, groupMcast4, groupMcast6)
	if err != nil {
		return nil, fmt.Errorf("make interface %s: %w", cfg.Name, err)
	}
	d := &Device{Interface: i, cfg: cfg}
	if err := d.open(); err != nil {
		d.Close()
		return nil, fmt.Errorf("make interface %s: %w", cfg.Name, err)
	}
	d.Follow(ifdev.Pace{Gap: gap, Period: quiet, Concerns: d.concerns}, d.follow, func(err error) {
		d.publish(func(s *state) { s.problem = "changes of the interface are not followed: " + err.Error() })
		d.notify()
	})
	return d, nil
}

func (d *Device) open() error {
	sock, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("rtnetlink: %w", err)
	}
	d.dumps = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: sock}}
	fd, features, err := ifdev.CreateTUN(d.cfg.Name, ifdev.TAP, nil)
	if err != nil {
		return err
	}
	if d.file, err = ifdev.NewDescriptor(fd, d.cfg.Name); err != nil {
		return err
	}
	d.features = features
	at, err := d.Find(d.cfg.Name)
	if err != nil {
		return err
	}
	if err := d.Mark(); err != nil {
		return err
	}
	if d.cfg.QueueLen > 0 {
		if err := d.Netlink.LinkSetTxQLen(d.Link(), d.cfg.QueueLen); err != nil {
			return ifdev.TAP.Explain("set queue length", err)
		}
	}
	d.enableAnnouncements()
	// The initial state is empty: everything is a change.
	d.state.Store(&state{})
	if err := d.apply(d.cfg.Device, at); err != nil {
		return err
	}
	if d.cfg.Up {
		if err := d.Netlink.LinkSetUp(d.Link()); err != nil {
			return ifdev.TAP.Explain("bring up", err)
		}
	}
	d.io.Init(d.file, d.receive, d.send)
	return d.refresh()
}

// enableAnnouncements has the kernel notify neighbours of the MAC when it changes or the interface comes up: the
// Ethernet Manager may assign another.
func (d *Device) enableAnnouncements() {
	for _, path := range []string{"/proc/sys/net/ipv4/conf/%s/arp_notify", "/proc/sys/net/ipv6/conf/%s/ndisc_notify"} {
		path = fmt.Sprintf(path, d.cfg.Name)
		err := os.WriteFile(path, []byte("1"), 0)
		if err != nil && !(errors.Is(err, os.ErrNotExist) && strings.Contains(path, "ipv6")) { // a host without IPv6
			d.problem = "neighbours get no notification of another MAC: " + err.Error()
		}
	}
}

// Close removes the interface and waits for the goroutine that follows it.
func (d *Device) Close() error {
	return d.Interface.Close(func() (err error) {
		d.mu.Lock() // no change of the interface is in progress
		defer d.mu.Unlock()
		if d.file != nil {
			err = d.file.Close()
		}
		for _, s := range d.dumps {
			s.Close()
		}
		return err
	})
}

// Takes returns the offloads that the kernel accepts: all of them, UDP segments since Linux 6.2.
func (d *Device) Takes() ether.Features { return d.features }

// FD is readable while frames wait.
func (d *Device) FD() int { return d.file.FD() }

// Arm does nothing: FD is readable as long as a frame waits.
func (d *Device) Arm() (waiting bool) { return false }

// Problem is a step that failed, or "".
func (d *Device) Problem() string { return d.state.Load().problem }

// Configure sets what differs between dev and the Device before; changes that the administrator made since stay. A
// failure is in Problem.
func (d *Device) Configure(dev vnic.Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Closed() {
		return
	}
	link, err := d.Netlink.LinkByIndex(d.Index())
	if err == nil {
		err = d.apply(dev, link.Attrs())
	}
	if err != nil {
		d.problem = err.Error()
	} else {
		d.problem = ""
	}
	if err := d.readState(); err != nil {
		d.publish(func(s *state) { s.problem = err.Error() })
	}
}

// apply sets what differs between dev and the Device before. at are the kernel's attributes of the interface.
func (d *Device) apply(dev vnic.Device, at *netlink.LinkAttrs) error {
	last, link := d.want, d.Link()
	d.want = dev
	if dev.MAC != last.MAC && dev.MAC != [6]byte{} {
		d.named = true
		if string(at.HardwareAddr) != string(dev.MAC[:]) {
			if err := d.Netlink.LinkSetHardwareAddr(link, dev.MAC[:]); err != nil {
				return ifdev.TAP.Explain("set MAC", err)
			}
		}
	}
	if mtu := dev.MTU; mtu != last.MTU && mtu != at.MTU || at.MTU > dev.MaxMTU {
		if err := d.Netlink.LinkSetMTU(link, min(mtu, dev.MaxMTU)); err != nil {
			return ifdev.TAP.Explain("set MTU", err)
		}
	}
	if dev.Carrier != last.Carrier {
		if err := d.file.Control(func(fd int) error { return ifdev.SetCarrier(fd, dev.Carrier) }); err != nil {
			return ifdev.TAP.Explain("set carrier", err)
		}
	}
	return nil
}
