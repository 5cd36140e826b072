// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"weft/test/rocefront"
)

// overIPv6: queue pairs are connected by GIDs of IPv6.
func overIPv6(t *testing.T, a, b *roceCard) {
	a6, b6 := *a, *b
	for _, c := range []*roceCard{&a6, &b6} {
		c.address(t, fmt.Sprintf("fd09::%d", c.addr.As4()[3]), gid6Index)
	}
	for _, kind := range []uint8{rocefront.RC, rocefront.UD} {
		connectRoCE(t, &a6, &b6, kind).carry(t, message{op: rocefront.OpSendImm, sizes: []int{1000}}, 3)
	}
	t.Cleanup(func() { // after the pairs
		must(t, a.DelGID(gid6Index))
		must(t, b.DelGID(gid6Index))
	})
}

// noPeer: a request to a queue pair that does not exist fails when its retries have run out.
func noPeer(t *testing.T, a, b *roceCard) {
	q, gone := a.qp(t, rocefront.RC), b.qp(t, rocefront.RC)
	must(t, gone.Destroy())
	to := b.to(gone)
	to.Timeout, to.Retry = 10, 2
	must(t, q.Connect(to))
	p := &rocePair{a: a, b: b, qa: q, qb: gone}
	p.post(t, small, 5, rocefront.Signaled)
	a.completion(t, rocefront.Completion{ID: 5, Status: rocefront.RetryExcErr, QPN: q.Number})
	must(t, q.Destroy())
}

// malformed: an element that contradicts itself ends in an error of its queue pair, and other queue pairs go on.
func malformed(t *testing.T, a, b *roceCard) {
	const whole = 576
	element := func(size int, flags uint8, count uint32) []byte {
		b := make([]byte, max(size, whole))
		binary.LittleEndian.PutUint64(b, 77)
		b[8], b[9] = rocefront.OpSend, rocefront.Signaled|flags
		binary.LittleEndian.PutUint32(b[whole-16:], count)
		return b[:size]
	}
	for name, b2 := range map[string][]byte{
		"more elements than octets": element(whole+16, 0, 2),
		"2^32-1 elements":           element(whole+16, 0, 1<<32-1),
		"513 octets inline":         element(whole, rocefront.Inline, 513),
		"65535 octets inline":       element(whole, rocefront.Inline, 65535),
		"short by an octet":         element(whole-1, 0, 0),
		"8 octets":                  element(8, 0, 0),
		"1 octet":                   element(1, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			p := &rocePair{a: a, b: b, qa: a.qp(t, rocefront.RC), qb: b.qp(t, rocefront.RC)}
			must(t, p.qa.Connect(b.to(p.qb)))
			must(t, p.qb.Connect(a.to(p.qa)))
			must(t, p.qa.PostRaw(b2))
			c, err := a.cq.Poll(completionLimit)
			must(t, err)
			if c.Status == rocefront.Success || c.QPN != p.qa.Number || len(b2) >= whole && c.ID != 77 {
				t.Errorf("completion %+v", c)
			}
			must(t, p.qa.Destroy())
			must(t, p.qb.Destroy())
			connectRoCE(t, a, b, rocefront.RC).carry(t, small, 1)
		})
	}
}

// paced: with a rate limit, no number of octets is sent in less time than they take at that rate.
func paced(t *testing.T, a, b *roceCard) {
	p := connectRoCE(t, a, b, rocefront.RC)
	const (
		kbps  = 80_000
		size  = 64 << 10
		count = 32
		// The RFC does not state the interval that the rate is measured over.
		interval = time.Millisecond
	)
	limit := rocefront.QPAttr{Mask: rocefront.AttrRateLimit}
	limit.RateKbps = kbps
	must(t, p.qa.Modify(limit))
	begun := time.Now()
	m := message{op: rocefront.OpWrite, sizes: []int{size}}
	for i := range uint64(count) {
		must(t, p.qa.PostSend(rocefront.Send{ID: i, Opcode: m.op, Flags: rocefront.Signaled,
			List: []rocefront.SGE{a.mr.SGE(0, size)}, RemoteAddr: b.mr.Addr, RKey: b.mr.RKey}))
	}
	for i := range uint64(count) {
		a.completion(t, p.sent(m, i))
		least := time.Duration((i + 1) * size * 8 * uint64(time.Second) / (kbps * 1000))
		if took := time.Since(begun); took+interval < least {
			t.Fatalf("%d octets took %v, at %d kbps they take %v", (i+1)*size, took, kbps, least)
		}
	}
}

// stated: packets go to the MAC address that the route states.
func stated(t *testing.T, a, b *roceCard) {
	route, wrong := b.route(), b.route()
	copy(route.DMAC[:], b.HardwareAddr())
	copy(wrong.DMAC[:], "\x52\x54\x00\xde\xad\x01")
	rc := &rocePair{a: a, b: b, qa: a.qp(t, rocefront.RC), qb: b.qp(t, rocefront.RC)}
	to := b.to(rc.qb)
	to.Route = route
	must(t, rc.qa.Connect(to))
	must(t, rc.qb.Connect(a.to(rc.qa)))
	rc.carry(t, small, 1)
	if have := got(rc.qa.Query(rocefront.AttrAV))(t).AH.DMAC; have != route.DMAC {
		t.Errorf("QUERY_QP: MAC address % x, want % x", have, route.DMAC)
	}
	to.Route, to.Timeout, to.Retry = wrong, 10, 1
	must(t, rc.qa.Modify(rocefront.QPAttr{Mask: rocefront.AttrState, State: rocefront.Reset}))
	must(t, rc.qa.Connect(to))
	must(t, rc.qb.PostRecv(9, b.mr.SGE(targetAt, 100)))
	rc.post(t, small, 3, rocefront.Signaled)
	a.completion(t, rocefront.Completion{ID: 3, Status: rocefront.RetryExcErr, QPN: rc.qa.Number})
	must(t, rc.qa.Destroy())
	must(t, rc.qb.Destroy())

	ud := connectRoCE(t, a, b, rocefront.UD)
	right, lost := got(a.pd.CreateAH(route))(t), got(a.pd.CreateAH(wrong))(t)
	resolved := ud.ah
	ud.ah = lost
	must(t, ud.qb.PostRecv(7, b.mr.SGE(targetAt, grhSize+100)))
	ud.post(t, small, 3, rocefront.Signaled)
	a.completion(t, ud.sent(small, 3))
	ud.quiet(t)
	ud.ah = right
	ud.post(t, small, 4, rocefront.Signaled)
	a.completion(t, ud.sent(small, 4))
	b.completion(t, ud.received(small, 7))
	ud.ah = resolved
	must(t, right.Destroy())
	must(t, lost.Destroy())
}

// arp is an Ethernet frame with a message of ARP (RFC 826).
func arp(operation uint16, dst []byte, from, to *roceCard) []byte {
	const etherType, ethernet, ipv4 = 0x0806, 1, 0x0800
	be := binary.BigEndian
	f := append(slices.Clone(dst), from.HardwareAddr()...)
	f = be.AppendUint16(f, etherType)
	f = be.AppendUint16(be.AppendUint16(f, ethernet), ipv4)
	f = append(f, 6, 4)
	f = be.AppendUint16(f, operation)
	f = append(append(f, from.HardwareAddr()...), from.addr.AsSlice()...)
	return append(append(f, to.HardwareAddr()...), to.addr.AsSlice()...)
}

// frames: Ethernet frames go from the transmit queue of a card to the receive queue of the other, beside its messages.
func frames(t *testing.T, a, b *roceCard) {
	for name, way := range map[string]struct {
		from, to *roceCard
		frame    []byte
	}{
		"broadcast":      {a, b, arp(1, bytes.Repeat([]byte{0xff}, 6), a, b)},
		"broadcast back": {b, a, arp(1, bytes.Repeat([]byte{0xff}, 6), b, a)},
		"multicast":      {a, b, arp(1, []byte{0x33, 0x33, 0xff, 0, 0, 0x12}, a, b)},
		"multicast back": {b, a, arp(1, []byte{0x33, 0x33, 0xff, 0, 0, 0x11}, b, a)},
		"unicast":        {a, b, arp(2, b.HardwareAddr(), a, b)},
		"unicast back":   {b, a, arp(2, a.HardwareAddr(), b, a)},
	} {
		t.Run(name, func(t *testing.T) {
			is := func(f []byte) bool { return bytes.HasPrefix(f, way.frame) }
			must(t, way.from.SendFrame(way.frame, completionLimit))
			got(way.to.ReceiveFrame(completionLimit, is))(t)
			must(t, way.from.NoFrame(quietFor, is))
		})
	}
	t.Run("to no card", func(t *testing.T) {
		f := arp(2, []byte{0x52, 0x54, 0, 0xde, 0xad, 2}, a, b)
		must(t, a.SendFrame(f, completionLimit))
		must(t, b.NoFrame(quietFor, func(have []byte) bool { return bytes.HasPrefix(have, f) }))
	})
	connectRoCE(t, a, b, rocefront.RC).carry(t, small, 1)
}

// classes: the device executes commands of virtio-net with their feature, and refuses those without.
func (l *roceLab) classes(t *testing.T) {
	le := binary.LittleEndian
	table := le.AppendUint32(le.AppendUint32(nil, 0), 0) // neither unicast nor multicast addresses
	mac := []byte{0x52, 0x54, 0, 1, 2, 3}
	all := uint64(0)
	rows := []struct {
		name           string
		class, command byte
		data           []byte
		feature        uint64
	}{
		{"promiscuous", rocefront.ClassRX, 0, []byte{0}, rocefront.FeatureCtrlRX},
		{"all multicast", rocefront.ClassRX, 1, []byte{1}, rocefront.FeatureCtrlRX},
		{"MAC table", rocefront.ClassMAC, 0, table, rocefront.FeatureCtrlRX},
		{"MAC address", rocefront.ClassMAC, 1, mac, rocefront.FeatureCtrlMAC},
		{"queue pairs", rocefront.ClassMQ, 0, []byte{2, 0}, rocefront.FeatureMQ},
		{"guest offloads", rocefront.ClassGuestOffloads, 0, make([]byte, 8), rocefront.FeatureGuestOffloads},
	}
	for _, r := range rows {
		all |= r.feature
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			c := l.open(t, "near", rocefront.Options{Features: all &^ r.feature})
			var refused *rocefront.Refused
			if _, err := c.Command(r.class, r.command, r.data, 0); !errors.As(err, &refused) {
				t.Errorf("without its feature: want VIRTIO_NET_ERR, have %v", err)
			}
			got(c.QueryPort())(t)
		})
	}
	c, b := l.open(t, "near", rocefront.Options{Features: all}), l.open(t, "beside", rocefront.Options{})
	together(b, c)
	for _, r := range rows {
		if _, err := c.Command(r.class, r.command, r.data, 0); err != nil {
			t.Errorf("%s, with its feature: %v", r.name, err)
		}
	}
	// The card has the new address now, for frames and for messages.
	copy(c.Config.MAC[:], mac)
	must(t, c.SendFrame(arp(1, bytes.Repeat([]byte{0xff}, 6), c, b), completionLimit))
	f := arp(2, mac, b, c)
	must(t, b.SendFrame(f, completionLimit))
	got(c.ReceiveFrame(completionLimit, func(have []byte) bool { return bytes.HasPrefix(have, f) }))(t)
	connectRoCE(t, b, c, rocefront.RC).carry(t, small, 1)
}

// killed: after the end of an emulator nothing of its driver is left, and the next driver of the card begins anew.
func (l *roceLab) killed(t *testing.T) {
	b := l.open(t, "far", rocefront.Options{})
	for range 3 {
		dead := got(rocefront.Open(l.sockets["near"], rocefront.Options{}))(t)
		c := &roceCard{Device: dead, isCard: true}
		together(b, c)
		c.address(t, roceAddrs["near"], gidIndex)
		c.pd = got(c.CreatePD())(t)
		c.cq = got(c.CreateCQ(16))(t)
		c.mr = got(c.pd.RegisterNew(memoryAt, memorySize, allAccess))(t)
		p := &rocePair{a: b, b: c, qa: b.qp(t, rocefront.RC), qb: c.qp(t, rocefront.RC)}
		to := c.to(p.qb)
		to.Timeout, to.Retry = 10, 1
		must(t, p.qa.Connect(to))
		must(t, p.qb.Connect(b.to(p.qa)))
		p.carry(t, small, 1)
		must(t, dead.Kill())
		p.post(t, small, 3, rocefront.Signaled)
		lost := got(b.cq.Poll(completionLimit))(t)
		if lost.Status == rocefront.Success || lost.ID != 3 {
			t.Errorf("a message to a dead peer has the completion %+v", lost)
		}
		must(t, p.qa.Destroy())
	}
	c := l.open(t, "near", rocefront.Options{})
	together(b, c)
	connectRoCE(t, b, c, rocefront.RC).carry(t, small, 1)
}
