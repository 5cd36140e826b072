// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"fmt"
	"net/netip"

	"weft/internal/proto/mono"
	"weft/internal/service/ipoib/connected"
	"weft/internal/service/ipoib/neigh"
	"weft/internal/service/ipoib/stats"
)

// queuePairLink is what the queue pair needs of its link.
type queuePairLink interface {
	// updateCarrier has the carrier follow the queue pair.
	updateCarrier(now mono.Time)
}

// queuePair is the datagram queue pair of a link with its sender and receiver, and the completion queue, which it
// shares with connections.
type queuePair struct {
	p       *Params
	service DatagramService
	memory  Memory
	cq      CompletionQueue
	device  PacketReceiver
	attr    *attributes
	stats   *stats.Recorder
	report  *reporter
	timers  *timers
	engine  *neigh.Engine
	shadow  *shadow
	conns   *connected.Conns // nil in datagram mode
	link    queuePairLink

	sender   *sender
	receiver *receiver
	ending   bool  // the link ends: nothing is posted
	watchdog timer // of sends
	wcs      [pollBatch]WC
}

// initUD is the step of creating that takes the queue pair to RTS; a reset repeats it.
func (q *queuePair) initUD() error {
	if q.attr.index < 0 {
		return fmt.Errorf("P_Key %#04x is not in the port's table", uint16(q.attr.partition))
	}
	return q.service.InitUD(uint16(q.attr.index), q.attr.broadcast.QKey)
}

// register is the step of creating that makes buffers.
func (q *queuePair) register() error {
	tx, rx, err := q.memory.Register(q.p.SQDepth, slotLen, q.p.RQDepth, recvSlotLen)
	if err != nil {
		return err
	}
	q.sender.setMemory(tx, q.p.SQDepth)
	q.receiver.setMemory(rx, q.p.RQDepth)
	if q.conns != nil {
		if err := q.conns.Open(q.attr.qpn); err != nil {
			q.deregister()
			return err
		}
	}
	return nil
}

func (q *queuePair) deregister() {
	if q.conns != nil {
		q.conns.Close()
	}
	q.memory.Deregister()
	q.sender.mem, q.receiver.mem = nil, nil
}

// sendBatch is Link.SendBatch.
func (q *queuePair) sendBatch(now mono.Time, frames [][]byte, hops []netip.Addr) int {
	n := 0
	for n < len(frames) {
		if q.attr.carrier && (q.sender.full() || q.conns != nil && q.conns.Backpressured(now)) {
			q.sender.refused = true
			break
		}
		q.sendPacket(now, frames[n], hops[n])
		n++
	}
	q.flush(now)
	return n
}

// sendPacket sends one packet of the IP stack.
func (q *queuePair) sendPacket(now mono.Time, frame []byte, hop netip.Addr) {
	switch {
	case len(frame) <= Headroom:
		q.stats.TxError(stats.DropShort)
	case !q.attr.carrier:
		q.stats.Net.TxCarrierErrors++
		q.stats.TxError(stats.DropLinkDown)
	default:
		q.engine.Output(now, frame, hop)
	}
}

// flush ends every call of the Link: it posts what is to be sent, and sets the watchdog.
func (q *queuePair) flush(now mono.Time) {
	q.sender.flush()
	if q.conns != nil {
		q.conns.Flush()
	}
	if q.sender.inFlight == 0 {
		q.sender.busy = false
		return
	}
	if !q.sender.busy {
		q.sender.busy, q.sender.progress = true, now
	}
	if !q.watchdog.IsSet() && !q.ending {
		q.timers.Set(&q.watchdog, now.Add(q.p.TxTimeout))
	}
}

// drainQueues sends frames that wait for slots, and calls Device.Wake when SendBatch accepts packets again.
func (q *queuePair) drainQueues(now mono.Time) {
	if q.ending {
		return
	}
	if q.conns != nil {
		q.conns.Drain(now)
	}
	q.sender.drain()
	if q.sender.refused && q.sender.ready() && (q.conns == nil || !q.conns.Backpressured(now)) {
		q.sender.refused = false
		q.device.Wake()
	}
}

// poll handles a batch of completions; it returns how many there were.
func (q *queuePair) poll(now mono.Time) int {
	n := q.cq.Poll(q.wcs[:])
	if n > 0 {
		q.stats.Driver.CQEvents++
		failed := q.complete(now, q.wcs[:n])
		if failed && !q.ending {
			q.report.Logf(now, "send", "a send failed; the queue pair is reset")
			q.reset(now)
		}
	}
	return n
}

// complete handles completions; it reports whether a send of a datagram failed.
func (q *queuePair) complete(now mono.Time, wcs []WC) (failed bool) {
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.ID&connected.IDConn != 0:
			q.completeConn(now, wc)
		case uint32(wc.ID>>idGenShift) != q.sender.gen:
		case wc.Recv:
			q.receiver.completed(now, wc, q.ending)
		default:
			to, bad := q.sender.completed(now, wc)
			if to != nil {
				q.shadow.touch(to, now)
			}
			failed = failed || bad
		}
	}
	q.receiver.deliver()
	q.receiver.flush()
	if !q.ending {
		if q.conns != nil {
			q.conns.PostReceives()
		}
		q.drainQueues(now)
	}
	return failed
}

// completeConn handles a completion of a connection.
func (q *queuePair) completeConn(now mono.Time, wc *WC) {
	switch {
	case q.conns == nil:
	case wc.ID&idRecv == 0:
		q.conns.Sent(now, wc.ID, wc.Status)
	default:
		if b, from := q.conns.Received(now, wc.ID, wc.QPN, wc.Status, wc.ByteLen, q.ending); b != nil {
			q.receiver.message(now, from, b)
		}
	}
}

// checkSends is the watchdog: where no send has completed for the time of parameter timeout it resets the queue pair.
func (q *queuePair) checkSends(now mono.Time) {
	if q.sender.broken {
		q.reset(now)
		return
	}
	if q.sender.inFlight == 0 {
		return
	}
	if due := q.sender.progress.Add(q.p.TxTimeout); !due.Due(now) {
		q.timers.Set(&q.watchdog, due)
		return
	}
	q.stats.Driver.TxTimeouts++
	q.report.event(now, EventTxTimeout, netip.Addr{}, "sends do not complete; the queue pair is reset")
	q.reset(now)
}

// reset takes the queue pair through ERR and RESET back to RTS. What was posted is lost; frames that wait are sent.
func (q *queuePair) reset(now mono.Time) {
	q.sender.broken = true
	q.service.StopQP()
	for range 2 + (len(q.sender.slots)+len(q.receiver.slots))/pollBatch {
		n := q.cq.Poll(q.wcs[:])
		if n == 0 {
			break
		}
		q.complete(now, q.wcs[:n])
	}
	err := q.initUD()
	if q.sender.broken = err != nil; q.sender.broken {
		q.report.Logf(now, "queue pair", "reset of the queue pair: %v", err)
		q.timers.Set(&q.watchdog, now.Add(max(q.p.TxTimeout, retryAfter)))
		q.link.updateCarrier(now)
		return
	}
	q.reclaim() // now that the queue pair has forgotten it
	if q.attr.registered {
		q.receiver.postAll()
	}
	q.drainQueues(now)
	q.sender.progress = now
	q.link.updateCarrier(now)
}

// reclaim takes all posted slots back without waiting for their completions.
func (q *queuePair) reclaim() {
	q.sender.reclaim()
	q.receiver.reclaim()
}
