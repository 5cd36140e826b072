// SPDX-License-Identifier: Apache-2.0

package ethdev

// maxHeard bounds the addresses that are learnt of a guest: a bridge with
// more behind it needs the switch to flood.
const maxHeard = 16

// hearing holds the addresses of a guest: those it set through its control queue, and those it sends
// from. Front-ends with a control queue of their own pass on neither its address nor its filter.
type hearing struct {
	own                [6]byte
	unicast, multicast [][6]byte
	heard              [maxHeard][6]byte
	n                  int
	last               [6]byte // source of the last frame
}

// heard records that the guest sent from mac, which differs from the source of its last frame.
func (p *Port) heard(mac [6]byte) {
	h := &p.hear
	h.last = mac
	if mac == h.own || mac[0]&1 != 0 {
		return
	}
	for _, m := range h.heard[:h.n] {
		if m == mac {
			return
		}
	}
	if h.n == maxHeard {
		return
	}
	h.heard[h.n] = mac
	h.n++
	p.notify()
}

// forget drops the addresses that a session set or that were learnt in it: they may be at another port
// now. The guest's own address stays the port's. It reports whether there was anything to drop.
func (h *hearing) forget() bool {
	any := h.n+len(h.unicast)+len(h.multicast) > 0
	h.n, h.last, h.unicast, h.multicast = 0, [6]byte{}, nil, nil
	return any
}

// lists returns the filters beyond the guest's own address; they are the
// caller's.
func (h *hearing) lists() (unicast, multicast [][6]byte) {
	unicast = append(append(unicast, h.unicast...), h.heard[:h.n]...)
	return unicast, append(multicast, h.multicast...)
}
