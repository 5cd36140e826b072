// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/device/virtio"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
)

func TestProcessMemoryIsVerified(t *testing.T) {
	socket := newSocket(t)
	d := vhosttest.NewDriver(t, socket.path, vhosttest.Options{NoRings: true, MemSize: 1 << 20})
	probe := d.Mem.Alloc(8, 8)
	d.Mem.At(probe, 1)[0] = 7
	for _, tc := range []struct {
		name  string
		path  string
		mode  int
		value uint64
		want  error
	}{
		{"wrong value", "/proc/self/mem", os.O_RDWR, 8, unix.EPERM},
		{"read only", "/proc/self/mem", os.O_RDONLY, 7, unix.EPERM},
		{"other file", "/proc/self/oom_score_adj", os.O_RDWR, 7, unix.EPERM},
		{"no proc file", filepath.Join(t.TempDir(), "mem"), os.O_RDWR | os.O_CREATE, 7, unix.EPERM},
		{"right", "/proc/self/mem", os.O_RDWR, 7, nil},
	} {
		f, err := os.OpenFile(tc.path, tc.mode, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		err = d.Do(abi.ReqProcMem, abi.ProcMem{ProbeAddr: probe, ProbeValue: tc.value}.Append(nil), int(f.Fd()))
		if err != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
		f.Close()
	}
}

// TestNoProgram: a device that does not serve programs refuses their private requests, and the session goes on.
func TestNoProgram(t *testing.T) {
	socket := newSocketOf(t, vhost.Limits{}, func(f *fake) vhost.Device {
		return vhost.Device{Registers: f, Rings: f, Lifetime: f}
	})
	f, _ := socket.enter(t, fresh)
	if _, err := f.Get(abi.ReqHello, abi.Hello{ABI: abi.Version}.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if err := f.Do(abi.ReqSetProtocolFeatures, vhosttest.U64(1<<abi.ProtoReplyAck|1<<abi.ProtoWeft)); err != nil {
		t.Fatal(err)
	}
	m := virtiotest.NewMemory(t, 1<<18)
	r := abi.VUMemReg{GPA: m.Base, Size: uint64(len(m.Bytes)), UserAddr: m.Base}
	if err := f.Do(abi.ReqAddMemReg, r.Append(nil), m.FD); err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	bell := virtiotest.NewDoorbell(m, 64)
	kick := vhosttest.Eventfd(t)
	if err := f.Do(abi.ReqSetDoorbell, abi.SetDoorbell{GPA: bell.GPA, NBits: bell.NBits}.Append(nil),
		kick); err != unix.EOPNOTSUPP {
		t.Errorf("doorbell: %v", err)
	}
	proc, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	probe := m.Alloc(8, 8)
	m.At(probe, 1)[0] = 7
	if err := f.Do(abi.ReqProcMem, abi.ProcMem{ProbeAddr: probe, ProbeValue: 7}.Append(nil),
		int(proc.Fd())); err != unix.EOPNOTSUPP {
		t.Errorf("process memory: %v", err)
	}
	proc.Close()
	if n := descriptors(t) - before; n != 1 { // the test's eventfd
		t.Errorf("%d descriptors are left", n-1)
	}
	if _, err := f.GetU64(abi.ReqGetStatus); err != nil {
		t.Error(err)
	}
}

// TestHelloComesFirst: what an ordinary front-end set up, a device of its kind
// or memory that can shrink, is no beginning of a program's session.
func TestHelloComesFirst(t *testing.T) {
	for _, before := range []func(f *vhosttest.Front) error{
		func(f *vhosttest.Front) error { return f.Do(abi.ReqSetVringNum, put(2, 64)) },
		func(f *vhosttest.Front) error {
			fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.Ftruncate(fd, 4096); err != nil {
				return err
			}
			return f.Do(abi.ReqAddMemReg, abi.VUMemReg{Size: 4096}.Append(nil), fd)
		},
	} {
		socket := newSocket(t)
		f, _ := socket.enter(t, fresh)
		if err := before(f); err != nil {
			t.Fatal(err)
		}
		if err := f.Send(abi.ReqHello, abi.VUVersion, abi.Hello{ABI: abi.Version}.Append(nil)); err != nil {
			t.Fatal(err)
		}
		if err := socket.settled(t); !errors.Is(err, vhost.BadState) {
			t.Errorf("ended: %v", err)
		}
	}
}

// TestMoveRing: a running ring continues in other memory, or where it is if the device refuses.
func TestMoveRing(t *testing.T) {
	socket := newSocket(t)
	d := vhosttest.NewDriver(t, socket.path, vhosttest.Options{})
	dev := <-socket.made
	set := func(num int, flags uint32) (abi.SetRing, error) {
		r := virtiotest.NewRing(d.Mem, num, false)
		m := abi.SetRing{Index: 6, Num: uint32(num), Desc: r.Desc, Avail: r.Avail, Used: r.Used, Flags: flags}
		return m, d.Do(abi.ReqSetRing, m.Append(nil))
	}
	at := func() (r vhost.Ring) {
		dev.locked(func() { r = dev.rings[6].Ring })
		return r
	}
	if _, err := set(4, 0); err != nil || at().Move {
		t.Fatal(err)
	}
	m, err := set(16, abi.RingMove)
	if got, want := at(), (virtio.Config{Num: 16, Desc: m.Desc, Driver: m.Avail, Device: m.Used,
		Resume: true}); err != nil || !got.Move || got.Config != want || !got.Enabled {
		t.Errorf("%v, ring %+v, want %+v", err, got, want)
	}
	dev.locked(func() { dev.refuse = unix.EINVAL })
	if _, err := set(32, abi.RingMove); err != unix.EINVAL || at().Desc != m.Desc {
		t.Errorf("refused: %v", err)
	}
	dev.locked(func() { dev.refuse = nil })
	if _, err := set(8, abi.RingMove); err != nil || at().Num != 8 {
		t.Errorf("after a refusal: %v", err)
	}
	if err := d.Do(abi.ReqStopRing, abi.StopRing{Index: 6}.Append(nil)); err != nil {
		t.Error(err)
	}
	if _, err := set(8, abi.RingMove); err != unix.ENOENT {
		t.Errorf("stopped: %v", err)
	}
	if _, err := set(8, 0); err != nil || at().Move {
		t.Errorf("begun anew: %v", err)
	}
	m.Flags, m.Used = abi.RingMove, 4096
	if err := d.Do(abi.ReqSetRing, m.Append(nil)); !vhosttest.Closed(err) {
		t.Errorf("outside: %v", err)
	}
	if err := socket.settled(t); !errors.Is(err, vhost.BadRing) {
		t.Errorf("ended: %v", err)
	}
}
