// SPDX-License-Identifier: Apache-2.0

// Package neighbour resolves IP addresses to MACs for a network card that has no IP stack: by ARP (RFC 826) and by
// neighbour discovery (RFC 4861), in the name of the guest behind the card.
//
// What comes in: questions of the card (Ask) and the frames that arrive at its port (Frame), which the guest gets too;
// what goes out: frames with questions (Next), and results (New's resolved). One lane of package node owns a Resolver,
// calls it and passes the time. A Resolver has no goroutine, lock or clock. It resolves addresses of the segment; it
// has no gateways, and never answers questions: the guest does.
//
// It must never trust a frame that it did not request. It takes an answer only from a frame that comes from the MAC
// that the answer names, goes to the card, and belongs to a question of the card that is outstanding. Every other
// frame can at most confirm what is known, or cause a new question.
package neighbour

import (
	"encoding/binary"
	"net/netip"
	"time"

	"weft/internal/proto/counters"
	"weft/internal/proto/ether"
	"weft/internal/proto/mono"
)

var be = binary.BigEndian

// Limits.
const (
	// MaxEntries bounds the table. The address that was confirmed least of late gives way to a new question.
	MaxEntries = 256
	// MaxFrame is the most octets of a frame that Next writes.
	MaxFrame = 86

	tries    = 3
	interval = time.Second // from one question to the next
	// valid is how long an address is used after it was confirmed.
	valid = 30 * time.Second
)

// Counters count what a Resolver did, and the frames that it refused.
type Counters struct {
	Questions   uint64 // frames with questions
	Answers     uint64 // questions that were answered
	Confirmed   uint64 // frames that confirm what is known
	Doubted     uint64 // frames that contradict an entry, which then needs a new question before its next use
	Unreachable uint64 // addresses that did not answer
	TableFull   uint64 // questions refused because the table is full of outstanding ones
	Malformed   uint64 // frames of ARP or neighbour discovery that no station may send
	Unsolicited uint64 // answers to no outstanding question
}

// Each calls f with the name and the value of every counter, in a fixed order.
func (c *Counters) Each(f func(name string, v uint64)) { counters.Each("", c, f) }

// Resolver resolves for one card.
type Resolver struct {
	resolved func(ip netip.Addr, mac [6]byte, ok bool)
	mac      [6]byte
	table    []entry
	due      mono.Time // the earliest of the table
	c        Counters
}

// entry is an address that was requested.
type entry struct {
	ip, src netip.Addr
	mac     [6]byte // if known
	known   bool
	asking  bool      // a question is outstanding
	owed    bool      // a result is to be reported
	sent    int       // frames with the question
	next    mono.Time // of the next frame, or of the failure; when asking
	until   mono.Time // how long mac is valid; when known
}

// New returns a Resolver of a card with the address mac. Next and Frame call resolved with the result of questions:
// once for all calls of Ask with an address that returned true since the last result for that address. resolved may
// call Ask.
func New(mac [6]byte, resolved func(ip netip.Addr, mac [6]byte, ok bool)) *Resolver {
	return &Resolver{resolved: resolved, mac: mac}
}

// SetMAC sets the address of the card.
func (r *Resolver) SetMAC(mac [6]byte) { r.mac = mac }

// Counters returns a copy of the counters.
func (r *Resolver) Counters() Counters { return r.c }

// Reset forgets everything; results of outstanding questions are not reported. The segment is another one.
func (r *Resolver) Reset() { r.table, r.due = r.table[:0], 0 }

// unicast reports whether a may be the address of one station.
func unicast(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsMulticast() && !a.IsUnspecified() && !a.IsLoopback() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// Ask requests the MAC of dst for a card with the address src. The result of an address that is known is reported by
// the next call of Next, which is due at once. Ask returns false, and nothing will be reported, if the addresses are
// not of two stations, if the card has no MAC, or if the table is full of outstanding questions.
func (r *Resolver) Ask(now mono.Time, src, dst netip.Addr) bool {
	src, dst = src.Unmap(), dst.Unmap()
	if r.mac == [6]byte{} || !unicast(src) || !unicast(dst) || src == dst || src.Is4() != dst.Is4() {
		return false
	}
	e := r.find(dst)
	switch {
	case e == nil:
		if e = r.enter(); e == nil {
			r.c.TableFull++
			return false
		}
		*e = entry{ip: dst}
		fallthrough
	case !e.asking && (!e.known || now >= e.until):
		e.src, e.asking, e.sent, e.next = src, true, 0, now
	case !e.asking:
		e.next = now
	}
	e.owed = true
	r.schedule()
	return true
}

func (r *Resolver) find(ip netip.Addr) *entry {
	for i := range r.table {
		if r.table[i].ip == ip {
			return &r.table[i]
		}
	}
	return nil
}

// enter makes room for an entry; nil if all entries are in use.
func (r *Resolver) enter() *entry {
	if len(r.table) < MaxEntries {
		if r.table == nil {
			r.table = make([]entry, 0, MaxEntries)
		}
		r.table = append(r.table, entry{})
		return &r.table[len(r.table)-1]
	}
	var oldest *entry
	for i := range r.table {
		if e := &r.table[i]; !e.owed && !e.asking && (oldest == nil || e.until < oldest.until) {
			oldest = e
		}
	}
	return oldest
}

// schedule finds the earliest deadline.
func (r *Resolver) schedule() {
	r.due = 0
	for i := range r.table {
		if e := &r.table[i]; e.owed && (r.due == 0 || e.next < r.due) {
			r.due = e.next
		}
	}
}

// Deadline is the time at which Next is to be called; zero: there is nothing to do.
func (r *Resolver) Deadline() mono.Time { return r.due }

// Next reports results that are due and writes the next frame to buf, which has room for MaxFrame octets. ok is false
// if there is no frame now. The caller repeats it until then.
func (r *Resolver) Next(now mono.Time, buf []byte) (frame []byte, ok bool) {
	for r.due != 0 && r.due <= now {
		var e *entry
		for i := range r.table {
			if e = &r.table[i]; e.owed && e.next <= now {
				break
			}
		}
		if !e.asking {
			r.report(e, e.mac, true)
			continue
		}
		if e.sent == tries {
			r.c.Unreachable++
			r.report(e, [6]byte{}, false)
			continue
		}
		e.sent++
		e.next = now.Add(interval)
		r.schedule()
		r.c.Questions++
		return r.question(buf, e), true
	}
	return nil, false
}

// report ends a question. It is the last use of e: resolved may change the table.
func (r *Resolver) report(e *entry, mac [6]byte, ok bool) {
	ip := e.ip
	e.asking, e.owed, e.known, e.mac = false, false, ok, mac
	if !ok {
		e.until = 0 // the first to give way
	}
	r.schedule()
	r.resolved(ip, mac, ok)
}

// take handles a frame that names the MAC of a station. answer is set if it answers a question that was sent from
// the address to.
func (r *Resolver) take(now mono.Time, ip netip.Addr, mac [6]byte, answer bool, to netip.Addr) {
	e := r.find(ip)
	switch {
	case e != nil && e.asking && e.sent > 0 && answer && e.src == to:
		r.c.Answers++
		e.until = now.Add(valid)
		r.report(e, mac, true)
	case e != nil && e.known && e.mac == mac && now < e.until:
		r.c.Confirmed++
		e.until = now.Add(valid)
	case e != nil && e.known && e.mac != mac && now < e.until:
		r.c.Doubted++
		e.until = now
	case answer:
		r.c.Unsolicited++
	}
}

// Frame looks at a frame that arrived at the port of the card.
func (r *Resolver) Frame(now mono.Time, frame []byte) {
	if len(frame) < ether.HeaderLen {
		return
	}
	switch be.Uint16(frame[12:]) {
	case ether.TypeARP:
		r.arp(now, frame)
	case ether.TypeIPv6:
		r.discovery(now, frame)
	}
}

// station reports whether mac may be the address of another station.
func (r *Resolver) station(mac [6]byte) bool {
	return mac[0]&1 == 0 && mac != [6]byte{} && mac != r.mac
}
