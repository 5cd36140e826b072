// SPDX-License-Identifier: Apache-2.0

package vesw

import (
	"weft/internal/control/api"
	"weft/internal/host/gateway"
	"weft/internal/host/netstack"
	"weft/internal/host/tap"
	"weft/internal/node/stack"
	"weft/internal/service/vnic"
)

// OpenSegment opens the segment that a request selects, or a TAP device with the name of its function and port.
func (h *Host) OpenSegment(o Opening) (vnic.OpenSegment, string, error) {
	s, r := o.slot, o.Request
	device := s.f.a.Name
	if h.cards.Has(device) {
		seg, err := h.cards.Segment(device, o.Device, o.Notify)
		if p := h.guestPort(device); p != nil && err == nil {
			seg, err = p.open(s, o.Device, seg)
		}
		return seg, device, err
	}
	if p := h.DevicePort(device); p != nil {
		seg, err := p.open(s.port, s.vesw, o.Device, o.Wake, o.Notify)
		return opened(seg, device, err)
	}
	name := tap.Name(s.f.a.Number(), s.vport)
	if r != nil && r.Name != "" {
		name = r.Name
	}
	if r != nil && r.Backend == api.BackendNetstack {
		seg, err := openStack(name, r, o)
		return opened(seg, name, err)
	}
	if r != nil && r.Backend == api.BackendGateway {
		seg, err := gateway.Open(gateway.Config{Interface: name, Device: o.Device, Now: h.cfg.Now, Notify: o.Notify})
		return opened(seg, name, err)
	}
	seg, err := tap.Open(tap.Config{Name: name, Device: o.Device, QueueLen: queueLen, Up: true, Notify: o.Notify})
	return opened(seg, name, err)
}

// opened returns both sides of a segment that was opened, none after an error.
func opened[S interface {
	vnic.Segment
	vnic.SegmentControl
}](seg S, name string, err error) (vnic.OpenSegment, string, error) {
	if err != nil {
		return vnic.OpenSegment{}, name, err
	}
	return vnic.OpenSegment{Segment: seg, Control: seg}, name, nil
}

// queueLen is how many frames wait for the lane, segments counting as one.
const queueLen = 1000

// openStack makes an IP stack in the node, with its forwards and its proxy.
func openStack(name string, r *api.VESWRequest, o Opening) (_ *netstack.Ether, err error) {
	c := netstack.EtherConfig{Name: name, Device: o.Device, Wake: o.Wake, Notify: o.Notify}
	if c.Addrs, c.Routes, err = stack.Parse(r.Addrs, r.Routes); err != nil {
		return nil, err
	}
	s, err := netstack.OpenEther(c)
	if err != nil {
		return nil, err
	}
	if err := stack.Serve(s, r.Forwards, r.SOCKS); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}
