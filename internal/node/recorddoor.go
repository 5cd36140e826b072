// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/host/rundir"
)

// recordDoor is a socket of records (SOCK_SEQPACKET) at which programs find something of the
// node that devices are elsewhere: who may connect, and how many. Every connection has
// a goroutine.
type recordDoor struct {
	n    *Node
	l    *net.UnixListener
	name string // of its socket
	what string // it is for
	// Bounds: connections, and those of a user other than root and the node's own.
	most, mostOfUser int
	wg               sync.WaitGroup

	mu     sync.Mutex // guards what follows
	conns  map[*net.UnixConn]rundir.Peer
	users  map[int]int // connections by user
	closed bool
}

// recordPatience is how long a connection may take to say what it is for.
const recordPatience = 5 * time.Second

// maxFirst bounds the first record of a connection.
const maxFirst = 256

// openRecordDoor opens a socket. Nobody is served before start.
func (n *Node) openRecordDoor(name, what string, most, mostOfUser int) (*recordDoor, error) {
	l, err := n.dir.ListenRecords(name, n.doorPerm())
	if err != nil {
		return nil, err
	}
	return &recordDoor{n: n, l: l, name: name, what: what, most: most, mostOfUser: mostOfUser, conns: map[*net.UnixConn]rundir.Peer{}, users: map[int]int{}}, nil
}

// start has serve called with every connection, on a goroutine of its own; the
// connection is closed when it returns.
func (d *recordDoor) start(serve func(c *net.UnixConn)) {
	d.wg.Go(func() {
		for {
			c, err := d.l.AcceptUnix()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					d.n.stop(fmt.Errorf("%s: %w", d.name, err))
				}
				return
			}
			if !d.admit(c) {
				c.Close()
				continue
			}
			d.wg.Go(func() {
				defer d.leave(c)
				serve(c)
			})
		}
	})
}

// close ends all connections.
func (d *recordDoor) close() {
	d.l.Close()
	d.mu.Lock()
	d.closed = true
	for c := range d.conns {
		c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
}

// admit checks who has connected.
func (d *recordDoor) admit(c *net.UnixConn) bool {
	p, err := rundir.PeerOf(c)
	if err != nil || !d.n.allowed(p.UID) {
		d.n.strangers.Add(1)
		d.n.complain(d.what+" refused", "pid", p.PID, "uid", p.UID)
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.conns) >= d.most || !ownUser(p.UID) && d.users[p.UID] >= d.mostOfUser {
		d.n.crowds.Add(1)
		return false
	}
	d.conns[c] = p
	d.users[p.UID]++
	return true
}

// ownUser reports whether a user is root or the node's own.
func ownUser(uid int) bool { return uid == 0 || uid == unix.Geteuid() }

// peer tells whose a connection is.
func (d *recordDoor) peer(c *net.UnixConn) rundir.Peer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.conns[c]
}

// own reports whether a connection is root's or that of the node's own user. Others who may use
// the node may not manage what it is part of.
func (d *recordDoor) own(c *net.UnixConn) bool { return ownUser(d.peer(c).UID) }

func (d *recordDoor) leave(c *net.UnixConn) {
	c.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	uid := d.conns[c].UID
	delete(d.conns, c)
	if d.users[uid]--; d.users[uid] == 0 {
		delete(d.users, uid)
	}
}

// first reads the record that says what a connection is for; nil where there
// is none.
func (d *recordDoor) first(c *net.UnixConn) []byte {
	c.SetReadDeadline(time.Now().Add(recordPatience))
	b := make([]byte, maxFirst)
	n, err := c.Read(b)
	if err != nil || n < 8 {
		return nil
	}
	c.SetReadDeadline(time.Time{})
	return b[:n]
}

// use counts something that is open: a node that is in use does not end by itself. It is
// false where the node ends already.
func (d *recordDoor) use() bool {
	d.n.mu.Lock()
	defer d.n.mu.Unlock()
	if d.n.ending {
		return false
	}
	d.n.openRecords++
	return true
}

func (d *recordDoor) unuse() {
	d.n.mu.Lock()
	defer d.n.mu.Unlock()
	d.n.openRecords--
	d.n.idle = time.Now()
}
