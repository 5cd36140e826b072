// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"fmt"
	"net/netip"

	"weft/internal/proto/mono"
	"weft/internal/service/ipoib/connected"
	"weft/internal/service/ipoib/stats"
)

// initUD is the step of creating that takes the queue pair to RTS; a reset repeats it.
func (l *Link) initUD() error {
	if l.attr.index < 0 {
		return fmt.Errorf("P_Key %#04x is not in the port's table", uint16(l.attr.partition))
	}
	return l.access.Service.InitUD(uint16(l.attr.index), l.attr.broadcast.QKey)
}

// register is the step of creating that makes buffers.
func (l *Link) register() error {
	tx, rx, err := l.access.Memory.Register(l.p.SQDepth, slotLen, l.p.RQDepth, recvSlotLen)
	if err != nil {
		return err
	}
	l.sender.setMemory(tx, l.p.SQDepth)
	l.receiver.setMemory(rx, l.p.RQDepth)
	if l.conns != nil {
		if err := l.conns.Open(l.attr.qpn); err != nil {
			l.deregister()
			return err
		}
	}
	return nil
}

func (l *Link) deregister() {
	if l.conns != nil {
		l.conns.Close()
	}
	l.access.Memory.Deregister()
	l.sender.mem, l.receiver.mem = nil, nil
}

// SendBatch sends packets of the IP stack: packet i is frames[i][Headroom:], hops[i] its next hop. It returns how many
// it accepted: all, unless the send queue is full; Device.Wake is called when the rest can follow. The frames are the
// caller's again, but for those that connected.Mapper mapped.
func (l *Link) SendBatch(now mono.Time, frames [][]byte, hops []netip.Addr) int {
	l.report.now = now
	n := 0
	for n < len(frames) {
		if l.attr.carrier && (l.sender.full() || l.conns != nil && l.conns.Backpressured(now)) {
			l.sender.refused = true
			break
		}
		l.sendPacket(now, frames[n], hops[n])
		n++
	}
	l.flush(now)
	return n
}

// sendPacket sends one packet of the IP stack.
func (l *Link) sendPacket(now mono.Time, frame []byte, hop netip.Addr) {
	switch {
	case len(frame) <= Headroom:
		l.stats.TxError(stats.DropShort)
	case !l.attr.carrier:
		l.stats.Net.TxCarrierErrors++
		l.stats.TxError(stats.DropLinkDown)
	default:
		l.engine.Output(now, frame, hop)
	}
}

// flush ends every call of the Link: it posts what is to be sent, and sets the watchdog.
func (l *Link) flush(now mono.Time) {
	l.sender.flush()
	if l.conns != nil {
		l.conns.Flush()
	}
	if l.sender.inFlight == 0 {
		l.sender.busy = false
		return
	}
	if !l.sender.busy {
		l.sender.busy, l.sender.progress = true, now
	}
	if !l.watchdog.IsSet() && l.state != Destroyed {
		l.timers.Set(&l.watchdog, now.Add(l.p.TxTimeout))
	}
}

// drainQueues sends frames that wait for slots, and calls Device.Wake when SendBatch accepts packets again.
func (l *Link) drainQueues(now mono.Time) {
	if l.state == Destroyed {
		return
	}
	if l.conns != nil {
		l.conns.Drain(now)
	}
	l.sender.drain()
	if l.sender.refused && l.sender.ready() && (l.conns == nil || !l.conns.Backpressured(now)) {
		l.sender.refused = false
		l.device.Wake()
	}
}

// Interrupt is the one routine for completions, of sends and of receives. It handles a batch, and reports whether there
// may be more.
func (l *Link) Interrupt(now mono.Time) (more bool) {
	l.report.now = now
	if l.steps == 0 {
		return false
	}
	n := l.access.Queues.Poll(l.wcs[:])
	if n > 0 {
		l.stats.Driver.CQEvents++
		failed := l.complete(now, l.wcs[:n])
		if failed && l.state != Destroyed {
			l.report.Logf(now, "send", "a send failed; the queue pair is reset")
			l.recover(now)
		}
	}
	l.finish(now, false)
	l.flush(now)
	return n == pollBatch
}

// complete handles completions; it reports whether a send of a datagram failed.
func (l *Link) complete(now mono.Time, wcs []WC) (failed bool) {
	ending := l.state == Destroyed
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.ID&connected.IDConn != 0:
			l.completeConn(now, wc, ending)
		case uint32(wc.ID>>idGenShift) != l.sender.gen:
		case wc.Recv:
			l.receiver.completed(now, wc, ending)
		default:
			to, bad := l.sender.completed(now, wc)
			if to != nil {
				l.shadow.touch(to, now)
			}
			failed = failed || bad
		}
	}
	l.receiver.deliver()
	l.receiver.flush()
	if !ending {
		if l.conns != nil {
			l.conns.PostReceives()
		}
		l.drainQueues(now)
	}
	return failed
}

// completeConn handles a completion of a connection.
func (l *Link) completeConn(now mono.Time, wc *WC, ending bool) {
	switch {
	case l.conns == nil:
	case wc.ID&idRecv == 0:
		l.conns.Sent(now, wc.ID, wc.Status)
	default:
		if b, from := l.conns.Received(now, wc.ID, wc.QPN, wc.Status, wc.ByteLen, ending); b != nil {
			l.receiver.message(now, from, b)
		}
	}
}

// checkSends is the watchdog: where no send has completed for the time of parameter timeout it resets the queue pair.
func (l *Link) checkSends(now mono.Time) {
	if l.sender.broken {
		l.recover(now)
		return
	}
	if l.sender.inFlight == 0 {
		return
	}
	if due := l.sender.progress.Add(l.p.TxTimeout); !due.Due(now) {
		l.timers.Set(&l.watchdog, due)
		return
	}
	l.stats.Driver.TxTimeouts++
	l.report.event(now, EventTxTimeout, netip.Addr{}, "sends do not complete; the queue pair is reset")
	l.recover(now)
}

// recover takes the queue pair through ERR and RESET back to RTS. What was posted is lost; frames that wait are sent.
func (l *Link) recover(now mono.Time) {
	l.sender.broken = true
	l.access.Service.StopQP()
	for range 2 + (len(l.sender.slots)+len(l.receiver.slots))/pollBatch {
		n := l.access.Queues.Poll(l.wcs[:])
		if n == 0 {
			break
		}
		l.complete(now, l.wcs[:n])
	}
	err := l.initUD()
	if l.sender.broken = err != nil; l.sender.broken {
		l.report.Logf(now, "queue pair", "reset of the queue pair: %v", err)
		l.timers.Set(&l.watchdog, now.Add(max(l.p.TxTimeout, retryAfter)))
		l.updateCarrier(now)
		return
	}
	l.reclaim() // now that the queue pair has forgotten it
	if l.attr.registered {
		l.receiver.postAll()
	}
	l.drainQueues(now)
	l.sender.progress = now
	l.updateCarrier(now)
}

// reclaim takes all posted slots back, whose completions are not waited for.
func (l *Link) reclaim() {
	l.sender.reclaim()
	l.receiver.reclaim()
}
