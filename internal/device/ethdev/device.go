// SPDX-License-Identifier: Apache-2.0

package ethdev

import (
	"fmt"

	"golang.org/x/sys/unix"

	"weft/internal/device/vhost"
	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
	"weft/internal/proto/ether"
)

// offered are the feature bits of a card without a RoCE half.
const offered = 1<<abi.FeatureCsum | 1<<abi.FeatureGuestCsum | 1<<abi.FeatureCtrlGuestOffloads |
	1<<abi.FeatureMTU | 1<<abi.FeatureMAC |
	1<<abi.FeatureGuestTSO4 | 1<<abi.FeatureGuestTSO6 | 1<<abi.FeatureGuestECN |
	1<<abi.FeatureHostTSO4 | 1<<abi.FeatureHostTSO6 | 1<<abi.FeatureHostECN | 1<<abi.FeatureHostUSO |
	1<<abi.FeatureMrgRxbuf | 1<<abi.FeatureStatus | 1<<abi.FeatureCtrlVQ | 1<<abi.FeatureCtrlRX |
	1<<abi.FeatureCtrlVLAN | 1<<abi.FeatureCtrlRXExtra |
	1<<abi.FeatureGuestAnnounce | 1<<abi.FeatureMQ | 1<<abi.FeatureCtrlMACAddr | 1<<abi.FeatureLogAll |
	1<<abi.FeatureIndirect | 1<<abi.FeatureEventIdx | 1<<abi.FeatureVersion1 | 1<<abi.FeaturePacked | 1<<abi.FeatureRingReset

// maxChain bounds the descriptors of a frame, or of its buffers: 64 KiB in
// pieces of 64 octets.
const maxChain = 1024

// Device is one session's view of a Port; the vhost session drives it.
type Device struct {
	port *Port
	s    session
	mem  memory
	half RoCE // nil: an Ethernet device

	// The lane's.
	features  uint64
	takes     ether.Features
	mergeable bool
	rings     []*ring // by number; nil: not started
	tx, rx    []*ring // those to be used
	ctrl      *ring   // nil: none to be used
	active    int     // queue pairs, by command; 0: all that are enabled
	turn      int     // index of the transmit ring that is first
	scratch   virtio.Scratch
	chain     virtio.Chain
	header    [headerLen]byte
	command   []byte
	overspent int // of the budgets of control commands to come
	ack       [1]byte
	filter    filter
	steer     [256]uint8 // by flow, the queue pair it was last sent on, plus 1
	dead      bool
}

// Parts returns the device as its session uses it.
func (d *Device) Parts() vhost.Device {
	return vhost.Device{Registers: d, Rings: d, Lifetime: d, Ethernet: d}
}

// session is what a Device needs of its vhost.Session.
type session interface {
	NeedsReset()
	ConfigChanged()
	Fail(r vhost.Reason, cause error)
}

// memory is what a guest announced.
type memory interface {
	virtio.Memory
	Owns(addr uintptr) bool
	Logging() bool
}

// ring is one virtqueue as the session set it up.
type ring struct {
	vhost.Ring
	index   int
	q       virtio.Ring
	kicks   virtio.Kicks
	halted  bool // by a reset of the device, or because it is broken
	stash   []virtio.Chain
	have    int // of stash, buffers taken for a frame that found too few
	touched bool
}

func newDevice(p *Port, s session, m memory, half RoCE) *Device {
	return &Device{port: p, s: s, mem: m, half: half, rings: make([]*ring, 2*p.cfg.Pairs+1)}
}

func (d *Device) do(f func()) error { return d.port.cfg.Lane.Do(f) }

// Features implements vhost.Registers.
func (d *Device) Features() uint64 {
	if d.half != nil {
		return roceOffered
	}
	return offered
}

// Config implements vhost.Registers.
func (d *Device) Config() abi.Config {
	c := *d.port.shown.Load()
	if d.half != nil {
		c.MaxRDMAQPs, c.MaxRDMACQs = d.half.Limits()
	}
	return c
}

// Rings implements vhost.Rings. It counts the rings of all Ethernet queue pairs and of the RoCE half, because front-ends
// name rings before the driver negotiates.
func (d *Device) Rings() int {
	if d.half != nil {
		qps, cqs := d.half.Limits()
		return cardRings(d.port.cfg.Pairs, qps, cqs)
	}
	return len(d.rings)
}

// SetFeatures implements vhost.Registers. Front-ends with a control queue of their
// own do not pass its bit, so dependencies on it are not enforced.
func (d *Device) SetFeatures(f uint64) error {
	return d.do(func() {
		d.features, d.takes = f, taken(f)
		d.mergeable = f&(1<<abi.FeatureMrgRxbuf) != 0
		d.active = 0
		if f&(1<<abi.FeatureMQ) != 0 && d.hasControl() {
			d.active = 1
		}
		d.filter = filter{}
		d.begin()
		d.sort()
	})
}

// guestOffloads are the features by which a driver accepts offloads in frames that it receives.
const guestOffloads = 1<<abi.FeatureGuestCsum | 1<<abi.FeatureGuestTSO4 | 1<<abi.FeatureGuestTSO6 |
	1<<abi.FeatureGuestECN

// taken returns what may be left to be done with a frame for a driver that accepts the offloads in mask.
func taken(mask uint64) (t ether.Features) {
	if mask&(1<<abi.FeatureGuestCsum) == 0 {
		return 0 // the other offloads need it
	}
	t = ether.FeatureCsum
	if mask&(1<<abi.FeatureGuestTSO4) != 0 {
		t |= ether.FeatureTSO4
	}
	if mask&(1<<abi.FeatureGuestTSO6) != 0 {
		t |= ether.FeatureTSO6
	}
	if mask&(1<<abi.FeatureGuestECN) != 0 {
		t |= ether.FeatureECN
	}
	return t
}

func (d *Device) hasControl() bool { return d.features&(1<<abi.FeatureCtrlVQ) != 0 }

// controlRing returns the number of the control queue, -1 if the driver did not negotiate a control queue.
func (d *Device) controlRing() int {
	if !d.hasControl() {
		return -1
	}
	return 2 * d.pairs()
}

// SetStatus implements vhost.Registers. After a reset no ring is accessed, although the front-end still
// reads its state.
func (d *Device) SetStatus(status uint8) error {
	if status != 0 {
		return nil
	}
	return d.do(func() { d.halt() })
}

func (d *Device) halt() {
	for _, r := range d.rings {
		if r != nil {
			r.halted = true
		}
	}
	d.sort()
}

// kicks reports whether the driver must kick ring i: not for receive buffers, since the device does
// not wait for them.
func (d *Device) kicks(i int) bool { return i%2 == 1 || i == d.controlRing() }

// SetRing implements vhost.Rings.
func (d *Device) SetRing(i int, r vhost.Ring) (err error) {
	e := d.do(func() {
		if i >= len(d.rings) || d.hasRoCE() && i > 2*d.pairs() {
			err = fmt.Errorf("ring %d is not of the Ethernet half: %w", i, unix.EINVAL)
			return
		}
		if r.Kick == nil && d.kicks(i) {
			err = fmt.Errorf("ring %d without a kick: %w", i, unix.EINVAL)
			return
		}
		if r.Move {
			err = unix.EOPNOTSUPP // programs do so; a guest cannot
			return
		}
		r.Scratch, r.MaxChain = &d.scratch, maxChain
		v := &ring{Ring: r, index: i}
		if v.q, v.kicks, err = virtio.Open(d.mem, r.Config); err != nil {
			return
		}
		if err = d.watch(v); err != nil {
			return
		}
		v.kicks.DisableKick()
		d.rings[i] = v
		d.sort()
	})
	if e != nil {
		return e
	}
	return err
}

func (d *Device) watch(v *ring) error {
	if v.Kick == nil || !d.kicks(v.index) {
		return nil
	}
	return d.port.cfg.Lane.Watch(v.Kick)
}

func (d *Device) unwatch(v *ring) {
	if v.Kick != nil && d.kicks(v.index) {
		d.port.cfg.Lane.Unwatch(v.Kick)
	}
}

// ChangeRing implements vhost.Rings.
func (d *Device) ChangeRing(i int, r vhost.Ring) {
	d.do(func() {
		v := d.rings[i]
		if v == nil {
			return
		}
		if r.Kick != v.Kick {
			d.unwatch(v)
			v.Kick = r.Kick
			if err := d.watch(v); err != nil {
				v.Kick = nil
				d.fail(err)
			}
		}
		v.Call, v.Err, v.Enabled = r.Call, r.Err, r.Enabled
		d.sort()
	})
}

// StopRing implements vhost.Rings.
func (d *Device) StopRing(i int) (state uint32) {
	d.do(func() {
		v := d.rings[i]
		if v == nil {
			return
		}
		d.unwatch(v)
		state = v.q.State()
		d.rings[i] = nil
		d.sort()
	})
	return state
}

// sort makes the lists of rings to be used.
func (d *Device) sort() {
	clear(d.tx)
	clear(d.rx)
	d.tx, d.rx, d.ctrl = d.tx[:0], d.rx[:0], nil
	if d.dead {
		return
	}
	control := d.controlRing()
	for i, v := range d.rings {
		switch {
		case v == nil || v.halted:
		case i == control:
			d.ctrl = v // it is not enabled in every front-end's order
		case !v.Enabled || i == 2*d.port.cfg.Pairs || d.active != 0 && i/2 >= d.active:
		case i%2 == 0:
			d.rx = append(d.rx, v)
		default:
			d.tx = append(d.tx, v)
		}
	}
}

// arm enables kicks of every ring that the device reads, and reports whether one has elements already.
func (d *Device) arm() (waiting bool) {
	broken := false
	look := func(v *ring) {
		pending, err := v.kicks.EnableKick()
		if err != nil {
			d.broken(v, err)
			broken = true
		}
		waiting = waiting || pending
	}
	for _, v := range d.tx {
		look(v)
	}
	if d.ctrl != nil {
		look(d.ctrl)
	}
	if broken {
		d.sort()
	}
	return waiting
}

func (d *Device) disarm() {
	for _, v := range d.tx {
		v.kicks.DisableKick()
	}
	if d.ctrl != nil {
		d.ctrl.kicks.DisableKick()
	}
}

// broken stops a ring after an error and notifies the driver, which may reset the device.
func (d *Device) broken(v *ring, err error) {
	d.port.Stats.BrokenRings++
	if n := d.port.Stats.BrokenRings; n&(n-1) == 0 { // a guest can break rings as often as it likes
		d.port.cfg.Log.Warn("ring given up", "ring", v.index, "error", err, "times", n)
	}
	v.halted = true
	d.s.NeedsReset() // before the notification: the driver then reads the status
	if v.Err != nil {
		v.Err.Write()
	}
}

// publish lets the driver see what was used of a ring.
func (d *Device) publish(v *ring) {
	if v.q.Publish() && v.Call != nil {
		d.port.Stats.Calls++
		v.Call.Write() // where a pipe is full, the driver has not read what is in it
	}
}

// Reset implements vhost.Registers.
func (d *Device) Reset() {
	d.do(func() {
		d.forget()
		d.sort()
	})
}

// forget lets go of every ring.
func (d *Device) forget() {
	for i, v := range d.rings {
		if v != nil {
			d.unwatch(v)
			d.rings[i] = nil
		}
	}
}

// Retire implements vhost.Lifetime.
func (d *Device) Retire(unmap func()) {
	d.port.cfg.Lane.Quiesce()
	unmap()
}

// Closed implements vhost.Lifetime.
func (d *Device) Closed(reason error) {
	d.do(func() {
		d.dead = true
		d.forget()
		d.sort()
		d.port.dev = nil
		d.port.left()
	})
	d.port.cfg.Lane.Quiesce()
	d.port.cfg.Log.Debug("front-end gone", "reason", reason)
	<-d.port.busy
}

// Announce implements vhost.Ethernet.
func (d *Device) Announce(mac [6]byte) {
	if mac[0]&1 == 0 {
		d.do(func() { d.port.rarp = mac })
	}
}

// minMTU is the least MTU of an IPv4 host (RFC 791), and of virtio-net.
const minMTU = 68

// SetMTU implements vhost.Ethernet.
func (d *Device) SetMTU(mtu uint16) error {
	if most := d.port.limit.Load(); mtu < minMTU || most > 0 && int64(mtu) > most {
		return fmt.Errorf("an MTU of %d, the switch has %d: %w", mtu, most, unix.EINVAL)
	}
	return nil
}

// Owns reports whether addr, of a memory fault, lies in the guest's memory.
func (d *Device) Owns(addr uintptr) bool { return d.mem.Owns(addr) }

// Logging reports whether the guest is being moved: what is written to it is
// kept in a log.
func (d *Device) Logging() bool { return d.mem.Logging() }

// Running reports whether a driver uses the device: it has started a ring. On the lane.
func (d *Device) Running() bool { return len(d.rx)+len(d.tx) > 0 }

// Fail ends the session because of what its front-end did. On the lane.
func (d *Device) Fail(reason error) { d.fail(reason) }

func (d *Device) fail(reason error) {
	d.dead = true
	d.sort()
	d.s.Fail(vhost.BrokenRing, reason)
}
