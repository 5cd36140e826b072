// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
)

// attributes are what the parts of a Link read of it: its port, partition and queue pair, its broadcast group, and
// whether it has a carrier. The Link and its groups write them.
type attributes struct {
	partition ib.PKey // of the configuration
	flags     uint8   // of the hardware address

	port  Port
	pkey  ib.PKey // of the partition, as in the port's table
	index int     // of pkey in the table, -1: not there
	qpn   ib.QPN
	hw    wire.HWAddr

	// broadcast is the record of the broadcast group, the attributes of which are those of the link (RFC 4391,
	// 5): Q_Key, MTU, service level. Before the first join it is zero.
	broadcast    mad.MCMemberRecord
	broadcastGID ib.GID

	carrier    bool
	registered bool // the network device exists
	mtu        int  // of the device, in octets; 0 before the first join
	dgramMTU   int  // of datagrams
}

// setPort stores the port and looks up the partition: the full member's key where the table has both.
func (a *attributes) setPort(p Port) {
	p.PKeys = slices.Clone(p.PKeys)
	a.port, a.index = p, -1
	for i, k := range p.PKeys {
		if (k^a.partition)&0x7fff != 0 || k == 0 {
			continue
		}
		if a.index < 0 || k.IsFull() && !p.PKeys[a.index].IsFull() {
			a.index = i
		}
	}
	if a.index >= 0 {
		a.pkey = p.PKeys[a.index]
	}
}

// setHW derives the hardware address from queue pair and port.
func (a *attributes) setHW() { a.hw = wire.MakeHWAddr(a.flags, a.qpn, a.port.GID) }

// staticRate is the rate to which a path limits the port; 0 where it is not below the port's own.
func (a *attributes) staticRate(r ib.Rate) ib.Rate {
	if r.Tenths() >= a.port.Rate.Tenths() {
		return 0
	}
	return r
}

// active reports whether the port is ACTIVE.
func (a *attributes) active() bool { return a.port.State == ib.PortActive }

// localPath is the path to the link's own port, which needs no query.
func (a *attributes) localPath() mad.PathRecord {
	p := &a.port
	return mad.PathRecord{DGID: p.GID, SGID: p.GID, DLID: p.LID, SLID: p.LID, Reversible: true, NumbPath: 1,
		PKey: a.pkey,
		SL:   a.broadcast.SL, MTUSelector: mad.SelectExactly, MTU: p.MTU, RateSelector: mad.SelectExactly, Rate: p.Rate,
		LifeSelector: mad.SelectExactly, TClass: a.broadcast.TClass}
}
