// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"

	"weft/internal/proto/mono"
)

// Headroom is the number of octets before each packet on its way from an IP stack to a Link: room for the hard header.
const Headroom = 44

// MaxPacket is the longest packet of an IP stack, in octets.
const MaxPacket = 65535

// Device is the network device of a Link: the glue between the Link and a Backend. One value usually implements all of
// it. The Link calls it on its lane; no call blocks or calls the Link back.
type Device struct {
	Interface Interface
	Packets   PacketReceiver
	Events    Events
}

// Interface is the network interface that the IP stack sees.
type Interface interface {
	// Register makes the interface visible to the IP stack; Link.Registered reports later how that ended.
	Register(d DeviceInfo)
	// Unregister removes the interface, also while it is being registered; only Closed is called after it.
	Unregister()
	// SetCarrier and SetMTU follow the link. reason is "" with carrier, otherwise the missing
	// condition.
	SetCarrier(on bool, reason string)
	SetMTU(mtu int)
	// Closed is the last call: the Link has released everything. err is nil if Link.Stop caused that.
	Closed(err error)
}

// PacketReceiver is the IP stack's side of the packet path.
type PacketReceiver interface {
	// Deliver gives packets to the IP stack, which may change them; they are the Link's again when it returns.
	// It returns for how many there was no room.
	Deliver(packets [][]byte) (dropped int)
	// Wake reports that SendBatch accepts packets again after it did not accept all.
	Wake()
}

// Events receives what happens to a Link.
type Events interface {
	Event(now mono.Time, e Event)
}

// DeviceInfo describes a network device to be made.
type DeviceInfo struct {
	Name    string
	MTU     int
	Address [20]byte // hardware address
	// LinkLocal is the port's IPv6 link-local address; unset where the MTU is too small for IPv6.
	LinkLocal netip.Addr
	QueueLen  int // tx_queue_len, in packets
}

// BatchSize is how many packets one read of a Backend has room for.
const BatchSize = 128

// Backend is an IP stack's side of a network device: a TUN device or a stack in the process. Methods may be called from
// different goroutines, ReadBatch and WriteBatch each from one at a time.
type Backend interface {
	// ReadBatch waits for packets that the IP stack sends, no longer than the MTU each, and puts packet i at
	// bufs[i][offset:offset+sizes[i]]. nexthops[i] is the address to resolve: that of a gateway where the route
	// has one, the destination otherwise. All slices have BatchSize elements at least. After Close it returns
	// os.ErrClosed.
	ReadBatch(bufs [][]byte, sizes []int, nexthops []netip.Addr, offset int) (n int, err error)
	// WriteBatch gives packets to the IP stack: packet i is bufs[i][offset:]. It may change them, and keeps none.
	WriteBatch(bufs [][]byte, offset int) error
	SetCarrier(on bool) error
	SetMTU(mtu int) error
	Close() error
}

// BackendEvent is what a Backend reports to the function that it is made with, from a goroutine of its own: each time
// all of the present state.
type BackendEvent struct {
	// Addrs are the local addresses, each with its prefix length.
	Addrs []netip.Prefix
	// OnLink are the prefixes that are reached without a gateway.
	OnLink []netip.Prefix
	MTU    int
	Up     bool // administratively
}

// EventKind is the kind of an Event.
type EventKind uint8

// Kinds of events.
const (
	EventAdded     EventKind = iota + 1 // the network device was registered
	EventRemoved                        // everything was released
	EventUp                             // carrier
	EventDown                           // no carrier; Text is the reason
	EventConflict                       // another node uses Addr
	EventTxTimeout                      // a send did not complete in time
	EventLog                            // a failure; Text describes it
)

var eventNames = [...]string{"", "added", "removed", "up", "down", "conflict", "tx_timeout", "log"}

// String returns the name of the kind.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "unknown"
}

// Event is something that happened to a Link.
type Event struct {
	Kind EventKind
	Addr netip.Addr
	Text string
}
