// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"math/bits"
	"slices"
)

// Listener waits for requests for a service.
type Listener struct {
	m       *Manager
	h       Handler
	service ServiceID
	mask    ServiceID
	match   func(r *Request) bool
	backlog int
	waiting int // requests that are neither accepted nor rejected
}

// defaultBacklog is the Backlog of ListenParams that state none.
const defaultBacklog = 128

// Listen passes requests for a service, of connections and of lookups, to h. It is ErrInUse if another
// listener without a Match has the very same service.
func (m *Manager) Listen(p *ListenParams, h Handler) (*Listener, error) {
	l := &Listener{m: m, h: h, service: p.ServiceID, mask: p.Mask, match: p.Match, backlog: p.Backlog}
	if l.mask == 0 {
		l.mask = ^ServiceID(0)
	}
	if l.backlog <= 0 {
		l.backlog = defaultBacklog
	}
	l.service &= l.mask
	if len(m.listeners) >= m.max.Listeners {
		return nil, ErrFull
	}
	if l.match == nil && slices.ContainsFunc(m.listeners, func(o *Listener) bool {
		return o.match == nil &&
			o.service == l.service && o.mask == l.mask
	}) {
		return nil, ErrInUse
	}
	at := slices.IndexFunc(m.listeners, func(o *Listener) bool { return l.before(o) })
	if at < 0 {
		at = len(m.listeners)
	}
	m.listeners = slices.Insert(m.listeners, at, l)
	return l, nil
}

// before reports whether l has precedence over o, which is older.
func (l *Listener) before(o *Listener) bool {
	if a, b := bits.OnesCount64(uint64(l.mask)), bits.OnesCount64(uint64(o.mask)); a != b {
		return a > b
	}
	return l.match != nil && o.match == nil
}

// fair reports whether another request may be enqueued for the listener's user, given the number of
// pending requests and the limit of connections. Pending requests take up half of the limit at most,
// and a listener no more of that half than it leaves to the others. So there is always room for
// requests of peers and for connections that the node requests.
func (l *Listener) fair(waiting, most int) bool {
	return l.waiting < max(most/2-waiting, 1)
}

// listener returns the listener of a request, or nil.
func (m *Manager) listener(q *Request) *Listener {
	for _, l := range m.listeners {
		if q.ServiceID&l.mask == l.service && (l.match == nil || l.match(q)) {
			return l
		}
	}
	return nil
}
