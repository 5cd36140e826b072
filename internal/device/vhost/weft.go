// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"golang.org/x/sys/unix"

	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
)

// hello opens a session of a Weft program. The reply to a front-end of another version contains the
// version of the node, before the connection ends.
func (s *Session) hello(m *message) error {
	h, err := abi.ParseHello(m.payload)
	if err != nil {
		return err
	}
	// Earlier messages would belong to an ordinary front-end: its device, its unsealed memory.
	if s.proto != 0 || s.features != 0 || len(s.rings) != 0 || len(s.table.snap.Load().regions) != 0 {
		return fatal(BadState, "WEFT_HELLO after negotiation")
	}
	answer := abi.HelloReply{ABI: abi.Version, NodeUID: s.server.config.NodeUID, SpinUs: s.server.config.SpinUs}
	if err := s.reply(m, answer.Append(nil)); err != nil {
		return err
	}
	if h.ABI != abi.Version || h.Flags != 0 {
		return fatal(BadVersion, "process %d speaks version %d with flags %#x, this node version %d", h.PID, h.ABI,
			h.Flags, abi.Version)
	}
	s.weft, s.table.mustSeal = true, true
	return errAnswered
}

func (s *Session) setDoorbell(m *message) error {
	d, err := abi.ParseSetDoorbell(m.payload)
	if err != nil {
		return err
	}
	if s.doorbell.size != 0 {
		return fatal(BadState, "second doorbell")
	}
	if _, err := virtio.NewDoorbell(s.table, d.GPA, d.NBits); err != nil {
		return &end{Reason: BadRing, detail: "doorbell", cause: err}
	}
	k, err := newKick(m.take(0))
	if err != nil {
		s.release(1)
		return &end{Reason: BadKind, cause: err}
	}
	err = unix.EOPNOTSUPP
	if s.dev.Program != nil {
		err = s.dev.Program.SetDoorbell(d.GPA, d.NBits, k)
	}
	if err != nil {
		s.closeKick(k)
		return err
	}
	s.kick, s.doorbell = k, span{d.GPA, virtio.DoorbellSize(d.NBits)}
	return nil
}

func (s *Session) setRing(m *message) error {
	q, err := abi.ParseSetRing(m.payload)
	if err != nil {
		return err
	}
	r, err := s.ring(q.Index)
	if err != nil {
		return err
	}
	if q.Flags&abi.RingMove != 0 {
		return s.moveRing(q, r, m)
	}
	if q.Flags&^abi.RingCall != 0 {
		return fatal(BadRing, "ring %d with flags %#x", q.Index, q.Flags)
	}
	if want := int(q.Flags & abi.RingCall); len(m.fds) != want {
		return fatal(BadDescriptors, "ring %d: %d descriptors, want %d", q.Index, len(m.fds), want)
	}
	if r.running {
		return unix.EBUSY
	}
	if s.doorbell.size == 0 {
		return fatal(BadState, "ring %d before the doorbell", q.Index)
	}
	var call *Call
	if len(m.fds) == 1 {
		if call, err = newCall(m.take(0), q.CallValue); err != nil {
			s.release(1)
			return &end{Reason: BadKind, cause: err}
		}
	}
	// Kicks of earlier standard messages are not used.
	s.closeKick(r.Kick)
	s.closeCall(r.Call)
	r.Ring = Ring{Config: virtio.Config{Num: q.Num, Desc: q.Desc, Driver: q.Avail, Device: q.Used}, Call: call,
		Enabled: true, Weft: true}
	r.base, r.addrSet = 0, false
	if err := s.launch(int(q.Index), r); err != nil {
		s.closeCall(call)
		r.Call = nil
		return err
	}
	return nil
}

// moveRing has a running ring go on elsewhere. It has no notification.
func (s *Session) moveRing(q abi.SetRing, r *ring, m *message) error {
	if q.Flags != abi.RingMove || len(m.fds) != 0 {
		return fatal(BadRing, "ring %d with flags %#x and %d descriptors", q.Index, q.Flags, len(m.fds))
	}
	if !r.running {
		return unix.ENOENT
	}
	if !r.Weft || r.Call != nil {
		return unix.EBUSY
	}
	old := r.Ring
	// The index of the first element is in the used ring already.
	r.Config = virtio.Config{Num: q.Num, Desc: q.Desc, Driver: q.Avail, Device: q.Used, Resume: true}
	r.Move = true
	err := s.launch(int(q.Index), r)
	r.Move = false
	if err != nil {
		r.Ring = old
	}
	return err
}

func (s *Session) stopRing(m *message) error {
	q, err := abi.ParseStopRing(m.payload)
	if err != nil {
		return err
	}
	r, err := s.ring(q.Index)
	if err != nil {
		return err
	}
	if !r.running {
		return unix.ENOENT
	}
	s.halt(int(q.Index), r)
	return nil
}

func (s *Session) procMem(m *message) error {
	p, err := abi.ParseProcMem(m.payload)
	if err != nil {
		return err
	}
	f, err := processMemory(m.take(0), p.ProbeAddr, p.ProbeValue)
	switch {
	case err != nil:
	case s.dev.Program == nil:
		f.Close()
		err = unix.EOPNOTSUPP
	default:
		err = s.dev.Program.ProcMem(f, p.ProbeAddr, p.ProbeValue)
	}
	if err != nil {
		s.release(1)
	}
	return err
}
