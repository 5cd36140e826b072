// SPDX-License-Identifier: Apache-2.0

// Package capture makes frames of what queue pairs exchange, for capture files.
//
// What comes in: runs that the lanes of a node show its taps; what goes out: blocks
// of a capture file (package pcapng), from a ring of bounded size per lane, to
// the writer of the file. Package node starts captures and gives lanes their taps.
// A tap must never block or allocate: what finds no room is counted, and missing in
// the file.
//
// A frame is what a packet has on a wire, made of what the queue pair sent or got.
// Between queue pairs of one node there is no wire, and the frames are those that it
// would carry. What a link keeps to itself is filled in: the Ethernet addresses of RoCEv2
// frames are made of the IP addresses, their identification is 0; the virtual lane of
// native packets is 15 to queue pair 0, to others 0.
package capture

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/pcapng"
)

// Config selects what to capture.
type Config struct {
	// Lanes is the number of lanes, each of which has a ring of RingBytes, a power of
	// two.
	Lanes, RingBytes int
	// Functions are the functions of the node; an index is a function's number. Of
	// those without a name nothing is captured.
	Functions []Function
	// Later also takes functions that are not in the list.
	Later bool
	// QPs narrows the capture to packets from or to one of these queue pair numbers;
	// empty: all.
	QPs []ib.QPN
	// IPoIB, where it is not nil, narrows it to datagrams of IP links, as such: by
	// function, the numbers of their queue pairs.
	IPoIB []Link
	// SnapLen is how many octets of a frame are kept at most; 0: all.
	SnapLen int
	// Port is the UDP port of RoCEv2.
	Port uint16
	// Clock returns the time.
	Clock func() time.Time
}

// Function is a function of the node.
type Function struct {
	Name   string
	Native bool
}

// Link is the queue pair of an IP link.
type Link struct {
	Function uint16
	QPN      ib.QPN
}

// Names of the interfaces of functions that came later: what they are is not known before.
const (
	laterNative   = "added later"
	laterEthernet = "added later, Ethernet"
)

// Capture is a capture under way. Each ring belongs to its lane's tap; the rest to
// the writer of the file.
type Capture struct {
	cfg    Config
	ifaces []pcapng.Interface
	index  []int // of a function: its interface; < 0: none
	// Interfaces of those that came later; < 0: none.
	lastNative, lastEthernet int

	rings  []*ring
	wake   chan struct{}
	parts  [][]byte
	merged []byte
}

// New returns a capture that no lane shows anything yet.
func New(cfg Config) *Capture {
	c := &Capture{cfg: cfg, lastNative: -1, lastEthernet: -1, wake: make(chan struct{}, 1),
		parts: make([][]byte, cfg.Lanes)}
	if cfg.SnapLen <= 0 {
		c.cfg.SnapLen = math.MaxInt
	}
	add := func(name string, native bool) int {
		t := pcapng.LinkEthernet
		if native {
			t = pcapng.LinkERF
		}
		if cfg.IPoIB != nil {
			t = pcapng.LinkIPoIB
		}
		c.ifaces = append(c.ifaces, pcapng.Interface{Name: name, Type: t, SnapLen: uint32(cfg.SnapLen)})
		return len(c.ifaces) - 1
	}
	for _, f := range cfg.Functions {
		i := -1
		if f.Name != "" {
			i = add(f.Name, f.Native)
		}
		c.index = append(c.index, i)
	}
	if cfg.Later {
		c.lastNative, c.lastEthernet = add(laterNative, true), add(laterEthernet, false)
	}
	for range cfg.Lanes {
		c.rings = append(c.rings, newRing(cfg.RingBytes, len(c.ifaces), c.wake))
	}
	return c
}

// Interfaces lists those of the file.
func (c *Capture) Interfaces() []pcapng.Interface { return c.ifaces }

// Wake is notified when a ring fills.
func (c *Capture) Wake() <-chan struct{} { return c.wake }

// iface returns the interface of a function with a native port or an Ethernet port, or -1.
func (c *Capture) iface(f uint16, native bool) int {
	switch {
	case int(f) < len(c.index):
		return c.index[f]
	case native:
		return c.lastNative
	}
	return c.lastEthernet
}

// selects reports whether packets of a queue pair are captured.
func (c *Capture) selects(f uint16, qpn ib.QPN) bool {
	if c.iface(f, true) < 0 || len(c.cfg.QPs) > 0 && !slices.Contains(c.cfg.QPs, qpn) {
		return false
	}
	return c.cfg.IPoIB == nil || slices.Contains(c.cfg.IPoIB, Link{f, qpn})
}

// Take returns the blocks that came since the last call, in the order of their times
// as far as lanes showed them; they are valid until the next one.
func (c *Capture) Take() []byte {
	n := 0
	for i, r := range c.rings {
		c.parts[i] = r.take(c.parts[i][:0])
		if len(c.parts[i]) > 0 {
			n++
		}
	}
	rest := slices.Clone(c.parts)
	c.merged = c.merged[:0]
	for ; n > 1; n-- { // until one is left
		for {
			first := -1
			var at time.Time
			for i, p := range rest {
				if len(p) == 0 {
					continue
				}
				if _, _, t := pcapng.Next(p); first < 0 || t.Before(at) {
					first, at = i, t
				}
			}
			block, left, _ := pcapng.Next(rest[first])
			c.merged = append(c.merged, block...)
			if rest[first] = left; len(left) == 0 {
				break
			}
		}
	}
	for _, p := range rest {
		if len(c.merged) == 0 && len(p) > 0 {
			return p
		}
		c.merged = append(c.merged, p...)
	}
	return c.merged
}

// Counts are how many packets of an interface were seen, and how many found no room.
type Counts struct{ Seen, Dropped uint64 }

// Counts returns those of an interface. It may be called from any goroutine.
func (c *Capture) Counts(iface int) (n Counts) {
	for _, r := range c.rings {
		n.Seen += r.count[iface].seen.Load()
		n.Dropped += r.count[iface].dropped.Load()
	}
	return n
}

// Missed counts a packet to or from a queue pair of a function with a native port or an Ethernet port, that no tap
// got. It may be called from any goroutine.
func (c *Capture) Missed(f uint16, qpn ib.QPN, native bool) {
	if c.selects(f, qpn) {
		n := &c.rings[0].count[c.iface(f, native)]
		n.seen.Add(1)
		n.dropped.Add(1)
	}
}

// ring is a ring of bytes from a lane to the writer of the file. Blocks are put in
// whole.
type ring struct {
	buf   []byte
	_     [64]byte
	tail  atomic.Uint64 // the lane's
	_     [64]byte
	head  atomic.Uint64 // the writer's
	count []counts
	wake  chan<- struct{}
}

type counts struct{ seen, dropped atomic.Uint64 }

func newRing(n, ifaces int, wake chan<- struct{}) *ring {
	return &ring{buf: make([]byte, n), count: make([]counts, ifaces), wake: wake}
}

// room reports whether a block of n octets fits.
func (r *ring) room(n int) bool { return r.tail.Load()+uint64(n)-r.head.Load() <= uint64(len(r.buf)) }

// put adds a block that fits.
func (r *ring) put(b []byte) {
	tail, mask := r.tail.Load(), uint64(len(r.buf)-1)
	n := copy(r.buf[tail&mask:], b)
	copy(r.buf, b[n:])
	r.tail.Store(tail + uint64(len(b)))
	if tail+uint64(len(b))-r.head.Load() > uint64(len(r.buf)/4) {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// take appends what was put in to b.
func (r *ring) take(b []byte) []byte {
	head, tail, mask := r.head.Load(), r.tail.Load(), uint64(len(r.buf)-1)
	from, n := head&mask, tail-head
	first := min(n, uint64(len(r.buf))-from)
	b = append(b, r.buf[from:from+first]...)
	b = append(b, r.buf[:n-first]...)
	r.head.Store(tail)
	return b
}
