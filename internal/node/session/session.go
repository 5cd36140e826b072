// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/device/procmem"
	"weft/internal/device/rdmadev"
	"weft/internal/device/vhost"
	"weft/internal/device/virtio"
	"weft/internal/node/lane"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/verbs/hca"
)

// Session is one program's session: a vhost-user connection on one side, a device on a lane on the other. Its methods
// are called by the session's goroutine, unless they say otherwise; what touches the device goes through the lane.
type Session struct {
	r       *Registry
	adapter *hca.Adapter
	s       *vhost.Session
	lane    *lane.Lane
	// Client is its device on the lane, made when it is known what kind of client this is. Others than the lane read it
	// with the registry's mu held.
	lane.Client
	mem    *vhost.MemTable
	serial uint32
	pid    int
	uid    int
	comm   string
	verbs  bool
	proc   *procmem.Space // set once on the lane, with the registry's mu held as Dev is; see process
	bell   *virtio.Doorbell
	rings  map[int]*vhostRing     // the lane's
	gather virtio.Scratch         // of all rings, the lane's too
	waits  atomic.Bool            // a copy waits for its memory
	make   func() *rdmadev.Device // makes a fresh device; it runs on the lane
}

// Serial is the number of the session.
func (d *Session) Serial() uint32 { return d.serial }

// Lane is the lane of the session.
func (d *Session) Lane() *lane.Lane { return d.lane }

// Owner describes the program to people.
func (d *Session) Owner() api.Owner {
	return api.Owner{Device: d.adapter.Name, Session: d.serial, PID: d.pid, Comm: d.comm, UID: d.uid}
}

// vhostRing is a ring as the session set it up.
type vhostRing struct {
	vhost.Ring
	q       *virtio.Queue
	running bool
}

// parts is the device of a program, as its session uses it.
func (d *Session) parts() vhost.Device {
	return vhost.Device{Registers: d, Rings: d, Lifetime: d, Program: d}
}

// Ring numbers of the two kinds of session: a plain vhost-user front-end can
// name 256 rings.
const (
	rfcCQs, rfcQPs     = 64, 64
	verbsCQs, verbsQPs = abi.MaxObjectRings, abi.MaxObjectRings
)

// Features implements vhost.Registers. A front-end other than a program finds no RoCE at an InfiniBand port.
func (d *Session) Features() uint64 {
	const offered = 1<<abi.FeatureRoCE | 1<<abi.FeatureCtrlVQ | 1<<abi.FeatureVersion1 | 1<<abi.FeatureIndirect |
		1<<abi.FeatureRingReset
	if d.adapter.Port().Link == ib.LinkInfiniBand && !d.s.Weft() {
		return offered &^ (1 << abi.FeatureRoCE)
	}
	return offered
}

// device makes the device at the first request that depends on its kind: a program has sent WEFT_HELLO by then.
func (d *Session) device() (err error) {
	if d.Dev != nil {
		return nil
	}
	d.verbs = d.s.Weft()
	for late := time.After(ownerLeaves); ; {
		left := d.r.nextLeave()
		if e := d.lane.Do(func() {
			if err = d.renew(); err == nil {
				d.lane.AddClient(&d.Client)
			}
		}); e != nil {
			return e
		}
		if !errors.Is(err, hca.ErrOwned) {
			return err
		}
		select {
		case <-left:
		case <-late:
			return err
		}
	}
}

// ownerLeaves is how long a plain front-end waits for the function's last one to leave: that may have closed its
// connection, and the node may not have noticed yet.
const ownerLeaves = 2 * time.Second

// Config implements vhost.Registers.
func (d *Session) Config() abi.Config {
	d.verbs = d.s.Weft()
	cqs, qps := d.queues()
	return abi.Config{Status: 1, MTU: 1500, MaxVirtqueuePairs: 1, Speed: 0xffffffff, Duplex: 0xff, MaxRDMAQPs: qps,
		MaxRDMACQs: cqs}
}

// queues returns how many completion queues and queue pairs this kind of
// client has rings for.
func (d *Session) queues() (cqs, qps uint32) {
	if d.verbs {
		return verbsCQs, verbsQPs
	}
	return rfcCQs, rfcQPs
}

// Rings implements vhost.Rings.
func (d *Session) Rings() int {
	if err := d.device(); err != nil {
		d.Fail(err)
		return 0
	}
	return int(d.Dev.Rings())
}

// SetFeatures implements vhost.Registers.
func (d *Session) SetFeatures(f uint64) error {
	const need = 1<<abi.FeatureRoCE | 1<<abi.FeatureCtrlVQ | 1<<abi.FeatureVersion1
	if f&need != need {
		return fmt.Errorf("features %#x lack some of %#x: %w", f, uint64(need), unix.EINVAL)
	}
	err := d.device()
	if err != nil {
		// The front-end learns no more than that FEATURES_OK is clear.
		d.r.Complain("front-end refused", "session", d.serial, "pid", d.pid, "program", d.comm, "why", err)
	}
	return err
}

// SetStatus implements vhost.Registers.
func (d *Session) SetStatus(status uint8) error {
	if status == 0 && d.Dev != nil {
		return d.reset(false)
	}
	return nil
}

// caller makes a vhost.Call an rdmadev.Caller.
type caller struct{ c *vhost.Call }

// Call implements rdmadev.Caller. A client that has closed its end is not notified; its session is about to end.
func (c caller) Call() (again bool) { return c.c.Write() == vhost.Again }

// SetRing implements vhost.Rings.
func (d *Session) SetRing(i int, r vhost.Ring) (err error) {
	if e := d.lane.Do(func() {
		v := &vhostRing{Ring: r}
		r.Scratch = &d.gather
		if v.q, err = virtio.New(d.mem, r.Config); err != nil {
			return
		}
		if r.Move {
			if err = d.Dev.MoveRing(uint32(i), v.q); err == nil {
				v.running, d.rings[i] = true, v
			}
			return
		}
		if err = d.start(i, v); err == nil {
			d.rings[i] = v
		}
	}); e != nil {
		return e
	}
	return err
}

// start lets the device use a ring that is enabled; it runs on the lane.
func (d *Session) start(i int, v *vhostRing) error {
	if v.Kick != nil {
		if err := d.lane.WatchKick(&d.Client, i, v.Kick); err != nil {
			return err
		}
	}
	if !v.Enabled {
		return nil
	}
	v.running = true
	var c rdmadev.Caller
	if v.Call != nil {
		c = caller{v.Call}
	}
	d.Dev.StartRing(uint32(i), v.q, c)
	return nil
}

// halt removes a ring from the device; it runs on the lane.
func (d *Session) halt(i int, v *vhostRing) {
	if v.Kick != nil {
		d.lane.UnwatchKick(v.Kick.FD())
	}
	if v.running {
		v.running = false
		d.Dev.StopRing(uint32(i))
	}
}

// ChangeRing implements vhost.Rings.
func (d *Session) ChangeRing(i int, r vhost.Ring) {
	d.lane.Do(func() {
		v := d.rings[i]
		if v == nil {
			return
		}
		d.halt(i, v)
		v.Kick, v.Call, v.Enabled = r.Kick, r.Call, r.Enabled
		if err := d.start(i, v); err != nil {
			d.Fail(err)
		}
	})
}

// StopRing implements vhost.Rings.
func (d *Session) StopRing(i int) (state uint32) {
	d.lane.Do(func() {
		if v := d.rings[i]; v != nil {
			d.halt(i, v)
			state = v.q.State()
			delete(d.rings, i)
		}
	})
	return state
}

// SetDoorbell implements vhost.Program.
func (d *Session) SetDoorbell(gpa uint64, nbits uint32, k *vhost.Kick) error {
	if err := d.device(); err != nil {
		return err
	}
	bell, err := virtio.NewDoorbell(d.mem, gpa, nbits)
	if err != nil {
		return err
	}
	e := d.lane.Do(func() {
		if err = d.lane.WatchKick(&d.Client, -1, k); err == nil {
			d.bell = bell
			d.Dev.SetDoorbell(bell)
		}
	})
	return errors.Join(e, err)
}

// ProcMem implements vhost.Program.
func (d *Session) ProcMem(f *os.File, addr, value uint64) error {
	if d.proc != nil {
		f.Close()
		return unix.EBUSY
	}
	if err := d.device(); err != nil {
		f.Close()
		return err
	}
	s, err := procmem.New(procmem.Config{Mem: f, PID: d.pid, UID: uint32(d.uid), Mapped: d.mem, ProbeAddr: addr,
		ProbeValue: value})
	if err != nil {
		return err
	}
	if e := d.lane.Do(func() {
		d.r.mu.Lock()
		d.proc = s
		d.r.mu.Unlock()
		d.Dev.SetProc(s)
	}); e != nil {
		s.Close()
		return e
	}
	d.r.cfg.Log.Debug("process memory", "pid", d.pid, "method", s.Method())
	return nil
}

// Reset implements vhost.Registers: objects and rings are destroyed, memory and features stay.
func (d *Session) Reset() {
	if d.Dev != nil {
		if err := d.reset(true); err != nil {
			d.Fail(err)
		}
	}
}

// reset replaces the device by a fresh one. Unless forget is set, the session keeps its rings: the client may still
// read their state.
func (d *Session) reset(forget bool) (err error) {
	e := d.lane.Do(func() {
		for i, v := range d.rings {
			d.halt(i, v)
			if forget {
				delete(d.rings, i)
			}
		}
		err = d.renew()
	})
	return errors.Join(e, err)
}

// renew gives the session a fresh device; it runs on the lane.
func (d *Session) renew() error {
	if d.adapter.Port().Link == ib.LinkInfiniBand && !d.verbs {
		return fmt.Errorf("%s has an InfiniBand port, which a plain front-end cannot use: %w", d.adapter.Name,
			unix.EOPNOTSUPP)
	}
	old := d.Dev
	dev := d.make()
	if d.proc != nil {
		dev.SetProc(d.proc)
	}
	if d.bell != nil {
		dev.SetDoorbell(d.bell)
	}
	if old != nil {
		d.part(old)
	}
	attach := d.adapter.Attach
	if !d.verbs {
		attach = d.adapter.AttachOwner
	}
	d.r.mu.Lock()
	err := attach(dev.Session())
	if err == nil {
		d.Dev = dev
	}
	d.r.mu.Unlock()
	if err == nil {
		return nil
	}
	dev.Close() // the session stays without a device, or with one that is closed
	if errors.Is(err, hca.ErrOwned) {
		return fmt.Errorf("%s serves one front-end without WEFT_HELLO at a time: %w", d.adapter.Name, err)
	}
	return err
}

// newDevice makes the device of a program.
func (d *Session) newDevice() *rdmadev.Device {
	cqs, qps := d.queues()
	c := rdmadev.Config{Adapter: d.adapter, Lane: d.lane.HCA, Now: d.r.cfg.Now,
		Guest: rdmadev.Guest{Space: d.mem, Words: d.mem, Contains: d.mem.Contains},
		Log:   d.r.cfg.Log.With("session", d.serial),
		MaxCQ: cqs, MaxQP: qps, Verbs: d.verbs, Fail: d.Fail,
		Privileged: d.uid == 0 || d.uid == os.Geteuid()}
	if !d.verbs { // the driver of a guest, with programs of its own
		c.Broke = func(reason error) {
			d.r.Complain("a ring of a front-end is broken", "session", d.serial, "pid", d.pid, "reason", reason)
		}
	}
	return rdmadev.New(c)
}

// part closes a device of the session after its client has gone or reset it; it runs on the lane. Where queue pairs
// notify their peers first, the lane detaches the session later.
func (d *Session) part(dev *rdmadev.Device) {
	if dev.Orphan() {
		d.r.leave()
		return
	}
	d.r.Detach(dev.Session())
}

// Retire implements vhost.Lifetime.
func (d *Session) Retire(unmap func()) {
	d.r.lanes.Quiesce()
	unmap()
}

// Fail implements lane.MemoryOwner: it ends the session, also from its lane.
func (d *Session) Fail(reason error) { d.s.Fail(vhost.BrokenRing, reason) }

// owns reports whether addr lies in the client's mapped memory.
func (d *Session) owns(addr uintptr) bool { return d.mem.Owns(addr) }

// Closed implements vhost.Lifetime.
func (d *Session) Closed(reason error) {
	d.lane.Do(func() {
		for i, v := range d.rings {
			d.halt(i, v)
		}
		d.lane.RemoveClient(&d.Client)
		if d.Dev != nil {
			d.part(d.Dev)
		}
	})
	d.r.lanes.Quiesce()
	if d.proc != nil {
		d.proc.Close()
	}
}

// process returns how the client's process is reached, nil where it is not.
func (d *Session) process() *procmem.Space {
	d.r.mu.Lock()
	defer d.r.mu.Unlock()
	return d.proc
}

// Session implements View.
func (d *Session) Session() *hca.Session { return d.Dev.Session() }

// Memory returns how the client's registered memory is accessed, as text for the status.
func (d *Session) Memory() string {
	if d.process() != nil {
		return "process"
	}
	return "none"
}

// Kind returns how one region is accessed.
func (d *Session) Kind(s mem.Space) string {
	if s == mem.Space(d.mem) {
		return "mapped"
	}
	return "process"
}

// slow returns the method by which the client's memory is reached where that is slower than usual, else nothing.
func (d *Session) slow() string {
	p := d.process()
	if p == nil {
		return ""
	}
	if m := p.Method(); m != "process_vm" {
		return m
	}
	return ""
}

// protection returns why a request of the client's failed at memory that it has protected, else nothing.
func (d *Session) protection() string {
	p := d.process()
	if p == nil {
		return ""
	}
	return p.Protection()
}

// Comm reads the name of a process; empty where there is none.
func Comm(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
