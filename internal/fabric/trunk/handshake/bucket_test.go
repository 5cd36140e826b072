// SPDX-License-Identifier: Apache-2.0

package handshake

import (
	"net/netip"
	"testing"
)

// TestCookieRate: requests for cookies are answered up to a rate. That of strangers takes nothing from peers.
func TestCookieRate(t *testing.T) {
	a, b := two(t, nil)
	b.cfg.Accept = func(from netip.AddrPort) Class {
		if from == a.at {
			return Known
		}
		return Stranger
	}
	buf := make([]byte, MaxDatagram)
	sent := map[netip.AddrPort]int{}
	const each = 10 // requests in a millisecond
	for now := ms; now <= 10_000*ms; now += ms {
		for i := range each {
			b.Handle(now, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(now / ms >> 3), byte(i)}), 1),
				request(uint32(i+1), [cookieLen]byte{}))
		}
		if now%(100*ms) == 0 {
			b.Handle(now, a.at, request(1, [cookieLen]byte{}))
		}
		for {
			o, ok := b.Next(now, buf)
			if !ok {
				break
			}
			if !o.Unproved {
				t.Fatal("a cookie is sent as to an address that is proved")
			}
			sent[o.To]++
		}
	}
	strangers := -sent[a.at]
	for _, n := range sent {
		strangers += n
	}
	if most := Burst + 10*RetryRate; strangers > most || strangers < most-2 || sent[a.at] != 100 ||
		b.CookieRate != uint64(10_000*each-strangers) {
		t.Errorf("%d cookies to strangers, %d of 100 to the peer, %d refused", strangers, sent[a.at], b.CookieRate)
	}
	// Those to peers' addresses have a rate as well.
	before := b.Cookies
	for i := range uint32(10_000) {
		b.Handle(20_000*ms, a.at, request(i+1, [cookieLen]byte{}))
		b.Next(20_000*ms, buf)
	}
	if n := b.Cookies - before; n != Burst {
		t.Errorf("%d cookies at once", n)
	}
}
