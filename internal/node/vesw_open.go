// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net/netip"

	"weft/internal/control/api"
	"weft/internal/host/gateway"
	"weft/internal/host/netstack"
	"weft/internal/host/tap"
	"weft/internal/node/stack"
	"weft/internal/service/vnic"
)

// openSegment opens the segment that a request asks for, or a TAP device with the name of its function and port.
func (h *veswHost) openSegment(s *veswSlot, r *api.VESWRequest, d vnic.Device, wake func(), news func(vnic.SegmentEvent)) (vnic.Segment, string, error) {
	if m := h.n.machine(s.f.a.Name); m != nil {
		seg, err := m.segment(d, news)
		return seg, m.want.Name, err
	}
	if st := h.n.segmentPort(s.f.a.Name); st != nil {
		seg, err := st.open(s.port, d, wake, news)
		return seg, st.a.Name, err
	}
	name := tap.Name(s.f.a.Number(), s.vport)
	if r != nil && r.Name != "" {
		name = r.Name
	}
	if r != nil && r.Backend == api.BackendNetstack {
		seg, err := openVESWStack(name, r, d, wake, news)
		return seg, name, err
	}
	if r != nil && r.Backend == api.BackendGateway {
		seg, err := gateway.Open(gateway.Config{Interface: name, Device: d, Now: h.n.now, Notify: news})
		return seg, name, err
	}
	seg, err := tap.Open(tap.Config{Name: name, Device: d, QueueLen: veswQueueLen, Up: true, Notify: news})
	return seg, name, err
}

// veswQueueLen is how many frames wait for the lane, segments counting as one.
const veswQueueLen = 1000

// openVESWStack makes an IP stack in the node, with its forwards and its proxy.
func openVESWStack(name string, r *api.VESWRequest, d vnic.Device, wake func(), news func(vnic.SegmentEvent)) (_ vnic.Segment, err error) {
	c := netstack.EtherConfig{Name: name, Device: d, Wake: wake, Notify: news}
	var errs []error
	for _, v := range r.Addrs {
		p, err := netip.ParsePrefix(v)
		errs = append(errs, err)
		c.Addrs = append(c.Addrs, p)
	}
	for _, v := range r.Routes {
		to, via, err := stack.ParseRoute(v)
		errs = append(errs, err)
		c.Routes = append(c.Routes, netstack.Route{Dst: to, Via: via})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s, err := netstack.OpenEther(c)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	return s, stack.Serve(s, r.Forwards, r.SOCKS)
}
