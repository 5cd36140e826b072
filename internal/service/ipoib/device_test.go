// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"weft/internal/proto/mono"
)

// device is the node as network device.
type device struct{ *node }

func (n device) Register(d DeviceInfo) {
	n.logf("register %s mtu %d", d.Name, d.MTU)
	n.info = d
	if !n.regLater {
		n.s.queue = append(n.s.queue, n.answerRegister)
	}
}

func (n *node) answerRegister() {
	n.registered = n.regErr == nil
	n.l.Registered(n.s.now, n.regErr)
}

func (n device) Unregister() {
	n.logf("unregister")
	n.registered, n.carrier = false, false
}

func (n device) SetCarrier(on bool, reason string) {
	if !n.registered && n.regErr == nil && !n.regLater {
		n.s.t.Errorf("%s: carrier of a device that is not registered", n.name)
	}
	if on != (reason == "") {
		n.s.t.Errorf("%s: carrier %v, reason %q", n.name, on, reason)
	}
	if on != n.carrier {
		n.logf("carrier %v", on)
	}
	n.carrier, n.reason = on, reason
}

func (n device) SetMTU(mtu int) { n.logf("mtu %d", mtu); n.mtu = mtu }

// Deliver keeps copies, and spoils what it was given: it is the link's again.
func (n device) Deliver(packets [][]byte) int {
	if !n.registered {
		n.s.t.Errorf("%s: packets for a device that is not registered", n.name)
	}
	if n.full {
		return len(packets)
	}
	for i, p := range packets {
		if n.discard {
			n.count++
			continue
		}
		n.got = append(n.got, bytes.Clone(p))
		copy(p[:cap(p)], dirty)
		packets[i] = nil
	}
	return 0
}

func (n device) Wake()                        { n.wakes++ }
func (n device) Event(now mono.Time, e Event) { n.events = append(n.events, e) }
func (n device) Closed(err error)             { n.closed++; n.closedErr = err }

// ipv4 is a packet behind its headroom.
func ipv4(src, dst netip.Addr, payload string) []byte {
	f := make([]byte, Headroom+20, Headroom+20+len(payload)+64)
	p := f[Headroom:]
	p[0], p[8], p[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(p[2:], uint16(20+len(payload)))
	s, d := src.As4(), dst.As4()
	copy(p[12:], s[:])
	copy(p[16:], d[:])
	return append(f, payload...)
}

// send has n's IP stack send packets to the next hop that they are addressed
// to.
func (n *node) send(src, dst netip.Addr, payloads ...string) int {
	var frames [][]byte
	var hops []netip.Addr
	for _, p := range payloads {
		frames = append(frames, ipv4(src, dst, p))
		hops = append(hops, dst)
	}
	return n.l.SendBatch(n.s.now, frames, hops)
}

// texts are the payloads that n's IP stack got.
func (n *node) texts() (l []string) {
	for _, p := range n.got {
		if len(p) >= 20 && p[0]>>4 == 4 && p[9] == 17 {
			l = append(l, string(p[20:]))
		}
	}
	return l
}

func (n *node) counter(name string) uint64 {
	c := n.l.Counters()
	for _, v := range c.List() {
		if v.Name == name {
			return v.Value
		}
	}
	n.s.t.Fatalf("no counter %s", name)
	return 0
}
