// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
)

// Options select how a Driver uses the device socket. The zero value is that of a program: the private
// requests, one doorbell, every extension.
type Options struct {
	Plain    bool // as the RFC has it: standard messages, an eventfd per ring, no extension
	MemSize  int  // announced memory; 0 is 16 MiB
	RingNum  int  // entries of every ring; 0 is 64
	NoRings  bool // stop after the memory is announced
	Features uint64
	ProcMem  bool // hand over the memory of this process
}

// Driver is a driver of one device. Its methods may be used by one goroutine.
type Driver struct {
	*Front
	Mem    *virtiotest.Memory
	Config abi.Config
	Caps   uint64 // extension bits enabled
	Attr   abi.QueryDeviceResult
	Opt    Options

	// Kicks counts the notifications of the device, each of which makes a guest exit.
	Kicks uint64

	bell *virtiotest.Doorbell
	kick int // eventfd
	ctrl *ring
	buf  virtiotest.Buf // of control commands
	ans  virtiotest.Buf
}

// ring is a ring with its descriptors.
type ring struct {
	*virtiotest.Ring
	index      int
	kick, call int // -1: none
}

// Limit bounds every wait for the device.
const Limit = time.Minute

// NewDriver connects to the socket at path, negotiates, announces memory and
// starts the control queue. The test fails if any of it does; everything is
// released at its end.
func NewDriver(t testing.TB, path string, o Options) *Driver {
	t.Helper()
	d, err := Connect(t, path, o)
	if err != nil {
		t.Fatalf("connect to %s: %v", path, err)
	}
	return d
}

// Connect is NewDriver for tests that expect a refusal.
func Connect(t testing.TB, path string, o Options) (*Driver, error) {
	if o.MemSize == 0 {
		o.MemSize = 16 << 20
	}
	if o.RingNum == 0 {
		o.RingNum = 64
	}
	f, err := Dial(path)
	if err != nil {
		return nil, err
	}
	t.Cleanup(f.Close)
	d := &Driver{Front: f, Mem: virtiotest.NewMemory(t, o.MemSize), Opt: o, kick: -1}
	if err := d.negotiate(); err != nil {
		return nil, err
	}
	if err := d.announce(t); err != nil || o.NoRings {
		return d, err
	}
	if d.ctrl, err = d.startRing(t, d.Rings().Control(), 1, true); err != nil {
		return nil, err
	}
	d.buf = virtiotest.Buf{GPA: d.Mem.Alloc(abi.MaxCtrlCmd, 8), Len: abi.MaxCtrlCmd}
	d.ans = virtiotest.Buf{GPA: d.Mem.Alloc(256, 8), Len: 256}
	if err := d.Do(abi.ReqSetStatus, U64(0x0f)); err != nil {
		return nil, err
	}
	return d, d.enable()
}

// negotiate does the handshake up to FEATURES_OK.
func (d *Driver) negotiate() error {
	proto := uint64(1<<abi.ProtoReplyAck | 1<<abi.ProtoConfig | 1<<abi.ProtoConfigureMemSlots | 1<<abi.ProtoStatus)
	if !d.Opt.Plain {
		p, err := d.Get(abi.ReqHello, abi.Hello{ABI: abi.Version, PID: uint32(os.Getpid())}.Append(nil))
		if err != nil {
			return err
		}
		h, err := abi.ParseHelloReply(p)
		if err != nil {
			return err
		}
		if h.ABI != abi.Version {
			return fmt.Errorf("the node speaks version %d", h.ABI)
		}
		proto |= 1 << abi.ProtoWeft
	}
	offered, err := d.GetU64(abi.ReqGetFeatures)
	if err != nil {
		return err
	}
	const need = 1<<abi.FeatureProtocol | 1<<abi.FeatureVersion1 | 1<<abi.FeatureRoCE | 1<<abi.FeatureCtrlVQ
	want := need | d.Opt.Features
	if want&^offered != 0 {
		return fmt.Errorf("features %#x offered, %#x needed", offered, want)
	}
	has, err := d.GetU64(abi.ReqGetProtocolFeatures)
	if err != nil {
		return err
	}
	if proto&^has != 0 {
		return fmt.Errorf("protocol features %#x offered, %#x needed", has, proto)
	}
	for _, m := range []struct {
		request uint32
		payload []byte
	}{{abi.ReqSetProtocolFeatures, U64(proto)}, {abi.ReqSetOwner, nil}, {abi.ReqSetStatus, U64(1)}, {abi.ReqSetStatus,
		U64(3)}} {
		if err := d.Do(m.request, m.payload); err != nil {
			return fmt.Errorf("request %d: %w", m.request, err)
		}
	}
	p, err := d.Get(abi.ReqGetConfig, append(abi.VUConfig{Size: abi.ConfigSize}.Append(nil),
		make([]byte, abi.ConfigSize)...))
	if err != nil {
		return err
	}
	if len(p) != abi.VUConfigSize+abi.ConfigSize {
		return fmt.Errorf("configuration space of %d bytes", len(p))
	}
	if d.Config, err = abi.ParseConfig(p[abi.VUConfigSize:]); err != nil {
		return err
	}
	if err := d.Do(abi.ReqSetFeatures, U64(want)); err != nil {
		return err
	}
	if err := d.Do(abi.ReqSetStatus, U64(0x0b)); err != nil {
		return err
	}
	st, err := d.GetU64(abi.ReqGetStatus)
	if err == nil && st&abi.StatusFeaturesOK == 0 {
		err = fmt.Errorf("status %#x without FEATURES_OK", st)
	}
	return err
}

// Rings numbers the device's rings; there is one Ethernet pair.
func (d *Driver) Rings() abi.Rings {
	return abi.Rings{Pairs: 1, CQs: int(d.Config.MaxRDMACQs), QPs: int(d.Config.MaxRDMAQPs)}
}

// announce gives the device memory, doorbell and the process.
func (d *Driver) announce(t testing.TB) error {
	m := abi.VUMemReg{GPA: d.Mem.Base, Size: uint64(len(d.Mem.Bytes)), UserAddr: d.Mem.Base}
	if err := d.Do(abi.ReqAddMemReg, m.Append(nil), d.Mem.FD); err != nil {
		return fmt.Errorf("add memory: %w", err)
	}
	if d.Opt.Plain {
		return nil
	}
	d.bell = virtiotest.NewDoorbell(d.Mem, uint32(d.Rings().Total()))
	d.kick = Eventfd(t)
	if err := d.Do(abi.ReqSetDoorbell, abi.SetDoorbell{GPA: d.bell.GPA, NBits: d.bell.NBits}.Append(nil),
		d.kick); err != nil {
		return fmt.Errorf("set doorbell: %w", err)
	}
	if !d.Opt.ProcMem {
		return nil
	}
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	probe := d.Mem.Alloc(8, 8)
	binary.LittleEndian.PutUint64(d.Mem.At(probe, 8), 0x77656674)
	return d.Do(abi.ReqProcMem, abi.ProcMem{ProbeAddr: probe, ProbeValue: 0x77656674}.Append(nil), int(f.Fd()))
}

// Eventfd returns a non-blocking eventfd that lives until the test's end.
func Eventfd(t testing.TB) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// enable negotiates every extension of the device.
func (d *Driver) enable() error {
	var err error
	if d.Attr, err = call(d, abi.CmdQueryDevice, nil, abi.QueryDeviceResultSize,
		abi.ParseQueryDeviceResult); err != nil || d.Opt.Plain {
		return err
	}
	mask := d.Attr.DeviceCapFlags &^ (1<<40 - 1)
	r, err := call(d, abi.CmdExtEnable, abi.ExtEnable{Mask: mask}.Append(nil), abi.ExtEnableSize, abi.ParseExtEnable)
	d.Caps = r.Mask
	return err
}

// startRing makes and starts a ring of the options' size.
func (d *Driver) startRing(t testing.TB, index int, callValue uint64, withCall bool) (*ring, error) {
	r := &ring{Ring: virtiotest.NewRing(d.Mem, d.Opt.RingNum, d.Opt.Features&(1<<abi.FeatureEventIdx) != 0),
		index: index, kick: -1, call: -1}
	if withCall {
		r.call = Eventfd(t)
	}
	return r, d.attach(t, r, callValue)
}

// attach announces a ring that has been made.
func (d *Driver) attach(t testing.TB, r *ring, callValue uint64) error {
	return d.attachAt(t, r, 0, callValue)
}

// attachAt is attach for a ring that goes on from a base.
func (d *Driver) attachAt(t testing.TB, r *ring, base uint32, callValue uint64) error {
	if !d.Opt.Plain {
		m := abi.SetRing{Index: uint32(r.index), Num: uint32(r.Num), Desc: r.Desc, Avail: r.Avail, Used: r.Used,
			CallValue: callValue}
		var fds []int
		if r.call >= 0 {
			m.Flags, fds = abi.RingCall, []int{r.call}
		}
		return d.Do(abi.ReqSetRing, m.Append(nil), fds...)
	}
	if r.kick < 0 {
		r.kick = Eventfd(t)
	}
	i := uint32(r.index)
	type msg struct {
		request uint32
		payload []byte
		fds     []int
	}
	list := []msg{
		{abi.ReqSetVringNum, abi.VUVringState{Index: i, Num: uint32(r.Num)}.Append(nil), nil},
		{abi.ReqSetVringBase, abi.VUVringState{Index: i, Num: base}.Append(nil), nil},
		{abi.ReqSetVringAddr, abi.VUVringAddr{Index: i, Desc: r.Desc, Used: r.Used, Avail: r.Avail}.Append(nil), nil},
	}
	if r.call >= 0 {
		list = append(list, msg{abi.ReqSetVringCall, U64(uint64(i)), []int{r.call}})
	}
	list = append(list, msg{abi.ReqSetVringKick, U64(uint64(i)), []int{r.kick}},
		msg{abi.ReqSetVringEnable, abi.VUVringState{Index: i, Num: 1}.Append(nil), nil})
	for _, m := range list {
		if err := d.Do(m.request, m.payload, m.fds...); err != nil {
			return fmt.Errorf("ring %d, request %d: %w", i, m.request, err)
		}
	}
	return nil
}

// ReplaceControlKick makes the driver kick the control queue through fd, after
// a test replaced the descriptor.
func (d *Driver) ReplaceControlKick(fd int) { d.ctrl.kick = fd }

// detach stops a ring.
func (d *Driver) detach(r *ring) error {
	if !d.Opt.Plain {
		return d.Do(abi.ReqStopRing, abi.StopRing{Index: uint32(r.index)}.Append(nil))
	}
	_, err := d.Get(abi.ReqGetVringBase, abi.VUVringState{Index: uint32(r.index)}.Append(nil))
	return err
}

// ringBell sets the bell of r.
func (d *Driver) ringBell(r *ring) {
	fd := r.kick
	if d.bell != nil {
		if !d.bell.Ring(uint32(r.index)) {
			return
		}
		fd = d.kick
	} else if !r.NeedsKick() {
		return
	}
	d.Kicks++
	unix.Write(fd, binary.NativeEndian.AppendUint64(nil, 1))
}

// awaitFD waits until fd is readable and empties it.
func awaitFD(fd int, limit time.Duration) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(limit); ; {
		n, err := unix.Poll(p, int(max(0, time.Until(end).Milliseconds())))
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return false
		}
		var b [8]byte
		unix.Read(fd, b[:])
		return true
	}
}

// Ack is the failure of a control command: the ack byte.
type Ack uint8

func (a Ack) Error() string {
	return fmt.Sprintf("command failed: ack %d (%v)", uint8(a), unix.Errno(a))
}

// Is lets errors.Is compare an Ack with a unix.Errno.
func (a Ack) Is(err error) bool { return err == unix.Errno(a) }

// Control executes one control command of the RoCE class. room is the space offered for the result. It
// returns the bytes that the device reports as written.
func (d *Driver) Control(c abi.Cmd, request []byte, room int) ([]byte, error) {
	return d.ControlClass(abi.ClassRoCE, c, request, room)
}

// ControlClass is Control of any class.
func (d *Driver) ControlClass(class uint8, c abi.Cmd, request []byte, room int) ([]byte, error) {
	head := abi.CtrlHeader{Cls: class, Command: c}.Append(nil)
	if n := len(head) + len(request); n > d.buf.Len {
		d.buf = virtiotest.Buf{GPA: d.Mem.Alloc(n, 8), Len: n}
	}
	if n := 1 + room; n > d.ans.Len {
		d.ans = virtiotest.Buf{GPA: d.Mem.Alloc(n, 8), Len: n}
	}
	in := d.Mem.At(d.buf.GPA, d.buf.Len)
	copy(in[copy(in, head):], request)
	out := d.Mem.At(d.ans.GPA, d.ans.Len)
	for i := range out {
		out[i] = 0xa5
	}
	r := d.ctrl
	r.Add([]virtiotest.Buf{{GPA: d.buf.GPA, Len: 2}, {GPA: d.buf.GPA + 2, Len: len(request)}},
		[]virtiotest.Buf{{GPA: d.ans.GPA, Len: 1}, {GPA: d.ans.GPA + 1, Len: room}})
	if r.EventIdx {
		r.SetUsedEvent(r.UsedIdx()) // a notification of the answer
	}
	r.Publish()
	d.ringBell(r)
	for {
		_, n, ok := r.Reap()
		if !ok {
			if !awaitFD(r.call, Limit) {
				return nil, fmt.Errorf("%v: no answer", c)
			}
			continue
		}
		if n == 0 || int(n) > 1+room {
			return nil, fmt.Errorf("%v: answer of %d bytes", c, n)
		}
		if out[0] != abi.AckOK {
			return nil, Ack(out[0])
		}
		return append([]byte(nil), out[1:n]...), nil
	}
}

// call executes a command and parses its result.
func call[T any](d *Driver, c abi.Cmd, request []byte, room int, parse func([]byte) (T, error)) (T, error) {
	var zero T
	b, err := d.Control(c, request, room)
	if err != nil {
		return zero, err
	}
	if len(b) < room {
		return zero, fmt.Errorf("%v: result of %d bytes, want %d", c, len(b), room)
	}
	return parse(b[:room])
}

// Call executes a command and parses its result of the given size.
func Call[T any](d *Driver, c abi.Cmd, request []byte, size int, parse func([]byte) (T, error)) (T, error) {
	return call(d, c, request, size, parse)
}
