// SPDX-License-Identifier: Apache-2.0

package vesw

import (
	"weft/internal/fabric/link/roceframe"
	"weft/internal/node/lane"
	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/service/vnic"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/hca/replicate"
)

// newStation makes the station of function a, and its link with what every such link has in common added to c. The
// station gets at.
func (h *Host) newStation(a *hca.Adapter, c roceframe.Config, at func() (*lanePort, uint16)) *station {
	s := &station{a: a, at: at}
	c.Function = a.Number()
	c.Arrived = func() { h.first.LinkReadable() }
	c.Member = func(g ib.GID) bool {
		return len(h.cfg.Functions.Groups().Attached[replicate.GroupKey{Function: a.Number(), MGID: g}]) > 0
	}
	if !h.cfg.WireLocal {
		c.Deliver = func(now mono.Time, f *roceframe.Flight, r *pkt.Burst, b *mem.Batch) (mem.Result, bool) {
			return h.data.deliver(now, s, f, r, b)
		}
	}
	s.link = roceframe.New(c)
	return s
}

// addStation has the lane carry the packets of a station.
func (h *Host) addStation(s *station) error {
	return h.first.Do(func() {
		h.first.Net.AddEthernet(s.a.Number(), s.link)
		h.data.stations[s.a.Number()] = s
	})
}

// removeStation undoes addStation.
func (h *Host) removeStation(s *station) {
	h.first.Do(func() {
		h.first.Net.RemoveEthernet(s.a.Number())
		delete(h.data.stations, s.a.Number())
	})
}

// ethernetPort describes an Ethernet port in a virtual Ethernet switch, without its GIDs. d is the device that its
// segment is configured for; up: the port has a segment that works.
func (h *Host) ethernetPort(d *vnic.Device, up bool) *hca.Port {
	p := &hca.Port{
		Link:        ib.LinkEthernet,
		State:       ib.PortDown,
		Phys:        ib.PhysPolling,
		MTU:         ib.MTUForLink(d.MaxMTU),
		MaxMTU:      ib.MTU4096,
		PKeys:       []ib.PKey{ib.DefaultPKey},
		WireLocal:   h.cfg.WireLocal,
		MaxRun:      roceframe.MaxRun,
		MaxLocalRun: lane.LocalBurst,
		OverFabric:  true,
	}
	if up && d.Carrier {
		p.State, p.Phys = ib.PortActive, ib.PhysLinkUp
	}
	return p
}

// separator separates the frames of a batch that a port's link takes from the others. It belongs to the lane.
type separator struct {
	frames [][]byte
	off    []ether.Offload
}

// separate gives the frames of a batch to link, moves those that it took to the front, and returns their number. The
// others follow in their order, so that those which their receiver drops are at the end of the batch.
func (s *separator) separate(link *roceframe.Link, frames [][]byte, off []ether.Offload) (taken int) {
	s.frames, s.off = s.frames[:0], s.off[:0]
	for i := range frames {
		if !link.Receive(frames[i], &off[i]) {
			s.frames, s.off = append(s.frames, frames[i]), append(s.off, off[i])
			continue
		}
		frames[taken], off[taken] = frames[i], off[i]
		taken++
	}
	copy(frames[taken:], s.frames)
	copy(off[taken:], s.off)
	clear(s.frames)
	return taken
}
