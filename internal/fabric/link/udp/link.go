// SPDX-License-Identifier: Apache-2.0

package udp

import (
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/fabric/trunk"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/problem"
)

// MaxRecv bounds the packets that one Recv delivers.
const MaxRecv = 512

const (
	sendBuffer   = 4 << 20 // of a socket, in bytes: about 60 trains
	recvMessages = 16
	recvBytes    = 64 << 10 // per message: the largest datagram or train
	// mtuEvery is the period of path MTU queries to the kernel.
	mtuEvery = time.Second
)

// Config configures a Link.
type Config struct {
	Node ib.GUID // this node's
	// Epoch identifies this start of the node; drawn at random if 0.
	Epoch trunk.Epoch
	// Port is the UDP port to receive on and send from; trunk.DefaultPort if 0.
	Port uint16
	// Peers are identified by their index in all other calls.
	Peers []Peer
	// RecvBuffer is the requested size of each socket's receive buffer in bytes; 16 MiB if 0. Degraded
	// reports a much smaller actual size.
	RecvBuffer int
	// HelloEvery and DownAfter are those of package trunk if 0.
	HelloEvery, DownAfter time.Duration
	// Event is called when a trunk comes up or goes down, within Recv or Tick. It must not call the
	// Link. It may be nil.
	Event func(trunk.Event)
}

// Peer is a node at the other end of a trunk.
type Peer struct {
	// Addr is where it receives and sends from; port 0 is Config.Port.
	Addr netip.AddrPort
	// Node is its GUID, 0 to take the one that answers at Addr.
	Node ib.GUID
	// Local is the source address, as configured at the peer. The zero value leaves the choice to the
	// route.
	Local netip.Addr
}

// Status is the state of the trunk to a peer.
type Status struct {
	Addr netip.AddrPort
	// Limit is the size of the largest datagram, 0 without a usable route.
	Limit int
	trunk.Status
}

// Link is this node's end of its trunks. The package comment states its concurrency.
type Link struct {
	port     uint16
	node     ib.GUID
	epoch    trunk.Epoch
	core     *trunk.Core
	event    func(trunk.Event)
	peers    []peer
	byAddr   map[source]int
	fd       [2]int // IPv4, IPv6; -1: no peer has such an address
	c        Counters
	degraded []udpsock.Degraded
	mtuAt    mono.Time

	// Receiving.
	progress [2]progress
	turn     int // which of the two is next
	lost     [2]uint32
	family   int // of the messages at hand
	got, cur int // messages received, and the one being cut
	size     int // of each datagram in it, 0: not begun
	n, off   int // its length, and where in it
	peer     int // the source of the datagrams
	stranger source
	in       [recvMessages]udpsock.Message
	inMsg    *[recvMessages]inMessage
	// Hellos and replies.
	inject trunk.Injector // nil: none
	hello  func(peer int, datagram []byte)
	out    [1]udpsock.Message
	outIov unix.Iovec
	outBuf [trunk.HeaderLen]byte
}

// Open binds the sockets that the peers' addresses need and opens the trunks,
// all down. Tick starts the hellos.
func Open(cfg Config) (*Link, error) {
	if cfg.Port == 0 {
		cfg.Port = trunk.DefaultPort
	}
	if cfg.RecvBuffer == 0 {
		cfg.RecvBuffer = 16 << 20
	}
	for cfg.Epoch == 0 {
		var b [4]byte
		crand.Read(b[:]) // never fails
		cfg.Epoch = trunk.Epoch(binary.NativeEndian.Uint32(b[:]))
	}
	l := &Link{port: cfg.Port, node: cfg.Node, epoch: cfg.Epoch, event: cfg.Event, fd: [2]int{-1, -1},
		peers: make([]peer, len(cfg.Peers)), byAddr: make(map[source]int, len(cfg.Peers))}
	for i := range l.peers {
		l.peers[i].probe = -1
	}
	core := trunk.Config{Node: cfg.Node, Epoch: cfg.Epoch, HelloEvery: cfg.HelloEvery, DownAfter: cfg.DownAfter,
		Event: l.changed, Read: l.read}
	l.hello = l.sendHello
	for _, p := range cfg.Peers {
		core.Peers = append(core.Peers, p.Node)
	}
	var err error
	if l.core, err = trunk.New(core); err != nil {
		return nil, fmt.Errorf("open trunks: %w", err)
	}
	for i, p := range cfg.Peers {
		if err = l.addPeer(i, p, cfg.RecvBuffer); err != nil {
			l.Close()
			return nil, err
		}
	}
	l.initRecv()
	return l, nil
}

// addPeer checks a peer and opens what it needs.
func (l *Link) addPeer(i int, cfg Peer, recvBuffer int) error {
	p := &l.peers[i]
	if err := p.init(cfg, l.port); err != nil {
		return fmt.Errorf("peer %v: %w", cfg.Addr, err)
	}
	if j, twice := l.byAddr[p.source]; twice {
		return fmt.Errorf("peer %v is given twice, as peer %d and %d", p.cfg.Addr, j, i)
	}
	l.byAddr[p.source] = i
	if l.fd[p.family] < 0 {
		if err := l.openFamily(p.family, recvBuffer); err != nil {
			return openError(l.port, err)
		}
	}
	if err := p.openProbe(); err != nil {
		return fmt.Errorf("peer %v: %w", p.cfg.Addr, err)
	}
	p.measure()
	return nil
}

func (l *Link) openFamily(f, recvBuffer int) error {
	v4 := f == 0
	fd, err := udpsock.Open(v4, l.port, options(v4))
	if err != nil {
		return err
	}
	l.fd[f] = fd
	n := udpsock.SetRecvBuffer(fd, recvBuffer)
	l.progress[f].most = uint64(4 * n) // the kernel doubles it, and may exceed it by a little
	// Half of it may be refused, silently.
	if n < recvBuffer/2 {
		l.degraded = append(l.degraded, udpsock.Degraded{Name: "small_trunk_rcvbuf_" + family(f),
			Detail: fmt.Sprintf("the %s receive buffer of trunks is %d KiB of the requested %d KiB: bursts are lost and sent again", family(f), n>>10, recvBuffer>>10),
			Fix:    fmt.Sprintf("sysctl -w net.core.rmem_max=%d", recvBuffer)})
	}
	udpsock.SetSendBuffer(fd, sendBuffer)
	return nil
}

func family(f int) string { return [2]string{"ipv4", "ipv6"}[f] }

// options forbid IP fragmentation (docs/notes/trunk.md, Sizes), and enable the control messages of
// Recv.
func options(v4 bool) []udpsock.Option {
	o := []udpsock.Option{
		udpsock.Opt(unix.IPPROTO_UDP, unix.UDP_GRO, 1, "receive coalesced datagrams"),
		udpsock.Opt(unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1, "count overflows"),
	}
	if v4 {
		return append(o, udpsock.Opt(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO,
			"forbid fragmentation"))
	}
	return append(o,
		udpsock.Opt(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1, "keep IPv4 off an IPv6 socket"),
		udpsock.Opt(unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO, "forbid fragmentation"),
		udpsock.Opt(unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1, "forbid fragmentation"))
}

func openError(port uint16, err error) error {
	switch {
	case udpsock.Unsupported(err):
		return &problem.Error{What: fmt.Sprintf("open trunk port %d", port),
			Why: fmt.Sprintf("a peer's address family is absent from this host: %v", err),
			Fix: "give the peer's address of the other family", Err: err}
	case !errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("open trunk port %d: %w", port, err)
	}
	who := udpsock.PortOwner("/proc", port)
	if who == "" {
		who = "an unknown process"
	}
	return &problem.Error{What: fmt.Sprintf("open trunk port %d", port), Why: fmt.Sprintf("held by %s: %v", who, err),
		Fix: fmt.Sprintf("stop it, or use another port: --trunk-port %d", port+2), Err: err}
}

// Close closes the sockets. Packets that were not flushed are dropped. No Sender may be used
// afterwards.
func (l *Link) Close() error {
	var errs []error
	for i := range l.peers {
		if p := &l.peers[i]; p.probe >= 0 {
			errs = append(errs, unix.Close(p.probe))
			p.probe = -1
		}
	}
	for f, fd := range l.fd {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
			l.fd[f] = -1
		}
	}
	return errors.Join(errs...)
}

// FDs returns the descriptors to watch: in for input by the Link's lane (level-triggered: Recv may
// leave data), out for output by every lane with a Sender (while Blocked: call Flush when one becomes
// writable). They are the same descriptors.
func (l *Link) FDs() (in, out []int) {
	for _, fd := range l.fd {
		if fd >= 0 {
			in, out = append(in, fd), append(out, fd)
		}
	}
	return in, out
}

// changed handles every event: it updates the Senders before it calls Config.Event.
func (l *Link) changed(e trunk.Event) {
	p := &l.peers[e.Peer]
	if e.Up {
		p.measure()
	}
	p.to.Store(uint32(e.Epoch))
	if l.event != nil {
		l.event(e)
	}
}

// Inject passes every hello and reply through i, a stage of package fault; nil ends that, and packets
// that i holds are dropped. The trunk goes down if no hello passes.
func (l *Link) Inject(i trunk.Injector) { l.inject = i }

// Tick sends hellos and looks at timeouts and path MTUs. Call it at Deadline,
// after Recv: what waits in the sockets keeps a trunk up until it was read.
func (l *Link) Tick(now mono.Time) {
	l.core.Tick(now)
	l.control(now)
	if l.mtuAt.IsZero() || l.mtuAt.Due(now) {
		l.mtuAt = now.Add(mtuEvery)
		for i := range l.peers {
			l.peers[i].measure()
		}
	}
}

// Deadline returns when Tick must be called next; 0 without peers.
func (l *Link) Deadline() mono.Time {
	d := l.core.Deadline()
	if l.inject != nil {
		d = mono.Min(d, l.inject.Deadline())
	}
	return d
}

// control sends the hellos and replies that are due.
func (l *Link) control(now mono.Time) {
	for {
		i, n, ok := l.core.Next(now, l.outBuf[:])
		if !ok {
			break
		}
		copies := 1
		if l.inject != nil {
			copies = l.inject.Pass(now, i, l.outBuf[:n])
		}
		for range copies {
			l.sendHello(i, l.outBuf[:n])
		}
	}
	if l.inject != nil {
		l.inject.Release(now, l.hello)
	}
}

// sendHello sends a hello or a reply.
func (l *Link) sendHello(peer int, datagram []byte) {
	p := &l.peers[peer]
	h := &l.out[0].Hdr
	h.Name, h.Namelen = &p.name[0], p.nameLen
	h.Control = nil
	if p.ctrlLen > 0 {
		h.Control = &p.ctrl[0]
	}
	h.SetControllen(p.ctrlLen)
	l.outIov.Base = &datagram[0]
	l.outIov.SetLen(len(datagram))
	h.Iov = &l.outIov
	h.SetIovlen(1)
	for {
		_, e := udpsock.Send(l.fd[p.family], l.out[:])
		switch e {
		case 0:
			l.c.SentHellos++
		case unix.EINTR:
			continue
		default:
			l.c.DropHellos++
		}
		return
	}
}

// Port returns the UDP port.
func (l *Link) Port() uint16 { return l.port }

// Epoch returns this start's epoch.
func (l *Link) Epoch() trunk.Epoch { return l.epoch }

// Peers returns the number of peers.
func (l *Link) Peers() int { return len(l.peers) }

// Peer returns the address of a peer. It may be called on any goroutine.
func (l *Link) Peer(peer int) netip.AddrPort { return l.peers[peer].cfg.Addr }

// Status returns the state of the trunk to a peer.
func (l *Link) Status(peer int) Status {
	p := &l.peers[peer]
	return Status{Addr: p.cfg.Addr, Limit: int(p.limit.Load()), Status: l.core.Status(peer)}
}

// Counters returns a copy of the counters of what belongs to no peer.
func (l *Link) Counters() Counters { return l.c }

// Degraded lists every state in which the link works less well than it could.
func (l *Link) Degraded() []udpsock.Degraded {
	d := append([]udpsock.Degraded(nil), l.degraded...)
	down := false
	for i := range l.peers {
		p := &l.peers[i]
		down = down || p.to.Load() == 0
		if n := p.limit.Load(); n < trunk.MinDatagram {
			why, fix := "has no route", "ip route get "+p.cfg.Addr.Addr().String()
			if n > 0 {
				why, fix = fmt.Sprintf("has a path MTU below %d",
					trunk.MinDatagram+28), "raise the MTU of the interfaces on the path"
			}
			d = append(d, udpsock.Degraded{Name: "trunk_path",
				Detail: fmt.Sprintf("the trunk to %v %s: nothing can be sent", p.cfg.Addr, why), Fix: fix})
		}
	}
	if down && l.c.DropUnknown > 0 {
		// Most likely the peer that is missed, from another of its addresses.
		d = append(d, udpsock.Degraded{Name: "trunk_stranger",
			Detail: fmt.Sprintf("a trunk is down, and %d datagrams came from addresses of no peer, the last from %v",
				l.c.DropUnknown, l.stranger),
			Fix: "if that is the peer, give this address of it to --peer"})
	}
	return d
}
