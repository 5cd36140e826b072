// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"slices"

	"weft/internal/proto/mono"
)

// Close closes the listener. Requests that its handler has received stay; the others are rejected, as
// later ones are.
func (l *Listener) Close(now mono.Time) {
	m := l.m
	at := slices.Index(m.listeners, l)
	if at < 0 {
		return
	}
	m.listeners = slices.Delete(m.listeners, at, at+1)
	for _, e := range m.events {
		switch {
		case e.e.Kind == ConnectRequest && e.e.Conn.listener == l:
			e.e.Conn.Close(now)
		case e.e.Kind == LookupRequest && e.e.Inquiry.listener == l:
			e.e.Inquiry.Reject(now, LookupNoService, nil, nil)
			e.e.Inquiry.gone = true
		}
	}
}

// Drop forgets a request of a peer that is neither accepted nor rejected, without an answer: the peer sends it again.
func (c *Conn) Drop() error {
	if c.state != reqRcvd {
		return ErrState
	}
	c.end()
	return nil
}

// Drop forgets an inquiry without a reply: the peer sends it again. It is ErrState if there was a reply.
func (i *Inquiry) Drop() error {
	if i.listener == nil {
		return ErrState
	}
	i.end()
	return nil
}

// Remove reports that a function's port was removed: its connections end, and users are notified as if
// the peer did not reply.
func (m *Manager) Remove(now mono.Time, function uint16) {
	for _, c := range m.conns {
		if c.function != function {
			continue
		}
		switch c.state {
		case established, dreqSent:
			c.notifyOver()
			c.event(Event{Kind: TimewaitExit})
		case timewait:
			c.event(Event{Kind: TimewaitExit})
		default:
			c.event(Event{Kind: Unreachable})
		}
		c.end()
	}
	for _, l := range m.lookups {
		if l.function == function {
			l.fail()
		}
	}
	for _, i := range m.inquiries {
		if i.id.function == function {
			i.end()
		}
	}
}

// Close ends everything: the peers of connections are notified once, as far as their state requires,
// and handlers get no further events.
func (m *Manager) Close(now mono.Time) {
	for _, c := range m.conns {
		c.Close(now)
	}
	for _, l := range m.lookups {
		l.Close(now)
	}
	for _, i := range m.inquiries {
		i.gone = true
		if i.listener != nil {
			i.Reject(now, LookupNoService, nil, nil)
		}
	}
}
