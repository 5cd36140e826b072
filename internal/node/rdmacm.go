// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/rand"
	"errors"
	mrand "math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/host/rundir"
	"weft/internal/node/session"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/service/cm"
	"weft/internal/service/rdmacm"
	"weft/internal/verbs/hca"
)

// cmDoor is the socket at which programs open the rdma_cm device, and what they have
// open (docs/notes/rdmacm.md). Connections reach the hub through the communication
// goroutine, one command at a time each.
type cmDoor struct {
	*session.Records
	s      *cmService
	hub    *rdmacm.Hub // the communication goroutine's, as groups are
	groups *cmGroups

	mu    sync.Mutex // guards files
	files map[cmToken]*cmChannel
}

// cmToken names an open channel to those who have it, and to nobody else.
type cmToken [16]byte

// Bounds of what programs can make the node hold. A program has one connection for its
// commands, and one for each channel.
const (
	cmConns    = 8192
	cmUserConn = 2048 // of a user other than root and the node's own
)

// openCM opens the socket. The communication goroutine runs.
func (n *Node) openCM(s *cmService) (*cmDoor, error) {
	d := &cmDoor{s: s, files: map[cmToken]*cmChannel{}}
	var err error
	if d.Records, err = n.listenRecords(rundir.CMSock, "the connection manager", cmConns, cmUserConn); err != nil {
		return nil, err
	}
	var seed [32]byte
	rand.Read(seed[:])
	d.groups = newCMGroups(s)
	groups := d.groups
	s.do(func(mono.Time) {
		d.hub = rdmacm.New(&cmNetwork{s: s, groups: groups}, s.mgr, mrand.New(mrand.NewChaCha8(seed)))
		s.add(d)
	})
	n.cmDoor.Store(d)
	d.Start(d.serve)
	return d, nil
}

// serve reads what a connection is for, and serves it until it ends.
func (d *cmDoor) serve(c *net.UnixConn) {
	m, err := abi.ParseCMOpen(d.First(c))
	if err != nil {
		return
	}
	answer := func(e syscall.Errno, t cmToken) error {
		_, err := c.Write(abi.CMOpened{Error: uint32(e), Token: t}.Append(nil))
		return err
	}
	switch {
	case m.Version != abi.CMVersion || m.Op != abi.CMOpChannel && m.Op != abi.CMOpCommands:
		answer(unix.EINVAL, cmToken{})
	case m.Op == abi.CMOpCommands:
		if answer(0, cmToken{}) == nil {
			d.commands(c)
		}
	case !d.Use():
		answer(unix.ENODEV, cmToken{})
	default:
		defer d.Unuse()
		d.channel(c, func(t cmToken) error { return answer(0, t) })
	}
}

// cmChannel is an open channel of a program.
type cmChannel struct {
	d    *cmDoor
	raw  syscall.RawConn
	file *rdmacm.File // the communication goroutine's
}

var _ rdmacm.Sink = (*cmChannel)(nil)

// Notice implements rdmacm.Sink. There is room: one notice at a time is out. A
// channel whose program cannot be told of an event, for want of memory, ends: else
// it would wait for ever.
func (f *cmChannel) Notice() {
	f.raw.Control(func(fd uintptr) {
		if err := unix.Sendto(int(fd), abi.CMNotice{}.Append(nil), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil); err != nil {
			unix.Shutdown(int(fd), unix.SHUT_RDWR)
		}
	})
}

// channel serves the connection that is a channel: nothing comes by it but its end.
func (d *cmDoor) channel(c *net.UnixConn, answer func(cmToken) error) {
	f := &cmChannel{d: d}
	var err error
	if f.raw, err = c.SyscallConn(); err != nil {
		return
	}
	p := d.Peer(c)
	o := rdmacm.Owner{PID: p.PID, UID: p.UID, Comm: session.Comm(p.PID), Own: session.OwnUser(p.UID), Low: p.UID == 0}
	if !d.s.do(func(mono.Time) { f.file = d.hub.Open(o, f) }) {
		return
	}
	var t cmToken
	rand.Read(t[:])
	d.mu.Lock()
	d.files[t] = f
	d.mu.Unlock()
	if answer(t) == nil {
		for b := make([]byte, 16); ; {
			if n, err := c.Read(b); n == 0 || err != nil {
				break
			}
		}
	}
	d.mu.Lock()
	delete(d.files, t)
	d.mu.Unlock()
	d.s.do(func(now mono.Time) { f.file.Close(now) })
}

// fileOf returns the channel that a token names; nil where there is none.
func (d *cmDoor) fileOf(t [16]byte) *cmChannel {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files[cmToken(t)]
}

// commands serves the connection that brings a program's commands.
func (d *cmDoor) commands(c *net.UnixConn) {
	b := make([]byte, abi.CMCommandSize+1)
	var out []byte
	for {
		n, err := c.Read(b)
		if err != nil || n == 0 {
			return
		}
		m, err := abi.ParseCMCommand(b[:n])
		if err != nil {
			return
		}
		r, ok := d.command(&m)
		if !ok {
			return
		}
		out = r.Append(out[:0])
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// command executes a command; false where the node ends.
func (d *cmDoor) command(m *abi.CMCommand) (r abi.CMAnswer, ok bool) {
	const room = len(r.Data)
	if m.InLen > uint32(len(m.Data)) || m.OptionLen > uint32(len(m.Data))-m.InLen || m.Flags&^uint32(abi.CMNoticed) != 0 {
		r.Error = uint32(unix.EINVAL)
		return r, true
	}
	f := d.fileOf(m.Token)
	if f == nil {
		r.Error = uint32(unix.EIO)
		return r, true
	}
	var from *rdmacm.File
	other := f
	if m.Command == abi.CMMigrateID {
		if other = d.fileOf(m.From); other != nil {
			from = other.file
		}
	}
	ok = d.s.do(func(now mono.Time) {
		if m.Flags&abi.CMNoticed != 0 {
			f.file.Noticed()
		}
		if m.Command != abi.CMResume {
			out, err := f.file.Command(now, m.Command, m.Data[:m.InLen], m.Data[m.InLen:m.InLen+m.OptionLen], from, min(int(m.OutLen), room), r.Data[:0])
			r.Error, r.Length = uint32(err), uint32(len(out))
		}
		f.file.Resume()
		if f.file.Stale() {
			r.Flags |= abi.CMStale
		}
		if from != nil && other != f && from.Stale() {
			r.Flags |= abi.CMStaleFrom
		}
	})
	return r, ok
}

var _ cmTask = (*cmDoor)(nil)

// Turn implements cmTask: nothing here is due by itself.
func (d *cmDoor) Turn(mono.Time) mono.Time { return 0 }

// Removed implements cmTask.
func (d *cmDoor) Removed(now mono.Time, function uint16) {
	d.hub.Remove(now, function)
	d.groups.remove(function)
}

// Close implements cmTask: what programs had ended with their connections.
func (d *cmDoor) Close(mono.Time) {}

// portChanged has memberships renewed that a subnet administration may have forgotten. The
// management goroutine calls it.
func (d *cmDoor) portChanged(a *hca.Adapter, events []ib.Event) {
	if slices.ContainsFunc(events, func(e ib.Event) bool {
		return e == ib.EventReregister || e == ib.EventSMChange || e == ib.EventLIDChange || e == ib.EventPortActive
	}) {
		f := a.Number()
		d.s.post(func(mono.Time) { d.groups.rejoin(f) })
	}
}

// cmNetwork is the node's ports as the connection manager's device needs them. The
// communication goroutine's.
type cmNetwork struct {
	s      *cmService
	groups *cmGroups
}

var _ rdmacm.Network = (*cmNetwork)(nil)

// Bound implements rdmacm.Network.
func (w *cmNetwork) Bound(a netip.Addr) (cm.Address, error) { return w.s.bound(a) }

// Has implements rdmacm.Network.
func (w *cmNetwork) Has(function uint16, a netip.Addr) bool { return w.s.has(function, a) }

// ResolveAddr implements rdmacm.Network.
func (w *cmNetwork) ResolveAddr(now mono.Time, src, dst netip.Addr, done func(mono.Time, cm.Address, error)) {
	w.s.resolveAddr(now, src, dst, done)
}

// ResolvePath implements rdmacm.Network.
func (w *cmNetwork) ResolvePath(now mono.Time, a *cm.Address, tclass uint8, done func(mono.Time, cm.Path, error)) {
	w.s.resolvePath(now, a, tclass, done)
}

// Device implements rdmacm.Network.
func (w *cmNetwork) Device(function uint16) (rdmacm.Device, bool) {
	f := w.s.n.byNumber(function)
	if f == nil {
		return rdmacm.Device{}, false
	}
	p := f.a.Port()
	return rdmacm.Device{GUID: f.a.NodeGUID, PKeys: p.PKeys, LID: p.LID, LMC: p.LMC}, true
}

// Broadcast implements rdmacm.Network.
func (w *cmNetwork) Broadcast(a *cm.Address) (ib.GID, bool) {
	if w.s.n.ip == nil {
		return ib.GID{}, false
	}
	return w.s.n.ip.BroadcastGID(a.Device)
}

// Join implements rdmacm.Network.
func (w *cmNetwork) Join(now mono.Time, g *rdmacm.Group, done func(mono.Time, cm.Path, ib.QKey, error)) (cancel func(mono.Time)) {
	if g.Addr.Link == ib.LinkInfiniBand {
		return w.groups.join(now, g, done)
	}
	// The host joins when a queue pair is attached, and leaves with the last.
	a := g.Addr
	done(now, cm.Path{Function: a.Function, Link: a.Link, SGID: a.SGID, DGID: g.MGID, SGIDIndex: a.SGIDIndex, Global: true, PKey: a.PKey, HopLimit: groupHops,
		TClass: g.TClass}, g.QKey, nil)
	return func(mono.Time) {}
}

// groupHops is how far what is sent to a group goes, unless it says otherwise.
const groupHops = 64

// psNames are those of the rdma tool.
var psNames = map[cm.PortSpace]string{cm.SpaceIPoIB: "IPoIB", cm.SpaceTCP: "TCP", cm.SpaceUDP: "UDP", cm.SpaceIB: "IB"}

// cmIDs describes the identifiers of programs.
func (n *Node) cmIDs() (list []api.CMID) {
	var ids []rdmacm.Info
	d := n.cmDoor.Load()
	if d == nil || !d.s.do(func(mono.Time) { ids = d.hub.IDs() }) {
		return nil
	}
	for _, i := range ids {
		v := api.CMID{Owner: api.Owner{PID: i.Owner.PID, Comm: i.Owner.Comm, UID: i.Owner.UID}, CMIDN: i.Number, LQPN: uint32(i.QPN), Type: i.Type.String(),
			State: i.State, PS: psNames[i.PS], Src: i.Src, Dst: i.Dst}
		if f := n.byNumber(i.Function); i.Bound && f != nil {
			v.Device = f.a.Name
		}
		list = append(list, v)
	}
	return list
}

var errNoMember = errors.New("the subnet administration refused the membership")
