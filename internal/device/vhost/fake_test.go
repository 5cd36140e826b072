// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

const (
	fakeCQs = 8
	fakeQPs = 8
)

// fake is the smallest device that answers a driver: every send request
// succeeds at once. Its lane is a goroutine that sleeps on the session's kicks.
type fake struct {
	s    *vhost.Session
	wake int // eventfd
	done chan struct{}

	mu     sync.Mutex // the lane holds it while it works
	rings  map[int]*fakeRing
	bell   *virtio.Doorbell
	kick   *vhost.Kick
	arm    map[uint32]virtio.Word
	sendCQ map[uint32]uint32
	caps   uint64
	nextQP uint32
	closed bool
	proc   *os.File
	calls  []string
	refuse error // what SetRing answers
}

type fakeRing struct {
	vhost.Ring
	*virtio.Queue
	packed *virtio.Packed // instead of Queue: not worked on
}

func newFake(s *vhost.Session) (*fake, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	f := &fake{s: s, wake: wake, done: make(chan struct{}), rings: map[int]*fakeRing{}, arm: map[uint32]virtio.Word{},
		sendCQ: map[uint32]uint32{}, nextQP: 2, caps: 1<<abi.CapErrnoAck | 1<<abi.CapSGWQE | 1<<abi.CapArmDoorbell | 1<<abi.CapVerbs}
	go f.lane()
	return f, nil
}

// locked runs f while the lane rests, and wakes it afterwards.
func (d *fake) locked(f func()) {
	d.mu.Lock()
	f()
	unix.Write(d.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	d.mu.Unlock()
}

func (d *fake) note(format string, a ...any) { d.calls = append(d.calls, fmt.Sprintf(format, a...)) }

// log returns the calls there were.
func (d *fake) log() (list []string) {
	d.locked(func() { list = slices.Clone(d.calls) })
	return list
}

func (d *fake) Features() uint64 {
	return 1<<abi.FeatureVersion1 | 1<<abi.FeatureRoCE | 1<<abi.FeatureCtrlVQ | 1<<abi.FeatureEventIdx | 1<<abi.FeaturePacked | 1<<abi.FeatureLogAll
}
func (d *fake) Announce(mac [6]byte)    { d.locked(func() { d.note("announce %x", mac) }) }
func (d *fake) SetMTU(mtu uint16) error { d.locked(func() { d.note("mtu %d", mtu) }); return nil }
func (d *fake) Config() abi.Config {
	return abi.Config{MaxVirtqueuePairs: 1, MTU: 1500, MaxRDMAQPs: fakeQPs, MaxRDMACQs: fakeCQs}
}
func (d *fake) Rings() int { return 3 + fakeCQs + 2*fakeQPs }
func (d *fake) SetFeatures(f uint64) error {
	d.locked(func() { d.note("features %#x", f) })
	return nil
}
func (d *fake) SetStatus(s uint8) error { d.locked(func() { d.note("status %#x", s) }); return nil }
func (d *fake) SetRing(i int, r vhost.Ring) (err error) {
	d.locked(func() {
		d.note("set ring %d", i)
		if err = d.refuse; err != nil {
			return
		}
		if r.Packed {
			q, e := virtio.NewPacked(d.s.Mem(), r.Config)
			if err = e; err == nil {
				d.rings[i] = &fakeRing{Ring: r, packed: q}
			}
			return
		}
		q, e := virtio.New(d.s.Mem(), r.Config)
		if err = e; err == nil {
			d.rings[i] = &fakeRing{Ring: r, Queue: q}
		}
	})
	return err
}
func (d *fake) ChangeRing(i int, r vhost.Ring) {
	d.locked(func() { d.note("change ring %d", i); d.rings[i].Ring = r })
}
func (d *fake) StopRing(i int) (state uint32) {
	d.locked(func() {
		d.note("stop ring %d", i)
		if q := d.rings[i].packed; q != nil {
			state = q.State()
		} else {
			state = d.rings[i].State()
		}
		delete(d.rings, i)
	})
	return state
}
func (d *fake) SetDoorbell(gpa uint64, nbits uint32, k *vhost.Kick) (err error) {
	d.locked(func() { d.bell, err = virtio.NewDoorbell(d.s.Mem(), gpa, nbits); d.kick = k })
	return err
}
func (d *fake) ProcMem(f *os.File, _, _ uint64) error { d.locked(func() { d.proc = f }); return nil }
func (d *fake) Reset()                                { d.locked(func() { d.note("reset") }) }
func (d *fake) Retire(unmap func())                   { d.locked(func() { d.note("retire"); unmap() }) }
func (d *fake) Closed(error) {
	d.locked(func() {
		d.closed = true
		clear(d.rings)
		d.bell, d.kick = nil, nil
	})
	<-d.done
	d.mu.Lock()
	unix.Close(d.wake)
	d.wake = -1 // Retire follows
	d.mu.Unlock()
	if d.proc != nil {
		d.proc.Close()
	}
}

// lane works until nothing is left, then sleeps until a kick.
func (d *fake) lane() {
	defer close(d.done)
	for {
		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			return
		}
		work := d.drain()
		fds := []unix.PollFd{{Fd: int32(d.wake), Events: unix.POLLIN}}
		if !work {
			if d.bell != nil {
				work = d.bell.Sleep()
				fds = append(fds, unix.PollFd{Fd: int32(d.kick.FD()), Events: unix.POLLIN})
			}
			for _, r := range d.rings {
				if r.Kick != nil && r.packed == nil {
					pending, _ := r.EnableKick()
					work = work || pending && r.Enabled
					fds = append(fds, unix.PollFd{Fd: int32(r.Kick.FD()), Events: unix.POLLIN})
				}
			}
		}
		d.mu.Unlock()
		if !work {
			unix.Poll(fds, 1000)
		}
		d.mu.Lock()
		if d.bell != nil {
			d.bell.Wake()
			d.kick.Clear()
		}
		for _, r := range d.rings {
			if r.Kick != nil && r.packed == nil {
				r.Kick.Clear()
				r.DisableKick()
			}
		}
		var b [8]byte
		if !d.closed {
			unix.Read(d.wake, b[:])
		}
		d.mu.Unlock()
	}
}

func (d *fake) drain() (work bool) {
	if d.bell != nil {
		work = len(d.bell.Rings(nil)) > 0
	}
	for i, r := range d.rings {
		if !r.Enabled || r.packed != nil {
			continue
		}
		switch {
		case i == 2:
			work = d.control(r) || work
		case i >= 3+fakeCQs && (i-3-fakeCQs)%2 == 0:
			work = d.sends(uint32(i-3-fakeCQs)/2, r) || work
		}
	}
	return work
}

func (d *fake) broken(err error) bool {
	d.s.Fail(vhost.BrokenRing, err)
	clear(d.rings)
	return false
}

func (d *fake) control(r *fakeRing) (work bool) {
	var c virtio.Chain
	for {
		ok, err := r.Pop(&c)
		if err != nil {
			return d.broken(err)
		}
		if !ok {
			return work
		}
		work = true
		in := make([]byte, c.ReadLen)
		c.ReadAt(in, 0)
		ack, out := d.command(in)
		c.WriteAt(append([]byte{ack}, out...), 0)
		r.PushUsed(c.Head, uint32(1+len(out)))
		if r.Publish() && r.Call != nil {
			r.Call.Write()
		}
	}
}

func (d *fake) command(in []byte) (ack byte, out []byte) {
	if len(in) < abi.CtrlHeaderSize || in[0] != abi.ClassRoCE {
		return abi.AckErr, nil
	}
	cmd, data := abi.Cmd(in[1]), in[abi.CtrlHeaderSize:]
	if i, ok := cmd.Info(); !ok || len(data) < i.Req {
		return byte(unix.EINVAL), nil
	}
	switch cmd {
	case abi.CmdQueryDevice:
		return 0, abi.QueryDeviceResult{DeviceCapFlags: d.caps}.Append(nil)
	case abi.CmdExtEnable:
		return 0, data
	case abi.CmdCreatePD:
		return 0, abi.CreatePDResult{PDN: 1}.Append(nil)
	case abi.CmdCreateCQ:
		return 0, abi.CreateCQResult{CQN: uint32(len(d.arm))}.Append(nil)
	case abi.CmdSetArmArea:
		a, _ := abi.ParseSetArmArea(data)
		w, err := virtio.NewWord(d.s.Mem(), a.GPA)
		if err != nil {
			return byte(unix.EFAULT), nil
		}
		d.arm[a.CQN] = w
	case abi.CmdCreateQP:
		q, _ := abi.ParseCreateQP(data)
		n := d.nextQP
		d.nextQP++
		d.sendCQ[n] = q.SendCQN
		return 0, abi.CreateQPResultEx{QPN: n, WireQPN: ib.QPN(1<<14 | n)}.Append(nil)
	case abi.CmdDestroyPD:
		return byte(unix.EBUSY), nil
	}
	return 0, nil
}

func (d *fake) sends(q uint32, r *fakeRing) (work bool) {
	cq := d.rings[3+int(d.sendCQ[q])]
	for {
		e, ok, err := r.Next(false)
		if err != nil {
			return d.broken(err)
		}
		if !ok {
			break
		}
		work = true
		var b [abi.SQSize]byte
		copy(b[:], e.Data)
		var s abi.Send
		s.Parse(b[:], &abi.SendCompact)
		r.PushUsed(e.Head, 0)
		r.Publish()
		buf, ok, err := cq.Next(true)
		if err != nil || !ok {
			return d.broken(fmt.Errorf("completion ring: %v %w", ok, err))
		}
		c := abi.CQE{WRID: s.WRID, QPN: ib.QPN(1<<14 | q)}
		c.Put(buf.Data)
		cq.PushElem(buf, abi.CQESize)
	}
	if work {
		cq.Publish()
		if w, ok := d.arm[d.sendCQ[q]]; ok && w.Swap(0) != 0 && cq.Call != nil {
			cq.Call.Write()
		}
	}
	return work
}

// socket serves fakes on a socket of its own.
type socket struct {
	*vhost.Server
	path string
	made chan *fake
	ends chan error
}

func newSocket(t testing.TB) *socket {
	t.Helper()
	return newLimitedSocket(t, vhost.Limits{})
}

func newLimitedSocket(t testing.TB, l vhost.Limits) *socket {
	t.Helper()
	return newSocketOf(t, l, (*fake).parts)
}

// newSocketOf serves the given parts of fakes.
func newSocketOf(t testing.TB, l vhost.Limits, parts func(*fake) vhost.Device) *socket {
	t.Helper()
	dir, err := os.MkdirTemp("", "vhost")
	if err != nil {
		t.Fatal(err)
	}
	d := &socket{path: filepath.Join(dir, "socket.sock"), made: make(chan *fake, 1024), ends: make(chan error, 1024)}
	d.Server, err = vhost.Listen(d.path, 0o600, vhost.Config{
		NodeUID: uint32(os.Getuid()), SpinUs: 50, Limits: l,
		New: func(s *vhost.Session) (vhost.Device, error) {
			f, err := newFake(s)
			if err != nil {
				return vhost.Device{}, err
			}
			d.made <- f
			return parts(f), nil
		},
		OnEnd: func(_ *vhost.Session, reason error) { d.ends <- reason },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Close()
		os.RemoveAll(dir)
	})
	return d
}

// parts is the device with all its parts.
func (d *fake) parts() vhost.Device {
	return vhost.Device{Registers: d, Rings: d, Lifetime: d, Program: d}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestDriver(t *testing.T) {
	for _, o := range []vhosttest.Options{{}, {ProcMem: true}, {Plain: true}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			socket := newSocket(t)
			d := vhosttest.NewDriver(t, socket.path, o)
			pd := must[uint32](t)(d.CreatePD())
			if o.Plain {
				return // the fake speaks the compact form only
			}
			cq := must[*vhosttest.CQ](t)(d.CreateCQ(t, 64))
			qp := must[*vhosttest.QP](t)(d.CreateQP(t, vhosttest.QPOptions{Type: ib.RC, PD: pd, Send: cq, Recv: cq}))
			if qp.Wire != 1<<14|2 {
				t.Errorf("queue pair %#x", qp.Wire)
			}
			for round := range 50 {
				for i := range 10 {
					if err := qp.PostSend(abi.Send{WRID: uint64(round*10 + i), Opcode: abi.OpSend}, nil,
						nil); err != nil {
						t.Fatal(err)
					}
				}
				list := must[[]abi.CQE](t)(cq.Wait(10))
				for i, c := range list {
					if c.WRID != uint64(round*10+i) || c.QPN != qp.Wire {
						t.Fatalf("round %d: completion %d is %+v", round, i, c)
					}
				}
			}
			if err := cq.Arm(false); err != nil {
				t.Fatal(err)
			}
			if cq.Notified(0) {
				t.Error("notified without a completion")
			}
			if err := qp.PostSend(abi.Send{Opcode: abi.OpSend}, nil, nil); err != nil {
				t.Fatal(err)
			}
			if !cq.Notified(vhosttest.Limit) {
				t.Error("not notified")
			}
			if err := qp.Destroy(); err != nil {
				t.Error(err)
			}
			if err := cq.Destroy(); err != nil {
				t.Error(err)
			}
			if err := d.DestroyPD(pd); err == nil {
				t.Error("a refusal did not arrive")
			}
			d.Close()
			if err := <-socket.ends; err != vhost.Gone {
				t.Errorf("ended: %v", err)
			}
		})
	}
}
