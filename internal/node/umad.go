// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/abi"
	"weft/internal/ib"
	"weft/internal/mad"
	"weft/internal/mono"
	"weft/internal/rundir"
	"weft/internal/umad"
)

// umadDoor is the socket at which programs open umadN and issmN, and what they
// have open (docs/notes/umad.md). Every connection has a goroutine, and one
// more that writes to it while it is a file; all of them reach the hub through
// the management goroutine.
type umadDoor struct {
	n   *Node
	l   *net.UnixListener
	hub *umad.Hub // the management goroutine's
	wg  sync.WaitGroup

	mu     sync.Mutex // guards what follows
	conns  map[*net.UnixConn]int
	users  map[int]int // connections by user
	files  map[umadToken]*umadFile
	closed bool
}

// umadToken names an open file to those who have it, and to nobody else.
type umadToken [16]byte

// Bounds of what programs can make the node hold.
const (
	umadConns    = 256 // connections
	umadUserConn = 128 // connections of a user other than root and the node's own
	umadRecords  = 4096
	umadBytes    = 8 << 20
	// umadPatience is how long a connection may take to say what it is for.
	umadPatience = 5 * time.Second
	// umadBuffer is the buffer that a file keeps for what programs write.
	umadBuffer = 4096
)

// openUmad opens the socket. The management goroutine runs.
func (n *Node) openUmad() (*umadDoor, error) {
	l, err := n.dir.ListenRecords(rundir.UmadSock, n.doorPerm())
	if err != nil {
		return nil, err
	}
	u := &umadDoor{n: n, l: l, conns: map[*net.UnixConn]int{}, users: map[int]int{}, files: map[umadToken]*umadFile{}}
	u.hub = umad.New(umadPorts{n.sub})
	n.sub.do(func() { n.sub.clients = u.hub })
	u.wg.Go(u.accept)
	return u, nil
}

// close ends all connections.
func (u *umadDoor) close() {
	u.l.Close()
	u.mu.Lock()
	u.closed = true
	for c := range u.conns {
		c.Close()
	}
	u.mu.Unlock()
	u.wg.Wait()
}

// umadPorts is the ports of the node as the hub knows them, on the management
// goroutine.
type umadPorts struct{ s *subnet }

// Port implements umad.Ports.
func (p umadPorts) Port(function uint16) (umad.Port, bool) {
	c := p.s.byFunc[function]
	if c == nil {
		return umad.Port{}, false
	}
	i := c.agent.Port(1)
	return umad.Port{LID: i.LID, LMC: i.LMC, PKeys: c.agent.PKeys(1), Prefix: i.GIDPrefix, GUIDs: c.agent.GUIDs()}, true
}

// SetIsSM implements umad.Ports.
func (p umadPorts) SetIsSM(now mono.Time, function uint16, on bool) {
	if c := p.s.byFunc[function]; c != nil {
		c.agent.SetCapability(now, mad.CapIsSM, on)
		p.s.changed[c] |= 0 // for the files of the port
	}
}

func (u *umadDoor) accept() {
	for {
		c, err := u.l.AcceptUnix()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				u.n.stop(fmt.Errorf("%s: %w", rundir.UmadSock, err))
			}
			return
		}
		if !u.admit(c) {
			c.Close()
			continue
		}
		u.wg.Go(func() {
			defer u.leave(c)
			u.serve(c)
		})
	}
}

// admit checks who has connected.
func (u *umadDoor) admit(c *net.UnixConn) bool {
	p, err := rundir.PeerOf(c)
	if err != nil || !u.n.allowed(p.UID) {
		u.n.strangers.Add(1)
		u.n.complain("user MADs refused", "pid", p.PID, "uid", p.UID)
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	own := ownUser(p.UID)
	if u.closed || len(u.conns) >= umadConns || !own && u.users[p.UID] >= umadUserConn {
		return false
	}
	u.conns[c] = p.UID
	u.users[p.UID]++
	return true
}

// ownUser reports whether a user is root or the node's own.
func ownUser(uid int) bool { return uid == 0 || uid == unix.Geteuid() }

// manages reports whether the user of a connection may manage the subnet. Others
// who may use the node may look, as far as agents and administration let them.
func (u *umadDoor) manages(c *net.UnixConn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return ownUser(u.conns[c])
}

func (u *umadDoor) leave(c *net.UnixConn) {
	c.Close()
	u.mu.Lock()
	defer u.mu.Unlock()
	uid := u.conns[c]
	delete(u.conns, c)
	if u.users[uid]--; u.users[uid] == 0 {
		delete(u.users, uid)
	}
}

// serve reads what a connection is for, and serves it until it ends.
func (u *umadDoor) serve(c *net.UnixConn) {
	c.SetReadDeadline(time.Now().Add(umadPatience))
	b := make([]byte, 256)
	n, err := c.Read(b)
	if err != nil || n < 8 {
		return
	}
	c.SetReadDeadline(time.Time{})
	switch b = b[:n]; n {
	case abi.UmadOpenSize:
		m, _ := abi.ParseUmadOpen(b)
		u.open(c, &m)
	case abi.UmadControlSize:
		m, _ := abi.ParseUmadControl(b)
		u.control(c, &m)
	}
}

// refuse answers an open that failed.
func refuseUmad(c *net.UnixConn, why umad.Errno) {
	c.Write(abi.UmadOpened{Error: uint32(why)}.Append(nil))
}

// open serves the connection that is an open file.
func (u *umadDoor) open(c *net.UnixConn, m *abi.UmadOpen) {
	name, _, _ := bytes.Cut(m.Device[:], []byte{0})
	f := u.n.function(string(name))
	if m.Version != abi.UmadVersion || m.Flags&^uint32(abi.UmadNonblock) != 0 {
		refuseUmad(c, umad.EINVAL)
		return
	}
	if f == nil || f.a.Port().Link != ib.LinkInfiniBand || m.Port != 1 {
		refuseUmad(c, umad.ENODEV)
		return
	}
	if !u.use() {
		refuseUmad(c, umad.ENODEV)
		return
	}
	defer u.unuse()
	switch m.Op {
	case abi.UmadOpOpen:
		u.file(c, f.a.Number())
	case abi.UmadOpIsSM:
		u.isSM(c, f.a.Number(), m.Flags&abi.UmadNonblock == 0)
	default:
		refuseUmad(c, umad.EINVAL)
	}
}

// use counts an open file: a node that is in use does not end by itself. It is
// false where the node ends already.
func (u *umadDoor) use() bool {
	u.n.mu.Lock()
	defer u.n.mu.Unlock()
	if u.n.ending {
		return false
	}
	u.n.umads++
	return true
}

func (u *umadDoor) unuse() {
	u.n.mu.Lock()
	defer u.n.mu.Unlock()
	u.n.umads--
	u.n.idle = time.Now()
}

// isSM serves an open issmN.
func (u *umadDoor) isSM(c *net.UnixConn, function uint16, wait bool) {
	var i *umad.IsSM
	n := u.n
	granted := func(why umad.Errno) { c.Write(abi.UmadOpened{Error: uint32(why)}.Append(nil)) }
	if !u.manages(c) {
		granted(umad.EPERM)
		return
	}
	if !n.sub.do(func() { i = u.hub.OpenIsSM(n.now(), function, wait, granted) }) {
		return
	}
	// What a program writes to it means nothing; its end does.
	for b := make([]byte, 1); ; {
		if k, err := c.Read(b); k == 0 || err != nil {
			break
		}
	}
	n.sub.do(func() { i.Close(n.now()) })
}

// umadFile is an open umadN.
type umadFile struct {
	u    *umadDoor
	c    *net.UnixConn
	raw  syscall.RawConn
	file *umad.File // the management goroutine's

	reading sync.Mutex // guards buf, and the order of what is read
	buf     []byte

	mu    sync.Mutex // guards what follows
	queue [][]byte   // records for the program
	bytes int
	wake  chan struct{}
	end   chan struct{} // closed to end write
}

var _ umad.Sink = (*umadFile)(nil)

// file serves an open umadN.
func (u *umadDoor) file(c *net.UnixConn, function uint16) {
	f := &umadFile{u: u, c: c, buf: make([]byte, umadBuffer), wake: make(chan struct{}, 1), end: make(chan struct{})}
	var err error
	if f.raw, err = c.SyscallConn(); err != nil {
		return
	}
	f.raw.Control(func(fd uintptr) {
		// Answers may be long. Beyond a limit that others than root cannot
		// pass, they are lost, and counted.
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*umad.MaxRecord) != nil {
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, 2*umad.MaxRecord)
		}
	})
	why := umad.EIO
	manages := u.manages(c)
	if !u.n.sub.do(func() {
		if f.file, why = u.hub.Open(function, f); why == umad.OK && !manages {
			f.file.Restrict()
		}
	}) || why != umad.OK {
		refuseUmad(c, why)
		return
	}
	var token umadToken
	rand.Read(token[:])
	u.mu.Lock()
	u.files[token] = f
	u.mu.Unlock()
	c.Write(abi.UmadOpened{HeaderLen: uint32(f.file.HeaderLen()), Token: token}.Append(nil))
	var wg sync.WaitGroup
	wg.Go(f.write)
	f.raw.Read(func(fd uintptr) bool { return f.pull(int(fd)) })
	u.mu.Lock()
	delete(u.files, token)
	u.mu.Unlock()
	u.n.sub.do(f.file.Close)
	c.Close()
	close(f.end)
	wg.Wait()
}

// pull takes what the program has written; true when there will be no more.
func (f *umadFile) pull(fd int) (end bool) {
	f.reading.Lock()
	defer f.reading.Unlock()
	for {
		n, _, err := unix.Recvfrom(fd, f.buf, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || n == 0 || n > umad.MaxRecord:
			return true
		}
		if n > len(f.buf) {
			f.buf = make([]byte, n)
		}
		if n, _, err = unix.Recvfrom(fd, f.buf, unix.MSG_DONTWAIT); err != nil {
			return true
		}
		if !f.u.n.sub.do(func() { f.file.Write(f.u.n.now(), f.buf[:n]) }) {
			return true
		}
		if len(f.buf) > umadBuffer {
			f.buf = make([]byte, umadBuffer)
		}
	}
}

// Put implements umad.Sink.
func (f *umadFile) Put(record []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) >= umadRecords || f.bytes+len(record) > umadBytes {
		return false
	}
	f.queue = append(f.queue, record)
	f.bytes += len(record)
	select {
	case f.wake <- struct{}{}:
	default:
	}
	return true
}

// Gone implements umad.Sink.
func (f *umadFile) Gone() { f.c.Close() }

// write gives the program what is for it, until the file is closed.
func (f *umadFile) write() {
	for {
		select {
		case <-f.wake:
		case <-f.end:
			return
		}
		for {
			f.mu.Lock()
			if len(f.queue) == 0 {
				f.queue = nil
				f.mu.Unlock()
				break
			}
			r := f.queue[0]
			f.queue[0] = nil
			f.queue = f.queue[1:]
			f.bytes -= len(r)
			f.mu.Unlock()
			_, err := f.c.Write(r)
			if errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.ENOBUFS) {
				f.u.n.sub.post(func() { f.u.hub.Stats.DropTooLong++ })
			} else if err != nil {
				f.c.Close() // the reader ends too
				return
			}
		}
	}
}

// control serves the connection that brings a request of an open file.
func (u *umadDoor) control(c *net.UnixConn, m *abi.UmadControl) {
	u.mu.Lock()
	f := u.files[umadToken(m.Token)]
	u.mu.Unlock()
	r := abi.UmadControlled{Error: uint32(umad.EINVAL), Arg: m.Arg}
	switch {
	case m.Op != abi.UmadOpControl || m.Version != abi.UmadVersion || m.Length > umad.MaxArgument:
	case f == nil:
		r.Error = uint32(umad.EIO)
	default:
		// What the program wrote before comes first.
		f.raw.Control(func(fd uintptr) { f.pull(int(fd)) })
		if !u.n.sub.do(func() {
			r.Error = uint32(f.file.Control(m.Number, r.Arg[:m.Length]))
			r.HeaderLen = uint32(f.file.HeaderLen())
		}) {
			r.Error = uint32(umad.EIO)
		}
	}
	c.Write(r.Append(nil))
}
