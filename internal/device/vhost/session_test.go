// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/device/virtio"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// descriptors returns how many descriptors this process has open.
func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// settled waits for the end of a session and returns why it ended.
func (d *socket) settled(t testing.TB) error {
	t.Helper()
	select {
	case err := <-d.ends:
		return err
	case <-time.After(vhosttest.Limit):
		t.Fatal("session does not end")
		return nil
	}
}

func put(v ...uint32) (b []byte) {
	for _, x := range v {
		b = append(b, byte(x), byte(x>>8), byte(x>>16), byte(x>>24))
	}
	return b
}

// stage is how far a front-end came before it misbehaves.
type stage int

const (
	fresh   stage = iota
	plain         // RFC session with memory
	weft          // program's session with memory and doorbell
	running       // the same with its control ring running
)

func (d *socket) enter(t testing.TB, s stage) (*vhosttest.Front, *vhosttest.Driver) {
	t.Helper()
	switch s {
	case fresh:
		f, err := vhosttest.Dial(d.path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		d.made <- <-d.made // the session has begun
		return f, nil
	default:
		v := vhosttest.NewDriver(t, d.path, vhosttest.Options{Plain: s == plain, NoRings: s != running,
			MemSize: 1 << 18})
		return v.Front, v
	}
}

// TestMalformed sends every kind of mistake and looks for the reason under
// which the session ends.
func TestMalformed(t *testing.T) {
	const v1, ask = abi.VUVersion, abi.VUVersion | abi.VUNeedReply
	ring := func(edit func(*abi.SetRing)) func(*vhosttest.Driver) []byte {
		return func(d *vhosttest.Driver) []byte {
			r := virtiotest.NewRing(d.Mem, 4, false)
			m := abi.SetRing{Index: 2, Num: 4, Desc: r.Desc, Avail: r.Avail, Used: r.Used}
			edit(&m)
			return m.Append(nil)
		}
	}
	raw := func(b []byte) func(*vhosttest.Driver) []byte { return func(*vhosttest.Driver) []byte { return b } }
	for _, tc := range []struct {
		name    string
		at      stage
		request uint32
		flags   uint32
		payload func(d *vhosttest.Driver) []byte
		fds     int // so many eventfds come along
		want    vhost.Reason
	}{
		{"version 0", fresh, abi.ReqGetFeatures, 0, raw(nil), 0, vhost.BadHeader},
		{"version 2", fresh, abi.ReqGetFeatures, 2, raw(nil), 0, vhost.BadHeader},
		{"reply flag", fresh, abi.ReqGetFeatures, v1 | abi.VUReply, raw(nil), 0, vhost.BadHeader},
		{"unknown flag", fresh, abi.ReqGetFeatures, v1 | 16, raw(nil), 0, vhost.BadHeader},
		{"unknown request", fresh, 200, v1, raw(nil), 0, vhost.BadRequest},
		{"private request without hello", plain, abi.ReqStopRing, v1, raw(put(0, 0)), 0, vhost.BadRequest},
		{"size too small", fresh, abi.ReqSetFeatures, v1, raw(make([]byte, 7)), 0, vhost.BadSize},
		{"size too large", fresh, abi.ReqSetFeatures, v1, raw(make([]byte, 9)), 0, vhost.BadSize},
		{"huge", fresh, abi.ReqSetFeatures, v1, raw(make([]byte, 4097)), 0, vhost.BadSize},
		{"descriptor where none belongs", fresh, abi.ReqSetOwner, v1, raw(nil), 1, vhost.BadDescriptors},
		{"many descriptors", fresh, abi.ReqSetOwner, v1, raw(nil), 200, vhost.BadDescriptors},
		{"descriptor missing", plain, abi.ReqAddMemReg, ask, raw(make([]byte, abi.VUMemRegSize)), 0,
			vhost.BadDescriptors},
		{"features not offered", fresh, abi.ReqSetFeatures, ask, raw(vhosttest.U64(1 << 60)), 0, vhost.BadRequest},
		{"protocol feature WEFT without hello", fresh, abi.ReqSetProtocolFeatures, ask,
			raw(vhosttest.U64(1 << abi.ProtoWeft)), 0, vhost.BadRequest},
		{"status too wide", plain, abi.ReqSetStatus, ask, raw(vhosttest.U64(256)), 0, vhost.BadRequest},
		{"hello of version 1", fresh, abi.ReqHello, v1, raw(abi.Hello{ABI: 1}.Append(nil)), 0, vhost.BadVersion},
		{"hello with flags", fresh, abi.ReqHello, v1, raw(abi.Hello{ABI: abi.Version, Flags: 1}.Append(nil)), 0,
			vhost.BadVersion},
		{"late hello", plain, abi.ReqHello, v1, raw(abi.Hello{ABI: abi.Version}.Append(nil)), 0, vhost.BadState},
		{"memory of an eventfd", plain, abi.ReqAddMemReg, ask,
			raw(abi.VUMemReg{GPA: 1 << 40, Size: 1, UserAddr: 1 << 40}.Append(nil)), 1, vhost.BadMemory},
		{"table count and size", plain, abi.ReqSetMemTable, ask, raw(put(2, 0)), 0, vhost.BadSize},
		{"table too short", plain, abi.ReqSetMemTable, ask, raw(put(0)), 0, vhost.BadSize},
		{"table of 2^32-1", plain, abi.ReqSetMemTable, ask, raw(put(0xffffffff, 0)), 0, vhost.BadSize},
		{"table without descriptors", plain, abi.ReqSetMemTable, ask, raw(append(put(1, 0), make([]byte, 32)...)), 0,
			vhost.BadDescriptors},
		{"removal with two descriptors", plain, abi.ReqRemMemReg, ask, raw(make([]byte, abi.VUMemRegSize)), 2,
			vhost.BadDescriptors},
		{"config size mismatch", fresh, abi.ReqGetConfig, v1, raw(put(0, 4, 0)), 0, vhost.BadSize},
		{"config cut off", fresh, abi.ReqGetConfig, v1, raw(put(0, 0)), 0, vhost.BadSize},
		{"ring index", plain, abi.ReqSetVringNum, ask, raw(put(1000, 64)), 0, vhost.BadRing},
		{"ring index, all bits", plain, abi.ReqSetVringEnable, ask, raw(put(1<<31|2, 1)), 0, vhost.BadRing},
		{"ring of 3", plain, abi.ReqSetVringNum, ask, raw(put(2, 3)), 0, vhost.BadRing},
		{"ring of 0", plain, abi.ReqSetVringNum, ask, raw(put(2, 0)), 0, vhost.BadRing},
		{"ring of 65536", plain, abi.ReqSetVringNum, ask, raw(put(2, 65536)), 0, vhost.BadRing},
		{"base beyond 16 bits", plain, abi.ReqSetVringBase, ask, raw(put(2, 65536)), 0, vhost.BadRing},
		{"address flags", plain, abi.ReqSetVringAddr, ask, raw(abi.VUVringAddr{Index: 2, Flags: 2}.Append(nil)), 0,
			vhost.BadRing},
		{"enabled twice over", plain, abi.ReqSetVringEnable, ask, raw(put(2, 2)), 0, vhost.BadRing},
		{"kick word", plain, abi.ReqSetVringKick, ask, raw(vhosttest.U64(0x202)), 1, vhost.BadRing},
		{"kick without descriptor", plain, abi.ReqSetVringKick, ask, raw(vhosttest.U64(2)), 0, vhost.BadDescriptors},
		{"kick with one too many", plain, abi.ReqSetVringKick, ask, raw(vhosttest.U64(0x102)), 1, vhost.BadDescriptors},
		{"kick of a ring that is not set up", plain, abi.ReqSetVringKick, ask, raw(vhosttest.U64(2)), 1,
			vhost.BadState},
		{"kick of ring 255", plain, abi.ReqSetVringKick, ask, raw(vhosttest.U64(255)), 1, vhost.BadRing},
		{"second doorbell", weft, abi.ReqSetDoorbell, ask, raw(abi.SetDoorbell{NBits: 64}.Append(nil)), 1,
			vhost.BadState},
		{"ring call without descriptor", weft, abi.ReqSetRing, ask, ring(func(m *abi.SetRing) { m.Flags = 1 }), 0,
			vhost.BadDescriptors},
		{"ring descriptor without flag", weft, abi.ReqSetRing, ask, ring(func(m *abi.SetRing) {}), 1,
			vhost.BadDescriptors},
		{"ring flags", weft, abi.ReqSetRing, ask, ring(func(m *abi.SetRing) { m.Flags = 4 }), 0, vhost.BadRing},
		{"moving ring with a descriptor", running, abi.ReqSetRing, ask,
			ring(func(m *abi.SetRing) { m.Flags = abi.RingMove }), 1, vhost.BadRing},
		{"moving ring with a notification", running, abi.ReqSetRing, ask,
			ring(func(m *abi.SetRing) { m.Flags = abi.RingMove | abi.RingCall }), 1, vhost.BadRing},
		{"private ring of 3", weft, abi.ReqSetRing, ask, ring(func(m *abi.SetRing) { m.Num = 3 }), 0, vhost.BadRing},
		{"private ring index", weft, abi.ReqSetRing, ask, ring(func(m *abi.SetRing) { m.Index = 1 << 20 }), 0,
			vhost.BadRing},
		{"ring outside", weft, abi.ReqSetRing, ask, ring(func(m *abi.SetRing) { m.Used = 4096 }), 0, vhost.BadRing},
		{"ring over the end", weft, abi.ReqSetRing, ask, ring(func(m *abi.SetRing) { m.Num = 32768 }), 0,
			vhost.BadRing},
		{"ring misaligned", weft, abi.ReqSetRing, ask, ring(func(m *abi.SetRing) { m.Desc += 8 }), 0, vhost.BadRing},
	} {
		t.Run(tc.name, func(t *testing.T) {
			socket := newSocket(t)
			f, d := socket.enter(t, tc.at)
			fds := make([]int, tc.fds)
			for i := range fds {
				fds[i] = vhosttest.Eventfd(t)
			}
			before := descriptors(t)
			if err := f.Send(tc.request, tc.flags, tc.payload(d), fds...); err != nil {
				t.Fatal(err)
			}
			err := socket.settled(t)
			if !errors.Is(err, tc.want) {
				t.Errorf("ended: %v, want %v", err, tc.want)
			}
			if n := socket.Ends()[tc.want.Name()]; n != 1 {
				t.Errorf("counter %s is %d", tc.want.Name(), n)
			}
			// The session's socket, its eventfd and what it was given are gone.
			if after := descriptors(t); after >= before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
			if socket.Sessions() != 0 {
				t.Error("session still counted")
			}
		})
	}
}

// TestRefusals are mistakes that cost no more than an error answer.
func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		name    string
		at      stage
		request uint32
		payload []byte
		fds     int
		want    unix.Errno
	}{
		{"unknown request", fresh, 200, nil, 0, unix.EOPNOTSUPP},
		{"private request without hello", plain, abi.ReqStopRing, put(0, 0), 0, unix.EOPNOTSUPP},
		{"write to the configuration", plain, abi.ReqSetConfig, put(0, 0, 0), 0, unix.EOPNOTSUPP},
		{"unknown region", plain, abi.ReqRemMemReg, make([]byte, abi.VUMemRegSize), 0, unix.ENOENT},
		{"unknown region with descriptor", plain, abi.ReqRemMemReg, make([]byte, abi.VUMemRegSize), 1, unix.ENOENT},
		{"table under a doorbell", weft, abi.ReqSetMemTable, put(0, 0), 0, unix.EBUSY},
		{"stop of a ring that rests", weft, abi.ReqStopRing, put(5, 0), 0, unix.ENOENT},
		{"size of a running ring", running, abi.ReqSetVringNum, put(2, 8), 0, unix.EBUSY},
		{"base of a running ring", running, abi.ReqSetVringBase, put(2, 8), 0, unix.EBUSY},
		{"kick of a private ring", running, abi.ReqSetVringKick, vhosttest.U64(2), 1, unix.EBUSY},
		{"running ring again", running, abi.ReqSetRing, abi.SetRing{Index: 2, Num: 4}.Append(nil), 0, unix.EBUSY},
		{"move of a ring that rests", weft, abi.ReqSetRing, abi.SetRing{Index: 5, Num: 4,
			Flags: abi.RingMove}.Append(nil), 0, unix.ENOENT},
		{"move of a ring with a notification", running, abi.ReqSetRing, abi.SetRing{Index: 2, Num: 4,
			Flags: abi.RingMove}.Append(nil), 0, unix.EBUSY},
		{"features of a running device", running, abi.ReqSetFeatures, vhosttest.U64(1 << 32), 0, unix.EBUSY},
		{"an eventfd as process memory", weft, abi.ReqProcMem, abi.ProcMem{}.Append(nil), 1, unix.EPERM},
	} {
		t.Run(tc.name, func(t *testing.T) {
			socket := newSocket(t)
			f, _ := socket.enter(t, tc.at)
			var fds []int
			for range tc.fds {
				fds = append(fds, vhosttest.Eventfd(t))
			}
			before := descriptors(t)
			if err := f.Do(tc.request, tc.payload, fds...); err != tc.want {
				t.Errorf("%v, want %v", err, tc.want)
			}
			if n := descriptors(t); n != before {
				t.Errorf("%d descriptors before, %d after", before, n)
			}
			if _, err := f.GetU64(abi.ReqGetFeatures); err != nil {
				t.Errorf("session did not survive: %v", err)
			}
			// Without need_reply there is no reply.
			if err := f.Send(tc.request, abi.VUVersion, tc.payload, fds...); err != nil {
				t.Fatal(err)
			}
			if err := socket.settled(t); !errors.Is(err, vhost.Refused) && !errors.Is(err, vhost.BadRequest) {
				t.Errorf("ended: %v", err)
			}
		})
	}
}

// TestTruncation ends the connection within a message, after every byte.
func TestTruncation(t *testing.T) {
	socket := newSocket(t)
	whole := append(abi.VUHeader{Request: abi.ReqSetFeatures, Flags: 1, Size: 8}.Append(nil), make([]byte, 8)...)
	for n := range len(whole) {
		f, _ := socket.enter(t, fresh)
		if _, err := f.Conn.Write(whole[:n]); err != nil {
			t.Fatal(err)
		}
		f.Close()
		want := vhost.Truncated
		if n == 0 {
			want = vhost.Gone
		}
		if err := socket.settled(t); !errors.Is(err, want) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

// TestSlowSender delivers a message byte by byte, its descriptor with the
// first.
func TestSlowSender(t *testing.T) {
	socket := newSocket(t)
	f, d := socket.enter(t, plain)
	m := virtiotest.NewMemory(t, 1<<16)
	b := append(abi.VUHeader{Request: abi.ReqAddMemReg, Flags: 9, Size: abi.VUMemRegSize}.Append(nil),
		abi.VUMemReg{GPA: 1 << 50, Size: 1 << 16, UserAddr: 1 << 50}.Append(nil)...)
	if _, _, err := f.Conn.WriteMsgUnix(b[:1], unix.UnixRights(m.FD), nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range b[1:] {
		if _, err := f.Conn.Write([]byte{c}); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := f.Recv(abi.ReqAddMemReg); err != nil || !bytes.Equal(p, make([]byte, 8)) {
		t.Errorf("% x, %v", p, err)
	}
	_ = d
	if dev := <-socket.made; !dev.s.Mem().Contains(1<<50, 1<<16) {
		t.Error("region not there")
	}
}

// TestEmptyRights: some front-ends attach an empty control message.
func TestEmptyRights(t *testing.T) {
	socket := newSocket(t)
	f, _ := socket.enter(t, fresh)
	b := abi.VUHeader{Request: abi.ReqGetFeatures, Flags: 1}.Append(nil)
	if _, _, err := f.Conn.WriteMsgUnix(b, unix.UnixRights(), nil); err != nil {
		t.Fatal(err)
	}
	if p, err := f.Recv(abi.ReqGetFeatures); err != nil || len(p) != 8 {
		t.Errorf("% x, %v", p, err)
	}
}

func TestConfigSpace(t *testing.T) {
	socket := newSocket(t)
	f, _ := socket.enter(t, fresh)
	want := append(abi.Config{MaxVirtqueuePairs: 1, MTU: 1500, MaxRDMAQPs: fakeQPs, MaxRDMACQs: fakeCQs}.Append(nil),
		make([]byte, 256-abi.ConfigSize)...)
	for _, r := range [][2]uint32{{0, 32}, {24, 8}, {0, 256}, {255, 1}, {256, 0}, {31, 2}} {
		p, err := f.Get(abi.ReqGetConfig, append(put(r[0], r[1], 0), make([]byte, r[1])...))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(append(put(r[0], r[1], 0), want[r[0]:][:r[1]]...), p); d != "" {
			t.Errorf("%v (-want +got):\n%s", r, d)
		}
	}
	for _, r := range [][2]uint32{{0, 257}, {256, 1}, {0xffffffff, 2}} {
		if p, err := f.Get(abi.ReqGetConfig, append(put(r[0], r[1], 0), make([]byte, r[1])...)); err != nil ||
			len(p) != 0 {
			t.Errorf("%v: % x, %v", r, p, err)
		}
	}
}

func TestFeaturesOK(t *testing.T) {
	const v1, roce, ctrl = 1 << abi.FeatureVersion1, 1 << abi.FeatureRoCE, 1 << abi.FeatureCtrlVQ
	for f, want := range map[uint64]uint64{v1: 0x0b, v1 | roce | ctrl: 0x0b, v1 | roce: 0x03, roce | ctrl: 0x03,
		0: 0x03} {
		socket := newSocket(t)
		c, _ := socket.enter(t, fresh)
		for range 2 { // front-ends repeat it
			if err := c.Do(abi.ReqSetFeatures, vhosttest.U64(f)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Do(abi.ReqSetStatus, vhosttest.U64(0x0b)); err != nil {
			t.Fatal(err)
		}
		if st, err := c.GetU64(abi.ReqGetStatus); st != want || err != nil {
			t.Errorf("features %#x: status %#x, %v", f, st, err)
		}
	}
}

// TestStandardRing follows a ring through a front-end's life.
func TestStandardRing(t *testing.T) {
	socket := newSocket(t)
	d := vhosttest.NewDriver(t, socket.path, vhosttest.Options{Plain: true})
	dev := <-socket.made
	pd := func() {
		t.Helper()
		if _, err := d.CreatePD(); err != nil {
			t.Fatal(err)
		}
	}
	pd()
	kick, call := vhosttest.Eventfd(t), vhosttest.Eventfd(t)
	if err := d.Do(abi.ReqSetVringKick, vhosttest.U64(2), kick); err != nil {
		t.Fatal(err)
	}
	if err := d.Do(abi.ReqSetVringErr, vhosttest.U64(2), call); err != nil {
		t.Fatal(err)
	}
	d.ReplaceControlKick(kick)
	pd()
	if err := d.Do(abi.ReqSetVringEnable, put(2, 0)); err != nil {
		t.Fatal(err)
	}
	if err := d.Do(abi.ReqSetVringEnable, put(2, 1)); err != nil {
		t.Fatal(err)
	}
	pd()
	// A status of zero keeps the index that the stop returns.
	if err := d.Do(abi.ReqSetStatus, vhosttest.U64(0)); err != nil {
		t.Fatal(err)
	}
	if p, err := d.Get(abi.ReqGetVringBase, put(2, 0)); err != nil || !bytes.Equal(p, put(2, 4)) {
		t.Errorf("base % x, %v", p, err)
	}
	// It continues where it stopped.
	if err := d.Do(abi.ReqSetVringKick, vhosttest.U64(2), kick); err != nil {
		t.Fatal(err)
	}
	pd()
	if err := d.Do(abi.ReqResetDevice, nil); err != nil {
		t.Fatal(err)
	}
	if p, err := d.Get(abi.ReqGetVringBase, put(2, 0)); err != nil || !bytes.Equal(p, put(2, 0)) {
		t.Errorf("base after reset % x, %v", p, err)
	}
	d.Close()
	socket.settled(t)
	got := slices.DeleteFunc(dev.log(), func(s string) bool { return strings.HasPrefix(s, "features") })
	want := []string{"status 0x1", "status 0x3", "status 0xb", "set ring 2", "change ring 2", "status 0xf",
		"change ring 2", "change ring 2", "change ring 2", "change ring 2", "status 0x0", "stop ring 2", "set ring 2", "stop ring 2", "reset", "retire"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestMemoryOfRunningRing: a running ring is stopped when its memory is removed, and the front-end notified.
func TestMemoryOfRunningRing(t *testing.T) {
	socket := newSocket(t)
	d := vhosttest.NewDriver(t, socket.path, vhosttest.Options{Plain: true})
	dev := <-socket.made
	errFD := vhosttest.Eventfd(t)
	if err := d.Do(abi.ReqSetVringErr, vhosttest.U64(2), errFD); err != nil {
		t.Fatal(err)
	}
	m := abi.VUMemReg{GPA: d.Mem.Base, Size: uint64(len(d.Mem.Bytes)), UserAddr: d.Mem.Base}
	if err := d.Do(abi.ReqRemMemReg, m.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if log := dev.log(); log[len(log)-2] != "stop ring 2" || log[len(log)-1] != "retire" {
		t.Errorf("calls %v", log)
	}
	var b [8]byte
	if n, err := unix.Read(errFD, b[:]); n != 8 {
		t.Errorf("error descriptor: %d %v", n, err)
	}
	if st, err := d.GetU64(abi.ReqGetStatus); err != nil || st&abi.StatusNeedsReset == 0 {
		t.Errorf("status %#x, %v", st, err)
	}
	// A program's doorbell cannot be taken away.
	w := vhosttest.NewDriver(t, socket.path, vhosttest.Options{NoRings: true})
	m = abi.VUMemReg{GPA: w.Mem.Base, Size: uint64(len(w.Mem.Bytes)), UserAddr: w.Mem.Base}
	if err := w.Do(abi.ReqRemMemReg, m.Append(nil)); err != unix.EBUSY {
		t.Errorf("doorbell's memory: %v", err)
	}
}

// TestSetMemTable uses the old message for the whole table.
func TestSetMemTable(t *testing.T) {
	socket := newSocket(t)
	f, _ := socket.enter(t, fresh)
	a, b := virtiotest.NewMemory(t, 1<<16), virtiotest.NewMemory(t, 1<<16)
	one := func(m *virtiotest.Memory, gpa uint64) []byte {
		return abi.VUMemReg{GPA: gpa, Size: 1 << 16, UserAddr: m.Base}.Append(nil)[8:]
	}
	for range 2 { // a repetition changes nothing
		p := append(append(put(2, 0), one(a, 0)...), one(b, 1<<20)...)
		if err := f.Do(abi.ReqSetMemTable, p, a.FD, b.FD); err != nil {
			t.Fatal(err)
		}
	}
	dev := <-socket.made
	if !dev.s.Mem().Contains(0, 1<<16) || !dev.s.Mem().Contains(1<<20, 1<<16) || !dev.s.Mem().Sealed() {
		t.Error("table not there")
	}
	if err := f.Do(abi.ReqSetMemTable, append(put(1, 0), one(b, 1<<20)...), b.FD); err != nil {
		t.Fatal(err)
	}
	if dev.s.Mem().Contains(0, 1) || !dev.s.Mem().Contains(1<<20, 1<<16) {
		t.Error("table not replaced")
	}
	if diff := cmp.Diff([]string{"retire"}, dev.log()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if n, err := f.GetU64(abi.ReqGetMaxMemSlots); n != abi.MaxMemRegions || err != nil {
		t.Errorf("%d slots, %v", n, err)
	}
	if n, err := f.GetU64(abi.ReqGetQueueNum); n != 1 || err != nil {
		t.Errorf("%d queues, %v", n, err)
	}
}

func TestDeviceRefusal(t *testing.T) {
	socket := newSocket(t)
	d := vhosttest.NewDriver(t, socket.path, vhosttest.Options{})
	dev := <-socket.made
	dev.locked(func() { dev.refuse = fmt.Errorf("no lane: %w", unix.ENOMEM) })
	before := descriptors(t)
	r := virtiotest.NewRing(d.Mem, 4, false)
	m := abi.SetRing{Index: 3, Num: 4, Desc: r.Desc, Avail: r.Avail, Used: r.Used, Flags: 1}
	if err := d.Do(abi.ReqSetRing, m.Append(nil), d.Mem.FD); !vhosttest.Closed(err) {
		t.Errorf("a memfd as call descriptor: %v", err)
	}
	if err := socket.settled(t); !errors.Is(err, vhost.BadKind) {
		t.Errorf("ended: %v", err)
	}
	_ = before
	d = vhosttest.NewDriver(t, socket.path, vhosttest.Options{})
	dev = <-socket.made
	dev.locked(func() { dev.refuse = fmt.Errorf("no lane: %w", unix.ENOMEM) })
	r = virtiotest.NewRing(d.Mem, 4, false)
	m = abi.SetRing{Index: 3, Num: 4, Desc: r.Desc, Avail: r.Avail, Used: r.Used, Flags: 1}
	call := vhosttest.Eventfd(t)
	before = descriptors(t)
	for range 10 {
		if err := d.Do(abi.ReqSetRing, m.Append(nil), call); err != unix.ENOMEM {
			t.Errorf("%v", err)
		}
	}
	if n := descriptors(t); n != before {
		t.Errorf("%d descriptors before, %d after", before, n)
	}
}

// TestFail: the device ends a session.
func TestFail(t *testing.T) {
	socket := newSocket(t)
	d := vhosttest.NewDriver(t, socket.path, vhosttest.Options{})
	dev := <-socket.made
	if p := dev.s.Peer(); p.Pid != int32(os.Getpid()) || p.Uid != uint32(os.Getuid()) {
		t.Errorf("peer %+v", p)
	}
	dev.s.Fail(vhost.BrokenRing, virtio.FaultHead)
	err := socket.settled(t)
	if !errors.Is(err, vhost.BrokenRing) || !errors.Is(err, virtio.FaultHead) {
		t.Errorf("ended: %v", err)
	}
	if _, err := d.GetU64(abi.ReqGetFeatures); !vhosttest.Closed(err) {
		t.Errorf("front-end sees %v", err)
	}
}

// TestReconnects: what a session had is gone with it, however it ends.
func TestReconnects(t *testing.T) {
	socket := newSocket(t)
	visit := func(i int) {
		f, err := vhosttest.Dial(socket.path)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		socket.settled(t)
		t.Run("", func(t *testing.T) { // its clean-up closes the driver's own descriptors
			d := vhosttest.NewDriver(t, socket.path, vhosttest.Options{Plain: i%2 == 0, ProcMem: i%2 == 1,
				MemSize: 1 << 20})
			if _, err := d.CreatePD(); err != nil {
				t.Fatal(err)
			}
		})
		socket.settled(t)
	}
	for i := range 4 {
		visit(i)
	}
	before, maps := descriptors(t), mappings(t)
	for i := range 50 {
		visit(i)
	}
	if n := descriptors(t); n != before {
		t.Errorf("%d descriptors before, %d after", before, n)
	}
	if n := mappings(t); n != maps {
		t.Errorf("%d memfd mappings before, %d after", maps, n)
	}
}

func mappings(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "memfd:virtiotest")
}

func TestServerClose(t *testing.T) {
	socket := newSocket(t)
	for range 3 {
		vhosttest.NewDriver(t, socket.path, vhosttest.Options{MemSize: 1 << 20})
	}
	if n := socket.Sessions(); n != 3 {
		t.Errorf("%d sessions", n)
	}
	if err := socket.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := socket.settled(t); !errors.Is(err, vhost.Shutdown) {
			t.Errorf("ended: %v", err)
		}
	}
	if _, err := vhosttest.Dial(socket.path); err == nil {
		t.Error("still listening")
	}
}

// TestPipeCall: a pipe as call descriptor carries the value, and loses none.
func TestPipeCall(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	socket := newSocket(t)
	d := vhosttest.NewDriver(t, socket.path, vhosttest.Options{})
	dev := <-socket.made
	r := virtiotest.NewRing(d.Mem, 4, false)
	m := abi.SetRing{Index: 3, Num: 4, Desc: r.Desc, Avail: r.Avail, Used: r.Used, Flags: 1, CallValue: 5<<32 | 3}
	if err := d.Do(abi.ReqSetRing, m.Append(nil), p[1]); err != nil {
		t.Fatal(err)
	}
	unix.Close(p[1])
	var call *vhost.Call
	dev.locked(func() { call = dev.rings[3].Call })
	sent := 0
	for call.Write() == vhost.Sent {
		sent++
	}
	if out := call.Write(); out != vhost.Again || sent == 0 {
		t.Errorf("%d notifications, then %v", sent, out)
	}
	var b [8]byte
	if n, err := unix.Read(p[0], b[:]); n != 8 || err != nil || !bytes.Equal(b[:], put(3, 5)) {
		t.Errorf("read % x, %v", b[:n], err)
	}
	for range sent - 1 {
		unix.Read(p[0], b[:])
	}
	if out := call.Write(); out != vhost.Sent {
		t.Errorf("with room again: %v", out)
	}
	unix.Close(p[0])
	if out := call.Write(); out != vhost.Lost {
		t.Errorf("without a reader: %v", out)
	}
}

// TestMessageVectors decodes and encodes the published messages.
func TestMessageVectors(t *testing.T) {
	raw, err := os.ReadFile("../../../test/vectors/virtio-roce.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Vectors []json.RawMessage }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	payloads := map[string][]byte{
		"vu-vring-addr": abi.VUVringAddr{Index: 0xc2, Desc: 0x7f0000100000, Used: 0x7f0000102240,
			Avail: 0x7f0000101000, Log: 0x5982240}.Append(nil),
		"vu-add-mem": abi.VUMemReg{GPA: 0xc0000, Size: 0xff40000, UserAddr: 0x7ff07f0c0000,
			MmapOffset: 0xc0000}.Append(nil),
		"vu-base-packed": abi.VUVringState{Index: 1, Num: 0x80008000}.Append(nil),
		"vu-call-nofd":   vhosttest.U64(0x105),
		"vu-ack":         vhosttest.U64(0),
	}
	found := 0
	for _, r := range file.Vectors {
		var v struct {
			ID, Kind, Hex        string
			Request, Flags, Size json.RawMessage
		}
		if err := json.Unmarshal(r, &v); err != nil {
			t.Fatal(err)
		}
		if v.Kind != "vhost-user" {
			continue
		}
		found++
		var h abi.VUHeader
		for raw, dst := range map[*json.RawMessage]*uint32{&v.Request: &h.Request, &v.Flags: &h.Flags,
			&v.Size: &h.Size} {
			if err := json.Unmarshal(*raw, dst); err != nil {
				t.Fatal(err)
			}
		}
		want, err := hex.DecodeString(v.Hex)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, append(h.Append(nil), payloads[v.ID]...)); d != "" {
			t.Errorf("%s (-want +got):\n%s", v.ID, d)
		}
	}
	if found != len(payloads) {
		t.Errorf("%d vectors", found)
	}
}
