// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"net/http"
	"os"
	"slices"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/host/hostnet"
	"weft/internal/node/conn"
	"weft/internal/node/control"
	"weft/internal/node/describe"
	"weft/internal/node/intent"
	"weft/internal/node/ipif"
	"weft/internal/node/lane"
	"weft/internal/node/membership"
	"weft/internal/node/mesh"
	"weft/internal/node/mgmt"
	"weft/internal/node/session"
	"weft/internal/node/subnet"
	"weft/internal/node/vesw"
	"weft/internal/node/vmcard"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/verbs/hca"
)

// reporter reports the state of a node: its status, devices and counters. Any goroutine but a lane and the management
// goroutine may call its methods. It queries lanes, and gives up on one that is stuck.
type reporter struct {
	settings config.Config
	identity ib.GUID
	started  time.Time
	ready    func() bool               // programs can use the node
	wall     func(mono.Time) time.Time // a time of the node's clock as wall-clock time
	host     func() *hostnet.Table     // the host's addresses

	functions   *hca.Functions
	table       *functionTable
	lanes       *lane.Group
	sessions    *session.Registry
	groups      *ipGroups
	intent      *intent.Store
	captures    *control.Captures
	faults      *control.Faults
	connections *conn.Service
	network     *mgmt.Network
	member      *membership.Membership
	mesh        *mesh.Mesh // nil: the node is in no subnet
	cards       *vmcard.Cards
	subnet      *subnet.Subnet // nil: the node is in no subnet
	ip          *ipif.Host     // nil: the same
	vesw        *vesw.Host     // nil: the same
}

// register registers the operations.
func (r *reporter) register(mux *http.ServeMux) {
	api.Handle(mux, api.GetStatus, api.NoInput(r.status))
	api.Handle(mux, api.ListDevices, api.NoInput(r.devices))
	api.Handle(mux, api.ListCounters, api.NoInput(r.counters))
}

// status describes the node.
func (r *reporter) status(ctx context.Context) (s api.Status, err error) {
	s = api.Status{Ready: r.ready(), Version: buildVersion(), PID: os.Getpid(), UID: os.Geteuid(), Dir: r.settings.Dir,
		StartedAt: r.started, UptimeNS: time.Since(r.started), WireLocal: r.settings.WireLocal,
		RoCEPort: r.settings.RoCEPort, RoCEAllow: r.settings.RoCEAllow,
		IdleExitNS: r.settings.IdleExit, AdapterEnabled: !r.table.adapterIsOff()}
	s.Devices = r.summaries(s.AdapterEnabled)
	s.Lanes = r.describeLanes()
	if s.Sessions, err = r.describeSessions(); err != nil {
		return s, err
	}
	s.Manager, s.Member = r.network.State(), r.member.Summary()
	if s.Captures, err = r.captures.List(ctx); err != nil {
		return s, err
	}
	if r.subnet != nil {
		if s.Trunks, err = r.subnet.Trunks(r.wall); err != nil && !errors.Is(err, lane.ErrStuck) {
			return s, err
		}
	}
	if s.IPLinks, err = r.ip.List(ctx); err != nil && !errors.Is(err, lane.ErrStuck) {
		return s, err
	}
	if s.VESWInterfaces, err = r.vesw.List(ctx); err != nil {
		return s, err
	}
	if s.VMs, err = r.cards.List(ctx); err != nil {
		return s, err
	}
	var wrong error
	s.Degraded, wrong = r.degraded(ctx, &s)
	s.Notices = r.notices(&s)
	if wrong == nil {
		s.Faults, wrong = r.faults.List(ctx)
	}
	return s, wrong
}

// summaries describes the devices of the node.
func (r *reporter) summaries(adapterEnabled bool) (list []api.DeviceSummary) {
	for _, f := range r.table.all() {
		p := f.a.Port()
		gids := 0
		for _, g := range p.GIDs {
			if !g.GID.IsZero() {
				gids++
			}
		}
		off, _ := r.table.off(f)
		mode, why := r.icrc(f)
		list = append(list, api.DeviceSummary{Name: f.a.Name, LinkLayer: p.Link.String(),
			PortState: describe.PortState(p.State), ActiveMTU: p.MTU.Bytes(), GIDs: gids, LID: uint16(p.LID),
			Segment: f.segment(), ICRC: mode, ICRCWhy: why, Enabled: !off && adapterEnabled})
	}
	return list
}

// describeLanes describes the lanes.
func (r *reporter) describeLanes() (list []api.Lane) {
	count := r.sessions.Count()
	for i, l := range r.lanes.All() {
		rt, _ := l.RealTime()
		list = append(list, api.Lane{ID: i, Sessions: count[i], Polling: !l.Asleep(), RealTime: rt})
	}
	return list
}

// describeSessions describes the sessions of programs, then those of the node itself. The number of objects is missing
// where a lane is stuck, which the sessions report as degraded.
func (r *reporter) describeSessions() (list []api.Session, err error) {
	for _, v := range r.sessions.All() {
		row := api.Session{Owner: v.Owner(), Lane: v.Lane().ID(), Memory: v.Memory()}
		objects := 0
		switch err := v.Lane().Query(func() { objects = v.Session().Objects() }); {
		case err == nil:
			row.Objects = objects
		case !errors.Is(err, lane.ErrStuck):
			return list, err
		}
		list = append(list, row)
	}
	return list, nil
}

// notices lists what users may want to change, though nothing is wrong.
func (r *reporter) notices(s *api.Status) []api.Degraded {
	list := slices.Concat(r.network.Notices(), r.member.Notices(), r.roceNotices(s), r.gidNotices())
	if r.subnet != nil {
		list = append(list, r.subnet.Notices()...)
	}
	list = append(list, vmcard.Notices(s.VMs)...)
	for _, f := range r.table.all() {
		if f.st != nil {
			list = append(list, vesw.DeviceNotices(f.a.Name, f.st.Describe())...)
		}
	}
	return list
}
