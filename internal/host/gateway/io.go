// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/binary"
	"hash/maphash"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/host/ifdev"
	"weft/internal/host/rawio"
	"weft/internal/proto/ether"
	"weft/internal/proto/mono"
)

// listPeriod is how often the lane publishes the MACs that it has learned.
const listPeriod = time.Second

// bridge is the filter between the two sides. It belongs to the goroutine that reads and writes.
type bridge struct {
	d      *Device
	io     ifdev.FrameIO
	sides  sides
	seed   maphash.Seed
	host   [6]byte // the interface's own address, as sides has it
	listed mono.Time
	now    mono.Time

	bufs    [ifdev.BatchFrames][]byte // room for a tag, and frame
	hdr     [ether.OffloadLen]byte
	control [64]byte
	msg     rawio.Message
	one     [1][]byte
}

func (l *bridge) init(d *Device) {
	l.d, l.seed = d, maphash.MakeSeed()
	l.io.Init(d.file, l.receive, l.send)
}

// begin starts a batch.
func (l *bridge) begin() {
	l.now = l.d.cfg.Now()
	if mac := l.d.state.Load().mac; mac != l.host && mac != [6]byte{} {
		l.host = mac
		l.sides.fix(mac)
	}
	if l.listed == 0 || l.now.Sub(l.listed) >= listPeriod {
		l.listed = l.now
		if list, changed := l.sides.list(l.now); changed {
			l.d.outside.Store(&list)
			l.d.Refresh()
		}
	}
}

// TryReadBatch implements vnic.Segment. An error is os.ErrClosed, ifdev.ErrRemoved, or the kernel's.
func (d *Device) TryReadBatch(frames [][]byte, off []ether.Offload) (int, error) {
	d.begin()
	n, err := d.io.Read(frames, off)
	switch {
	case d.Closed():
		return 0, os.ErrClosed
	case n == 0 && d.state.Load().gone:
		return 0, ifdev.ErrRemoved
	}
	return n, err
}

func (l *bridge) receive(fd uintptr, i int, off *ether.Offload) ([]byte, syscall.Errno) {
	b := l.bufs[i]
	if b == nil { // at first use: few hosts have as many frames waiting
		b = make([]byte, ether.TagLen+ether.MaxFrame)
		l.bufs[i] = b
	}
	l.msg.Reset()
	l.msg.Add(l.hdr[:])
	l.msg.Add(b[ether.TagLen:])
	n, oob, flags, err := l.msg.Receive(fd, l.control[:])
	switch err {
	case 0:
	case unix.ENETDOWN: // the interface went down; it may come up again
		return nil, 0
	default:
		return nil, err
	}
	if n -= ether.OffloadLen; n < ether.HeaderLen || flags&unix.MSG_TRUNC != 0 {
		l.d.Counters.Malformed.Add(1)
		return nil, 0
	}
	frame := b[ether.TagLen : ether.TagLen+n]
	off.Parse(l.hdr[:])
	if tci, tpid, ok := tag(l.control[:oob]); ok {
		frame = b[:ether.TagLen+n]
		insert(frame, tci, tpid, off)
	}
	if l.one[0] = frame; !l.passes(l.one[:], outside) {
		return nil, 0
	}
	return frame[:len(frame):len(frame)], 0
}

// tag finds in control messages the VLAN tag that the kernel removed from the frame.
func tag(control []byte) (tci, tpid uint16, ok bool) {
	ne := binary.NativeEndian
	// One message: length, level, type, then struct tpacket_auxdata.
	const at = syscall.SizeofCmsghdr
	if len(control) < at+20 || int32(ne.Uint32(control[at-8:])) != unix.SOL_PACKET ||
		int32(ne.Uint32(control[at-4:])) != unix.PACKET_AUXDATA {
		return 0, 0, false
	}
	status := ne.Uint32(control[at:])
	tci, tpid = ne.Uint16(control[at+16:]), ne.Uint16(control[at+18:])
	if status&unix.TP_STATUS_VLAN_TPID_VALID == 0 {
		tpid = ether.TypeVLAN
	}
	return tci, tpid, status&unix.TP_STATUS_VLAN_VALID != 0
}

// insert inserts a tag into a frame that begins TagLen octets into b.
func insert(b []byte, tci, tpid uint16, off *ether.Offload) {
	copy(b, b[ether.TagLen:][:12])
	binary.BigEndian.PutUint16(b[12:], tpid)
	binary.BigEndian.PutUint16(b[14:], tci)
	if off.Flags&ether.NeedsCsum != 0 {
		off.CsumStart += ether.TagLen
	}
	if off.HdrLen != 0 {
		off.HdrLen += ether.TagLen
	}
}

// reserved reports whether a frame is to a group that ends at the next bridge. Those of spanning trees are not: they
// must see that the gateway connects two segments.
func reserved(frame []byte) bool {
	return binary.BigEndian.Uint32(frame) == 0x0180c200 && frame[4] == 0 && frame[5] < 16 && frame[5] != 0
}

// passes reports whether a frame may pass to the other side. The first of its pieces has the whole Ethernet header.
func (l *bridge) passes(parts [][]byte, from side) bool {
	c, frame := &l.d.Counters, parts[0]
	if reserved(frame) {
		c.Reserved.Add(1)
		return false
	}
	ok, looped := l.sides.pass(l.now, from, frame)
	group := frame[0]&1 != 0
	switch {
	case looped:
		c.Looped.Add(1)
	case ok && group && l.sides.again(l.now, from, l.hash(parts)):
		c.Repeated.Add(1)
	case !ok:
		c.Malformed.Add(1)
	case !group && l.sides.where(l.now, frame[:6]) == from:
		c.Local.Add(1)
	default:
		return true
	}
	return false
}

func (l *bridge) hash(parts [][]byte) (h uint64) {
	for _, p := range parts {
		h = h*0x9e3779b97f4a7c15 ^ maphash.Bytes(l.seed, p)
	}
	return h
}

// WriteBatch implements vnic.Segment. Frames that may not pass have counters of their own, and are not dropped ones.
func (d *Device) WriteBatch(frames [][]byte, off []ether.Offload) (dropped int) {
	d.begin()
	return d.count(d.io.Write(frames, off))
}

// WriteFrames is WriteBatch for frames in pieces, the first of which has the whole Ethernet header.
func (d *Device) WriteFrames(frames []ether.Frame) (dropped int) {
	d.begin()
	return d.count(d.io.WritePieces(frames))
}

func (d *Device) count(dropped int) int {
	if dropped > 0 {
		d.Counters.NotDelivered.Add(uint64(dropped))
	}
	return dropped
}

// send writes a frame if it may pass; false where the kernel does not accept it.
func (l *bridge) send(fd uintptr, off *ether.Offload, parts [][]byte) bool {
	if len(parts) == 0 {
		return false
	}
	if len(parts[0]) < ether.HeaderLen {
		l.d.Counters.Malformed.Add(1)
		return true
	}
	if !l.passes(parts, inside) {
		return true
	}
	off.Put(l.hdr[:])
	return l.msg.WriteFrame(fd, l.hdr[:], parts) == 0
}
