// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"slices"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/fabric/link/roce"
	"weft/internal/host/hostnet"
	"weft/internal/node/describe"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// devices lists the devices as programs find them.
func (r *reporter) devices(context.Context) ([]api.Device, error) {
	t := r.host()
	list := []api.Device{}
	for _, f := range r.table.all() {
		if f.guest != nil {
			continue // programs do not find it
		}
		p := f.a.Port()
		port := api.Port{Number: 1, State: describe.PortState(p.State), PhysState: describe.PhysState(p.Phys),
			LinkLayer: p.Link.String(), MaxMTU: p.MaxMTU.Bytes(), ActiveMTU: p.MTU.Bytes(), LID: uint16(p.LID),
			LMC: p.LMC, SMLID: uint16(p.SMLID), Segment: f.segment()}
		off, adapterOff := r.table.off(f)
		d := api.Device{Name: f.a.Name, NodeGUID: f.a.NodeGUID.String(), SysImageGUID: r.identity.String(),
			NodeType: "CA", Firmware: buildVersion(), Enabled: !off, AdapterEnabled: !adapterOff}
		if f.st != nil {
			addGIDRows(&port, p, "RoCE v2")
			port.Ethernet = f.st.Describe()
		} else if p.Link == ib.LinkEthernet {
			d.NodeGUID, d.SysImageGUID = t.NodeGUID.String(), t.NodeGUID.String()
			ethernetGIDs(&port, t)
		} else {
			addGIDRows(&port, p, "IB")
			addPKeys(&port, p)
		}
		d.Ports = []api.Port{port}
		list = append(list, d)
	}
	// Programs find them in lexical order.
	slices.SortFunc(list, func(a, b api.Device) int { return cmp.Compare(a.Name, b.Name) })
	for i := range list {
		list[i].Index = i
	}
	return list, nil
}

func ethernetGIDs(port *api.Port, t *hostnet.Table) {
	for i, e := range t.Entries {
		if e.Free() {
			continue
		}
		if port.NetDev == "" && !e.LocalOnly {
			port.NetDev = e.Interface
		}
		port.GIDs = append(port.GIDs, api.GID{Index: i, GID: e.GID.String(), Address: e.GID.Addr().String(),
			Type: "RoCE v2", NetDev: e.Interface})
	}
}

// addGIDRows adds the GIDs of a port that has no network interface of the host.
func addGIDRows(port *api.Port, p *hca.Port, kind string) {
	for i, g := range p.GIDs {
		if !g.GID.IsZero() {
			port.GIDs = append(port.GIDs, api.GID{Index: i, GID: g.GID.String(), Address: g.GID.Addr().String(),
				Type: kind})
		}
	}
}

func addPKeys(port *api.Port, p *hca.Port) {
	for i, k := range p.PKeys {
		if k != 0 {
			port.PKeys = append(port.PKeys, api.PKey{Index: i, PKey: describe.PKey(k)})
		}
	}
}

// icrc is how the ICRC of packets to a function's port is validated, and the reason.
func (r *reporter) icrc(f *function) (mode, why string) {
	if f.ethernet() {
		return config.ICRCFull, "frames of a virtual Ethernet switch hide nothing"
	}
	if f.a.Port().Link != ib.LinkEthernet {
		return config.ICRCFull, "native packets hide nothing"
	}
	m, why := r.lanes.ICRC()
	if m == roce.ICRCFull {
		return config.ICRCFull, why
	}
	return config.ICRCSolve, why
}
