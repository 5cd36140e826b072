// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"weft/internal/fabric/trunk/handshake"
	"weft/internal/fabric/trunk/seal"
	"weft/internal/proto/mono"
)

// Times and bounds of sessions.
const (
	// RekeyAfter is the age at which the keys of a session are replaced, by a new handshake.
	RekeyAfter = 2 * time.Minute
	// RekeyDatagrams is the number of datagrams under one key after which it is replaced before that age. 2^24 of 65000
	// octets are 2^36 blocks of AES: an attacker's advantage is 2^-57 (NIST SP 800-38D; RFC 8446 section 5.5).
	RekeyDatagrams = 1 << 24
	// OldKeyFor is how long datagrams under replaced keys are accepted.
	OldKeyFor = 10 * time.Second
	// A session that was not replaced ends at maxAge times RekeyAfter.
	maxAge = 5
	// lostAfter is how long a trunk is down before this end begins a handshake although it has a session.
	lostAfter = time.Second
	// giveWay is the time from a handshake's end to the next one, refusedWait after one that was refused.
	giveWay     = time.Second
	refusedWait = 5 * time.Second
	maxSessions = 6 // of a peer
	oldSessions = 64
)

// session is one agreement on keys with a peer.
type session struct {
	peer       int
	send, recv *seal.Key
	mode       seal.Mode
	theirs     uint64 // epoch of the peer
	// Of the sessions of one epoch both ends prefer the same one: first those that the end with the lower GUID began,
	// then those with the higher generation.
	low        bool
	generation uint32
	confirmed  bool // the peer has the keys
	at         mono.Time
	ends       mono.Time
}

// better reports whether s is preferred to o.
func (s *session) better(o *session) bool {
	if s.low != o.low {
		return s.low
	}
	return s.generation > o.generation
}

func (c *Core) newEpoch() uint64 {
	r := c.cfg.Rand
	if r == nil {
		r = crand.Reader
	}
	for {
		var b [8]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			panic("trunk: no randomness: " + err.Error())
		}
		if e := binary.BigEndian.Uint64(b[:]); e != 0 {
			return e
		}
	}
}

func (c *Core) newHandshakes() {
	if c.cfg.Trust == nil {
		return
	}
	c.hs = handshake.New(handshake.Config{Trust: c.cfg.Trust, Wall: c.cfg.Wall, Rand: c.cfg.Rand, Apart: c.cfg.Apart,
		Hello: c.statement, Accept: c.class,
		Taken: func(i uint32) bool { return c.byIndex[i] != nil || slices.Contains(c.old[:], i) }})
}

// Admits reports whether datagrams from an address may concern a trunk: it is a peer's, or there are peers without an
// address.
func (c *Core) Admits(from netip.AddrPort) bool { return c.class(from) != handshake.Refused }

// class classifies an address.
func (c *Core) class(from netip.AddrPort) handshake.Class {
	if _, known := c.at(from); known {
		return handshake.Known
	}
	for i := range c.peers {
		if p := &c.peers[i]; p.used && !p.cfg.Addr.IsValid() {
			return handshake.Stranger
		}
	}
	return handshake.Refused
}

// at returns the peer at an address.
func (c *Core) at(a netip.AddrPort) (i int, known bool) {
	if i, known = c.byAddr[a]; known {
		return i, true
	}
	for i := range c.peers {
		if p := &c.peers[i]; p.used && !p.cfg.Addr.IsValid() && p.addr == a {
			return i, true
		}
	}
	return -1, false
}

// statement is what this end states in a handshake.
func (c *Core) statement(initiator bool, tag int, at netip.AddrPort) handshake.Hello {
	h := handshake.Hello{Mode: c.cfg.Mode, Limit: BaseDatagram, Node: c.cfg.Node, Name: c.cfg.Name,
		Version: c.cfg.Version}
	i, known := c.at(at)
	if initiator {
		i, known = tag, true
	}
	if !known {
		// Whose handshake it is follows later: Install makes the epoch that of the peer.
		h.Epoch = c.newEpoch()
		return h
	}
	p := &c.peers[i]
	h.Epoch = p.epoch
	if p.path.own > 0 {
		h.Limit = min(p.path.own, 65535)
	}
	if initiator {
		p.generation++
		h.Generation = p.generation
	}
	return h
}

// handshake handles a datagram of one.
func (c *Core) handshake(now mono.Time, from netip.AddrPort, d []byte) {
	if c.hs == nil {
		c.strays[BadKind]++
		return
	}
	c.hs.Handle(now, from, d)
	c.harvest(now)
}

// Work returns the next asymmetric cryptography of a handshake that is due; ok is false if there is none, and always
// without Config.Apart. The caller runs it on any goroutine, and then calls Finish.
func (c *Core) Work(now mono.Time) (w *handshake.Work, ok bool) {
	if c.hs == nil || !c.cfg.Apart {
		return nil, false
	}
	return c.hs.Work(now)
}

// Finish handles a Work that was run. The caller then calls Next, and Work.
func (c *Core) Finish(now mono.Time, w *handshake.Work) {
	c.hs.Finish(now, w)
	c.harvest(now)
}

// harvest handles the results of handshakes.
func (c *Core) harvest(now mono.Time) {
	for {
		r, ok := c.hs.Take()
		if !ok {
			return
		}
		i, why := c.owner(&r)
		if i < 0 {
			continue
		}
		p := &c.peers[i]
		if r.Err == nil && why == "" {
			c.Install(now, i, r)
			continue
		}
		if r.Err != nil {
			why = r.Err.Error()
		}
		if s := c.byIndex[r.Index]; s != nil && s.peer == i && !s.confirmed {
			c.end(p, s)
		}
		p.status.Refused++
		p.status.Why = why
		wait := giveWay
		if r.Remote.Node != 0 || why != "nothing answers" {
			wait = refusedWait
		}
		if r.Initiator {
			p.begin = now.Add(wait)
		}
	}
}

// owner returns the peer that a result belongs to, -1 without one, and why it must not have the session.
func (c *Core) owner(r *handshake.Result) (i int, why string) {
	if r.Initiator {
		i = r.Tag
		if !c.Used(i) {
			return -1, ""
		}
	} else {
		i = -1
		for j := range c.peers {
			if p := &c.peers[j]; p.used && p.cfg.Node != 0 && r.Err == nil && p.cfg.Node == r.Identity.Node {
				i = j
			}
		}
		if j, known := c.byAddr[r.At]; i < 0 && known {
			i = j
		}
	}
	if i < 0 || r.Err != nil {
		return i, ""
	}
	p := &c.peers[i]
	switch {
	case r.Identity.Node == c.cfg.Node:
		why = "the peer is this node itself, or has its GUID"
	case p.cfg.Node != 0 && p.cfg.Node != r.Identity.Node:
		why = fmt.Sprintf("the node there is %v, not %v", r.Identity.Node, p.cfg.Node)
	}
	return i, why
}

// Install adds the session of a handshake with a peer. Without an Endpoint, in tests, it is confirmed at once, and the
// trunk comes up by hellos.
func (c *Core) Install(now mono.Time, i int, r handshake.Result) {
	p := &c.peers[i]
	p.status.Sessions++
	p.status.Why = ""
	first := r.Local
	if !r.Initiator {
		first = r.Remote
	}
	s := &session{peer: i, send: r.Send, recv: r.Recv, mode: min(r.Local.Mode, r.Remote.Mode), theirs: r.Remote.Epoch,
		low: (c.cfg.Node < r.Identity.Node) == r.Initiator, generation: first.Generation, at: now,
		ends: now.Add(maxAge * c.cfg.RekeyAfter)}
	if len(p.sessions) == maxSessions {
		for _, o := range p.sessions {
			if o != p.tx {
				c.end(p, o)
				break
			}
		}
	}
	p.sessions = append(p.sessions, s)
	c.byIndex[s.recv.Index()] = s
	if r.Initiator {
		p.begin = now.Add(giveWay)
		s.ends = now.Add(handshake.Life) // until it is confirmed
	}
	p.status.Node, p.status.Name, p.status.Version = r.Identity.Node, r.Identity.Name, r.Remote.Version
	if !p.cfg.Addr.IsValid() {
		p.addr = r.At
	}
	p.epoch = r.Local.Epoch
	if p.path.theirs == 0 || p.theirs != s.theirs {
		p.path.theirs = r.Remote.Limit
		p.path.follow()
	}
	switch {
	case c.hs == nil:
		s.confirmed, p.theirs = true, s.theirs
		c.choose(now, i)
	case !r.Initiator:
		c.hs.Cancel(i)
		c.confirm(now, s)
	}
}

// confirm handles the proof that the peer has the keys of a session: the handshake is fresh, so this is the peer's
// newest start, and sessions of earlier ones end.
func (c *Core) confirm(now mono.Time, s *session) {
	i := s.peer
	p := &c.peers[i]
	s.confirmed = true
	s.ends = s.at.Add(maxAge * c.cfg.RekeyAfter)
	c.hs.Confirm(s.recv.Index())
	if s.theirs != p.theirs {
		if p.restarted = p.theirs != 0; p.restarted {
			p.status.Restarts++
		}
		for j := 0; j < len(p.sessions); {
			if o := p.sessions[j]; o.theirs != s.theirs && o.confirmed {
				c.end(p, o)
				continue
			}
			j++
		}
		p.theirs, p.theirNo, p.wantsRekey = s.theirs, 0, false
		// Within an epoch sequence numbers go on while the trunk goes down and up, and from session to session.
		p.forget()
		if w := p.streams[controlStream]; w != nil {
			*w = window{}
		}
		if p.status.Up {
			c.down(now, i, p.restarted)
		}
	}
	c.choose(now, i)
	c.alive(now, i)
	p.hello = true // confirms the session to the peer
	c.turn = 0
}

// forget begins the sequences of lanes anew.
func (p *peer) forget() {
	for _, w := range p.streams[:MaxStreams] {
		if w != nil {
			*w = window{}
		}
	}
}

// choose chooses the session to send on.
func (c *Core) choose(now mono.Time, i int) {
	p := &c.peers[i]
	var best *session
	for _, s := range p.sessions {
		if s.confirmed && s.theirs == p.theirs && (best == nil || s.better(best)) {
			best = s
		}
	}
	if best == p.tx {
		return
	}
	if p.tx != nil && best != nil {
		p.status.Rekeys++
		p.wantsRekey = false
		if old := p.status.Drop[TooOld]; best.mode == seal.None && old > p.tooOld {
			p.tooOld = old
			p.forget() // a forged number does not stop a stream for longer than this
		}
	}
	p.tx = best
	for _, s := range p.sessions {
		if s.confirmed && s != best {
			s.ends = min(s.ends, now.Add(OldKeyFor))
		}
	}
	c.cfg.Changed(i)
}

// sendKey returns the key for control datagrams to a peer, nil without one.
func (c *Core) sendKey(p *peer) *seal.Key {
	if p.tx == nil {
		return nil
	}
	return p.tx.send
}

// end forgets a session.
func (c *Core) end(p *peer, s *session) {
	delete(c.byIndex, s.recv.Index())
	c.old[c.oldNext] = s.recv.Index()
	c.oldNext = (c.oldNext + 1) % oldSessions
	if c.last == s {
		c.last = nil
	}
	p.sessions = slices.DeleteFunc(p.sessions, func(o *session) bool { return o == s })
	if p.tx == s {
		p.tx = nil
	}
}

// unknown is why a datagram of no session is refused.
func (c *Core) unknown(index uint32) Refusal {
	if index != 0 && slices.Contains(c.old[:], index) {
		return OldSession
	}
	return UnknownSession
}

// age ends the sessions of a peer that are too old.
func (c *Core) age(now mono.Time, i int) {
	p := &c.peers[i]
	for j := 0; j < len(p.sessions); {
		if s := p.sessions[j]; s.ends.Due(now) && c.hs != nil {
			c.end(p, s)
			continue
		}
		j++
	}
	if p.tx == nil && len(p.sessions) > 0 {
		c.choose(now, i)
	}
	if p.tx == nil && p.status.Up {
		c.down(now, i, false)
	}
}

// renew begins a handshake with a peer that needs one.
func (c *Core) renew(now mono.Time, i int) {
	p := &c.peers[i]
	if c.hs == nil || !p.addr.IsValid() || p.begin > now || c.hs.Busy(i) {
		return
	}
	s := p.tx
	due := s == nil || !p.status.Up && c.read(now, i).Sub(p.heard) >= c.cfg.DownAfter+lostAfter
	if !due && p.status.Up && c.cfg.Node < p.status.Node {
		// Sessions that began together are not all replaced at once.
		due = now.Sub(s.at) >= c.cfg.RekeyAfter-c.cfg.RekeyAfter*time.Duration(i%16)/128 || p.wantsRekey ||
			s.send.Used() >= c.cfg.RekeyDatagrams
	}
	if !due {
		return
	}
	p.begin = now.Add(giveWay)
	c.hs.Begin(now, i, p.addr)
}
