// SPDX-License-Identifier: Apache-2.0

package vesw

import (
	"weft/internal/fabric/link/roceframe"
	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/service/vnic"
	"weft/internal/verbs/hca"
)

// station is the Ethernet port of a function that sends RoCEv2 packets in a virtual Ethernet switch. It belongs to lane
// 0.
type station struct {
	a    *hca.Adapter
	link *roceframe.Link
	// at returns the port of the switch that the packets pass, and the switch; nil: none at work.
	at func() (p *lanePort, vesw uint16)
}

// direct is what bursts between two ports of the node need that pass the lane's own way between queue pairs.
type direct struct {
	d    vnic.Decision
	info ether.Info
	in   vnic.Inbound
	run  pkt.Burst
	// paths are how bursts came, until their payload is in place: paths[:n].
	paths [directPaths]ib.Path
	n     int
}

const directPaths = 256

// deliver is the roceframe.Config.Deliver of a port: the payload of a burst for another port of the node is copied
// once, from the memory of the sender to that of the receiver. The frames of the burst are not built, but each decision
// is made that they would meet: that of the sending port, the route of the switch, and that of the receiving port. The
// counters of the ports count them.
func (v *dataPath) deliver(now mono.Time, from *station, f *roceframe.Flight, r *pkt.Burst,
	b *mem.Batch) (res mem.Result, done bool) {
	p, _ := from.at()
	if p == nil {
		return mem.OK, false
	}
	x := &v.direct
	x.info = ether.Classify(f.Header)
	n := int(r.Count)
	cuts := [2]vnic.Cut{{Frames: 1, Len: f.First, Last: f.First}, {Frames: n - 1, Len: f.Middle, Last: f.Last}}
	all := vnic.Cut{Frames: n, Len: f.First, Last: f.First}
	if n > 1 {
		all.Last = f.Last
	}
	if !p.sender.Decide(f.Header, &x.info, all, &x.d) {
		return mem.OK, true // dropped, as frames are
	}
	out, ok := v.link.Open16(p.function, &x.d.Header)
	if !ok {
		p.sender.Refused(n)
		return mem.OK, true
	}
	function, ok := out.Next()
	if _, more := out.Next(); !ok || more || out.Packets() {
		return mem.OK, false
	}
	inlet, to := v.funcs[function], v.stations[function]
	if inlet == nil || to == nil || !to.link.Expects(f.MAC, r.Path) {
		return mem.OK, false
	}
	if q, vesw := to.at(); q == nil || q.to != inlet || vesw != x.d.VESW {
		return mem.OK, false
	}
	octets := 0
	for _, c := range cuts[:min(n, 2)] {
		p.sender.Sent(&x.d, c)
		if !inlet.recv.Local(&x.d, f.Header, c, &x.in) {
			return mem.OK, true
		}
		octets += (c.Frames-1)*c.Len + c.Last - c.Frames*len(f.Header)
	}
	if x.n == len(x.paths) {
		v.lane.HCA.Batch().Flush()
		x.n = 0
	}
	path := &x.paths[x.n]
	to.link.Arrive(r, octets, path)
	if x.n == 0 || x.paths[x.n-1] != *path {
		x.n++
	} else {
		path = &x.paths[x.n-1]
	}
	x.run = *r
	x.run.Path, x.run.IPv4 = path, path.DGID.IsIPv4()
	res = v.lane.HCA.Within.Send(now, &x.run, b)
	if r.Opcode.Info().ReadResp {
		// A link has read the payload when Send returns: what the peer asks for next may change this memory.
		v.lane.HCA.Batch().Flush()
	}
	return res, true
}
