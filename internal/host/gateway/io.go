// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/binary"
	"hash/maphash"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/host/rawio"
	"weft/internal/proto/ether"
	"weft/internal/proto/mono"
)

const (
	// batch is the number of frames that TryReadBatch gives at most, and batchOctets after how many
	// octets it gives no more: what is read is used while it is in the cache.
	batch       = 32
	batchOctets = 128 << 10
	// maxTries bounds what one TryReadBatch looks at that does not pass.
	maxTries = 256
	// maxPieces is the number of pieces that a frame of WriteFrames may have.
	maxPieces = 1000 // of the kernel's 1024
	// tick is how often the lane tells what it has learned.
	tick = time.Second
)

// lane is what belongs to the goroutine that reads and writes. Its closures are made once, so
// that nothing is allocated per call.
type lane struct {
	d      *Device
	sides  sides
	seed   maphash.Seed
	host   [6]byte // the interface's own address, as sides has it
	ticked mono.Time
	now    mono.Time

	bufs    [batch][]byte // room for a tag, and frame
	read    func(fd uintptr)
	write   func(fd uintptr)
	frames  [][]byte // of the read or write under way, as the rest
	off     []ether.Offload
	out     []ether.Frame
	n       int
	err     error
	hdr     [ether.OffloadLen]byte
	control [64]byte
	msg     rawio.Message
	one     [1][]byte
}

func (l *lane) init(d *Device) {
	l.d, l.seed = d, maphash.MakeSeed()
	l.read, l.write = l.readAll, l.writeAll
}

// begin is at the start of a batch.
func (l *lane) begin() {
	l.now = l.d.cfg.Now()
	if mac := l.d.state.Load().mac; mac != l.host && mac != [6]byte{} {
		l.host = mac
		l.sides.fix(mac)
	}
	if l.ticked == 0 || l.now.Sub(l.ticked) >= tick {
		l.ticked = l.now
		if list, changed := l.sides.list(l.now); changed {
			l.d.outside.Store(&list)
			l.d.changed()
		}
	}
}

// buffer is the i-th, made when it is needed first.
func (l *lane) buffer(i int) []byte {
	if l.bufs[i] == nil {
		l.bufs[i] = make([]byte, ether.TagLen+ether.MaxFrame)
	}
	return l.bufs[i]
}

// TryReadBatch is of vnic.Segment. An error is os.ErrClosed, ErrGone, or the kernel's.
func (d *Device) TryReadBatch(frames [][]byte, off []ether.Offload) (int, error) {
	d.begin()
	d.frames, d.off, d.n, d.err = frames, off, 0, nil
	err := d.conn.Control(d.read)
	d.frames, d.off = nil, nil
	switch {
	case err != nil || d.closed.Load():
		return 0, os.ErrClosed
	case d.n > 0:
		return d.n, nil // an error comes again
	case d.state.Load().gone:
		return 0, ErrGone
	}
	return 0, d.err
}

func (l *lane) readAll(fd uintptr) {
	octets := 0
	for range maxTries {
		if l.n == min(len(l.frames), len(l.off), batch) || octets >= batchOctets {
			return
		}
		b := l.buffer(l.n)
		l.msg.Reset()
		l.msg.Add(l.hdr[:])
		l.msg.Add(b[ether.TagLen:])
		n, oob, flags, err := l.msg.Receive(fd, l.control[:])
		switch err {
		case 0:
		case unix.EINTR, unix.ENETDOWN: // the interface went down; it may come up again
			continue
		case unix.EAGAIN:
			return
		default:
			l.err = err
			return
		}
		if n -= ether.OffloadLen; n < ether.HeaderLen || flags&unix.MSG_TRUNC != 0 {
			l.d.Counters.Malformed.Add(1)
			continue
		}
		frame := b[ether.TagLen : ether.TagLen+n]
		l.off[l.n].Parse(l.hdr[:])
		if tci, tpid, ok := tag(l.control[:oob]); ok {
			frame = b[:ether.TagLen+n]
			insert(frame, tci, tpid, &l.off[l.n])
		}
		if l.one[0] = frame; !l.passes(l.one[:], outside) {
			continue
		}
		l.frames[l.n] = frame[:len(frame):len(frame)]
		octets += n
		l.n++
	}
}

// tag finds in control messages the VLAN tag that the kernel took out of the frame.
func tag(control []byte) (tci, tpid uint16, ok bool) {
	ne := binary.NativeEndian
	// One message: length, level, type, then struct tpacket_auxdata.
	const at = syscall.SizeofCmsghdr
	if len(control) < at+20 || int32(ne.Uint32(control[at-8:])) != unix.SOL_PACKET || int32(ne.Uint32(control[at-4:])) != unix.PACKET_AUXDATA {
		return 0, 0, false
	}
	status := ne.Uint32(control[at:])
	tci, tpid = ne.Uint16(control[at+16:]), ne.Uint16(control[at+18:])
	if status&unix.TP_STATUS_VLAN_TPID_VALID == 0 {
		tpid = ether.TypeVLAN
	}
	return tci, tpid, status&unix.TP_STATUS_VLAN_VALID != 0
}

// insert puts a tag into a frame that begins TagLen octets into b.
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

// reserved tells frames to groups that end at the next bridge, but for those of spanning trees, which shall see that there is a
// way here.
func reserved(frame []byte) bool {
	return binary.BigEndian.Uint32(frame) == 0x0180c200 && frame[4] == 0 && frame[5] < 16 && frame[5] != 0
}

// passes tells whether a frame, given in pieces of which the first has the whole Ethernet header, may pass to the other side.
func (l *lane) passes(parts [][]byte, from side) bool {
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

func (l *lane) hash(parts [][]byte) (h uint64) {
	for _, p := range parts {
		h = h*0x9e3779b97f4a7c15 ^ maphash.Bytes(l.seed, p)
	}
	return h
}

// WriteBatch is of vnic.Segment. What may not pass is counted, and not as dropped.
func (d *Device) WriteBatch(frames [][]byte, off []ether.Offload) (dropped int) {
	d.frames, d.off = frames, off
	dropped = d.deliver(len(frames))
	d.frames, d.off = nil, nil
	return dropped
}

// WriteFrames is WriteBatch for frames in pieces, the first of which has the whole Ethernet header.
func (d *Device) WriteFrames(frames []ether.Frame) (dropped int) {
	d.out = frames
	dropped = d.deliver(len(frames))
	d.out = nil
	return dropped
}

func (d *Device) deliver(frames int) (dropped int) {
	d.begin()
	d.n = 0
	_ = d.conn.Control(d.write) // a closed one delivers nothing
	dropped = frames - d.n
	if dropped > 0 {
		d.Counters.NotDelivered.Add(uint64(dropped))
	}
	return dropped
}

func (l *lane) writeAll(fd uintptr) {
	for i := range l.frames {
		l.one[0] = l.frames[i]
		l.writeOne(fd, &l.off[i], l.one[:])
	}
	l.one[0] = nil
	for i := range l.out {
		l.writeOne(fd, &l.out[i].Off, l.out[i].Parts)
	}
}

// writeOne writes a frame that may pass, and counts it unless the kernel does not take it.
func (l *lane) writeOne(fd uintptr, off *ether.Offload, parts [][]byte) {
	if len(parts) == 0 || len(parts) > maxPieces {
		return
	}
	if len(parts[0]) < ether.HeaderLen {
		l.d.Counters.Malformed.Add(1)
		l.n++
		return
	}
	if !l.passes(parts, inside) {
		l.n++
		return
	}
	off.Put(l.hdr[:])
	if l.msg.WriteFrame(fd, l.hdr[:], parts) == 0 {
		l.n++
	}
}
