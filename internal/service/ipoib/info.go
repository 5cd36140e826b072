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
	"weft/internal/service/ipoib/stats"
)

// Numbers of network devices of this type (IANA, Linux).
const (
	ARPHRD        = 32
	FlagBroadcast = 0x2
	FlagMulticast = 0x1000
)

// Info describes a Link.
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
	// BroadcastGID is the broadcast group; Joined is whether the link works with it. The smaller one of GroupMTU and
	// PortMTU is that of datagrams.
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
	Reason            string // of the missing carrier
	Addrs             []netip.Prefix
	// SendFree and RecvPosted are of QueueLen and RQDepth slots; Pending are octets of frames that wait,
	// Addresses address vectors.
	SendFree, RecvPosted, RQDepth int
	Pending, Addresses            int
}

// Info describes the link.
func (l *Link) Info() Info {
	a := l.attr
	i := Info{Name: l.cfg.Name, State: l.state, Opened: l.opened, Type: ARPHRD, Flags: FlagBroadcast | FlagMulticast,
		AddrLen: wire.HWAddrLen, MTU: a.mtu, QueueLen: l.p.SQDepth, HW: a.hw, Broadcast: wire.PseudoBroadcast,
		BroadcastGID: a.broadcastGID, Joined: l.groups.up, GroupMTU: a.broadcast.MTU, PortMTU: a.port.MTU, PKey: a.pkey,
		QKey: a.broadcast.QKey, QPN: a.qpn, Carrier: a.carrier, Reason: l.reason, Addrs: slices.Clone(l.addrs.own),
		SendFree: len(l.sender.free), RecvPosted: l.receiver.posted, RQDepth: l.p.RQDepth, Pending: l.budget.octets,
		Addresses: l.vectors.n, Mode: l.p.Mode, DatagramMTU: a.dgramMTU}
	if l.conns != nil {
		i.Conns = l.conns.Live()
	}
	if l.steps > 1 {
		i.QPs = 1
	}
	return i
}

// ShadowInfo describes an entry of the shadow table.
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

// Shadow lists the shadow table by hardware address.
func (l *Link) Shadow(now mono.Time) []ShadowInfo {
	all := make([]ShadowInfo, 0, len(l.shadow.entries))
	for _, e := range l.shadow.entries {
		i := ShadowInfo{HW: e.hw, State: entryStateNames[e.state], IPs: slices.Clone(e.ips), Gen: e.gen,
			Queued: len(e.queue), Idle: now.Sub(e.used), Mode: l.ModeOf(e.hw)}
		i.HW[0] = e.flags
		if e.state == entryResolved {
			i.Path = e.path.rec
		}
		if e.ah != nil {
			i.Handle = e.ah.h
		}
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b ShadowInfo) int {
		x, y := a.HW.Key(), b.HW.Key()
		return slices.Compare(x[:],
			y[:])
	})
	return all
}

// Route is an entry of the path cache.
type Route struct {
	GID    ib.GID
	Valid  bool // further entries may use Path
	Asking bool // a query is under way
	Path   mad.PathRecord
	Users  int // entries of the shadow table
}

// Paths lists the path cache by GID.
func (l *Link) Paths() []Route {
	all := make([]Route, 0, len(l.shadow.paths))
	for _, p := range l.shadow.paths {
		all = append(all, Route{p.gid, p.state == pathValid, p.request == requestSent, p.rec, len(p.entries)})
	}
	slices.SortFunc(all, func(a, b Route) int { return slices.Compare(a.GID[:], b.GID[:]) })
	return all
}

// GroupInfo describes a multicast group of the link.
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
	Retry     time.Duration // until the next attempt; 0: none is due
}

// Groups lists the groups, broadcast first, then by MGID.
func (l *Link) Groups(now mono.Time) []GroupInfo {
	all := make([]GroupInfo, 0, len(l.groups.table))
	for _, g := range l.groups.sorted() {
		i := GroupInfo{MGID: g.mgid, IPs: slices.Clone(g.ips), JoinState: g.granted, Record: g.rec,
			Attached: g.attached != 0,
			SendOnly: g.sendOnly && len(g.ips) == 0, Queued: len(g.queue), Failures: g.failures, Reason: g.reason,
			State: "waiting"}
		switch {
		case g.state == groupLeaving || g.state == groupJoining:
			i.State = g.state.String()
		case g.ah != nil:
			i.State = "joined"
		case g.state == groupAbsent:
			i.State = "absent"
		}
		if g.granted != 0 {
			i.MLID = g.rec.MLID
		}
		if g.timer.IsSet() {
			i.Retry = g.timer.At().Sub(now)
		}
		all = append(all, i)
	}
	slices.SortStableFunc(all, func(a, b GroupInfo) int {
		first := func(g GroupInfo) int {
			if g.MGID == l.attr.broadcastGID {
				return 0
			}
			return 1
		}
		return cmp.Compare(first(a), first(b))
	})
	return all
}

// Engine returns the resolver, to list and edit its neighbours.
func (l *Link) Engine() *neigh.Engine { return l.engine }

// Params returns the parameters.
func (l *Link) Params() Params { return *l.p }

// SetDebug changes what is reported as events.
func (l *Link) SetDebug(mask uint) { l.p.Debug = mask }

// FlushPaths has every path queried again before its next use.
func (l *Link) FlushPaths() { l.shadow.invalidatePaths() }

// PurgeShadow removes the entry of a hardware address, or, with an address of zeros, all that are resolved. It returns
// how many there were.
func (l *Link) PurgeShadow(now mono.Time, hw wire.HWAddr) (n int) {
	return l.shadow.purgeMatching(now, hw)
}

// NetDevice returns the operations of a network device of this type that the IP stack has no use for here.
func (l *Link) NetDevice() NetDevice { return NetDevice{l.attr} }

// NetDevice has the operations of a network device that the driver design names: settings that this type does not have,
// and hard headers.
type NetDevice struct{ attr *attributes }

// SetConfig, SetAddress and SetMTU are not supported: the interface has no such settings, its address is the port's,
// its MTU the group's.
func (NetDevice) SetConfig() error             { return ErrNotSupp }
func (NetDevice) SetAddress(wire.HWAddr) error { return ErrNotSupp }
func (NetDevice) SetMTU(int) error             { return ErrNotSupp }

// BuildHeader writes the hard header of a frame to dst. The packet lies behind it.
func (d NetDevice) BuildHeader(frame []byte, dst wire.HWAddr, t wire.EtherType) {
	wire.PutHardHeader(frame, &dst, &d.attr.hw, t)
}

// RebuildHeader gives a frame with a hard header another destination.
func (NetDevice) RebuildHeader(frame []byte, dst wire.HWAddr) { wire.HardHeader(frame).SetDst(&dst) }

// ParseHeader returns the source of a frame that arrived; false where it is not known, as without a GRH.
func (NetDevice) ParseHeader(frame []byte) (src wire.HWAddr, ok bool) {
	src = wire.HardHeader(frame).Src()
	return src, !src.IsZero()
}

// Counters returns the counters of the link and of its engine.
func (l *Link) Counters() stats.Counters {
	c, e := l.stats.Counters, l.engine.Counters()
	c.Driver.ShadowEntries = uint64(len(l.shadow.entries))
	c.Driver.HeaderCacheHits = e.HeaderHits
	if l.conns != nil {
		c.Driver.Conns = uint64(l.conns.Live())
	}
	c.AddEngine(e)
	return c
}
