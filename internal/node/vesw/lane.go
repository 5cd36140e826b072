// SPDX-License-Identifier: Apache-2.0

package vesw

import (
	"errors"
	"os"

	"weft/internal/fabric/link/fabric"
	"weft/internal/node/lane"
	"weft/internal/proto/ether"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/vnic"
)

// dataPath is the work of lane 0 for the ports of virtual Ethernet switches of a node (docs/notes/vesw.md, section 5):
// frames of segments become packets in the batch of a trunk, frames of packets are joined and written to segments, and
// frames between two ports of the node pass unchanged. All of it belongs to the lane.
type dataPath struct {
	lane  *lane.Lane
	link  *fabric.Link
	funcs map[uint16]*inlets
	// stations are the Ethernet ports of functions, by the function.
	stations map[uint16]*station
	last     *inlets     // of the packet before
	ports    []*lanePort // that have a segment
	due      []*lanePort // that have frames to be written

	// Of the frame, or the packet, being handled.
	in    vnic.Inbound
	d     vnic.Decision
	info  ether.Info
	split ether.Splitter
	out   fabric.Egress16

	read  frameBatch // of a segment
	write frameBatch // to one
	join  *ether.Joiner
	next  int    // of what was joined: the first frame that write has; < 0: write has none of it
	room  []byte // for frames put together, or cut, for a segment
	used  int    // of room

	direct direct
}

// frameBatch is a batch.
type frameBatch struct {
	frames [][]byte
	off    []ether.Offload
}

func newFrameBatch() frameBatch {
	return frameBatch{make([][]byte, batchFrames), make([]ether.Offload, batchFrames)}
}

const (
	// batchFrames is how many frames are read or written at a time.
	batchFrames = 64
	// turnOctets is the number of octets of a segment after which the next one has its turn.
	turnOctets = 256 << 10
	// maxWaiting is how many frames of packets may wait to be written: more than one poll of the sockets brings.
	maxWaiting = 2048
	// roomOctets is room for frames that are assembled, in octets.
	roomOctets = 8 * ether.MaxFrame
)

// inlets is the receiving side of a function.
type inlets struct {
	number uint16
	recv   *vnic.Receiver
	ports  [vnic.MaxNetdevs]*lanePort // by number, nil: it has no segment
}

// lanePort is a vport at work on the lane.
type lanePort struct {
	to       *inlets
	function uint16
	vport    uint8
	sender   *vnic.Sender

	seg      vnic.Segment
	pieces   vnic.FrameWriter // seg, if it takes frames in parts
	timed    timedSegment     // seg, if it sends frames at a time
	fd       int
	readable bool // frames may wait at fd
	failed   func(error)

	received [][]byte // frames of packets, which wait for the end of the turn
	whole    frameBatch
	due      bool                      // it is in dataPath.due
	refusals [ether.NumRefusals]uint64 // frames that the segment should not have given
}

var _ lane.Poller = (*dataPath)(nil)

func newDataPath(l *lane.Lane, link *fabric.Link) *dataPath {
	v := &dataPath{lane: l, link: link, funcs: map[uint16]*inlets{}, stations: map[uint16]*station{},
		read: newFrameBatch(), write: newFrameBatch()}
	v.write.frames, v.write.off = v.write.frames[:0], v.write.off[:0]
	link.SetTaker(v.receive)
	return v
}

// addFunction and removeFunction begin and end receiving for a function.
func (v *dataPath) addFunction(f *inlets) { v.funcs[f.number] = f }

func (v *dataPath) removeFunction(f *inlets) {
	delete(v.funcs, f.number)
	v.last = nil
}

// attach puts a segment to work.
func (v *dataPath) attach(p *lanePort, seg vnic.Segment, failed func(error)) error {
	fd := seg.FD()
	if fd >= 0 {
		if err := v.lane.WatchInput(fd, &p.readable); err != nil {
			return err
		}
	}
	if v.join == nil {
		v.join = ether.NewJoiner(maxWaiting, false, 0)
		v.room = make([]byte, roomOctets)
	}
	p.seg, p.fd, p.readable, p.failed = seg, fd, true, failed
	p.pieces, _ = seg.(vnic.FrameWriter)
	p.timed, _ = seg.(timedSegment)
	if p.received == nil {
		p.received, p.whole = make([][]byte, 0, maxWaiting), newFrameBatch()
		p.whole.frames, p.whole.off = p.whole.frames[:0], p.whole.off[:0]
	}
	p.to.ports[p.vport] = p
	if v.ports = append(v.ports, p); len(v.ports) == 1 {
		v.lane.AddPoller(v)
	}
	return nil
}

// detach undoes attach. Frames that wait for the segment are dropped.
func (v *dataPath) detach(p *lanePort) {
	if p.seg == nil {
		return
	}
	v.flush(p)
	if p.fd >= 0 {
		v.lane.UnwatchInput(p.fd)
	}
	p.seg, p.pieces, p.timed, p.failed = nil, nil, nil, nil
	p.to.ports[p.vport] = nil
	for i, o := range v.ports {
		if o == p {
			v.ports = append(v.ports[:i:i], v.ports[i+1:]...)
			break
		}
	}
	if len(v.ports) == 0 {
		v.lane.RemovePoller(v)
	}
}

// Begin implements lane.Poller: frames of segments become packets before the trunks
// are flushed.
func (v *dataPath) Begin(now mono.Time) (busy bool) {
	v.writeDue() // a fault may have unwound the lane before Finish
	for _, p := range v.ports {
		if v.pull(now, p) {
			busy = true
		}
	}
	return busy
}

// Finish implements lane.Poller: frames that received are written while their packets are
// valid.
func (v *dataPath) Finish(mono.Time) bool { return v.writeDue() }

// Sleep implements lane.Poller.
func (v *dataPath) Sleep() bool {
	ready := len(v.due) == 0
	blocked := v.link.Blocked()
	for _, p := range v.ports {
		if p.seg.Arm() && !blocked || p.readable && !blocked {
			ready = false
		}
	}
	return ready
}

// Deadline implements lane.Poller.
func (v *dataPath) Deadline() (due mono.Time) {
	for _, p := range v.ports {
		if p.timed == nil {
			continue
		}
		if d := p.timed.Deadline(); d != 0 && (due == 0 || d < due) {
			due = d
		}
	}
	return due
}

// timedSegment is a segment that has frames to send at a time.
type timedSegment interface {
	// Deadline is when TryReadBatch is to be called next; zero: there is nothing to do.
	Deadline() mono.Time
}

// pull sends the frames that wait at a segment, and reports whether there were any.
func (v *dataPath) pull(now mono.Time, p *lanePort) (busy bool) {
	for octets := 0; (p.readable || p.fd < 0) && octets < turnOctets && !v.link.Blocked(); {
		n, err := p.seg.TryReadBatch(v.read.frames, v.read.off)
		if n == 0 {
			p.readable = false
			if err != nil {
				v.failed(p, err)
			}
			return busy
		}
		busy = true
		batch := 0
		for i := range n {
			batch += len(v.read.frames[i])
			v.send(now, p, v.read.frames[i], &v.read.off[i])
		}
		v.writeDue() // frames to ports of this node are the segment's memory
		if batch < ether.MaxFrame && n < len(v.read.frames)/4 {
			// Probably all of them. Others keep the descriptor readable.
			p.readable = p.fd < 0
			return true
		}
		octets += batch
	}
	return busy
}

// failed detaches a segment that has failed, and reports it.
func (v *dataPath) failed(p *lanePort, err error) {
	report := p.failed
	v.detach(p)
	if !errors.Is(err, os.ErrClosed) {
		report(err)
	}
}

// send sends a frame of a port to its destinations: decisions are made once, however many packets it becomes.
func (v *dataPath) send(now mono.Time, p *lanePort, frame []byte, off *ether.Offload) {
	in, d := &v.info, &v.d
	*in = ether.Classify(frame)
	if why := off.Check(frame, in); why != ether.OK {
		p.refusals[why]++
		return
	}
	c := vnic.CutOf(len(frame), off)
	if !p.sender.Decide(frame, in, c, d) {
		return
	}
	var ok bool
	if v.out, ok = v.link.Open16(p.function, &d.Header); !ok {
		p.sender.Refused(c.Frames)
		return
	}
	for to, ok := v.out.Next(); ok; to, ok = v.out.Next() {
		v.local(to, frame, off, c)
	}
	if !v.out.Packets() {
		p.sender.Sent(d, c)
		return
	}
	n, why := v.split.Start(frame, *off, in, 0)
	if why != ether.OK {
		p.refusals[why]++
		return
	}
	for i := range n {
		size := v.split.Len()
		length := vnic.PacketLen(size)
		b := v.link.Reserve16(&v.out, length)
		if b == nil {
			p.sender.NoRoom(n - i)
			if i > 0 {
				p.sender.Sent(d, vnic.Cut{Frames: i, Len: c.Len, Last: c.Len})
			}
			return
		}
		v.split.Next(b[vnic.HeaderLen:])
		d.Seal(b, size)
		v.link.Commit16(now, &v.out, length)
	}
	p.sender.Sent(d, c)
}

// local passes a frame to a port of another function of this node.
func (v *dataPath) local(function uint16, frame []byte, off *ether.Offload, c vnic.Cut) {
	f := v.funcs[function]
	if f == nil || !f.recv.Local(&v.d, frame, c, &v.in) {
		return
	}
	p := f.ports[v.in.VPort]
	if p == nil {
		f.recv.Lost(v.in.VPort, frame, c)
		return
	}
	if needs(off, &v.info)&^p.seg.Takes() != 0 {
		v.cut(p, frame, off)
		return
	}
	p.whole.frames, p.whole.off = append(p.whole.frames, frame), append(p.whole.off, *off)
	v.mark(p)
	if len(p.whole.frames) == batchFrames {
		v.flushWhole(p)
	}
}

// needs returns the offloads that a segment must accept to receive a frame unchanged.
func needs(off *ether.Offload, in *ether.Info) (f ether.Features) {
	if off.Flags&ether.NeedsCsum != 0 {
		f = ether.FeatureCsum
	}
	switch off.Kind() {
	case ether.GSOTCPv4:
		f |= ether.FeatureTSO4
	case ether.GSOTCPv6:
		f |= ether.FeatureTSO6
	case ether.GSOUDP:
		if f |= ether.FeatureUSO4; in.Kind >= ether.IPv6 {
			f = f&^ether.FeatureUSO4 | ether.FeatureUSO6
		}
	}
	if off.GSO&ether.GSOECN != 0 {
		f |= ether.FeatureECN
	}
	return f
}

// cut splits a frame for a port of this node, as it would be split for the network.
func (v *dataPath) cut(p *lanePort, frame []byte, off *ether.Offload) {
	v.flushWhole(p)
	n, why := v.split.Start(frame, *off, &v.info, 0)
	if why != ether.OK {
		return
	}
	v.begin(-1)
	for range n {
		size := v.split.Len()
		b := v.reserve(p, size)
		v.split.Next(b)
	}
	v.flushWrite(p)
}

// reserve returns room for one more frame of n octets in the batch that flushWrite writes.
func (v *dataPath) reserve(p *lanePort, n int) []byte {
	if v.used+n > len(v.room) || len(v.write.frames) == cap(v.write.frames) {
		v.flushWrite(p)
	}
	b := v.room[v.used : v.used+n : v.used+n]
	v.used += n
	v.write.frames, v.write.off = append(v.write.frames, b), append(v.write.off, ether.Offload{})
	return b
}

// receive is the link's fabric.Taker.
func (v *dataPath) receive(now mono.Time, function uint16, h *wire.Header16, p []byte) bool {
	f := v.last
	if f == nil || f.number != function {
		if f = v.funcs[function]; f == nil {
			return false
		}
		v.last = f
	}
	if !f.recv.Receive(h, p, &v.in) {
		return true
	}
	if v.in.Notify != nil {
		v.link.Send16(now, v.in.Notify)
	}
	to := f.ports[v.in.VPort]
	if to == nil {
		f.recv.Lost(v.in.VPort, v.in.Frame, vnic.CutOf(len(v.in.Frame), &ether.Offload{}))
		return true
	}
	if len(to.received) == cap(to.received) {
		v.flushReceived(to)
	}
	to.received = append(to.received, v.in.Frame)
	v.mark(to)
	return true
}

// mark has a port's frames written before they become invalid.
func (v *dataPath) mark(p *lanePort) {
	if !p.due {
		p.due = true
		v.due = append(v.due, p)
	}
}

// writeDue writes all frames that wait, and reports whether there were any.
func (v *dataPath) writeDue() bool {
	if len(v.due) == 0 {
		return false
	}
	for _, p := range v.due {
		p.due = false
		v.flush(p)
	}
	clear(v.due)
	v.due = v.due[:0]
	return true
}

func (v *dataPath) flush(p *lanePort) {
	v.flushWhole(p)
	v.flushReceived(p)
}

// flushWhole writes frames of other ports of this node.
func (v *dataPath) flushWhole(p *lanePort) {
	w := &p.whole
	if len(w.frames) == 0 {
		return
	}
	if p.seg != nil {
		v.writeBatch(p, w)
	}
	clear(w.frames)
	w.frames, w.off = w.frames[:0], w.off[:0]
}

// flushReceived writes frames of packets, those of a flow joined as far as the segment accepts that.
func (v *dataPath) flushReceived(p *lanePort) {
	if len(p.received) == 0 {
		return
	}
	if p.seg != nil {
		list := v.join.Join(p.received, p.seg.Takes())
		if p.pieces != nil {
			lost := p.pieces.WriteFrames(list)
			v.countDropped(p, len(list)-lost, len(list))
		} else {
			v.assemble(p, list)
		}
	}
	clear(p.received)
	p.received = p.received[:0]
}

// countDropped counts the frames that were joined to frames from … to-1, which the segment dropped, as they were
// counted on arrival.
func (v *dataPath) countDropped(p *lanePort, from, to int) {
	for i := from; i < to; i++ {
		v.join.Each(i, func(k int) {
			n := len(p.received[k])
			p.to.recv.Lost(p.vport, p.received[k], vnic.Cut{Frames: 1, Len: n, Last: n})
		})
	}
}

// assemble writes frames in pieces to a segment that accepts them only in one.
func (v *dataPath) assemble(p *lanePort, list []ether.Frame) {
	v.begin(0)
	for i := range list {
		f := &list[i]
		if len(f.Parts) > 1 {
			f.Append(v.reserve(p, f.Len)[:0])
			v.write.off[len(v.write.off)-1] = f.Off
			continue
		}
		if len(v.write.frames) == cap(v.write.frames) {
			v.flushWrite(p)
		}
		v.write.frames, v.write.off = append(v.write.frames, f.Parts[0]), append(v.write.off, f.Off)
	}
	v.flushWrite(p)
}

// begin empties the batch that flushWrite writes: a fault may have left frames of another port there. Its frames will
// be those joined from next on, or others where next is negative.
func (v *dataPath) begin(next int) {
	w := &v.write
	clear(w.frames)
	w.frames, w.off, v.used, v.next = w.frames[:0], w.off[:0], 0, next
}

// flushWrite writes the batch.
func (v *dataPath) flushWrite(p *lanePort) {
	w, next := &v.write, v.next
	if n := len(w.frames); n > 0 && next < 0 {
		v.writeBatch(p, w)
	} else if n > 0 {
		next += n
		v.countDropped(p, next-p.seg.WriteBatch(w.frames, w.off), next)
	}
	v.begin(next)
}

// writeBatch writes frames, and counts those that were dropped.
func (v *dataPath) writeBatch(p *lanePort, w *frameBatch) {
	lost := p.seg.WriteBatch(w.frames, w.off)
	for i := len(w.frames) - lost; i < len(w.frames); i++ {
		p.to.recv.Lost(p.vport, w.frames[i], vnic.CutOf(len(w.frames[i]), &w.off[i]))
	}
}
