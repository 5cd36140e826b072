// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/neigh"
)

// pollBatch is how many completions are taken at a time.
const pollBatch = 64

// recvSlot is a receive slot.
type recvSlot struct{ posted bool }

type receiver struct {
	rxMem  []byte
	recvs  []recvSlot
	rrs    []RecvWR // to post
	posted int
	wcs    [pollBatch]WC
	out    [][]byte // packets to be delivered, of receive slots that are not posted; room for pollBatch
	one    [1][]byte
}

// makeDevice is the step of creating that allocates what the device needs: room
// for a batch of packets.
func (l *Link) makeDevice() error {
	l.out = make([][]byte, 0, pollBatch)
	return nil
}

func (l *Link) freeDevice() { l.out = nil }

// postAll posts the receive slots that are not.
func (l *Link) postAll() {
	for i := range l.recvs {
		l.repost(uint32(i))
	}
	l.postRecvs()
}

func (l *Link) repost(i uint32) {
	if l.recvs[i].posted {
		return
	}
	l.recvs[i].posted = true
	l.posted++
	l.rrs = append(l.rrs, RecvWR{ID: uint64(l.gen)<<idGenShift | idRecv | uint64(i), Off: i * recvSlotLen, Len: uint32(l.recvLen())})
}

// recvLen is the length of a receive buffer: a GRH and the group's MTU.
func (l *Link) recvLen() int {
	if m := l.broadcast.rec.MTU; m.Valid() {
		return grhLen + m.Bytes()
	}
	return recvSlotLen
}

func (l *Link) postRecvs() {
	if len(l.rrs) == 0 {
		return
	}
	if invariants {
		for _, wr := range l.rrs {
			spoil(l.rxMem[wr.Off:][:recvSlotLen])
		}
	}
	for _, wr := range l.rrs[l.al.PostRecv(l.rrs):] {
		l.recvs[wr.ID&idSlot].posted = false
		l.posted--
	}
	l.rrs = l.rrs[:0]
}

// Interrupt is the one routine for completions, of sends and of receives. It
// handles a batch, and reports whether there may be more.
func (l *Link) Interrupt(now mono.Time) (more bool) {
	l.at = now
	if l.steps == 0 {
		return false
	}
	n := l.al.Poll(l.wcs[:])
	if n > 0 {
		l.c.Driver.CQEvents++
		failed := l.complete(now, l.wcs[:n])
		if failed && l.state != Destroyed {
			l.log(now, "send", "a send failed; the queue pair is reset")
			l.recover(now)
		}
	}
	l.finish(now, false)
	l.flush(now)
	return n == pollBatch
}

// complete handles completions; it reports whether a send was in error.
func (l *Link) complete(now mono.Time, wcs []WC) (failed bool) {
	for i := range wcs {
		wc := &wcs[i]
		if wc.ID&idConn != 0 {
			if wc.ID&idRecv != 0 {
				l.message(now, wc)
			} else {
				l.messageDone(now, wc)
			}
			continue
		}
		if uint32(wc.ID>>idGenShift) != l.gen {
			continue
		}
		if wc.Recv {
			l.received(now, wc)
		} else if l.sent(now, wc) {
			failed = true
		}
	}
	l.deliver()
	l.postRecvs()
	if l.state != Destroyed {
		l.postConnRecvs()
		l.drainConns(now)
		l.drainBacklog()
	}
	return failed
}

// received handles the completion of a receive. Its slot is to be posted again, but not
// before what lies there was delivered.
func (l *Link) received(now mono.Time, wc *WC) {
	i := uint32(wc.ID & idSlot)
	if int(i) >= len(l.recvs) || !l.recvs[i].posted {
		return
	}
	l.recvs[i].posted = false
	l.posted--
	if l.state == Destroyed {
		return
	}
	switch wc.Status {
	case ib.Success:
		l.frame(now, wc, l.rxMem[i*recvSlotLen:][:recvSlotLen], l.al.Arrived(i*recvSlotLen))
	case ib.WRFlushErr: // the queue pair is being reset
		return
	default:
		l.c.Net.RxErrors++
		l.c.Net.RxFIFOErrors++
		l.refuse(DropRxStatus)
	}
	l.repost(i)
}

// The GIDs of the GRH that a receive slot begins with, if there is one.
func sgid(b []byte) ib.GID { return ib.GID(b[8:24]) }
func dgid(b []byte) ib.GID { return ib.GID(b[24:40]) }

// kindOf tells who the datagram in b was addressed to.
func (l *Link) kindOf(wc *WC, b []byte) neigh.Kind {
	switch {
	case !wc.GRH || b[24] != 0xff:
		return neigh.Host
	case dgid(b) == l.broadcast.mgid:
		return neigh.Broadcast
	}
	return neigh.Multicast
}

// echo reports whether a datagram is one of the link's own, which came back from
// the group that it went to.
func (l *Link) echo(wc *WC, b []byte) bool {
	return wc.SrcQPN == l.qpn && l.port.LID.Owns(l.port.LMC, wc.SLID) && (!wc.GRH || sgid(b).GUID() == l.port.GID.GUID())
}

// frame judges what arrived in slot b, of which ByteLen octets count, and takes it where it
// belongs. Where the datagram is elsewhere, b has the GRH only.
func (l *Link) frame(now mono.Time, wc *WC, b, elsewhere []byte) {
	if wc.ByteLen < Headroom || int(wc.ByteLen) > len(b) || elsewhere != nil && len(elsewhere) != int(wc.ByteLen)-grhLen {
		l.c.Net.RxErrors++
		l.c.Net.RxLengthErrors++
		l.refuse(DropShort)
		return
	}
	if !l.carrier {
		l.c.Net.RxDropped++
		l.refuse(DropLinkDown)
		return
	}
	b = b[:wc.ByteLen]
	kind := l.kindOf(wc, b)
	if l.echo(wc, b) {
		l.refuse(DropOwnEcho)
		return
	}
	datagram := b[grhLen:]
	if elsewhere != nil {
		datagram = elsewhere
	}
	t, p, ok := l.parse(datagram)
	if !ok {
		return
	}
	var src wire.HWAddr // unknown without a GRH
	if wc.GRH {
		src = wire.MakeHWAddr(0, wc.SrcQPN, sgid(b))
	}
	n := &l.c.Net
	n.RxPackets++
	n.RxBytes += uint64(wc.ByteLen) - grhLen
	if kind == neigh.Multicast {
		n.Multicast++
	}
	switch t {
	case wire.EtherARP:
		l.c.Driver.ARPRx++
	case wire.EtherIPv6:
		if !resolves(p) {
			l.up(p)
			return
		}
		l.c.Driver.NDRx++
	case wire.EtherIPv4:
		l.up(p)
		return
	}
	copy(b[grhLen:], datagram) // the engine wants it in one piece
	l.from = wc.SLID
	if wc.GRH {
		l.heardFrom(now, src, wc.SLID)
	}
	wire.PutHardHeader(b, &wire.HWAddr{}, &src, t)
	f := l.eng.Input(now, kind, b)
	l.from = 0
	if f != nil {
		l.up(f[Headroom:])
	}
}

// parse takes what was received apart; what is not right is counted.
func (l *Link) parse(b []byte) (t wire.EtherType, p []byte, ok bool) {
	t, p, why := wire.ParseFrame(b)
	switch why {
	case wire.FrameOK:
		return t, p, true
	case wire.FrameEtherType:
		l.c.Net.RxDropped++
		l.c.Net.RxNoHandler++
		l.refuse(DropUnknownEtherType)
	case wire.FrameVersion:
		l.c.Net.RxErrors++
		l.c.Net.RxFrameErrors++
		l.refuse(DropVersion)
	default:
		l.c.Net.RxErrors++
		l.c.Net.RxLengthErrors++
		l.refuse(DropShort)
	}
	return t, nil, false
}

// resolves reports whether an IPv6 packet is of Neighbor Discovery.
func resolves(p []byte) bool {
	off, ok := wire.ICMPv6(p)
	return ok && wire.IsND(p[off])
}

// up adds a packet to those that go to the IP stack.
func (l *Link) up(p []byte) {
	l.out = append(l.out, p[:len(p):len(p)])
}

// deliver gives the IP stack what up has put together.
func (l *Link) deliver() {
	if len(l.out) == 0 {
		return
	}
	if l.registered {
		l.dropUp(l.dev.Deliver(l.out))
	} else {
		l.dropUp(len(l.out))
	}
	l.out = l.out[:0]
}

// deliverOne gives the IP stack one packet at once.
func (l *Link) deliverOne(f []byte) {
	if !l.registered {
		return
	}
	l.one[0] = f[Headroom:]
	l.dropUp(l.dev.Deliver(l.one[:]))
	l.one[0] = nil
}

// dropUp counts packets that the IP stack did not take.
func (l *Link) dropUp(n int) {
	l.c.Net.RxDropped += uint64(n)
	l.c.Net.RxMissedErrors += uint64(n)
	for range n {
		l.refuse(DropStackFull)
	}
}
