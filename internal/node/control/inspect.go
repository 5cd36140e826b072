// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"weft/internal/control/api"
	"weft/internal/node/session"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/verbs/hca"
)

// Inspector lists what programs and users in the node have made.
type Inspector struct {
	Sessions *session.Registry
	All      *hca.Functions
	// Identifiers lists the identifiers of programs at the connection manager.
	Identifiers func() []api.CMID
}

// Register registers the operations of inspection.
func (n *Inspector) Register(mux *http.ServeMux) {
	api.Handle(mux, api.GetResources, api.NoInput(n.getResources))
	api.Handle(mux, api.ListGroups, api.NoInput(n.listGroups))
}

func (n *Inspector) getResources(context.Context) (r api.Resources, err error) {
	for _, v := range n.Sessions.All() {
		var i hca.Info
		if err := v.Lane().Query(func() { i = v.Session().Inspect() }); err != nil {
			return r, err
		}
		resources(&r, v.Owner(), v.Kind, &i)
	}
	r.CMIDs = n.Identifiers()
	return r, nil
}

var accessNames = []struct {
	bit  ib.Access
	name string
}{{ib.LocalWrite, "local_write"}, {ib.RemoteWrite, "remote_write"}, {ib.RemoteRead, "remote_read"},
	{ib.RemoteAtomic, "remote_atomic"}, {ib.MWBind, "mw_bind"}, {ib.ZeroBased, "zero_based"}}

// access names rights.
func access(of ib.Access) (names []string) {
	for _, a := range accessNames {
		if of&a.bit != 0 {
			names = append(names, a.name)
		}
	}
	return names
}

// resources adds the objects of one session.
func resources(r *api.Resources, o api.Owner, kind func(mem.Space) string, i *hca.Info) {
	for _, v := range i.PDs {
		r.PDs = append(r.PDs, api.PD{Owner: o, PDN: v.PDN, Users: v.Users})
	}
	for _, v := range i.MRs {
		m := api.MR{Owner: o, MRN: v.MRN, PDN: v.PDN, IOVA: v.Start, Length: v.Len, Memory: kind(v.Space)}
		m.Access = access(v.Access)
		r.MRs = append(r.MRs, m)
	}
	for _, v := range i.MWs {
		r.MWs = append(r.MWs, api.MW{Owner: o, MWN: v.MWN, PDN: v.PDN, Type: v.Type, MRN: v.MRN, IOVA: v.Start,
			Length: v.Len, Access: access(v.Access)})
	}
	for _, v := range i.CQs {
		r.CQs = append(r.CQs, api.CQ{Owner: o, CQN: v.CQN, CQE: int(v.Depth), Users: v.Users, Overrun: v.Overrun})
	}
	for _, v := range i.SRQs {
		r.SRQs = append(r.SRQs, api.SRQ{Owner: o, SRQN: v.SRQN, PDN: v.PDN, MaxWR: int(v.MaxWR),
			Outstanding: int(v.Outstanding), Limit: int(v.Limit)})
	}
	for _, v := range i.AHs {
		r.AHs = append(r.AHs, api.AH{Owner: o, AHN: v.AHN, PDN: v.PDN, RemoteGID: v.DGID.String()})
	}
	for _, v := range i.QPs {
		q := api.QP{Owner: o, LQPN: uint32(v.Num), RQPN: uint32(v.Attr.DestQPN), Type: v.Type.String(),
			State: v.Attr.State.String(),
			RQPSN: uint32(v.Attr.RQPSN), SQPSN: uint32(v.Attr.SQPSN), PDN: v.PDN, SendCQN: v.SendCQ, RecvCQN: v.RecvCQ, SRQN: v.SRQN}
		if v.Attr.PathMTU.Valid() {
			q.PathMTU = v.Attr.PathMTU.Bytes()
		}
		if p := v.Attr.Path; p != nil {
			q.LocalGID, q.RemoteGID, q.SameNode = p.SGID.String(), p.DGID.String(), p.Local
		}
		r.QPs = append(r.QPs, q)
	}
}

func (n *Inspector) listGroups(context.Context) ([]api.Group, error) {
	g := n.All.Groups()
	type key struct {
		mlid ib.LID
		mgid ib.GID
	}
	groups := map[key]*api.Group{}
	for k, dests := range g.Attached {
		for _, d := range dests {
			at := key{d.MLID, k.MGID}
			v := groups[at]
			if v == nil {
				v = &api.Group{MLID: uint16(d.MLID), MGID: k.MGID.String(), Address: k.MGID.Addr().String()}
				groups[at] = v
			}
			v.QPs = append(v.QPs, api.GroupQP{Owner: api.Owner{Device: DeviceName(n.All, d.Function)},
				LQPN: uint32(d.QPN), Lane: int(d.Lane)})
			if d.MLID == 0 && !slices.Contains(v.Devices, DeviceName(n.All, d.Function)) {
				v.Devices = append(v.Devices, DeviceName(n.All, d.Function))
			}
		}
	}
	// A LID of which no queue pair is a member yet has no GID that the switch knows.
	seen := map[ib.LID]bool{}
	for k := range groups {
		seen[k.mlid] = true
	}
	for lid := range g.Functions {
		if !seen[lid] {
			groups[key{mlid: lid}] = &api.Group{MLID: uint16(lid)}
		}
	}
	for k, v := range groups {
		for _, f := range g.Functions[k.mlid] {
			v.Devices = append(v.Devices, DeviceName(n.All, f))
		}
	}
	if err := n.nameOwners(slices.Collect(maps.Values(groups))); err != nil {
		return nil, err
	}
	list := make([]api.Group, 0, len(groups))
	for _, v := range groups {
		list = append(list, *v)
	}
	return list, nil
}

// DeviceName is the name of a function's device.
func DeviceName(all *hca.Functions, function uint16) string {
	if a := all.At(function); a != nil {
		return a.Name
	}
	return fmt.Sprintf("function %d", function)
}

// nameOwners fills in the owners of the attached queue pairs.
func (n *Inspector) nameOwners(groups []*api.Group) error {
	type key struct {
		device  string
		session uint32
	}
	owners := map[key]api.Owner{}
	for _, v := range n.Sessions.All() {
		o := v.Owner()
		if err := v.Lane().Query(func() { owners[key{o.Device, uint32(v.Session().Number())}] = o }); err != nil {
			return err
		}
	}
	for _, g := range groups {
		for i := range g.QPs {
			q := &g.QPs[i]
			if o, ok := owners[key{q.Device, uint32(hca.SessionOf(ib.QPN(q.LQPN)))}]; ok {
				q.Owner = o
			}
		}
	}
	return nil
}
