// SPDX-License-Identifier: Apache-2.0

package handshake

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/netip"
	"time"

	"weft/internal/fabric/trunk/seal"
	"weft/internal/proto/counters"
	"weft/internal/proto/mono"
)

// Bounds of an Endpoint.
const (
	// MaxHalfOpen bounds the handshakes that peers began, by Class; MaxPerAddress those of one address.
	MaxHalfOpen   = 64
	MaxPerAddress = 4
	// Rate and Burst bound those that begin, per second and at once, by Class.
	Rate  = 100
	Burst = 64
	// RetryRate is how many cookies per second are sent to strangers, and KnownRetryRate how many to the addresses of
	// peers. Burst bounds both at once. The kernel keeps a datagram to an address that no host has for seconds, so
	// RetryRate also bounds the addresses that the kernel tries to resolve because of a flood.
	RetryRate      = 100
	KnownRetryRate = 1000
	// Life is how long a handshake may take.
	Life = 8 * time.Second
	// CookieLife is how long a cookie is good.
	CookieLife = 10 * time.Second
	// patience is how long a handshake is safe from others of its address.
	patience   = time.Second
	maxRetries = 4  // cookies that one handshake takes
	maxCookies = 64 // that wait to be sent
)

// Config configures an Endpoint.
type Config struct {
	Trust Trust
	// Wall is the time of certificates.
	Wall func(mono.Time) time.Time
	// Rand is the source of nonces, indices and cookie keys; nil: crypto/rand. Key exchange and signatures take their
	// randomness inside the crypto packages.
	Rand io.Reader
	// Hello states this end to the peer at an address; initiator and tag are those of Begin, tag -1 of the peer's.
	Hello func(initiator bool, tag int, at netip.AddrPort) Hello
	// Accept classifies an address; nil: every address is a stranger's.
	Accept func(from netip.AddrPort) Class
	// Taken reports whether a session has an index.
	Taken func(index uint32) bool
	// Apart: the caller takes each Work, runs it on any goroutine, and hands it to Finish. Trust and Rand must bear
	// calls on that. Otherwise Handle runs it.
	Apart bool
}

// Class is the class of an address. Each class has its own bounds, so that strangers cannot keep peers out.
type Class uint8

// Classes.
const (
	Refused Class = iota // no handshake comes from there
	Stranger
	Known // a peer's
	numClasses
)

// Counters count handshakes and why datagrams of them were dropped.
type Counters struct {
	Begun       uint64 `counter:"handshakes_begun"`     // by this end
	Accepted    uint64 `counter:"handshakes_accepted"`  // begun by peers, with a good cookie
	Completed   uint64 `counter:"handshakes_completed"` //
	Failed      uint64 `counter:"handshakes_failed"`    // refused by TLS or by a certificate, at either end
	Expired     uint64 `counter:"handshakes_expired"`   // not complete in time
	Cookies     uint64 `counter:"cookies_sent"`
	Short       uint64 `counter:"drop_hs_short"`           // cut, or fields that break the rules
	Unknown     uint64 `counter:"drop_hs_unknown"`         // of no handshake
	Forged      uint64 `counter:"drop_hs_forged"`          // not under the secrets of the handshake
	BadCookie   uint64 `counter:"drop_hs_bad_cookie"`      // old, or made for another
	NotAccepted uint64 `counter:"drop_hs_not_accepted"`    // from an address of no peer
	HalfOpen    uint64 `counter:"drop_hs_half_open_limit"` //
	TooFast     uint64 `counter:"drop_hs_rate_limit"`      //
	CookiesLost uint64 `counter:"drop_hs_cookie_limit"`    // more requests for cookies at once than are answered
	CookieRate  uint64 `counter:"drop_hs_cookie_rate"`     // more requests for cookies in a second than are answered
	Crossed     uint64 `counter:"drop_hs_crossed"`         // the handshake of this end goes on instead
	Early       uint64 `counter:"drop_hs_early"`           // before the key of them was computed, and too many
}

// Each calls f with the name and the value of every counter, in a fixed order.
func (c *Counters) Each(f func(name string, v uint64)) { counters.Each("", c, f) }

// Result is the end of a handshake.
type Result struct {
	Err       error // nil: a session
	Initiator bool  // this end began
	Tag       int   // of Begin, else -1
	At        netip.AddrPort
	Identity  Identity
	Local     Hello
	Remote    Hello
	Index     uint32 // of this end
	// Send seals to the peer, Recv opens what comes from it; Recv.Index() is the index that the peer sends.
	Send, Recv *seal.Key
}

// cookieOut is a Retry that is due.
type cookieOut struct {
	at     netip.AddrPort
	theirs uint32
	cookie [cookieLen]byte
}

// Endpoint is a node's end of all its handshakes.
type Endpoint struct {
	Counters
	cfg     Config
	mac     hash.Hash
	conns   map[uint32]*conn   // by our index
	order   []*conn            // the same in order of their start
	works   map[*Work]bool     // that are out
	accept  [numClasses]int    // of these, begun by peers
	begins  [numClasses]bucket // of handshakes of peers
	retries [numClasses]bucket // of cookies
	cookies []cookieOut
	results []Result
	scratch seal.Scratch
	sum     [sha256.Size]byte
	input   [4 + 16 + 2 + 4]byte
}

// New returns an Endpoint without handshakes. Close ends it.
func New(cfg Config) *Endpoint {
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	e := &Endpoint{cfg: cfg, conns: map[uint32]*conn{}, works: map[*Work]bool{}}
	for c := range numClasses {
		e.begins[c], e.retries[c] = newBucket(Rate, Burst), newBucket(RetryRate, Burst)
	}
	e.retries[Known].rate = KnownRetryRate
	var key [32]byte
	e.random(key[:])
	e.mac = hmac.New(sha256.New, key[:])
	return e
}

// Close ends TLS in all handshakes, and with it its goroutines, also where a Work is out: each of these was run, or
// never will be. Nothing else is called afterwards.
func (e *Endpoint) Close() {
	for w := range e.works {
		w.tls.close()
	}
	for _, c := range e.order {
		if c.tls != nil && !c.out {
			c.tls.close()
		}
	}
}

func (e *Endpoint) random(b []byte) {
	if _, err := io.ReadFull(e.cfg.Rand, b); err != nil {
		panic("handshake: no randomness: " + err.Error())
	}
}

// newIndex returns an index that no session and no handshake has.
func (e *Endpoint) newIndex() uint32 {
	for {
		var b [4]byte
		e.random(b[:])
		i := be.Uint32(b[:])
		if i != 0 && e.conns[i] == nil && (e.cfg.Taken == nil || !e.cfg.Taken(i)) {
			return i
		}
	}
}

// Begin begins a handshake with the peer at an address. tag identifies it to the caller, which cancels an earlier
// one.
func (e *Endpoint) Begin(now mono.Time, tag int, to netip.AddrPort) {
	var b [8]byte
	e.random(b[:])
	c := &conn{state: asking, initiator: true, tag: tag, at: to, index: e.newIndex(), claim: be.Uint64(b[:]),
		ends: now.Add(Life), wait: firstRetry, alert: -1, ack: true}
	c.local = e.cfg.Hello(true, tag, to)
	c.repeat(now)
	e.Begun++
	e.add(c)
}

// Cancel ends the handshakes with a tag without a result.
func (e *Endpoint) Cancel(tag int) {
	for _, c := range e.order {
		if c.initiator && c.tag == tag {
			c.close()
		}
	}
	e.sweep()
}

// Busy reports whether a handshake with a tag goes on that has no result yet.
func (e *Endpoint) Busy(tag int) bool {
	for _, c := range e.order {
		if c.initiator && c.tag == tag && c.state < done {
			return true
		}
	}
	return false
}

// Confirm ends the repetition of the last messages of the handshake of a session's index: the peer uses it.
func (e *Endpoint) Confirm(index uint32) {
	if c := e.conns[index]; c != nil {
		c.close()
		e.sweep()
	}
}

func (e *Endpoint) add(c *conn) {
	e.conns[c.index] = c
	e.order = append(e.order, c)
	if !c.initiator {
		e.accept[c.class]++
	}
}

// sweep forgets dead handshakes.
func (e *Endpoint) sweep() {
	n := 0
	for _, c := range e.order {
		if c.state != dead {
			e.order[n] = c
			n++
			continue
		}
		delete(e.conns, c.index)
		if !c.initiator && !c.out {
			e.accept[c.class]--
		}
	}
	clear(e.order[n:])
	e.order = e.order[:n]
}

// HandshakeKind reports whether a datagram of at least two octets belongs to this package.
func HandshakeKind(d []byte) bool {
	k := Kind(d[1] & 0x0f)
	return k >= Initial && k < Initial+numKinds
}

// Handle handles a datagram of a kind of this package, with the right magic and version. What it drops it
// counts. The caller then calls Next, and Take.
func (e *Endpoint) Handle(now mono.Time, from netip.AddrPort, d []byte) {
	if len(d) < seal.HeaderLen {
		e.Short++
		return
	}
	switch Kind(d[1] & 0x0f) {
	case Initial:
		e.initial(now, from, d)
	case Retry:
		e.retry(now, from, d)
	default:
		e.sealed(now, from, d)
	}
	e.compute(now)
}

// compute runs the Work that is due, unless another does.
func (e *Endpoint) compute(now mono.Time) {
	for !e.cfg.Apart {
		w, ok := e.Work(now)
		if !ok {
			return
		}
		w.Run()
		e.Finish(now, w)
	}
}

// Work returns the next Work that is due: of handshakes that this end began, then of those of peers, then of those of
// strangers, so that strangers delay no peer for longer than one Work. There is at most one of each handshake.
func (e *Endpoint) Work(now mono.Time) (*Work, bool) {
	var c *conn
	for _, o := range e.order {
		if o.ready() && (c == nil || o.rank() > c.rank()) {
			c = o
		}
	}
	if c == nil {
		return nil, false
	}
	if c.tls == nil {
		c.tls = newEngine(c.initiator, &c.local, e.cfg.Trust, e.cfg.Rand)
	}
	w := &Work{c: c, tls: c.tls, at: e.cfg.Wall(now)}
	for l := range c.in {
		if f := &c.in[l]; f.waits() {
			f.fed = true
			w.messages[l] = f.data
		}
	}
	c.out, e.works[w] = true, true
	return w, true
}

// rank orders handshakes: later ones of higher rank come first.
func (c *conn) rank() int {
	if c.initiator {
		return int(numClasses)
	}
	return int(c.class)
}

// Finish handles a Work that was run. The caller then calls Next, and Take, and Work.
func (e *Endpoint) Finish(now mono.Time, w *Work) {
	c := w.c
	delete(e.works, w)
	c.out = false
	if c.state == dead {
		c.tls.close()
		if !c.initiator {
			e.accept[c.class]--
		}
		return
	}
	err := c.took(&w.out)
	if err != nil {
		e.fail(c, err)
		return
	}
	if w.out.done {
		c.state = done
		e.complete(c)
	}
	early := c.early
	c.early = nil
	for len(early) > 0 && c.state != dead {
		n := 2 + int(be.Uint16(early))
		e.sealed(now, c.at, early[2:n])
		early = early[n:]
	}
}

// cookie computes the cookie for an address and an index of its sender, of a time in seconds.
func (e *Endpoint) cookie(at uint32, from netip.AddrPort, theirs uint32) (c [cookieLen]byte) {
	b := e.input[:]
	be.PutUint32(b, at)
	a := from.Addr().As16()
	copy(b[4:], a[:])
	be.PutUint16(b[20:], from.Port())
	be.PutUint32(b[22:], theirs)
	e.mac.Reset()
	e.mac.Write(b)
	be.PutUint32(c[:], at)
	copy(c[4:], e.mac.Sum(e.sum[:0]))
	return c
}

func seconds(now mono.Time) uint32 { return uint32(now / mono.Time(time.Second)) }

// good reports whether a cookie was made here for the sender, not long ago.
func (e *Endpoint) good(now mono.Time, h *initial, from netip.AddrPort) bool {
	at := be.Uint32(h.cookie[:])
	if age := seconds(now) - at; age > uint32(CookieLife/time.Second) {
		return false
	}
	want := e.cookie(at, from, h.from)
	return hmac.Equal(want[:], h.cookie[:])
}

func (e *Endpoint) initial(now mono.Time, from netip.AddrPort, d []byte) {
	h, body, ok := parseInitial(d)
	if !ok {
		e.Short++
		return
	}
	p, data, ok := parsePart(body)
	if !ok || p.what != partData {
		e.Short++
		return
	}
	if !h.initiator {
		c := e.conns[h.to]
		if c == nil || !c.initiator || c.state != talking || c.at != from || c.theirs != 0 && c.theirs != h.from {
			e.Unknown++
			return
		}
		c.theirs = h.from
		e.part(now, c, clearLevel, p, data)
		return
	}
	class := Stranger
	if e.cfg.Accept != nil {
		class = e.cfg.Accept(from)
	}
	if class == Refused {
		e.NotAccepted++
		return
	}
	if !e.good(now, &h, from) {
		if h.cookie != [cookieLen]byte{} {
			e.BadCookie++
		}
		switch {
		case len(e.cookies) == maxCookies:
			e.CookiesLost++
			return
		case !e.retries[class].take(now):
			e.CookieRate++
			return
		}
		e.cookies = append(e.cookies, cookieOut{from, h.from, e.cookie(seconds(now), from, h.from)})
		return
	}
	// The sender receives what is sent to its address.
	c := e.begun(now, &h, from, class)
	if c != nil {
		e.part(now, c, clearLevel, p, data)
	}
}

// begun returns the handshake that a peer began, which may be new; nil: it is refused, and counted.
func (e *Endpoint) begun(now mono.Time, h *initial, from netip.AddrPort, class Class) *conn {
	var here int
	var weakest *conn // of the same address: the oldest one that the peer has proved nothing in
	for _, c := range e.order {
		if c.at != from {
			continue
		}
		if !c.initiator {
			if c.theirs == h.from {
				return c
			}
			here++
			if weakest == nil && !c.heard {
				weakest = c
			}
			continue
		}
		switch {
		case c.state >= done:
		case c.state == talking && c.claim < h.claim:
			// Both ends began. The peer ends its handshake when it receives ours.
			e.Crossed++
			if c.answer <= now {
				c.answer = now.Add(answerGap)
				c.missing()
			}
			return nil
		case c.state == asking || c.claim > h.claim:
			c.close() // ours gives way
		}
	}
	e.sweep()
	if here >= MaxPerAddress && weakest != nil && now.Sub(weakest.began) >= patience {
		// A repeated or abandoned one makes room, so that it cannot keep its address out.
		weakest.close()
		e.sweep()
		here--
	}
	switch {
	case here >= MaxPerAddress || e.accept[class] >= MaxHalfOpen:
		e.HalfOpen++
		return nil
	case !e.begins[class].take(now):
		e.TooFast++
		return nil
	}
	e.Accepted++
	c := &conn{state: talking, class: class, tag: -1, began: now, at: from, index: e.newIndex(), theirs: h.from,
		ends: now.Add(Life),
		wait: firstRetry, alert: -1}
	c.local = e.cfg.Hello(false, -1, from)
	c.repeat(now)
	e.add(c)
	return c
}

func (e *Endpoint) retry(now mono.Time, from netip.AddrPort, d []byte) {
	if len(d) < retryLen {
		e.Short++
		return
	}
	c := e.conns[be.Uint32(d[seal.IndexOff:])]
	if c == nil || !c.initiator || c.state > talking || c.at != from || c.theirs != 0 || c.retries == maxRetries {
		e.Unknown++
		return
	}
	c.retries++
	copy(c.cookie[:], d[seal.HeaderLen:])
	c.state = talking // TLS starts, unless it has
	e.compute(now)
	c.missing()
	c.wait = firstRetry
	c.repeat(now)
}

func (e *Endpoint) sealed(now mono.Time, from netip.AddrPort, d []byte) {
	c := e.conns[be.Uint32(d[seal.IndexOff:])]
	switch {
	case c == nil || c.at != from || c.open == nil && c.tls == nil:
		e.Unknown++
		return
	case c.out || c.ready() || c.open == nil:
		// It overtook what its key follows from.
		if !c.hold(d) {
			e.Early++
		}
		return
	}
	body, ok := c.open.Open(&e.scratch, seal.Encrypt, d, seal.HeaderLen)
	if !ok {
		e.Forged++
		return
	}
	p, data, ok := parsePart(body)
	if !ok {
		e.Short++
		return
	}
	c.heard = true
	// The peer has the secrets, and so all of the messages in the clear.
	c.sent[clearLevel].have = all(c.sent[clearLevel].total)
	if p.what == partAlert {
		if c.state < done || c.initiator {
			e.end(c, fmt.Errorf("the peer refused: %w", tls.AlertError(data[0])))
		}
		return
	}
	e.part(now, c, sealedLevel, p, data)
}

// part takes in a part of the peer's messages.
func (e *Endpoint) part(now mono.Time, c *conn, level int, p part, data []byte) {
	c.sent[level].have |= p.got & all(c.sent[level].total)
	if p.total == 0 {
		return
	}
	if !c.in[level].add(p, data) {
		// It was sent again: the peer lacks an answer.
		if c.answer <= now {
			c.answer = now.Add(answerGap)
			c.missing()
			c.ack = true
		}
	}
}

func (e *Endpoint) complete(c *conn) {
	r := Result{Initiator: c.initiator, Tag: c.tag, At: c.at, Index: c.index, Identity: c.identity, Local: c.local,
		Remote: c.remote}
	send, err := seal.NewKey(c.write, c.theirs)
	if err == nil {
		r.Send = send
		r.Recv, err = seal.NewKey(c.read, c.index)
	}
	if err == nil && c.remote.Node == 0 {
		err = errors.New("the peer sent no hello")
	}
	if err == nil && c.identity.Node != 0 && c.identity.Node != c.remote.Node {
		err = fmt.Errorf("the certificate is that of node %v, the hello that of %v", c.identity.Node, c.remote.Node)
	}
	if err != nil {
		e.fail(c, err)
		return
	}
	if r.Identity.Node == 0 {
		r.Identity.Node = c.remote.Node
	}
	if r.Identity.Name == "" {
		r.Identity.Name = c.remote.Name
	}
	e.Completed++
	e.results = append(e.results, r)
	if !c.initiator {
		// The session answers from here on. What the address began before is from an earlier start of the peer, or a
		// copy.
		for _, o := range e.order {
			if !o.initiator && o.at == c.at {
				o.close()
			}
			if o == c {
				break
			}
		}
		e.sweep()
	}
}

// fail ends a handshake with a reason of this end, and sends the alert of TLS once.
func (e *Endpoint) fail(c *conn, err error) {
	var alert tls.AlertError
	if c.send == nil || !errors.As(err, &alert) {
		e.end(c, err)
		return
	}
	e.failed(c, err)
	c.alert, c.due, c.ack, c.state = int(alert), [numLevels]uint32{}, false, done
}

// end ends a handshake with a reason.
func (e *Endpoint) end(c *conn, err error) {
	e.failed(c, err)
	c.close()
	e.sweep()
}

func (e *Endpoint) failed(c *conn, err error) {
	e.Failed++
	e.results = append(e.results, Result{Err: err, Initiator: c.initiator, Tag: c.tag, At: c.at, Index: c.index})
}

// Take returns the next result, in order.
func (e *Endpoint) Take() (Result, bool) {
	if len(e.results) == 0 {
		return Result{}, false
	}
	r := e.results[0]
	e.results = e.results[1:]
	return r, true
}

// Tick repeats what was not answered, and ends what took too long. The caller then calls Next, and Take.
func (e *Endpoint) Tick(now mono.Time) {
	ended := false
	for _, c := range e.order {
		switch {
		case c.ends.Due(now):
			ended = true
			if c.state < done {
				e.Expired++
				e.results = append(e.results, Result{Err: c.silence(), Initiator: c.initiator, Tag: c.tag, At: c.at,
					Index: c.index})
			}
			c.close()
		case c.next.Due(now) && c.alert < 0:
			if c.pending() {
				c.missing()
				c.ack = c.ack || c.initiator
			}
			c.repeat(now)
		}
	}
	if ended {
		e.sweep()
	}
}

// silence is the error of a handshake that took too long.
func (c *conn) silence() error {
	if c.state == asking {
		return errors.New("nothing answers")
	}
	return errors.New("the handshake was not completed in time")
}

// Deadline returns when Tick must be called next; 0: not at all.
func (e *Endpoint) Deadline() mono.Time {
	var d mono.Time
	for _, c := range e.order {
		d = mono.Min(d, mono.Min(c.next, c.ends))
	}
	return d
}

// HalfOpenNow returns the number of handshakes that peers began and that are not complete.
func (e *Endpoint) HalfOpenNow() int { return e.accept[Stranger] + e.accept[Known] }

// Output is a datagram that Next wrote.
type Output struct {
	To  netip.AddrPort
	Len int
	// Unproved: nothing has proved that the receiver is at its address. The datagram must not take the place of others.
	Unproved bool
}

// Next writes the next datagram to b, which has room for MaxDatagram octets; ok is false if there is none.
func (e *Endpoint) Next(now mono.Time, b []byte) (o Output, ok bool) {
	if len(e.cookies) > 0 {
		c := e.cookies[0]
		e.cookies = append(e.cookies[:0], e.cookies[1:]...)
		e.Cookies++
		b = append(b[:0], seal.Magic, seal.Version<<4|byte(Retry), 0, 0)
		b = be.AppendUint32(b, c.theirs)
		b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
		return Output{To: c.at, Len: len(append(b, c.cookie[:]...)), Unproved: true}, true
	}
	for _, c := range e.order {
		if !c.sends() {
			continue
		}
		last := c.alert >= 0
		n := len(c.put(b[:0], &e.scratch))
		if last && c.alert < 0 {
			c.close()
			e.sweep()
		}
		return Output{To: c.at, Len: n}, true
	}
	return Output{}, false
}
