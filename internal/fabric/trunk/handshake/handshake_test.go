// SPDX-License-Identifier: Apache-2.0

package handshake

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"flag"
	"fmt"
	"math/big"
	mrand "math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"weft/internal/fabric/trunk/seal"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

const ms = mono.Time(time.Millisecond)

var wall = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// authority signs the certificates of a test.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: wall.Add(-time.Hour),
		NotAfter:  wall.Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, parsed}
}

// member is a Trust with a certificate of an authority.
type member struct {
	ca   *authority
	own  tls.Certificate
	node map[string]ib.GUID // by common name; missing: refused
}

func (a *authority) member(t testing.TB, name string, nodes map[string]ib.GUID) *member {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: wall.Add(-time.Hour),
		NotAfter:  wall.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &member{a, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nodes}
}

func (m *member) Certificate() (*tls.Certificate, error) { return &m.own, nil }

func (m *member) Verify(now time.Time, chain []*x509.Certificate) (Identity, error) {
	roots := x509.NewCertPool()
	roots.AddCert(m.ca.cert)
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return Identity{}, err
	}
	name := chain[0].Subject.CommonName
	g, ok := m.node[name]
	if !ok {
		return Identity{}, errors.New("removed from the fabric")
	}
	return Identity{Node: g, Name: name}, nil
}

var nodes = map[string]ib.GUID{"a": 0xa, "b": 0xb}

// side is one Endpoint in a test.
type side struct {
	*Endpoint
	at      netip.AddrPort
	results []Result
}

func newSide(t testing.TB, name string, m Trust, change func(*Config)) *side {
	t.Helper()
	s := &side{at: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, name[0]}), 4792)}
	cfg := Config{Trust: m, Wall: func(now mono.Time) time.Time { return wall.Add(time.Duration(now)) },
		Hello: func(initiator bool, tag int, at netip.AddrPort) Hello {
			return Hello{Limit: 1472, Epoch: uint64(name[0]), Node: nodes[name], Name: name, Version: "1.0"}
		}}
	if change != nil {
		change(&cfg)
	}
	s.Endpoint = New(cfg)
	t.Cleanup(func() {
		for _, c := range s.order {
			c.close()
		}
	})
	return s
}

func two(t testing.TB, change func(*Config)) (a, b *side) {
	t.Helper()
	ca := newAuthority(t)
	return newSide(t, "a", ca.member(t, "a", nodes), change), newSide(t, "b", ca.member(t, "b", nodes), change)
}

func (s *side) take() {
	for {
		r, ok := s.Take()
		if !ok {
			return
		}
		s.results = append(s.results, r)
	}
}

// packet is a datagram on its way.
type packet struct {
	at       mono.Time
	from, to *side
	data     []byte
}

// network carries datagrams between sides, with faults by a seed.
type network struct {
	out   [MaxDatagram]byte // that a side sends
	sides []*side
	rng   *mrand.Rand
	loss  float64
	dup   float64
	delay time.Duration // of each, up to
	sky   []packet
	// touch sees each datagram before it is sent; false drops it.
	touch func(from *side, d []byte) bool
	most  int
	sent  int
	// slow is how long a Work takes, up to; those that are under way.
	slow  time.Duration
	works []working
}

// working is a Work under way.
type working struct {
	at mono.Time
	of *side
	w  *Work
}

// compute begins the Work that is due, each on a goroutine of its own, and finishes what has taken its time.
func (n *network) compute(now mono.Time) {
	for _, s := range n.sides {
		for {
			w, ok := s.Work(now)
			if !ok {
				break
			}
			ran := make(chan struct{})
			go func() {
				w.Run()
				close(ran)
			}()
			<-ran
			n.works = append(n.works, working{now.Add(time.Duration(n.rng.Float64() * float64(n.slow))), s, w})
		}
	}
	for i := 0; i < len(n.works); {
		x := n.works[i]
		if x.at > now {
			i++
			continue
		}
		n.works = append(n.works[:i], n.works[i+1:]...)
		x.of.Finish(now, x.w)
		n.pump(now)
	}
}

func (n *network) pump(now mono.Time) {
	b := n.out[:]
	for _, s := range n.sides {
		for {
			out, ok := s.Next(now, b)
			if !ok {
				break
			}
			to, k := out.To, out.Len
			n.sent++
			n.most = max(n.most, k)
			for _, o := range n.sides {
				if o.at != to || n.touch != nil && !n.touch(s, b[:k]) || n.rng.Float64() < n.loss {
					continue
				}
				copies := 1
				if n.rng.Float64() < n.dup {
					copies = 2
				}
				for range copies {
					n.sky = append(n.sky, packet{now.Add(time.Duration(n.rng.Float64() * float64(n.delay))), s, o,
						bytes.Clone(b[:k])})
				}
			}
		}
	}
}

// run lets time pass in steps of a millisecond until done, and returns when that was.
func (n *network) run(t testing.TB, from, until mono.Time, done func() bool) mono.Time {
	t.Helper()
	if n.rng == nil {
		n.rng = mrand.New(mrand.NewPCG(1, 1))
	}
	for now := from; now < until; now += ms {
		for _, s := range n.sides {
			s.Tick(now)
		}
		n.pump(now)
		for i := 0; i < len(n.sky); {
			p := n.sky[i]
			if p.at > now {
				i++
				continue
			}
			n.sky = append(n.sky[:i], n.sky[i+1:]...)
			p.to.Handle(now, p.from.at, p.data)
			n.pump(now)
		}
		n.compute(now)
		for _, s := range n.sides {
			s.take()
		}
		if done() {
			return now
		}
	}
	return 0
}

// works checks that two results are the ends of one session.
func works(t testing.TB, a, b Result) {
	t.Helper()
	if a.Err != nil || b.Err != nil {
		t.Fatalf("failed: %v, %v", a.Err, b.Err)
	}
	var s seal.Scratch
	for _, p := range [][2]*seal.Key{{a.Send, b.Recv}, {b.Send, a.Recv}} {
		d := p[0].Seal(&s, seal.Encrypt, append(make([]byte, 16, 64), "hello"...), 16, 1)
		if got, ok := p[1].Open(&s, seal.Encrypt, d, 16); !ok || string(got) != "hello" {
			t.Fatal("the ends have different keys")
		}
		if p[0].Index() != p[1].Index() {
			t.Errorf("indices %x, %x", p[0].Index(), p[1].Index())
		}
	}
	d := a.Send.Seal(&s, seal.Encrypt, append(make([]byte, 16, 64), "hello"...), 16, 1)
	if _, ok := a.Recv.Open(&s, seal.Encrypt, d, 16); ok {
		t.Error("a reflected datagram opens")
	}
}

func TestHandshake(t *testing.T) {
	a, b := two(t, nil)
	a.Begin(ms, 7, b.at)
	n := &network{sides: []*side{a, b}}
	if n.run(t, ms, 100*ms, func() bool { return len(a.results) > 0 && len(b.results) > 0 }) == 0 {
		t.Fatalf("no session: %+v %+v", a.Counters, b.Counters)
	}
	ra, rb := a.results[0], b.results[0]
	works(t, ra, rb)
	if ra.Tag != 7 || !ra.Initiator || rb.Tag != -1 || rb.Initiator || rb.At != a.at {
		t.Errorf("results %+v, %+v", ra, rb)
	}
	if ra.Identity != (Identity{0xb, "b"}) || rb.Identity != (Identity{0xa, "a"}) || ra.Remote != rb.Local ||
		rb.Remote != ra.Local || ra.Remote.Version != "1.0" {
		t.Errorf("results %+v, %+v", ra, rb)
	}
	if a.Counters != (Counters{Begun: 1, Completed: 1}) || b.Counters != (Counters{Accepted: 1, Completed: 1,
		Cookies: 1}) {
		t.Errorf("counters %+v, %+v", a.Counters, b.Counters)
	}
	if b.HalfOpenNow() != 0 || len(b.conns) != 0 {
		t.Error("the responder keeps state")
	}
	a.Confirm(ra.Index)
	if len(a.conns) != 0 {
		t.Error("the initiator keeps state")
	}
	if n.most > MaxDatagram {
		t.Errorf("a datagram of %d octets", n.most)
	}
	t.Logf("%d datagrams, the largest of %d octets", n.sent, n.most)
}

// TestFaults: handshakes complete over a network that loses, repeats and reorders, both ends begin, and equal seeds
// take equal time.
func TestFaults(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		var took [2]mono.Time
		for i := range took {
			a, b := two(t, nil)
			n := &network{sides: []*side{a, b}, rng: mrand.New(mrand.NewPCG(seed, 2)), loss: 0.25, dup: 0.2,
				delay: 30 * time.Millisecond}
			a.Begin(ms, 1, b.at)
			if seed%2 == 0 {
				// Claims are random: fix them, or seeds do not repeat.
				b.Begin(ms, 1, a.at)
				a.order[0].claim, b.order[0].claim = seed%4, 1
			}
			good := func(s *side) (r []Result) {
				for _, x := range s.results {
					if x.Err == nil {
						r = append(r, x)
					}
				}
				return r
			}
			took[i] = n.run(t, ms, 8000*ms, func() bool { return len(good(a)) > 0 && len(good(b)) > 0 })
			if took[i] == 0 {
				t.Fatalf("seed %d: no session: %+v %+v", seed, a.Counters, b.Counters)
			}
			if len(good(a))+len(good(b)) != 2 {
				t.Errorf("seed %d: %d and %d sessions", seed, len(good(a)), len(good(b)))
			}
			works(t, good(a)[0], good(b)[0])
		}
		if took[0] != took[1] {
			t.Errorf("seed %d: took %d, then %d", seed, took[0], took[1])
		}
	}
}

// TestBothBegin: without loss the smaller claim goes on at once, and one session results.
func TestBothBegin(t *testing.T) {
	for range 10 {
		a, b := two(t, nil)
		a.Begin(ms, 1, b.at)
		b.Begin(ms, 1, a.at)
		n := &network{sides: []*side{a, b}}
		n.run(t, ms, 50*ms, func() bool { return false })
		if len(a.results) != 1 || len(b.results) != 1 {
			t.Fatalf("results %+v, %+v", a.results, b.results)
		}
		works(t, a.results[0], b.results[0])
		if a.results[0].Initiator == b.results[0].Initiator {
			t.Error("both are initiators")
		}
		a.Confirm(a.results[0].Index)
		b.Confirm(b.results[0].Index)
		if len(a.conns)+len(b.conns) != 0 || a.Crossed+b.Crossed == 0 {
			t.Errorf("left: %d, %d; %+v, %+v", len(a.conns), len(b.conns), a.Counters, b.Counters)
		}
	}
}

// TestRefusals: each end refuses what Trust refuses, and the other learns it.
func TestRefusals(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	for _, c := range []struct {
		name         string
		a, b         *member
		whyA, whyB   string
		wrongNode    bool
		unknownFirst bool
	}{
		{name: "another fabric at b", a: ca.member(t, "a", nodes), b: other.member(t, "b", nodes),
			whyA: "certificate signed by unknown authority", whyB: "the peer refused"},
		{name: "b removed a", a: ca.member(t, "a", nodes), b: ca.member(t, "b", map[string]ib.GUID{"b": 0xb}),
			whyA: "the peer refused", whyB: "removed from the fabric"},
		{name: "a removed b", a: ca.member(t, "a", map[string]ib.GUID{"a": 0xa}), b: ca.member(t, "b", nodes),
			whyA: "removed from the fabric", whyB: "the peer refused"},
		{name: "a states the GUID of another", a: ca.member(t, "a", nodes), b: ca.member(t, "b",
			map[string]ib.GUID{"a": 0xc}), whyB: "the certificate is that of node"},
	} {
		a, b := newSide(t, "a", c.a, nil), newSide(t, "b", c.b, nil)
		a.Begin(ms, 1, b.at)
		n := &network{sides: []*side{a, b}}
		n.run(t, ms, 300*ms, func() bool { return false })
		why := func(s *side) string {
			for _, r := range s.results {
				if r.Err != nil {
					return r.Err.Error()
				}
			}
			return ""
		}
		if !strings.Contains(why(a), c.whyA) || !strings.Contains(why(b), c.whyB) {
			t.Errorf("%s: a %q, b %q", c.name, why(a), why(b))
		}
		for _, r := range b.results {
			if r.Err == nil {
				t.Errorf("%s: b has a session", c.name)
			}
		}
		if b.HalfOpenNow() != 0 {
			t.Errorf("%s: b keeps state", c.name)
		}
	}
}

// TestSilence: nothing at the address ends in an error that says so, and no goroutine remains: the bubble fails then.
func TestSilence(t *testing.T) { synctest.Test(t, silence) }

func silence(t *testing.T) {
	a, b := two(t, nil)
	a.Begin(ms, 1, netip.MustParseAddrPort("10.9.9.9:4792"))
	n := &network{sides: []*side{a}}
	at := n.run(t, ms, 20000*ms, func() bool { return len(a.results) > 0 })
	if at != ms.Add(Life) || a.results[0].Err.Error() != "nothing answers" || a.Expired != 1 || n.sent > 20 {
		t.Errorf("at %d after %d datagrams: %+v", at, n.sent, a.results)
	}
	// Half a handshake.
	a.Begin(at, 2, b.at)
	n = &network{sides: []*side{a, b}, touch: func(s *side, _ []byte) bool {
		return s == a ||
			b.Cookies+b.Accepted < 2
	}}
	n.run(t, at, at.Add(2*Life), func() bool { return len(a.results) > 1 && len(b.results) > 0 })
	if len(a.results) != 2 || a.results[1].Err == nil || len(b.results) != 1 || b.results[0].Err == nil {
		t.Errorf("%+v %+v", a.results, b.results)
	}
	if len(a.conns)+len(b.conns) != 0 {
		t.Error("state remains")
	}
}

// request returns a request for a cookie, or the first Initial with one.
func request(theirs uint32, cookie [cookieLen]byte) []byte {
	h := initial{initiator: true, from: theirs, claim: 1, cookie: cookie}
	return part{}.put(h.put(nil), nil)
}

// TestCookies: an address without a good cookie costs no state, and what is sent to it is smaller than what came.
func TestCookies(t *testing.T) {
	_, b := two(t, nil)
	buf := make([]byte, MaxDatagram)
	from := netip.MustParseAddrPort("192.0.2.1:999")
	ask := func(now mono.Time, from netip.AddrPort, theirs uint32, c [cookieLen]byte) (got [cookieLen]byte, ok bool) {
		t.Helper()
		d := request(theirs, c)
		b.Handle(now, from, d)
		o, sent := b.Next(now, buf)
		if !sent {
			return got, false
		}
		if o.To != from || o.Len > len(d) || Kind(buf[1]&15) != Retry || !o.Unproved {
			t.Errorf("%+v for %d octets", o, len(d))
		}
		copy(got[:], buf[16:o.Len])
		return got, true
	}
	good, ok := ask(ms, from, 5, [cookieLen]byte{})
	if !ok || len(b.conns) != 0 {
		t.Fatal("no cookie, or state")
	}
	forged := good
	forged[7] ^= 1
	for _, c := range []struct {
		name   string
		now    mono.Time
		from   netip.AddrPort
		theirs uint32
		cookie [cookieLen]byte
	}{
		{"forged", ms, from, 5, forged},
		{"of another index", ms, from, 6, good},
		{"of another port", ms, netip.AddrPortFrom(from.Addr(), 1000), 5, good},
		{"of another address", ms, netip.MustParseAddrPort("192.0.2.2:999"), 5, good},
		{"old", ms.Add(CookieLife + 2*time.Second), from, 5, good},
		{"of the future", ms, from, 5, [cookieLen]byte{0xff}},
	} {
		before := b.BadCookie
		if _, ok := ask(c.now, c.from, c.theirs, c.cookie); !ok || b.BadCookie != before+1 || len(b.conns) != 0 {
			t.Errorf("a cookie that is %s: %+v", c.name, b.Counters)
		}
	}
	b.Handle(ms, from, request(5, good))
	if len(b.conns) != 1 || b.Accepted != 1 {
		t.Errorf("with the cookie: %+v", b.Counters)
	}
}

// TestFlood: strangers with good cookies find bounds, and a peer comes in all the same.
func TestFlood(t *testing.T) {
	a, b := two(t, nil)
	b.cfg.Accept = func(from netip.AddrPort) Class {
		switch {
		case from == a.at:
			return Known
		case from.Addr().As4()[0] == 66:
			return Refused
		}
		return Stranger
	}
	flood := func(now mono.Time) {
		for i := range 2000 {
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), 1)
			b.Handle(now, from, request(uint32(i+1), b.cookie(seconds(now), from, uint32(i+1))))
			from = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), 1)
			b.Handle(now, from, request(uint32(i+9000), b.cookie(seconds(now), from, uint32(i+9000))))
			b.Handle(now, from, request(uint32(i+1), [cookieLen]byte{}))
			b.Handle(now, netip.MustParseAddrPort("66.0.0.1:1"), request(1, [cookieLen]byte{}))
		}
	}
	a.Begin(ms, 1, b.at)
	n := &network{sides: []*side{a, b}}
	for now := ms; now < 2000*ms; now += 100 * ms {
		flood(now)
		n.run(t, now, now+20*ms, func() bool { return false })
	}
	if len(a.results) != 1 || a.results[0].Err != nil {
		t.Errorf("the peer did not come in: %+v", a.results)
	}
	c := b.Counters
	if b.HalfOpenNow() != MaxHalfOpen || c.HalfOpen == 0 || c.CookiesLost == 0 || c.NotAccepted == 0 {
		t.Errorf("%d half-open, %+v", b.HalfOpenNow(), c)
	}
	// Handshakes that end at once find the bound of those that begin.
	now := mono.Time(100 * time.Second)
	before := b.Accepted
	for i := range 1000 {
		now += ms
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), 1)
		b.Handle(now, from, request(1, b.cookie(seconds(now), from, 1)))
		for _, c := range b.order {
			c.close()
		}
		b.sweep()
	}
	if n := b.Accepted - before; n < Burst+Rate-2 || n > Burst+Rate+2 || b.TooFast < 1000-n-2 {
		t.Errorf("%d handshakes began in a second: %+v", n, b.Counters)
	}
}

// TestForged: single datagrams, forged or repeated, change nothing in a handshake that goes on.
func TestForged(t *testing.T) {
	a, b := two(t, nil)
	var all [][]byte
	var by []*side
	n := &network{sides: []*side{a, b}}
	n.touch = func(s *side, d []byte) bool {
		// Each genuine datagram follows forged ones.
		for bit := range len(d) * 8 {
			if bit > 16*8 && bit%37 != 0 || Kind(d[1]&15) != Sealed && bit >= 4*8 {
				continue // a reader can forge what is in the clear, and end a handshake at most
			}
			f := bytes.Clone(d)
			f[bit/8] ^= 1 << (bit % 8)
			to := a
			if s == a {
				to = b
			}
			if f[0] == seal.Magic && f[1]>>4 == seal.Version && HandshakeKind(f) {
				to.Handle(ms, s.at, f)
			}
		}
		all, by = append(all, bytes.Clone(d)), append(by, s)
		for i := range all {
			if len(all) > 40 {
				break
			}
			to := a
			if by[i] == a {
				to = b
			}
			to.Handle(ms, by[i].at, bytes.Clone(all[i]))
		}
		return true
	}
	a.Begin(ms, 1, b.at)
	n.run(t, ms, 500*ms, func() bool { return len(a.results) > 0 && len(b.results) > 0 })
	if len(a.results) == 0 || len(b.results) == 0 {
		t.Fatalf("%+v %+v", a.Counters, b.Counters)
	}
	works(t, a.results[0], b.results[0])
	if a.Forged == 0 || b.Forged == 0 {
		t.Errorf("nothing was forged: %+v %+v", a.Counters, b.Counters)
	}
	// After the end everything comes once more: there is no second session.
	for i := range all {
		to := a
		if by[i] == a {
			to = b
		}
		to.Handle(600*ms, by[i].at, all[i])
	}
	n.touch = nil
	n.run(t, 600*ms, 700*ms, func() bool { return false })
	if len(a.results) != 1 || len(b.results) != 1 {
		t.Errorf("results %+v, %+v", a.results, b.results)
	}
}

var rewrite = flag.Bool("rewrite", false, "write the golden transcripts")

// TestTranscript compares a handshake of fixed randomness with testdata: kind, header and length of each datagram.
func TestTranscript(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 1)
	a, b := two(t, nil)
	var out strings.Builder
	n := &network{sides: []*side{a, b}}
	n.touch = func(s *side, d []byte) bool {
		name := "a > b"
		if s == b {
			name = "b > a"
		}
		kind := map[Kind]string{Initial: "initial", Retry: "retry", Sealed: "sealed"}[Kind(d[1]&15)]
		fmt.Fprintf(&out, "%s  %-7s  %x  and %d octets\n", name, kind, d[:seal.HeaderLen], len(d)-seal.HeaderLen)
		return true
	}
	a.Begin(ms, 1, b.at)
	n.run(t, ms, 100*ms, func() bool { return len(a.results) > 0 && len(b.results) > 0 })
	const file = "testdata/handshake.txt"
	if *rewrite {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != string(want) {
		t.Errorf("transcript\n%swant\n%s", got, want)
	}
}

func FuzzHandle(f *testing.F) {
	ca := newAuthority(f)
	ma, mb := ca.member(f, "a", nodes), ca.member(f, "b", nodes)
	f.Add([]byte{0}, uint8(0))
	f.Add(request(1, [cookieLen]byte{}), uint8(1))
	f.Fuzz(func(t *testing.T, d []byte, where uint8) {
		a, b := newSide(t, "a", ma, nil), newSide(t, "b", mb, nil)
		n := &network{sides: []*side{a, b}}
		step := uint8(0)
		n.touch = func(s *side, real []byte) bool {
			if step++; step != where%10 || len(d) < 2 {
				return true
			}
			// The fuzzed octets replace the head of a genuine datagram, with its indices.
			x := bytes.Clone(real)
			copy(x[min(len(x), 16):], d)
			to := a
			if s == a {
				to = b
			}
			to.Handle(ms, s.at, x)
			if HandshakeKind(d) {
				to.Handle(ms, s.at, bytes.Clone(d))
			}
			return true
		}
		a.Begin(ms, 1, b.at)
		n.run(t, ms, 20*ms, func() bool { return len(a.results) > 0 && len(b.results) > 0 })
		for _, r := range append(a.results, b.results...) {
			if r.Err == nil && r.Identity.Node != 0xa && r.Identity.Node != 0xb {
				t.Errorf("a session with %+v", r.Identity)
			}
		}
	})
}

func FuzzHello(f *testing.F) {
	f.Add((&Hello{Limit: 1472, Epoch: 1, Node: 2, Name: "a", Version: "v1"}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again Hello
		if h.Parse(b) != nil {
			return
		}
		if err := again.Parse(h.Append(nil)); err != nil || again != h {
			t.Errorf("%+v, again %+v: %v", h, again, err)
		}
	})
}

// TestHello parses golden octets, every truncation, and a longer hello.
func TestHello(t *testing.T) {
	golden := []byte{1, 1, 0, 0, 0, 0, 5, 0xc0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9, 0xa0, 0, 0, 0, 0, 0, 0, 0xb,
		2, 'n', '1', 3, '1', '.', '0'}
	want := Hello{Mode: seal.Authenticate, Limit: 1472, Epoch: 0x0102030405060708, Generation: 9,
		Node: 0xa00000000000000b,
		Name: "n1", Version: "1.0"}
	if got := want.Append(nil); !bytes.Equal(got, golden) {
		t.Errorf("encoded %x\nwant    %x", got, golden)
	}
	var h Hello
	if err := h.Parse(append(bytes.Clone(golden), 1, 2, 3)); err != nil || h != want {
		t.Errorf("%+v, %v", h, err)
	}
	for n := range golden {
		if h.Parse(golden[:n]) == nil {
			t.Errorf("parsed %d of %d octets", n, len(golden))
		}
	}
	for _, c := range []struct {
		at  int
		val byte
	}{{0, 2}, {1, 3}, {29, 0x1b}, {29, 0x80}, {28, 200}} {
		b := bytes.Clone(golden)
		b[c.at] = c.val
		if h.Parse(b) == nil {
			t.Errorf("parsed with octet %d = %#x", c.at, c.val)
		}
	}
}

func BenchmarkHandshake(b *testing.B) {
	x, y := two(b, nil)
	ms := ms
	for b.Loop() {
		ms += mono.Time(time.Second)
		x.results, y.results = nil, nil
		x.Begin(ms, 1, y.at)
		n := &network{sides: []*side{x, y}}
		if n.run(b, ms, ms+100*mono.Time(time.Millisecond), func() bool {
			return len(x.results) > 0 &&
				len(y.results) > 0
		}) == 0 {
			b.Fatal("no session")
		}
		x.Confirm(x.results[0].Index)
	}
}

// BenchmarkCookie is the cost of a datagram of a flood with forged addresses.
func BenchmarkCookie(b *testing.B) {
	_, y := two(b, nil)
	from := netip.MustParseAddrPort("192.0.2.1:999")
	d := request(5, [cookieLen]byte{})
	buf := make([]byte, MaxDatagram)
	b.ReportAllocs()
	for b.Loop() {
		y.Handle(ms, from, d)
		y.Next(ms, buf)
	}
}
