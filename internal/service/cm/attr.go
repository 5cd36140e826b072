// SPDX-License-Identifier: Apache-2.0

package cm

import "weft/internal/proto/ib"

// Timers of RNR NAKs (IBA volume 1, table 45): how long a peer waits at least before it repeats a message that found no
// receive request.
const (
	longRNRTimer  = 0  // 655.36 ms
	shortRNRTimer = 12 // 0.64 ms
	endlessRNR    = 7  // the RNR retry count that means without end
)

// minRNRTimer returns the timer of this side's RNR NAKs. A peer that repeats a message only so often gets the longest,
// which is Linux's for every connection: programs choose their counts by it. A peer that repeats without end needs no
// such time.
func (c *Conn) minRNRTimer() uint8 {
	if c.peerRNRRetry == endlessRNR {
		return shortRNRTimer
	}
	return longRNRTimer
}

// QPAttr returns the attributes with which the connection's queue pair goes to a state, INIT, RTR or
// RTS, and which of them count. RTR and RTS are known once the peer's request or
// answer is.
func (c *Conn) QPAttr(s ib.QPState) (QPAttr, ib.AttrMask, error) {
	a := QPAttr{State: s, PKeyIndex: c.path.PKeyIndex, Path: c.path}
	if s == ib.Init {
		a.Access = ib.RemoteWrite
		if c.serve > 0 {
			a.Access |= ib.RemoteRead | ib.RemoteAtomic
		}
		return a, ib.AttrState | ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccessFlags, nil
	}
	if c.state == reqSent || c.state == dead {
		return QPAttr{}, 0, ErrState
	}
	rc := c.qpType == ib.RC
	switch s {
	case ib.RTR:
		a.PathMTU, a.DestQPN, a.RQPSN = c.path.MTU, c.peerQPN, c.psn
		mask := ib.AttrState | ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN
		if rc {
			a.MaxDestRdAtomic, a.MinRNRTimer = c.serve, c.minRNRTimer()
			mask |= ib.AttrMaxDestRdAtomic | ib.AttrMinRNRTimer
		}
		return a, mask, nil
	case ib.RTS:
		a.SQPSN = c.peerPSN
		mask := ib.AttrState | ib.AttrSQPSN
		if rc {
			a.Timeout, a.RetryCnt, a.RNRRetry, a.MaxRdAtomic = c.ackTimeout, c.retryCount, c.rnrRetry, c.ask
			mask |= ib.AttrTimeout | ib.AttrRetryCnt | ib.AttrRNRRetry | ib.AttrMaxQPRdAtomic
		}
		return a, mask, nil
	}
	return QPAttr{}, 0, ErrInvalid
}

// ackTimeout returns the code of the local ACK timeout: twice the packet lifetime plus the responder's
// ACK delay, all codes of 4.096 µs × 2^n (IBA volume 1, 12.7.34). The result is as precise as a code:
// a term below half of the sum is not in it.
func ackTimeout(delay, life uint8) uint8 {
	t := life + 1
	if delay > t {
		t, delay = delay, t
	}
	if delay+1 >= t {
		t++
	}
	return min(t, 31)
}
