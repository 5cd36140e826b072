// SPDX-License-Identifier: Apache-2.0

package ethdevtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/device/vhost/vhosttest"
	"weft/internal/device/virtio"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ether"
)

// Options describe a guest.
type Options struct {
	Features uint64 // beyond VERSION_1
	Pairs    int    // queue pairs; 0 is 1
	Control  bool   // a control queue, handed to the device
	Num      int    // entries of every ring; 0 is 64
	BufLen   int    // of a receive buffer; 0 is 2048
	MemSize  int    // 0 is 16 MiB
	NoFill   bool   // post no receive buffers
	Base     uint64 // where its memory begins; 0: somewhere
}

// HeaderLen is the length of a virtio_net_hdr.
const HeaderLen = 12

// Guest is a driver of an Ethernet device behind a vhost-user front-end. One
// goroutine uses it.
type Guest struct {
	*vhosttest.Front
	Mem *virtiotest.Memory
	Opt Options
	RX  []*Queue
	TX  []*Queue
	CVQ *Queue
}

// Queue is one ring of a guest.
type Queue struct {
	config   virtio.Config
	elements virtiotest.Elements
	calls    virtiotest.Calls

	Index           int
	Kick, Call, Err int            // eventfds
	Area            virtiotest.Buf // where the receive buffers lie

	g    *Guest
	bufs map[uint16]virtiotest.Buf
	free []virtiotest.Buf
}

// NewGuest connects to the socket at path and starts every ring.
func NewGuest(t testing.TB, path string, o Options) (*Guest, error) {
	f, err := vhosttest.Dial(path)
	if err != nil {
		return nil, err
	}
	t.Cleanup(f.Close)
	return Begin(t, f, o)
}

// Begin is NewGuest over a connection that there is.
func Begin(t testing.TB, f *vhosttest.Front, o Options) (*Guest, error) {
	if o.Pairs == 0 {
		o.Pairs = 1
	}
	if o.Num == 0 {
		o.Num = 64
	}
	if o.BufLen == 0 {
		o.BufLen = 2048
	}
	if o.MemSize == 0 {
		o.MemSize = 16 << 20
	}
	g := &Guest{Front: f, Mem: virtiotest.NewMemory(t, o.MemSize)}
	if o.Base != 0 {
		g.Mem.Base = o.Base
	}
	o.Features |= 1<<abi.FeatureVersion1 | 1<<abi.FeatureProtocol
	if o.Control {
		o.Features |= 1 << abi.FeatureCtrlVQ
	}
	g.Opt = o
	if err := g.negotiate(); err != nil {
		return nil, err
	}
	for i := range 2 * o.Pairs {
		q := g.queue(t, i)
		if i%2 == 0 {
			g.RX = append(g.RX, q)
			if !o.NoFill {
				q.Area = virtiotest.Buf{GPA: g.Mem.Alloc(o.BufLen*o.Num, 4096), Len: o.BufLen * o.Num}
				for k := range o.Num {
					q.free = append(q.free, virtiotest.Buf{GPA: q.Area.GPA + uint64(k*o.BufLen), Len: o.BufLen})
				}
				q.Fill()
			}
		} else {
			g.TX = append(g.TX, q)
		}
		if err := q.Start(); err != nil {
			return nil, err
		}
	}
	if o.Control {
		i := 2
		if o.Features&(1<<abi.FeatureMQ) != 0 {
			p, err := f.GetU64(abi.ReqGetQueueNum)
			if err != nil {
				return nil, err
			}
			i = 2 * int(p)
		}
		g.CVQ = g.queue(t, i)
		if err := g.CVQ.Start(); err != nil {
			return nil, err
		}
	}
	return g, f.Do(abi.ReqSetStatus, vhosttest.U64(0x0f))
}

// negotiate does everything up to the rings.
func (g *Guest) negotiate() error {
	o := g.Opt
	offered, err := g.GetU64(abi.ReqGetFeatures)
	if err != nil {
		return err
	}
	if o.Features&^offered != 0 {
		return fmt.Errorf("features %#x offered, %#x wanted", offered, o.Features)
	}
	proto, err := g.GetU64(abi.ReqGetProtocolFeatures)
	if err != nil {
		return err
	}
	for _, m := range []struct {
		request uint32
		payload []byte
		fds     []int
	}{
		{abi.ReqSetProtocolFeatures, vhosttest.U64(proto), nil}, {abi.ReqSetOwner, nil, nil},
		{abi.ReqSetStatus, vhosttest.U64(3), nil},
		{abi.ReqSetFeatures, vhosttest.U64(o.Features), nil},
		{abi.ReqSetStatus, vhosttest.U64(0x0b), nil},
		{abi.ReqAddMemReg, abi.VUMemReg{GPA: g.Mem.Base, Size: uint64(len(g.Mem.Bytes)),
			UserAddr: g.Mem.Base}.Append(nil), []int{g.Mem.FD}},
	} {
		if err := g.Do(m.request, m.payload, m.fds...); err != nil {
			return fmt.Errorf("request %d: %w", m.request, err)
		}
	}
	return nil
}

// Continue reconnects to another back-end without state of the previous one, as QEMU does: a split
// ring at its used index, a packed one at its start.
func (g *Guest) Continue(f *vhosttest.Front) error {
	g.Front.Close()
	g.Front = f
	if err := g.negotiate(); err != nil {
		return err
	}
	for _, q := range append(append([]*Queue{}, g.RX...), g.TX...) {
		base := uint32(virtio.Start) | uint32(virtio.Start)<<16
		if r, ok := q.elements.(*virtiotest.Ring); ok {
			base = uint32(r.UsedIdx())
		}
		if err := q.Resume(base); err != nil {
			return err
		}
	}
	return g.Do(abi.ReqSetStatus, vhosttest.U64(0x0f))
}

func (g *Guest) queue(t testing.TB, index int) *Queue {
	q := &Queue{Index: index, g: g, bufs: map[uint16]virtiotest.Buf{},
		Kick: vhosttest.Eventfd(t), Call: vhosttest.Eventfd(t), Err: vhosttest.Eventfd(t)}
	q.allocate(g.Opt.Num)
	return q
}

// allocate gives the ring new memory.
func (q *Queue) allocate(num int) {
	o := &q.g.Opt
	r := virtiotest.NewVring(q.g.Mem, num, o.Features&(1<<abi.FeaturePacked) != 0,
		o.Features&(1<<abi.FeatureEventIdx) != 0)
	q.config, q.elements, q.calls = r.Config, r.Elements, r.Calls
}

// Config returns the configuration of the ring.
func (q *Queue) Config() virtio.Config { return q.config }

// Start announces the ring as it is and enables it.
func (q *Queue) Start() error { return q.Resume(q.config.Base) }

// Resume is Start at a state.
func (q *Queue) Resume(base uint32) error {
	c, i := q.config, uint32(q.Index)
	for _, m := range []struct {
		request uint32
		payload []byte
		fds     []int
	}{
		{abi.ReqSetVringNum, abi.VUVringState{Index: i, Num: c.Num}.Append(nil), nil},
		{abi.ReqSetVringBase, abi.VUVringState{Index: i, Num: base}.Append(nil), nil},
		{abi.ReqSetVringAddr, abi.VUVringAddr{Index: i, Desc: c.Desc, Used: c.Device, Avail: c.Driver}.Append(nil),
			nil},
		{abi.ReqSetVringCall, vhosttest.U64(uint64(i)), []int{q.Call}},
		{abi.ReqSetVringErr, vhosttest.U64(uint64(i)), []int{q.Err}},
		{abi.ReqSetVringKick, vhosttest.U64(uint64(i)), []int{q.Kick}},
		{abi.ReqSetVringEnable, abi.VUVringState{Index: i, Num: 1}.Append(nil), nil},
	} {
		if err := q.g.Do(m.request, m.payload, m.fds...); err != nil {
			return fmt.Errorf("ring %d, request %d: %w", i, m.request, err)
		}
	}
	return nil
}

// Stop stops the ring and returns its state.
func (q *Queue) Stop() (uint32, error) {
	p, err := q.g.Get(abi.ReqGetVringBase, abi.VUVringState{Index: uint32(q.Index)}.Append(nil))
	if err != nil {
		return 0, err
	}
	s, err := abi.ParseVUVringState(p)
	return s.Num, err
}

// Enable turns the ring on or off.
func (q *Queue) Enable(on bool) error {
	v := uint32(0)
	if on {
		v = 1
	}
	return q.g.Do(abi.ReqSetVringEnable, abi.VUVringState{Index: uint32(q.Index), Num: v}.Append(nil))
}

// Resize gives a stopped ring new memory of another size: the driver's reset of
// a virtqueue. Buffers that the device held are free again.
func (q *Queue) Resize(num int) {
	for _, b := range q.bufs {
		q.free = append(q.free, b)
	}
	clear(q.bufs)
	q.allocate(num)
	if q.Index%2 == 0 {
		q.Fill()
	}
}

// Fill posts free receive buffers.
func (q *Queue) Fill() {
	for len(q.free) > 0 && q.elements.Free() > 0 {
		b := q.free[len(q.free)-1]
		q.free = q.free[:len(q.free)-1]
		q.bufs[q.elements.Add(nil, []virtiotest.Buf{b})] = b
	}
	q.offer()
}

// Post posts one receive buffer in the given pieces.
func (q *Queue) Post(pieces ...virtiotest.Buf) {
	q.bufs[q.elements.Add(nil, pieces)] = pieces[0]
	q.offer()
}

func (q *Queue) offer() {
	if q.elements.Offer() {
		unix.Write(q.Kick, binary.NativeEndian.AppendUint64(nil, 1))
	}
}

// Element makes the bytes of a transmitted element.
func Element(frame []byte, o ether.Offload) []byte {
	b := make([]byte, HeaderLen, HeaderLen+len(frame))
	o.Put(b)
	return append(b, frame...)
}

// Send offers frames, each in one descriptor after a header of its own; it waits for
// free descriptors.
func (q *Queue) Send(frames [][]byte, off []ether.Offload) error {
	for i, f := range frames {
		for end := time.Now().Add(vhosttest.Limit); q.elements.Free() < 2; {
			q.offer()
			q.reclaim()
			if q.elements.Free() < 2 {
				if time.Now().After(end) {
					return errors.New("the device does not take frames")
				}
				q.calls.Listen()
				if q.reclaim(); q.elements.Free() < 2 {
					Await(q.Call, time.Until(end))
				}
			}
		}
		b := Element(f, off[i])
		slot := q.slot(len(b))
		copy(q.g.Mem.At(slot.GPA, len(b)), b)
		header := virtiotest.Buf{GPA: slot.GPA, Len: HeaderLen}
		body := virtiotest.Buf{GPA: slot.GPA + HeaderLen, Len: len(f)}
		id := q.elements.Add([]virtiotest.Buf{header, body}, nil)
		q.bufs[id] = slot
	}
	q.offer()
	return nil
}

// Raw offers any element.
func (q *Queue) Raw(read, write []virtiotest.Buf) {
	q.elements.Add(read, write)
	q.offer()
}

// slot returns memory for n octets.
func (q *Queue) slot(n int) virtiotest.Buf {
	for i, b := range q.free {
		if b.Len >= n {
			q.free = append(q.free[:i], q.free[i+1:]...)
			return b
		}
	}
	return virtiotest.Buf{GPA: q.g.Mem.Alloc(n, 64), Len: n}
}

func (q *Queue) reclaim() {
	for {
		id, _, ok := q.elements.Reap()
		if !ok {
			return
		}
		q.free = append(q.free, q.bufs[id])
		delete(q.bufs, id)
	}
}

// held returns how many descriptors the device holds.
func (q *Queue) held() int { return int(q.config.Num) - q.elements.Free() }

// Done waits until the device has used everything.
func (q *Queue) Done() error {
	for end := time.Now().Add(vhosttest.Limit); ; {
		q.reclaim()
		if q.held() == 0 {
			return nil
		}
		q.calls.Listen()
		q.reclaim()
		if q.held() == 0 {
			return nil
		}
		if !Await(q.Call, time.Until(end)) {
			return fmt.Errorf("ring %d: %d descriptors not used", q.Index, q.held())
		}
	}
}

// Reap waits until the device has used an element, and returns how many octets of it were written.
func (q *Queue) Reap() (written uint32, err error) {
	for end := time.Now().Add(vhosttest.Limit); ; {
		if _, n, ok := q.elements.Reap(); ok {
			return n, nil
		}
		q.calls.Listen()
		if _, n, ok := q.elements.Reap(); ok {
			return n, nil
		}
		if !Await(q.Call, time.Until(end)) {
			return 0, fmt.Errorf("ring %d: no element is used", q.Index)
		}
	}
}

// Received is a frame as the guest got it.
type Received struct {
	Frame   []byte
	Off     ether.Offload
	Buffers int
}

// Recv waits for a frame, for at most limit.
func (q *Queue) Recv(limit time.Duration) (Received, error) {
	var r Received
	end := time.Now().Add(limit)
	var b []byte
	for k := 0; k == 0 || k < r.Buffers; k++ {
		id, n, ok := q.elements.Reap()
		for !ok {
			if k > 0 {
				return r, fmt.Errorf("buffer %d of %d is not there", k, r.Buffers)
			}
			q.calls.Listen()
			if id, n, ok = q.elements.Reap(); ok {
				break
			}
			if !Await(q.Call, time.Until(end)) {
				return r, errors.New("no frame")
			}
			id, n, ok = q.elements.Reap()
		}
		buf := q.bufs[id]
		delete(q.bufs, id)
		q.free = append(q.free, buf)
		b = append(b, q.g.Mem.At(buf.GPA, int(n))...)
		if k == 0 {
			if n < HeaderLen {
				return r, fmt.Errorf("a buffer of %d octets", n)
			}
			r.Off.Parse(b)
			r.Buffers = int(binary.LittleEndian.Uint16(b[10:]))
			if r.Buffers == 0 {
				return r, errors.New("num_buffers is 0")
			}
		}
	}
	r.Frame = b[HeaderLen:]
	q.Fill()
	return r, nil
}

// Command executes one command of the control queue and returns the ack.
func (g *Guest) Command(class, command uint8, data []byte) (uint8, error) {
	in := append([]byte{class, command}, data...)
	a, b := g.Mem.Alloc(len(in), 8), g.Mem.Alloc(1, 8)
	copy(g.Mem.At(a, len(in)), in)
	g.Mem.At(b, 1)[0] = 0xa5
	g.CVQ.Raw([]virtiotest.Buf{{GPA: a, Len: 2}, {GPA: a + 2, Len: len(data)}}, []virtiotest.Buf{{GPA: b, Len: 1}})
	err := g.CVQ.Done()
	return g.Mem.At(b, 1)[0], err
}

// Await waits until an eventfd is readable and empties it.
func Await(fd int, limit time.Duration) bool {
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
