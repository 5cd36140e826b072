// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/neigh"
)

// Numbers of network devices of this type (IANA, Linux).
const (
	ARPHRD        = 32
	FlagBroadcast = 0x2
	FlagMulticast = 0x1000
)

// Info is what a Link is like.
type Info struct {
	Name      string
	State     State
	Opened    int
	Type      int // ARPHRD
	Flags     int
	AddrLen   int
	MTU       int
	QueueLen  int
	HW        wire.HWAddr
	Broadcast wire.HWAddr // all ones: it is mapped to BroadcastGID
	// BroadcastGID is the group that the link stands on; Joined tells that it
	// works, GroupMTU and PortMTU who decides the MTU.
	BroadcastGID      ib.GID
	Joined            bool
	GroupMTU, PortMTU ib.MTU
	PKey              ib.PKey
	QKey              ib.QKey
	QPN               ib.QPN
	QPs               int // of datagrams
	Conns             int // connections, each with a queue pair; none in datagram mode
	Mode              Mode
	DatagramMTU       int // of groups and of neighbours without a connection
	Carrier           bool
	Reason            string // why there is none
	Addrs             []netip.Prefix
	// SendFree and RecvPosted are of QueueLen and RQDepth slots; Pending are octets of
	// frames that wait, Addresses address vectors.
	SendFree, RecvPosted, RQDepth int
	Pending, Addresses            int
}

// Info describes the link.
func (l *Link) Info() Info {
	i := Info{Name: l.cfg.Name, State: l.state, Opened: l.opened, Type: ARPHRD, Flags: FlagBroadcast | FlagMulticast, AddrLen: wire.HWAddrLen,
		MTU: l.mtu, QueueLen: l.p.SQDepth, HW: l.hw, Broadcast: wire.PseudoBroadcast, BroadcastGID: wire.BroadcastGID(l.cfg.PKey, l.scope()),
		Joined: l.broadcast.up, GroupMTU: l.broadcast.rec.MTU, PortMTU: l.port.MTU, PKey: l.pkey, QKey: l.qkey(), QPN: l.qpn,
		Carrier: l.carrier, Reason: l.reason, Addrs: slices.Clone(l.addrs), SendFree: len(l.free), RecvPosted: l.posted, RQDepth: l.p.RQDepth,
		Pending: l.pending, Addresses: l.addresses}
	i.Conns, i.Mode, i.DatagramMTU = l.live, l.p.Mode, l.dgramMTU
	if l.steps > 1 {
		i.QPs = 1
	}
	return i
}

// ShadowInfo is an entry of the shadow table.
type ShadowInfo struct {
	HW     wire.HWAddr
	State  string // PATHRECORD_PENDING or RESOLVED
	IPs    []netip.Addr
	Path   mad.PathRecord // meaningless while pending
	Handle Handle
	Gen    uint32
	Queued int // frames
	Idle   time.Duration
	Mode   string // datagram, connected or connecting
}

// Shadow lists the shadow table, by hardware address.
func (l *Link) Shadow(now mono.Time) []ShadowInfo {
	all := make([]ShadowInfo, 0, len(l.entries))
	for _, e := range l.entries {
		i := ShadowInfo{HW: e.hw, State: "PATHRECORD_PENDING", IPs: slices.Clone(e.ips), Gen: e.gen, Queued: len(e.queue), Idle: now.Sub(e.used)}
		i.HW[0] = e.flags
		i.Mode = l.ModeOf(e.hw)
		if e.resolved {
			i.State, i.Path = "RESOLVED", e.path.rec
		}
		if e.ah != nil {
			i.Handle = e.ah.h
		}
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b ShadowInfo) int { x, y := a.HW.Key(), b.HW.Key(); return slices.Compare(x[:], y[:]) })
	return all
}

// Route is an entry of the path cache.
type Route struct {
	GID    ib.GID
	Valid  bool // further entries may use Path
	Asking bool
	Path   mad.PathRecord
	Users  int // entries of the shadow table
}

// Paths lists the path cache, by GID.
func (l *Link) Paths() []Route {
	all := make([]Route, 0, len(l.paths))
	for _, p := range l.paths {
		all = append(all, Route{p.gid, p.valid, p.q != nil, p.rec, len(p.entries)})
	}
	slices.SortFunc(all, func(a, b Route) int { return slices.Compare(a.GID[:], b.GID[:]) })
	return all
}

// GroupInfo is a multicast group of the link.
type GroupInfo struct {
	MGID      ib.GID
	IPs       []netip.Addr // IP groups that are received by it
	State     string       // "joined", "joining", "leaving", "waiting", "absent"
	JoinState uint8
	Record    mad.MCMemberRecord
	MLID      ib.LID // while it is joined
	Attached  bool
	SendOnly  bool
	Queued    int
	Failures  int
	Reason    string
	Retry     time.Duration // until the next try; 0: none is due
}

// Groups lists the groups, broadcast first, then by MGID.
func (l *Link) Groups(now mono.Time) []GroupInfo {
	all := make([]GroupInfo, 0, len(l.groups))
	for _, g := range l.sortedGroups() {
		i := GroupInfo{MGID: g.mgid, IPs: slices.Clone(g.ips), JoinState: g.have, Record: g.rec, Attached: g.attached != 0,
			SendOnly: g.sendOnly && len(g.ips) == 0, Queued: len(g.queue), Failures: g.failures, Reason: g.reason, State: "waiting"}
		switch {
		case g.q != nil && g.leaving:
			i.State = "leaving"
		case g.q != nil:
			i.State = "joining"
		case g.ah != nil:
			i.State = "joined"
		case g.absent > now:
			i.State = "absent"
		}
		if g.have != 0 {
			i.MLID = g.rec.MLID
		}
		if g.timer.i != 0 {
			i.Retry = g.timer.at.Sub(now)
		}
		all = append(all, i)
	}
	slices.SortStableFunc(all, func(a, b GroupInfo) int {
		first := func(g GroupInfo) int {
			if g.MGID == l.broadcast.mgid {
				return 0
			}
			return 1
		}
		return cmp.Compare(first(a), first(b))
	})
	return all
}

// Engine returns the resolver, whose neighbours can be listed and edited.
func (l *Link) Engine() *neigh.Engine { return l.eng }

// Params returns the parameters.
func (l *Link) Params() Params { return *l.p }

// SetDebug changes what is told as events.
func (l *Link) SetDebug(mask uint) { l.p.Debug = mask }

// FlushPaths has every path asked for again before its next use.
func (l *Link) FlushPaths() { l.invalidatePaths() }

// PurgeShadow deletes the entry of a hardware address, or all that are
// resolved with an address of zeros. It returns how many there were.
func (l *Link) PurgeShadow(now mono.Time, hw wire.HWAddr) (n int) {
	for e := l.oldest; e != nil; {
		next := e.newer
		if e.resolved && (hw.IsZero() || e.hw == hw.Key()) {
			l.purge(now, e)
			n++
		}
		e = next
	}
	return n
}

// SetConfig, SetAddress and SetMTU are what network devices of this type do not
// do: the interface has no such settings, its address is the port's, its MTU the
// group's.
func (l *Link) SetConfig() error               { return ErrNotSupp }
func (l *Link) SetAddress(a wire.HWAddr) error { return ErrNotSupp }
func (l *Link) SetMTU(mtu int) error           { return ErrNotSupp }

// BuildHeader writes the hard header of a frame to dst, whose packet lies
// behind it.
func (l *Link) BuildHeader(frame []byte, dst wire.HWAddr, t wire.EtherType) {
	wire.PutHardHeader(frame, &dst, &l.hw, t)
}

// RebuildHeader gives a frame with a hard header another destination.
func (l *Link) RebuildHeader(frame []byte, dst wire.HWAddr) { wire.HardHeader(frame).SetDst(&dst) }

// ParseHeader returns the source of a frame that arrived; false where it is not
// known, as without a GRH.
func (l *Link) ParseHeader(frame []byte) (src wire.HWAddr, ok bool) {
	src = wire.HardHeader(frame).Src()
	return src, !src.IsZero()
}

// Counters returns the counters of the link and of its engine.
func (l *Link) Counters() Counters {
	c, e := l.c, l.eng.Counters()
	c.Driver.ShadowEntries = uint64(len(l.entries))
	c.Driver.HeaderCacheHits = e.HeaderHits
	c.Driver.Conns = uint64(l.live)
	c.Neigh = e
	add := func(n uint64, to ...*uint64) {
		for _, p := range to {
			*p += n
		}
	}
	n, d := &c.Net, &c.Drops
	add(e.DropDown, &n.TxDropped, &n.TxErrors, &n.TxCarrierErrors, &d[DropLinkDown])
	add(e.DropTooBig, &n.TxDropped, &n.TxErrors, &d[DropTooBig])
	add(e.DropVersion, &n.TxDropped, &n.TxErrors, &d[DropVersion])
	add(e.DropNoRoute, &n.TxDropped, &d[DropNoRoute])
	add(e.DropQueueFull, &n.TxDropped, &n.TxWindowErrors, &d[DropQueueFull])
	add(e.DropUnresolved, &n.TxDropped, &d[DropNoPath])
	add(e.DropStackRS, &n.TxDropped, &n.TxErrors, &d[DropNDInvalid])
	for i, v := range e.Refused {
		switch r := wire.FrameRefusal(i); {
		case r == wire.FrameOK:
		case r == wire.FrameShort:
			add(v, &n.RxErrors, &n.RxLengthErrors, &d[DropShort])
		case r >= wire.NDHopLimit:
			add(v, &n.RxErrors, &n.RxFrameErrors, &d[DropNDInvalid])
		case r >= wire.ARPHardwareType:
			add(v, &n.RxErrors, &n.RxFrameErrors, &d[DropARPInvalid])
		}
	}
	return c
}
