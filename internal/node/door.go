// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

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

// door is one client's session: a vhost-user connection on one side, a device
// on a lane on the other. Its methods are called by the session's goroutine;
// what touches the device goes through the lane.
type door struct {
	n    *Node
	f    *function
	s    *vhost.Session
	lane *lane.Lane
	// Client is its device on the lane, made when it is known what kind of client this is.
	lane.Client
	mem    *vhost.MemTable
	serial uint32
	pid    int
	uid    int
	comm   string
	verbs  bool
	proc   *procmem.Space // set once on the lane, under the node's mu like dev; others read it by process
	bell   *virtio.Doorbell
	rings  map[int]*vhostRing // the lane's
	gather virtio.Scratch     // of all rings, the lane's too
	waits  atomic.Bool        // a copy waits for its memory
}

// vhostRing is a ring as the session set it up.
type vhostRing struct {
	vhost.Ring
	q       *virtio.Queue
	running bool
}

var _ vhost.Device = (*door)(nil)

// Ring numbers of the two kinds of session: a plain vhost-user front-end can
// name 256 rings.
const (
	rfcCQs, rfcQPs     = 64, 64
	verbsCQs, verbsQPs = abi.MaxObjectRings, abi.MaxObjectRings
)

// Features implements vhost.Device.
func (d *door) Features() uint64 {
	return 1<<abi.FeatureRoCE | 1<<abi.FeatureCtrlVQ | 1<<abi.FeatureVersion1 | 1<<abi.FeatureIndirect | 1<<abi.FeatureRingReset
}

// device makes the device at the first request that needs to know its kind: a
// program has said WEFT_HELLO by then.
func (d *door) device() (err error) {
	if d.Dev != nil {
		return nil
	}
	d.verbs = d.s.Weft()
	if e := d.lane.Do(func() {
		if err = d.renew(); err == nil {
			d.lane.AddClient(&d.Client)
		}
	}); e != nil {
		return e
	}
	return err
}

// Config implements vhost.Device.
func (d *door) Config() abi.Config {
	d.verbs = d.s.Weft()
	cqs, qps := d.queues()
	return abi.Config{Status: 1, MTU: 1500, MaxVirtqueuePairs: 1, Speed: 0xffffffff, Duplex: 0xff, MaxRDMAQPs: qps, MaxRDMACQs: cqs}
}

// queues returns how many completion queues and queue pairs this kind of
// client has rings for.
func (d *door) queues() (cqs, qps uint32) {
	if d.verbs {
		return verbsCQs, verbsQPs
	}
	return rfcCQs, rfcQPs
}

// Rings implements vhost.Device.
func (d *door) Rings() int {
	if err := d.device(); err != nil {
		d.Fail(err)
		return 0
	}
	return int(d.Dev.Rings())
}

// SetFeatures implements vhost.Device.
func (d *door) SetFeatures(f uint64) error {
	const need = 1<<abi.FeatureRoCE | 1<<abi.FeatureCtrlVQ | 1<<abi.FeatureVersion1
	if f&need != need {
		return fmt.Errorf("features %#x lack some of %#x: %w", f, uint64(need), unix.EINVAL)
	}
	return d.device()
}

// SetStatus implements vhost.Device.
func (d *door) SetStatus(status uint8) error {
	if status == 0 && d.Dev != nil {
		return d.reset(false)
	}
	return nil
}

// caller is a vhost.Call as the device wants it.
type caller struct{ c *vhost.Call }

// Call implements rdmadev.Caller. A client that has closed its end hears
// nothing any more; its session is about to end.
func (c caller) Call() (again bool) { return c.c.Write() == vhost.Again }

// SetRing implements vhost.Device.
func (d *door) SetRing(i int, r vhost.Ring) (err error) {
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
func (d *door) start(i int, v *vhostRing) error {
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

// halt takes a ring away from the device; it runs on the lane.
func (d *door) halt(i int, v *vhostRing) {
	if v.Kick != nil {
		d.lane.UnwatchKick(v.Kick.FD())
	}
	if v.running {
		v.running = false
		d.Dev.StopRing(uint32(i))
	}
}

// ChangeRing implements vhost.Device.
func (d *door) ChangeRing(i int, r vhost.Ring) {
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

// StopRing implements vhost.Device.
func (d *door) StopRing(i int) (state uint32) {
	d.lane.Do(func() {
		if v := d.rings[i]; v != nil {
			d.halt(i, v)
			state = v.q.State()
			delete(d.rings, i)
		}
	})
	return state
}

// SetDoorbell implements vhost.Device.
func (d *door) SetDoorbell(gpa uint64, nbits uint32, k *vhost.Kick) error {
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

// ProcMem implements vhost.Device.
func (d *door) ProcMem(f *os.File, addr, value uint64) error {
	if d.proc != nil {
		f.Close()
		return unix.EBUSY
	}
	if err := d.device(); err != nil {
		f.Close()
		return err
	}
	s, err := procmem.New(procmem.Config{Mem: f, PID: d.pid, UID: uint32(d.uid), Mapped: d.mem, ProbeAddr: addr, ProbeValue: value})
	if err != nil {
		return err
	}
	if e := d.lane.Do(func() {
		d.n.mu.Lock()
		d.proc = s
		d.n.mu.Unlock()
		d.Dev.SetProc(s)
	}); e != nil {
		s.Close()
		return e
	}
	d.n.log.Debug("process memory", "pid", d.pid, "method", s.Method())
	return nil
}

// Reset implements vhost.Device: objects and rings go, memory and features
// stay.
func (d *door) Reset() {
	if d.Dev != nil {
		if err := d.reset(true); err != nil {
			d.Fail(err)
		}
	}
}

// reset replaces the device by a fresh one. Rings stay known to the session
// unless they are to be forgotten: their state is still asked for.
func (d *door) reset(forget bool) (err error) {
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

// renew gives the door a fresh device; it runs on the lane.
func (d *door) renew() error {
	if d.f.a.Port().Link == ib.LinkInfiniBand && !d.verbs {
		return fmt.Errorf("%s has an InfiniBand port, which a plain front-end cannot use: %w", d.f.a.Name, unix.EOPNOTSUPP)
	}
	old := d.Dev
	cqs, qps := d.queues()
	dev := rdmadev.New(rdmadev.Config{Adapter: d.f.a, Lane: d.lane.HCA, Guest: d.mem, Now: d.n.now, Log: d.n.log.With("session", d.serial),
		MaxCQ: cqs, MaxQP: qps, Verbs: d.verbs, Fail: d.Fail,
		Privileged: d.uid == 0 || d.uid == os.Geteuid()})
	if d.proc != nil {
		dev.SetProc(d.proc)
	}
	if d.bell != nil {
		dev.SetDoorbell(d.bell)
	}
	if old != nil {
		d.part(old)
	}
	d.n.mu.Lock()
	err := d.f.a.Attach(dev.Session())
	d.Dev = dev
	d.n.mu.Unlock()
	return err
}

// part closes a device of the door whose client is gone, or begins anew; it runs
// on the lane. Where queue pairs tell their peers, the lane detaches the session
// later.
func (d *door) part(dev *rdmadev.Device) {
	if !dev.Part() {
		d.n.detach(dev.Session())
	}
}

// detach ends the number of a session that is over; it runs on its lane.
func (n *Node) detach(s *hca.Session) {
	n.mu.Lock()
	s.Adapter().Detach(s)
	n.mu.Unlock()
}

// Retire implements vhost.Device.
func (d *door) Retire(unmap func()) {
	d.n.lanes.Quiesce()
	unmap()
}

// Fail implements lane.MemoryOwner: it ends the session, also from its lane.
func (d *door) Fail(reason error) { d.s.Fail(vhost.BrokenRing, reason) }

// owns reports whether addr lies in the client's mapped memory.
func (d *door) owns(addr uintptr) bool { return d.mem.Owns(addr) }

// Closed implements vhost.Device.
func (d *door) Closed(reason error) {
	n := d.n
	d.lane.Do(func() {
		for i, v := range d.rings {
			d.halt(i, v)
		}
		d.lane.RemoveClient(&d.Client)
		if d.Dev != nil {
			d.part(d.Dev)
		}
	})
	n.lanes.Quiesce()
	if d.proc != nil {
		d.proc.Close()
	}
}

// process returns how the client's process is reached, nil where it is not.
func (d *door) process() *procmem.Space {
	d.n.mu.Lock()
	defer d.n.mu.Unlock()
	return d.proc
}

// memory says how the client's registered memory is reached, for people.
func (d *door) memory() string {
	if d.process() != nil {
		return "process"
	}
	return "none"
}

// kind says how one region is reached.
func (d *door) kind(s mem.Space) string {
	if s == mem.Space(d.mem) {
		return "mapped"
	}
	return "process"
}

// slow says why the client's memory is reached by a slower way than usual, or
// nothing.
func (d *door) slow() string {
	p := d.process()
	if p == nil {
		return ""
	}
	if m := p.Method(); m != "process_vm" {
		return m
	}
	return ""
}

// comm reads the name of a process.
func comm(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
