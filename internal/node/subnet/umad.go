// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"bytes"
	"errors"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"weft/internal/device/unixsock"
	"weft/internal/mgmt/umad"
	"weft/internal/node/session"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/verbs/hca"
)

// umadSocket is the socket at which programs open umadN and issmN, and what they
// have open (docs/notes/umad.md). Every connection has a goroutine, and one
// more that writes to it while it is a file; all of them reach the hub through
// the management goroutine.
type umadSocket struct {
	*session.Records
	s      *Subnet
	lookup func(name string) *hca.Adapter
	hub    *umad.Hub // the management goroutine's
	files  session.Tokens[*umadFile]
}

// Bounds of what programs can make the node hold.
const (
	umadRecords = 4096
	umadBytes   = 8 << 20
	// umadBuffer is the buffer that a file keeps for what programs write.
	umadBuffer = 4096
)

// OpenUserMADs serves the socket of user MADs. lookup returns the adapter of a device, nil where there is none. The
// management goroutine runs.
func (s *Subnet) OpenUserMADs(r *session.Records, lookup func(name string) *hca.Adapter) {
	u := &umadSocket{Records: r, s: s, lookup: lookup, hub: umad.New(umadPorts{s})}
	s.Do(func() { s.Clients = u.hub })
	u.Start(u.serve)
}

// Bounds of the socket of user MADs: connections, and those of a user other than root and the node's own.
const (
	UserMADConns     = 256
	UserMADUserConns = 128
)

// umadPorts is the ports of the node as the hub knows them, on the management
// goroutine.
type umadPorts struct{ s *Subnet }

// Port implements umad.Ports.
func (p umadPorts) Port(function uint16) (umad.Port, bool) {
	c := p.s.Functions[function]
	if c == nil {
		return umad.Port{}, false
	}
	i := c.Agent.Port(1)
	return umad.Port{LID: i.LID, LMC: i.LMC, PKeys: c.Agent.PKeys(1), Prefix: i.GIDPrefix, GUIDs: c.Agent.GUIDs()}, true
}

// SetIsSM implements umad.Ports.
func (p umadPorts) SetIsSM(now mono.Time, function uint16, on bool) {
	if c := p.s.Functions[function]; c != nil {
		c.Agent.SetCapability(now, mad.CapIsSM, on)
		c.MarkChanged() // for the files of the port
	}
}

// Manages implements umad.Ports.
func (p umadPorts) Manages() bool { return p.s.manages }

// serve reads what a connection is for, and serves it until it ends.
func (u *umadSocket) serve(c *unixsock.Conn) {
	b := u.First(c)
	switch len(b) {
	case abi.UmadOpenSize:
		m, _ := abi.ParseUmadOpen(b)
		u.open(c, &m)
	case abi.UmadControlSize:
		m, _ := abi.ParseUmadControl(b)
		u.control(c, &m)
	}
}

// refuse answers an open that failed.
func refuseUmad(c *unixsock.Conn, why umad.Errno) {
	c.Write(abi.UmadOpened{Error: uint32(why)}.Append(nil))
}

// open serves the connection that is an open file.
func (u *umadSocket) open(c *unixsock.Conn, m *abi.UmadOpen) {
	name, _, _ := bytes.Cut(m.Device[:], []byte{0})
	a := u.lookup(string(name))
	if m.Version != abi.UmadVersion || m.Flags&^uint32(abi.UmadNonblock) != 0 {
		refuseUmad(c, umad.EINVAL)
		return
	}
	if a == nil || a.Port().Link != ib.LinkInfiniBand || m.Port != 1 {
		refuseUmad(c, umad.ENODEV)
		return
	}
	if !u.Use() {
		refuseUmad(c, umad.ENODEV)
		return
	}
	defer u.Unuse()
	switch m.Op {
	case abi.UmadOpOpen:
		u.file(c, a.Number())
	case abi.UmadOpIsSM:
		u.isSM(c, a.Number(), m.Flags&abi.UmadNonblock == 0)
	default:
		refuseUmad(c, umad.EINVAL)
	}
}

// isSM serves an open issmN.
func (u *umadSocket) isSM(c *unixsock.Conn, function uint16, wait bool) {
	var i *umad.IsSM
	granted := func(why umad.Errno) { c.Write(abi.UmadOpened{Error: uint32(why)}.Append(nil)) }
	if !u.Own(c) {
		granted(umad.EPERM)
		return
	}
	if u.s.Do(func() { i = u.hub.OpenIsSM(u.s.cfg.Now(), function, wait, granted) }) != nil {
		return
	}
	session.AwaitEnd(c)
	u.s.Do(func() { i.Close(u.s.cfg.Now()) })
}

// umadFile is an open umadN.
type umadFile struct {
	u    *umadSocket
	c    *unixsock.Conn
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
func (u *umadSocket) file(c *unixsock.Conn, function uint16) {
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
	manages := u.Own(c)
	if u.s.Do(func() {
		if f.file, why = u.hub.Open(function, f); why == umad.OK && !manages {
			f.file.Restrict()
		}
	}) != nil || why != umad.OK {
		refuseUmad(c, why)
		return
	}
	token := u.files.Add(f)
	c.Write(abi.UmadOpened{HeaderLen: uint32(f.file.HeaderLen()), Token: token}.Append(nil))
	var wg sync.WaitGroup
	wg.Go(f.write)
	f.raw.Read(func(fd uintptr) bool { return f.pull(int(fd)) })
	u.files.Remove(token)
	u.s.Do(f.file.Close)
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
		if f.u.s.Do(func() { f.file.Write(f.u.s.cfg.Now(), f.buf[:n]) }) != nil {
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
				f.u.s.Post(func() { f.u.hub.Stats.DropTooLong++ })
			} else if err != nil {
				f.c.Close() // the reader ends too
				return
			}
		}
	}
}

// control serves the connection that brings a request of an open file.
func (u *umadSocket) control(c *unixsock.Conn, m *abi.UmadControl) {
	f := u.files.Find(m.Token)
	r := abi.UmadControlled{Error: uint32(umad.EINVAL), Arg: m.Arg}
	switch {
	case m.Op != abi.UmadOpControl || m.Version != abi.UmadVersion || m.Length > umad.MaxArgument:
	case f == nil:
		r.Error = uint32(umad.EIO)
	default:
		// What the program wrote before comes first.
		f.raw.Control(func(fd uintptr) { f.pull(int(fd)) })
		if u.s.Do(func() {
			r.Error = uint32(f.file.Control(m.Number, r.Arg[:m.Length]))
			r.HeaderLen = uint32(f.file.HeaderLen())
		}) != nil {
			r.Error = uint32(umad.EIO)
		}
	}
	c.Write(r.Append(nil))
}
