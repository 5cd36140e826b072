// SPDX-License-Identifier: Apache-2.0

package roceframe

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

var be = binary.BigEndian

// Limits.
const (
	// MaxRun bounds the payload of one burst that Send accepts, and MaxCount its packets.
	MaxRun   = 128 << 10
	MaxCount = 512

	maxTrain      = 64    // packets of one frame: what kernels cut
	maxTrainBytes = 60000 // of a frame
	maxHeader     = ether.HeaderLen + wire.MaxIPUDPLen
	perPacket     = wire.MaxHeaderLen + 3 + wire.ICRCLen

	sendBytes  = 1 << 20
	pushBytes  = 128 << 10 // pushed at once when this much is waiting, while it is in cache
	sendFrames = 1024      // waiting
	runFrames  = 4 + MaxRun/(maxTrainBytes-4096-perPacket) + MaxCount/maxTrain

	recvBytes   = 2 << 20
	recvPackets = 2048
)

// Config configures a Link.
type Config struct {
	Function uint16 // of the port: Path.Function of received bursts
	// Shared: another station receives at the port, too. Receive takes only frames to the port's addresses and groups.
	Shared bool
	// Resolve starts the resolution of an address, or of the gateway to it, to a MAC. The caller calls
	// Resolved once for each call that returned true. False: no more resolutions are possible now.
	Resolve func(ip netip.Addr) bool
	// Push has frames read, as far as they can leave. Send calls it when much waits.
	Push func(now mono.Time)
	// Arrived is called when there are bursts for Recv.
	Arrived func()
	// Member reports whether the port has a member of a group.
	Member func(group ib.GID) bool
	// Deliver passes a burst to the port of this node where all its frames would arrive, with every decision that they
	// would meet on the way. It returns false if there is no such port: frames must be built. nil: they always are.
	Deliver func(now mono.Time, f *Flight, r *pkt.Burst, b *mem.Batch) (res mem.Result, done bool)
}

// Flight describes the frames of a burst that are not built.
type Flight struct {
	Header []byte // of the first frame: Ethernet, IP and UDP, without payload
	MAC    [6]byte
	// First, Middle and Last are the octets of a frame; a burst of one packet has the first only.
	First, Middle, Last int
}

// Link is the RoCEv2 endpoint of a port. The package comment states its concurrency.
type Link struct {
	cfg  Config
	mac  [6]byte
	gids []ib.GID // the port's addresses
	c    Counters

	// Sending. Frames lie in buf[:tail]; those before head were read.
	buf    []byte
	tail   int
	frames []frame
	head   int
	id     uint16 // the next IPv4 identification
	dst    [MaxCount][]byte
	flight Flight
	head1  [maxHeader]byte // of flight
	pieces [MaxCount]piece
	neighbours

	// Receiving: one half fills while the bursts of the other are in use.
	half [2]inbox
	fill int
}

// frame is a frame that waits to be read.
type frame struct {
	off, end int // in Link.buf
	packets  int
	id       uint16 // of the first packet
	o        ether.Offload
}

// piece is one packet in the transmit buffer.
type piece struct {
	off, size int
	id        uint16 // the IPv4 identification it will bear
}

// inbox holds received packets as bursts.
type inbox struct {
	buf    []byte // headers and payload, of all of them
	used   int
	joiner *pkt.Joiner
	paths  []ib.Path
	n      int
}

// New returns a Link of a port without addresses.
func New(cfg Config) *Link { return &Link{cfg: cfg} }

// SetPort sets the addresses of the port. Enqueued frames keep their addresses.
func (l *Link) SetPort(mac [6]byte, gids []ib.GID) {
	l.mac = mac
	l.gids = l.gids[:0]
	for _, g := range gids {
		if !g.IsZero() {
			l.gids = append(l.gids, g)
		}
	}
}

// Reset forgets neighbours, with what is held for them, and frames that wait: the segment is another.
func (l *Link) Reset() {
	for _, f := range l.frames[l.head:] {
		l.c.DropReset += uint64(f.packets)
	}
	l.frames, l.head, l.tail = l.frames[:0], 0, 0
	l.forget()
}

// own reports whether g is an address of the port.
func (l *Link) own(g ib.GID) bool { return slices.Contains(l.gids, g) }

// Pending reports whether frames wait to be read.
func (l *Link) Pending() bool { return l.head < len(l.frames) }

// Read gives frames to be sent, with what is left to be done with each. They stay valid until the next Read or Send.
func (l *Link) Read(frames [][]byte, off []ether.Offload) (n int) {
	for n < len(frames) && l.head < len(l.frames) {
		f := &l.frames[l.head]
		frames[n], off[n] = l.buf[f.off:f.end:f.end], f.o
		l.c.SentFrames++
		l.c.SentPackets += uint64(f.packets)
		l.c.SentBytes += uint64(f.end - f.off)
		l.head++
		n++
	}
	return n
}

// Flush has what waits read, as far as it can leave.
func (l *Link) Flush(now mono.Time) {
	if l.Pending() {
		l.cfg.Push(now)
	}
}

// Received reports whether there are bursts for Recv.
func (l *Link) Received() bool {
	in := &l.half[l.fill]
	return in.joiner != nil && len(in.joiner.Bursts()) > 0
}

// Counters returns a copy of the counters.
func (l *Link) Counters() Counters { return l.c }
