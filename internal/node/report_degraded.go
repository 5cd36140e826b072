// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/node/describe"
	"weft/internal/node/lane"
	"weft/internal/node/vmcard"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// degraded lists every state in which the node works less well than it could. It queries every subsystem, also after
// an error. s has the state of trunks, IP links and VESW interfaces.
func (r *reporter) degraded(ctx context.Context, s *api.Status) (list []api.Degraded, err error) {
	for _, report := range []func() ([]api.Degraded, error){
		r.lanesDegraded,
		sure(r.sessions.Degraded),
		sure(r.intent.Degraded),
		sure(r.portsDegraded),
		sure(r.groups.degraded),
		sure(r.member.Degraded),
		sure(r.meshDegraded),
		sure(r.addressesDegraded),
		sure(func() []api.Degraded { return r.ip.Degraded(s.IPLinks) }),
		sure(func() []api.Degraded { return r.vesw.Degraded(s.VESWInterfaces) }),
		sure(func() []api.Degraded { return vmcard.Degraded(s.VMs) }),
		func() ([]api.Degraded, error) { return r.network.Degraded(ctx, s.Trunks) },
	} {
		more, e := report()
		list, err = append(list, more...), errors.Join(err, e)
	}
	return list, err
}

// sure is a report that cannot fail.
func sure(report func() []api.Degraded) func() ([]api.Degraded, error) {
	return func() ([]api.Degraded, error) { return report(), nil }
}

// lanesDegraded lists lanes without the scheduling that was requested, and links of lanes.
func (r *reporter) lanesDegraded() (list []api.Degraded, err error) {
	for i, l := range r.lanes.All() {
		if _, e := l.RealTime(); e != nil {
			list = append(list, api.Degraded{What: "no_real_time", Why: fmt.Sprintf("lane %d: %v", i, e),
				Fix: "give the node CAP_SYS_NICE or a limit (ulimit -r 1), or leave --real-time out"})
		}
		var links []api.Degraded
		switch e := l.Query(func() {
			for _, d := range l.Net.RoCE.Degraded() {
				links = append(links, api.Degraded{What: d.Name, Why: d.Detail, Fix: d.Fix})
			}
		}); {
		case e == nil:
			list = append(list, links...)
		case !errors.Is(e, lane.ErrStuck):
			err = errors.Join(err, e)
		}
	}
	return list, err
}

// portsDegraded lists ports that are not active.
func (r *reporter) portsDegraded() (list []api.Degraded) {
	adapterOff := r.table.adapterIsOff()
	if adapterOff {
		list = append(list, api.Degraded{What: "adapter_disabled",
			Why: "the physical function disabled the adapter: every port is down, nothing is sent or received",
			Fix: "weft dev set " + r.table.physical() + " --adapter=enabled"})
	}
	for _, f := range r.table.all() {
		p := f.a.Port()
		d := api.Degraded{What: "port_not_active"}
		off, _ := r.table.off(f)
		switch {
		case off:
			d = api.Degraded{What: "device_disabled", Why: f.a.Name + ": its port is down",
				Fix: "weft dev set " + f.a.Name + " --enabled"}
		case adapterOff || p.State == ib.PortActive || f.guest != nil: // a card without a guest has a notice of its own
			continue
		case f.st != nil:
			d.Why = f.st.Describe().CarrierReason
			d.Fix = "weft vesw port add NAME " + (f.a.NodeGUID + 1).String() +
				" where the Ethernet Manager runs, if it is in no VESW; weft vesw interfaces"
		default:
			d.Why, d.Fix = whyNotActive(p), r.fixNotActive(f.a.NodeGUID+1)
		}
		if !off {
			d.Why = fmt.Sprintf("%s: port is %s, %s", f.a.Name, describe.PortState(p.State), d.Why)
		}
		list = append(list, d)
	}
	return list
}

// roceNotices reports that the RoCEv2 device of a member accepts packets from every address, or which it dropped.
func (r *reporter) roceNotices(s *api.Status) (list []api.Degraded) {
	if len(r.settings.RoCEAllow) == 0 {
		if s.Member != "" {
			list = append(list, api.Degraded{What: "roce_open",
				Why: fmt.Sprintf("%s accepts RoCEv2 packets (UDP %d) from every address, without authentication; "+
					"members need no RoCEv2 to reach each other", r.settings.Device, r.settings.RoCEPort),
				Fix: "weft up --roce-allow PREFIX, with the addresses of hosts that use it; docs/security.md"})
		}
		return list
	}
	first := r.lanes.First() // which receives
	var last ib.GID
	var dropped uint64
	if first.Query(func() { last, dropped = first.Net.RoCE.Strangers() }) == nil && dropped > 0 {
		list = append(list, api.Degraded{What: "roce_not_allowed",
			Why: fmt.Sprintf("%d RoCEv2 packets from addresses outside of --roce-allow were dropped, the last from %v",
				dropped, last.Addr()),
			Fix: fmt.Sprintf("weft up --roce-allow %v too, if that host may use %s", last.Addr(), r.settings.Device)})
	}
	return list // a lane that is stuck is reported as degraded
}

// gidNotices reports GIDs that are no address of this host: a program that uses one, as many do by default with
// index 0, reaches no other host.
func (r *reporter) gidNotices() (list []api.Degraded) {
	t := r.host()
	for i := range t.Entries {
		e := &t.Entries[i]
		if !e.LocalOnly {
			continue
		}
		d := api.Degraded{What: "gid_no_address", Why: fmt.Sprintf("GID %d of %s is no address of this host, since no "+
			"interface has a link-local IPv6 address: programs that use it reach this node only", i, r.settings.Device),
			Fix: "ip addr add ADDRESS dev INTERFACE: no interface has an address that other hosts can reach"}
		if best := t.Outward(); best >= 0 {
			d.Fix = fmt.Sprintf("name GID %d, %v, in programs: -g %d of ibv_*_pingpong, -x %d of perftest", best,
				t.Entries[best].GID.Addr(), best, best)
		}
		list = append(list, d)
	}
	return list
}

// addressesDegraded lists addresses of the host that have no GID.
func (r *reporter) addressesDegraded() (list []api.Degraded) {
	table := r.host()
	for _, p := range table.Absent {
		list = append(list, api.Degraded{What: "roce_interface",
			Why: r.table.device + ": no interface " + p + " is up with an address",
			Fix: "ip addr; or start the node with another --roce-interfaces"})
	}
	if table.Left > 0 {
		list = append(list, api.Degraded{What: "gid_table_full",
			Why: fmt.Sprintf("%d addresses of this host found no place in the GID table", table.Left),
			Fix: "remove addresses that are not needed"})
	}
	return list
}

// whyNotActive returns what an InfiniBand port waits for.
func whyNotActive(p *hca.Port) string {
	if p.Phys != ib.PhysLinkUp {
		return "its link is down"
	}
	return "no subnet manager has made it active"
}

// fixNotActive returns the command that makes the InfiniBand port of a GUID active. OpenSM without a GUID manages the
// first device, which is a RoCE device.
func (r *reporter) fixNotActive(port ib.GUID) string {
	m, missing := r.network.Manager()
	switch {
	case missing != nil:
		return "weft store status"
	case m != nil:
		return "weft wait --for=active; if that takes long, weft sm"
	case r.settings.SM == config.SMExternal:
		return fmt.Sprintf("weft run -- opensm -g 0x%016x", uint64(port))
	}
	return "weft up --sm auto, on this node or another of the subnet"
}

// meshDegraded lists members without a trunk.
func (r *reporter) meshDegraded() []api.Degraded {
	if r.mesh == nil {
		return nil
	}
	return r.mesh.Degraded()
}
