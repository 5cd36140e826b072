// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"crypto/rand"
	"errors"
	mrand "math/rand/v2"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/device/unixsock"
	"weft/internal/node/session"
	"weft/internal/node/subnet"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/service/cm"
	"weft/internal/service/rdmacm"
	"weft/internal/verbs/hca"
)

// Device is the socket at which programs open the rdma_cm device, and their open channels (docs/notes/rdmacm.md).
// Connections reach the hub through the goroutine of the service, one command at a time each.
type Device struct {
	*session.Records
	s      *Service
	hub    *rdmacm.Hub // the communication goroutine's, as groups are
	groups *groupTable
	files  session.Tokens[*channel]
}

// Bounds of the connections. A program has one connection for its commands, and one for each channel.
const (
	DeviceConns     = 8192
	DeviceUserConns = 2048 // of a user other than root and the node's own
)

// OpenDevice serves the rdma_cm device at a socket, which the caller closes. The goroutine runs.
func (s *Service) OpenDevice(r *session.Records) {
	d := &Device{Records: r, s: s}
	var seed [32]byte
	rand.Read(seed[:])
	d.groups = newGroupTable(s)
	groups := d.groups
	s.Do(func(mono.Time) {
		net := rdmacm.Network{Addresses: s, Groups: groups, Device: s.device}
		d.hub = rdmacm.New(net, s.mgr, mrand.New(mrand.NewChaCha8(seed)))
		s.Add(d)
	})
	s.dev.Store(d)
	d.Start(d.serve)
}

// PortChanged reports events of a port to the programs with channels. Any goroutine may call it.
func (s *Service) PortChanged(a *hca.Adapter, events []ib.Event) {
	if d := s.dev.Load(); d != nil {
		d.portChanged(a, events)
	}
}

// serve reads what a connection is for, and serves it until it ends.
func (d *Device) serve(c *unixsock.Conn) {
	m, err := abi.ParseCMOpen(d.First(c))
	if err != nil {
		return
	}
	answer := func(e syscall.Errno, t session.Token) error {
		_, err := c.Write(abi.CMOpened{Error: uint32(e), Token: t}.Append(nil))
		return err
	}
	switch {
	case m.Version != abi.CMVersion || m.Op != abi.CMOpChannel && m.Op != abi.CMOpCommands:
		answer(unix.EINVAL, session.Token{})
	case m.Op == abi.CMOpCommands:
		if answer(0, session.Token{}) == nil {
			d.commands(c)
		}
	case !d.Use():
		answer(unix.ENODEV, session.Token{})
	default:
		defer d.Unuse()
		d.channel(c, func(t session.Token) error { return answer(0, t) })
	}
}

// channel is an open channel of a program.
type channel struct {
	d    *Device
	raw  syscall.RawConn
	file *rdmacm.File // the communication goroutine's
}

var _ rdmacm.Sink = (*channel)(nil)

// Notice implements rdmacm.Sink. There is room: one notice at a time is out. A channel ends where its program cannot be
// notified for lack of memory: otherwise the program would wait forever.
func (f *channel) Notice() {
	f.raw.Control(func(fd uintptr) {
		if err := unix.Sendto(int(fd), abi.CMNotice{}.Append(nil), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL,
			nil); err != nil {
			unix.Shutdown(int(fd), unix.SHUT_RDWR)
		}
	})
}

// channel serves the connection that is a channel: nothing comes by it but its end.
func (d *Device) channel(c *unixsock.Conn, answer func(session.Token) error) {
	f := &channel{d: d}
	var err error
	if f.raw, err = c.SyscallConn(); err != nil {
		return
	}
	p := c.Peer()
	o := rdmacm.Owner{PID: p.PID, UID: p.UID, Comm: session.Comm(p.PID), Own: session.OwnUser(p.UID), Low: p.UID == 0}
	if d.s.Do(func(mono.Time) { f.file = d.hub.Open(o, f) }) != nil {
		return
	}
	t := d.files.Add(f)
	if answer(t) == nil {
		session.AwaitEnd(c)
	}
	d.files.Remove(t)
	d.s.Do(func(now mono.Time) { f.file.Close(now) })
}

// commands serves the connection that brings a program's commands.
func (d *Device) commands(c *unixsock.Conn) {
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
func (d *Device) command(m *abi.CMCommand) (r abi.CMAnswer, ok bool) {
	const room = len(r.Data)
	if m.InLen > uint32(len(m.Data)) || m.OptionLen > uint32(len(m.Data))-m.InLen ||
		m.Flags&^uint32(abi.CMNoticed) != 0 {
		r.Error = uint32(unix.EINVAL)
		return r, true
	}
	f := d.files.Find(m.Token)
	if f == nil {
		r.Error = uint32(unix.EIO)
		return r, true
	}
	var from *rdmacm.File
	other := f
	if m.Command == abi.CMMigrateID {
		if other = d.files.Find(m.From); other != nil {
			from = other.file
		}
	}
	ok = d.s.Do(func(now mono.Time) {
		if m.Flags&abi.CMNoticed != 0 {
			f.file.Noticed()
		}
		if m.Command != abi.CMResume {
			out, err := f.file.Command(now, m.Command, m.Data[:m.InLen], m.Data[m.InLen:m.InLen+m.OptionLen], from,
				min(int(m.OutLen), room), r.Data[:0])
			r.Error, r.Length = uint32(err), uint32(len(out))
		}
		f.file.Resume()
		if f.file.Stale() {
			r.Flags |= abi.CMStale
		}
		if from != nil && other != f && from.Stale() {
			r.Flags |= abi.CMStaleFrom
		}
	}) == nil
	return r, ok
}

var _ Task = (*Device)(nil)

// Turn implements Task: nothing here is due by itself.
func (d *Device) Turn(mono.Time) mono.Time { return 0 }

// Removed implements Task.
func (d *Device) Removed(now mono.Time, function uint16) {
	d.hub.Remove(now, function)
	d.groups.remove(function)
}

// Close implements Task: what programs had ended with their connections.
func (d *Device) Close(mono.Time) {}

// portChanged has memberships renewed that a subnet administration may have forgotten. The
// management goroutine calls it.
func (d *Device) portChanged(a *hca.Adapter, events []ib.Event) {
	if slices.ContainsFunc(events, subnet.LosesRegistrations) {
		f := a.Number()
		d.s.Post(func(mono.Time) { d.groups.rejoin(f) })
	}
}

var _ rdmacm.Addresses = (*Service)(nil)

// device is the Device of the rdmacm.Network.
func (s *Service) device(function uint16) (rdmacm.Device, bool) {
	f := s.cfg.Functions.At(function)
	if f == nil {
		return rdmacm.Device{}, false
	}
	p := f.Port()
	return rdmacm.Device{GUID: f.NodeGUID, PKeys: p.PKeys, LID: p.LID, LMC: p.LMC}, true
}

// psNames are those of the rdma tool.
var psNames = map[cm.PortSpace]string{cm.SpaceIPoIB: "IPoIB", cm.SpaceTCP: "TCP", cm.SpaceUDP: "UDP", cm.SpaceIB: "IB"}

// Identifiers describes the identifiers of programs.
func (s *Service) Identifiers() (list []api.CMID) {
	var ids []rdmacm.Info
	d := s.dev.Load()
	if d == nil || s.Do(func(mono.Time) { ids = d.hub.IDs() }) != nil {
		return nil
	}
	for _, i := range ids {
		v := api.CMID{Owner: api.Owner{PID: i.Owner.PID, Comm: i.Owner.Comm, UID: i.Owner.UID}, CMIDN: i.Number,
			LQPN: uint32(i.QPN), Type: i.Type.String(),
			State: i.State, PS: psNames[i.PS], Src: i.Src, Dst: i.Dst}
		if a := s.cfg.Functions.At(i.Function); i.Bound && a != nil {
			v.Device = a.Name
		}
		list = append(list, v)
	}
	return list
}

var errNoMember = errors.New("the subnet administration refused the membership")
