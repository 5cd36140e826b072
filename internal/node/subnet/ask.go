// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// requests of performance management from port 0 of the switch, for the operator's checks. They belong to the
// management goroutine.
type requests struct {
	last    uint32
	waiting map[uint64]chan<- mad.Perf // by transaction identifier
}

// askTag is the upper half of their transaction identifiers.
const askTag = 0xe000_0000

// A request that is not answered is repeated after askWait, askTries times in all.
const (
	askWait  = 200 * time.Millisecond
	askTries = 3
)

// ErrNoReply is the error of a request that was not answered.
var ErrNoReply = errors.New("no answer")

// PortCounters requests the counters of a port of the node with a LID (IBA volume 1, 16.1.3.5). No lane may call it,
// nor the management goroutine.
func (s *Subnet) PortCounters(ctx context.Context, lid ib.LID, port uint8) (c mad.PortCounters, err error) {
	reply := make(chan mad.Perf, askTries) // one for each repetition: the management goroutine never waits
	var tid uint64
	defer func() { s.Post(func() { delete(s.asks.waiting, tid) }) }()
	for range askTries {
		if err := s.Do(func() {
			if tid == 0 {
				s.asks.last++
				tid = askTag<<32 | uint64(s.asks.last)
				s.asks.waiting[tid] = reply
			}
			s.ask(tid, lid, port)
		}); err != nil {
			return c, err
		}
		select {
		case <-ctx.Done():
			return c, ctx.Err()
		case m := <-reply:
			if m.Status != mad.StatusOK {
				return c, errors.New(m.Status.String())
			}
			return c, c.Parse(m.Data[:])
		case <-time.After(askWait):
		}
	}
	return c, ErrNoReply
}

// ask sends a request for the counters of a port.
func (s *Subnet) ask(tid uint64, lid ib.LID, port uint8) {
	m := mad.Perf{Header: mad.Header{BaseVersion: mad.BaseVersion, MgmtClass: mad.ClassPerf,
		ClassVersion: mad.ClassVersion,
		Method:       mad.MethodGet, TransactionID: tid, AttributeID: mad.AttrPortCounters}}
	q := mad.PortCounters{PortSelect: port}
	q.Append(m.Data[:0])
	d := mad.Datagram{SLID: s.Switch.LID(), DLID: lid, SrcQPN: ib.QPNGSI, DstQPN: ib.QPNGSI, QKey: ib.GSIQKey,
		PKey: managementPKey(s.Switch.PKeys(0))}
	m.Append(d.Data[:0])
	s.dispatch(s.cfg.Now(), nil, s.Switch.Originate(s.cfg.Now(), &d), &d)
}

// replied accepts the answer to a request, and reports whether it was one.
func (s *Subnet) replied(d *mad.Datagram) bool {
	if mad.Class(d.Data[1]) != mad.ClassPerf || d.DstQPN != ib.QPNGSI || d.Long != nil {
		return false
	}
	var m mad.Perf
	if m.Parse(d.Data[:]) != nil || !m.Method.IsResponse() {
		return false
	}
	reply := s.asks.waiting[m.TransactionID]
	if reply == nil {
		return false
	}
	select {
	case reply <- m:
	default: // more answers than requests
	}
	return true
}
