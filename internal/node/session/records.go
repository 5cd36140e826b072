// SPDX-License-Identifier: Apache-2.0

package session

import (
	"crypto/rand"
	"sync"
	"time"

	"weft/internal/device/unixsock"
)

// Records is a socket of records (SOCK_SEQPACKET) at which programs reach something of the node that is elsewhere a
// device file: it limits which users may connect, and how often. Every connection has a goroutine.
type Records struct {
	r *Registry
	l *unixsock.Listener
	// Bounds: connections, and those of a user other than root and the node's own.
	most, mostOfUser int
	wg               sync.WaitGroup

	mu     sync.Mutex // guards what follows; nothing else is locked with mu held
	conns  map[*unixsock.Conn]struct{}
	users  map[int]int // connections by user
	closed bool
}

// recordPatience is how long a connection may take to say what it is for.
const recordPatience = 5 * time.Second

// maxFirst bounds the first record of a connection.
const maxFirst = 256

// OpenRecords makes the record socket of a listener. It serves nothing before Start. most bounds its connections,
// mostOfUser those of a user other than root and the node's own.
func (r *Registry) OpenRecords(l *unixsock.Listener, most, mostOfUser int) *Records {
	return &Records{r: r, l: l, most: most, mostOfUser: mostOfUser, conns: map[*unixsock.Conn]struct{}{},
		users: map[int]int{}}
}

// Start calls serve with every connection, on a goroutine of its own; the connection is closed when it returns.
func (d *Records) Start(serve func(c *unixsock.Conn)) {
	d.wg.Go(func() {
		for {
			c, err := d.l.AcceptConn()
			if err != nil {
				return // closed
			}
			if !d.admit(c) {
				c.Close()
				continue
			}
			d.wg.Go(func() {
				defer d.release(c)
				serve(c)
			})
		}
	})
}

// Close ends all connections.
func (d *Records) Close() {
	d.l.Close()
	d.mu.Lock()
	d.closed = true
	for c := range d.conns {
		c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
}

// admit checks the number of connections.
func (d *Records) admit(c *unixsock.Conn) bool {
	p := c.Peer()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.conns) >= d.most || !OwnUser(p.UID) && d.users[p.UID] >= d.mostOfUser {
		d.r.stats.RefusedLimit.Add(1)
		return false
	}
	d.conns[c] = struct{}{}
	d.users[p.UID]++
	return true
}

// Own reports whether a connection is root's or that of the node's own user. Other users of the node may not manage
// what it is part of.
func (d *Records) Own(c *unixsock.Conn) bool { return OwnUser(c.Peer().UID) }

func (d *Records) release(c *unixsock.Conn) {
	c.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	uid := c.Peer().UID
	delete(d.conns, c)
	if d.users[uid]--; d.users[uid] == 0 {
		delete(d.users, uid)
	}
}

// First reads the record with the purpose of a connection; nil if there is none.
func (d *Records) First(c *unixsock.Conn) []byte {
	c.SetReadDeadline(time.Now().Add(recordPatience))
	b := make([]byte, maxFirst)
	n, err := c.Read(b)
	if err != nil || n < 8 {
		return nil
	}
	c.SetReadDeadline(time.Time{})
	return b[:n]
}

// AwaitEnd returns when a connection has ended. What the program writes to it meanwhile means nothing.
func AwaitEnd(c *unixsock.Conn) {
	for b := make([]byte, 16); ; {
		if n, err := c.Read(b); n == 0 || err != nil {
			return
		}
	}
}

// Token names something that is open to its holders only.
type Token [16]byte

// Tokens are open files or channels by their tokens. The zero value is ready for use; any goroutine may call its
// methods.
type Tokens[T any] struct {
	mu sync.Mutex // guards m; nothing else is locked with mu held
	m  map[Token]T
}

// Add adds v and returns its token.
func (t *Tokens[T]) Add(v T) (token Token) {
	rand.Read(token[:])
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = map[Token]T{}
	}
	t.m[token] = v
	return token
}

// Remove removes what Add added.
func (t *Tokens[T]) Remove(token Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.m, token)
}

// Find returns what a token names, the zero T where that is nothing.
func (t *Tokens[T]) Find(token Token) T {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.m[token]
}

// Use counts something that is open: a node that is in use does not end by itself. It is false where the node ends
// already.
func (d *Records) Use() bool {
	d.r.mu.Lock()
	defer d.r.mu.Unlock()
	if d.r.ending {
		return false
	}
	d.r.records++
	return true
}

// Unuse undoes Use.
func (d *Records) Unuse() {
	d.r.mu.Lock()
	defer d.r.mu.Unlock()
	d.r.records--
	d.r.idle = time.Now()
}
