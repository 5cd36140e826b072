// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/device/rdmadev"
	"weft/internal/device/vhost"
	"weft/internal/node/lane"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// GuestConfig describes the RoCE half of the network card of a guest.
type GuestConfig struct {
	// QPs is max_rdma_qps of the card's configuration space, CQs is max_rdma_cqs.
	QPs, CQs uint32
	// Ring is the length of the longest virtqueue that the emulator gives the guest.
	Ring uint32
	Port GuestPort
}

// GuestPort is the Ethernet port of a card. The lane calls its methods.
type GuestPort interface {
	// SetGID makes gid the address of the port with an index of the driver, or removes it if gid is zero. ClearGIDs
	// removes all.
	SetGID(index uint32, gid ib.GID) error
	ClearGIDs()
	// Halt takes the port down until it is called with false.
	Halt(on bool)
}

// program is what a Guest has in common with the session of a program.
type program = Session

// Guest is the RoCE half of the network card of a guest. It has the card's lane, and the device on it owns the card's
// function: queue pair numbers and addresses are those that the guest's driver has. It implements ethdev.RoCE and, for
// the rings beyond the control queue, vhost.Rings.
type Guest struct {
	program
	cfg GuestConfig

	// The lane's.
	first   uint32 // number of the first completion ring
	roce    bool   // the driver negotiated ROCE
	failure error  // why the device needs a reset, nil: it does not
	broken  uint64 // times it needed one
}

// AdmitGuest makes the RoCE half of a card for a front-end that has connected to the card's socket. a is the function
// of the card, on its lane.
func (r *Registry) AdmitGuest(a *hca.Adapter, on *lane.Lane, s *vhost.Session, c GuestConfig) (*Guest, error) {
	p := s.Peer()
	g := &Guest{cfg: c, program: Session{r: r, adapter: a, s: s, mem: s.Mem(), pid: int(p.Pid), uid: int(p.Uid),
		comm: Comm(int(p.Pid)), rings: make(map[int]*vhostRing), lane: on}}
	g.make = g.newDevice
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.closed(); err != nil {
		return nil, err
	}
	r.serial++
	g.serial = r.serial
	r.guests[s] = g
	return g, nil
}

// GuestEnded removes the RoCE half of a card after its session.
func (r *Registry) GuestEnded(s *vhost.Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.guests, s)
	r.idle = time.Now()
}

// newDevice makes the device.
func (g *Guest) newDevice() *rdmadev.Device {
	return rdmadev.New(rdmadev.Config{Adapter: g.adapter, Lane: g.lane.HCA, Now: g.r.cfg.Now,
		Guest: rdmadev.Guest{Space: g.mem, Words: g.mem, Contains: g.mem.Contains},
		Log:   g.r.cfg.Log.With("guest", g.adapter.Name),
		MaxCQ: g.cfg.CQs, MaxQP: g.cfg.QPs, MaxRing: g.cfg.Ring, FirstRing: g.first, SetGID: g.cfg.Port.SetGID,
		Privileged: true, // the guest's kernel decides about its programs
		Fail:       g.needReset,
		Broke: func(reason error) {
			g.r.Complain("a ring of a guest is broken", "vm", g.adapter.Name, "pid", g.pid, "reason", reason)
		}})
}

// Limits implements ethdev.RoCE.
func (g *Guest) Limits() (maxQPs, maxCQs uint32) { return g.cfg.QPs, g.cfg.CQs }

// Begin implements ethdev.RoCE. A driver that repeats its choice keeps its objects: an emulator repeats it when the
// machine runs again after a pause.
func (g *Guest) Begin(first int, on bool) {
	if g.Dev != nil && g.first == uint32(first) && g.roce == on {
		return
	}
	g.first, g.roce = uint32(first), on
	if err := g.restart(); err != nil {
		g.needReset(err)
	}
}

// restart is Reset on the lane.
func (g *Guest) restart() error {
	for i, v := range g.rings {
		g.halt(i, v)
		delete(g.rings, i)
	}
	g.failure = nil
	first := g.Dev == nil
	err := g.renew()
	if first && err == nil {
		g.lane.AddClient(&g.Client)
	}
	g.cfg.Port.ClearGIDs()
	return err
}

// Execute implements ethdev.RoCE.
func (g *Guest) Execute(command []byte, room int, behind func(n int) []byte) (answer []byte) {
	if g.Dev == nil { // Begin has failed, and the driver does not reset the device
		return []byte{abi.AckErr}
	}
	return g.Dev.Execute(command, room, behind)
}

// Reset destroys all objects of the guest and its addresses.
func (g *Guest) Reset() {
	g.lane.Do(func() {
		if err := g.restart(); err != nil {
			g.needReset(err)
		}
	})
}

// Halt takes the port down: no object of the guest sends or receives. With false it comes up again.
func (g *Guest) Halt(on bool) { g.lane.Do(func() { g.cfg.Port.Halt(on) }) }

// Closed ends the RoCE half.
func (g *Guest) Closed(reason error) {
	g.program.Closed(reason)
	g.lane.Do(func() {
		g.cfg.Port.ClearGIDs()
		g.cfg.Port.Halt(false) // for the next front-end
	})
}

// needReset has the guest's driver reset the device, which it has broken. Until then the device touches no ring of the
// RoCE half. It runs on the lane.
func (g *Guest) needReset(reason error) {
	g.failure = reason
	g.broken++
	g.s.NeedsReset()
	dev := g.Dev
	g.lane.Post(func() { // not in the midst of the device's turn
		if dev != nil && dev == g.Dev && g.failure != nil {
			dev.Close() // peers reach neither its queue pairs nor its memory
		}
	})
	g.r.Complain("the RoCE device of a guest needs a reset", "vm", g.adapter.Name, "pid", g.pid, "reason", reason)
}

// SetRing implements vhost.Rings.
func (g *Guest) SetRing(i int, r vhost.Ring) error {
	if r.Move {
		return unix.EOPNOTSUPP // programs do so; a guest cannot
	}
	if g.Dev == nil || !g.roce {
		return fmt.Errorf("ring %d belongs to ROCE, which the driver has not negotiated: %w", i, unix.EINVAL)
	}
	if r.Kick == nil && uint32(i) >= g.first+g.cfg.CQs {
		return fmt.Errorf("ring %d without a kick: %w", i, unix.EINVAL)
	}
	return g.program.SetRing(i, r)
}

// Describe describes the RoCE half; nil if the lane does not answer. Any goroutine but a lane may call it.
func (g *Guest) Describe() *api.VMRoCE {
	var v *api.VMRoCE
	var objects hca.Info
	err := g.lane.Query(func() {
		v = &api.VMRoCE{Negotiated: g.roce, Resets: g.broken}
		if g.failure != nil {
			v.NeedsReset = g.failure.Error()
		}
		if g.Dev == nil {
			return
		}
		objects = g.Dev.Session().Inspect()
		for _, r := range g.Dev.Broken() {
			v.Broken = append(v.Broken, api.VMBroken{Ring: int(r.Ring), Queue: r.Queue, Why: r.Reason})
		}
		now := g.lane.Now()
		for _, r := range g.Dev.Refusals() {
			v.Refused = append(v.Refused, api.VMRefusal{AgoNS: int64(now.Sub(r.At)), Command: r.Command, Why: r.Reason})
		}
	})
	if err != nil {
		return nil // the node ends, or the lane is stuck: the status reports that
	}
	v.PDs, v.MRs, v.MWs = len(objects.PDs), len(objects.MRs), len(objects.MWs)
	v.CQs, v.SRQs, v.AHs = len(objects.CQs), len(objects.SRQs), len(objects.AHs)
	for i, e := range g.adapter.Port().GIDs {
		if !e.GID.IsZero() {
			v.GIDs = append(v.GIDs, api.GID{Index: i, GID: e.GID.String(), Address: e.GID.Addr().String(),
				Type: "RoCE v2"})
		}
	}
	for _, q := range objects.QPs {
		w := api.VMQP{QPN: uint32(q.Num), Type: q.Type.String(), State: q.Attr.State.String()}
		if p := q.Attr.Path; p != nil {
			w.RemoteGID, w.RemoteQPN = p.DGID.Addr().String(), uint32(q.Attr.DestQPN)
		}
		v.QPs = append(v.QPs, w)
	}
	return v
}
