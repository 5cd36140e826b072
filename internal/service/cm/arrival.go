// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// arrival is a datagram that is being handled.
type arrival struct {
	m        *Manager
	now      mono.Time
	function uint16
	d        *mad.Datagram
	tid      uint64
	data     []byte
	port     *Port
}

// reply returns a datagram that goes back to where the message came from.
func (in *arrival) reply() mad.Datagram {
	r := in.d.Reply()
	if in.port.Link == ib.LinkEthernet {
		r.HopLimit = ethernetHops
	}
	return r
}

// ethernetHops is the hop limit of answers on an Ethernet port, where they may cross
// routers.
const ethernetHops = 64

// respond sends a message back that belongs to no connection.
func (in *arrival) respond(a mad.AttributeID, v message) {
	r := in.reply()
	put(&r, a, in.tid, v)
	in.m.send(in.function, &r)
}

// pkeyIndex returns where a table has a key that goes together with all of keys, or -1.
func pkeyIndex(table []ib.PKey, keys ...ib.PKey) int {
	return slices.IndexFunc(table, func(o ib.PKey) bool {
		return !slices.ContainsFunc(keys, func(k ib.PKey) bool { return !o.Match(k) })
	})
}
