// SPDX-License-Identifier: Apache-2.0

package vmcard

import (
	"fmt"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/device/ethdev"
	"weft/internal/device/vhost"
	"weft/internal/node/vesw"
	"weft/internal/proto/abi"
)

// HalfConfig describes the RoCE half of a card.
type HalfConfig struct {
	QPs, CQs int // max_rdma_qps and max_rdma_cqs of the configuration space
	Ring     int // the length of the longest virtqueue that the emulator gives the guest
	Port     *vesw.GuestPort
}

// Half is the RoCE half of a card for one front-end.
type Half struct {
	RoCE  ethdev.RoCE // nil: there is none
	Rings vhost.Rings // beyond the control queue
	Life  Life
}

// Life is the part of a Half that the goroutine of the front-end's session calls.
type Life interface {
	// Reset destroys all objects of the guest and its addresses.
	Reset()
	// Halt makes the half leave the memory of the guest alone until it is called with false: the objects of the guest
	// stay, and send and receive nothing.
	Halt(on bool)
	// Closed ends the half with the session. When it returns, it uses neither rings nor descriptors.
	Closed(reason error)
	// Describe describes the half; nil if the lane does not answer. Any goroutine but a lane may call it.
	Describe() *api.VMRoCE
}

// attach makes the device of a front-end: an Ethernet device, and with RDMA a device that has a RoCE half, too.
func (m *Card) attach(s *vhost.Session) (*ethdev.Device, Half, vhost.Device, error) {
	if m.rdma == nil {
		d, err := m.port.Attach(s)
		if err != nil {
			return nil, Half{}, vhost.Device{}, err
		}
		return d, Half{}, d.Parts(), nil
	}
	m.mu.Lock()
	a := m.adapter
	m.mu.Unlock()
	half, err := m.c.cfg.Half(a, s, HalfConfig{QPs: m.want.QPSlots(), CQs: m.want.CQs, Ring: api.VMRingSize,
		Port: m.rdma})
	if err != nil {
		return nil, Half{}, vhost.Device{}, err
	}
	eth, err := m.port.AttachCard(s, half.RoCE)
	if err != nil {
		m.c.cfg.HalfEnded(s)
		return nil, Half{}, vhost.Device{}, err
	}
	d := &cardDevice{Device: eth, half: half}
	return eth, half, vhost.Device{Registers: d, Rings: d, Lifetime: d, Ethernet: eth}, nil
}

// cardDevice is the device of a card with both halves. The Ethernet half has the features, the configuration space,
// the control queue and the rings up to it; the RoCE half has the rings beyond. The goroutine of the session calls its
// methods.
type cardDevice struct {
	*ethdev.Device
	half Half

	features   uint64
	negotiated bool
	// stopped is the state in which the control queue stopped last, if hasStopped.
	stopped    uint32
	hasStopped bool
	running    bool // the control queue was started, and has not stopped since
}

var (
	_ vhost.Registers = (*cardDevice)(nil)
	_ vhost.Rings     = (*cardDevice)(nil)
	_ vhost.Lifetime  = (*cardDevice)(nil)
)

// control is the number of the control queue.
func (d *cardDevice) control() int {
	if d.features&(1<<abi.FeatureMQ) != 0 {
		return 2 * int(d.Config().MaxVirtqueuePairs)
	}
	return 2
}

// Features implements vhost.Registers. QEMU's generic device lets a driver reset a ring and does not report it: the
// device would go on in memory that the driver uses for something else.
func (d *cardDevice) Features() uint64 { return d.Device.Features() &^ (1 << abi.FeatureRingReset) }

// SetFeatures implements vhost.Registers. An emulator repeats the choice of the driver whenever the machine runs again
// after a pause: what the driver set by commands stays.
func (d *cardDevice) SetFeatures(f uint64) error {
	if d.negotiated && f == d.features {
		return nil
	}
	d.features, d.negotiated = f, true
	return d.Device.SetFeatures(f)
}

// SetStatus implements vhost.Registers.
func (d *cardDevice) SetStatus(status uint8) error {
	if status == 0 {
		d.restart()
	}
	return d.Device.SetStatus(status)
}

// Reset implements vhost.Registers.
func (d *cardDevice) Reset() {
	d.Device.Reset()
	d.restart()
}

// restart forgets all that the driver set and made.
func (d *cardDevice) restart() {
	d.hasStopped = false
	if d.negotiated {
		d.half.Life.Reset()
	}
	d.negotiated = false
}

// SetRing implements vhost.Rings. QEMU's generic device does not report that the guest has reset the device. A control
// queue that does not go on where it stopped belongs to a driver that begins.
func (d *cardDevice) SetRing(i int, r vhost.Ring) error {
	if i > d.control() {
		if !d.running { // whether these are rings of a driver that begins is not known yet
			return fmt.Errorf("ring %d before the control queue, ring %d: %w", i, d.control(), unix.EINVAL)
		}
		return d.half.Rings.SetRing(i, r)
	}
	if i == d.control() && d.hasStopped && r.Base != d.stopped {
		f := d.features
		d.restart()
		if err := d.SetFeatures(f); err != nil {
			return err
		}
	}
	err := d.Device.SetRing(i, r)
	if i == d.control() && err == nil {
		d.running = true
		d.half.Life.Halt(false)
	}
	return err
}

// ChangeRing implements vhost.Rings.
func (d *cardDevice) ChangeRing(i int, r vhost.Ring) {
	if i > d.control() {
		d.half.Rings.ChangeRing(i, r)
		return
	}
	d.Device.ChangeRing(i, r)
}

// StopRing implements vhost.Rings. An emulator stops the control queue when the guest resets the device, or the machine
// begins anew: then memory that peers may write belongs to something else already. It stops it for a pause, too.
func (d *cardDevice) StopRing(i int) uint32 {
	if i > d.control() {
		return d.half.Rings.StopRing(i)
	}
	state := d.Device.StopRing(i)
	if i == d.control() {
		d.stopped, d.hasStopped, d.running = state, true, false
		d.half.Life.Halt(true)
	}
	return state
}

// Closed implements vhost.Lifetime.
func (d *cardDevice) Closed(reason error) {
	d.half.Life.Closed(reason)
	d.Device.Closed(reason)
}

// describeRoCE describes the RoCE half of a card; nil if there is none, or no front-end.
func (m *Card) describeRoCE() *api.VMRoCE {
	m.mu.Lock()
	half := m.half
	m.mu.Unlock()
	if half.RoCE == nil {
		return nil
	}
	return half.Life.Describe()
}
