// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/fabric/trunk"
	"weft/internal/fabric/trunk/handshake"
	"weft/internal/fabric/trunk/seal"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/problem"
)

// MaxRecv bounds the packets that one Recv delivers.
const MaxRecv = 512

const (
	sendBuffer = 4 << 20 // of a socket, in bytes: about 60 trains
	// answerBuffer holds the answers of three seconds at handshake.RetryRate: the kernel keeps an answer that long
	// while it tries to resolve an address that no host has.
	answerBuffer = 256 << 10
	recvMessages = 16
	recvBytes    = 64 << 10 // per message: the largest datagram or train
	// mtuEvery is the period of path MTU queries to the kernel.
	mtuEvery = time.Second
	// strangeFor is how long datagrams of no peer are a reason for a trunk that is down. A peer sends a hello more
	// often.
	strangeFor = 30 * time.Second
)

// Config configures a Link.
type Config struct {
	Node          ib.GUID // this node's
	Name, Version string  // of this node, for the peers
	// Trust authenticates the peers; Mode is the weakest that this node accepts of what is done to packets.
	Trust handshake.Trust
	Mode  seal.Mode
	// Wall is the time of certificates; nil: the system's clock.
	Wall func(mono.Time) time.Time
	// Port is the UDP port to receive on and send from; trunk.DefaultPort if 0.
	Port uint16
	// Peers are those from the start, with the indices from 0; AddPeer adds others.
	Peers []Peer
	// Grows has sockets of both address families opened, so that peers of either can be added. Otherwise there are
	// those of the families of Peers.
	Grows bool
	// Later has no socket opened before Listen. There are no Peers then.
	Later bool
	// RecvBuffer is the requested size of each socket's receive buffer in bytes; 16 MiB if 0. Degraded
	// reports a much smaller actual size.
	RecvBuffer int
	// HelloEvery, DownAfter and RekeyAfter are those of package trunk if 0.
	HelloEvery, DownAfter, RekeyAfter time.Duration
	// Event is called when a trunk comes up or goes down, within Recv, Tick or RemovePeer. It must not call the
	// Link. It may be nil.
	Event func(trunk.Event)
	// Apart runs work on another goroutine, and then calls then on that of the Link. It never blocks; false: it cannot,
	// and calls neither. The Link has it run the asymmetric cryptography of handshakes, one piece at a time; nil, or
	// false: the Link's own calls do that.
	Apart func(work func(), then func(now mono.Time)) bool
}

// Peer is a node at the other end of a trunk. Peers are identified by their index in all other calls.
type Peer struct {
	// Addr is where it receives and sends from; port 0 is Config.Port.
	Addr netip.AddrPort
	// Anywhere: Addr is not known; the peer begins. Node is needed then.
	Anywhere bool
	// Node is its GUID, 0 to take the one that proves itself at Addr.
	Node ib.GUID
	// Local is the source address, as configured at the peer. The zero value leaves the choice to the
	// route.
	Local netip.Addr
}

// Status is the state of the trunk to a peer.
type Status = trunk.Status

// Link is this node's end of its trunks. The package comment states its concurrency.
type Link struct {
	port     uint16
	recvBuf  int
	grows    bool // Config.Grows: the peers are members of a fabric, which find each other by themselves
	core     *trunk.Core
	event    func(trunk.Event)
	apart    func(work func(), then func(now mono.Time)) bool
	works    bool // apart has work
	peers    [trunk.MaxPeers]peer
	fd       [2]int // IPv4, IPv6; -1: no peer has such an address
	answers  [2]int // sockets of the same port for answers to unproved addresses; -1: the socket in fd is used
	c        Counters
	degraded []udpsock.Degraded
	mtuAt    mono.Time

	// Receiving.
	progress [2]progress
	turn     int // which of the two is next
	lost     [2]uint32
	family   int            // of the messages at hand
	got, cur int            // messages received, and the one being cut
	size     int            // of each datagram in it, 0: not begun
	n, off   int            // its length, and where in it
	from     netip.AddrPort // the source of the datagrams
	stranger netip.AddrPort // the last source that is no peer's
	strange  uint64         // DropUnknown in the tick before
	recent   mono.Time      // until when the last of them counts as recent; 0: none is
	in       [recvMessages]udpsock.Message
	inMsg    *[recvMessages]inMessage
	// Hellos and replies.
	inject trunk.Injector // nil: none
	hello  func(peer int, datagram []byte)
	out    [1]udpsock.Message
	outIov unix.Iovec
	outBuf [trunk.MaxDatagram + seal.TagLen]byte
}

// Open binds the sockets that the peers' addresses need and opens the trunks,
// all down. Tick starts the handshakes.
func Open(cfg Config) (*Link, error) {
	if cfg.Port == 0 {
		cfg.Port = trunk.DefaultPort
	}
	if cfg.RecvBuffer == 0 {
		cfg.RecvBuffer = 16 << 20
	}
	if cfg.Wall == nil {
		cfg.Wall = func(mono.Time) time.Time { return time.Now() }
	}
	if cfg.Trust == nil {
		return nil, errors.New("open trunks: nothing authenticates the peers")
	}
	l := &Link{port: cfg.Port, recvBuf: cfg.RecvBuffer, event: cfg.Event, apart: cfg.Apart,
		grows: cfg.Grows || cfg.Later, fd: [2]int{-1, -1}, answers: [2]int{-1, -1}}
	for i := range l.peers {
		l.peers[i].probe = -1
	}
	l.hello = l.sendHello
	var err error
	l.core, err = trunk.New(trunk.Config{Node: cfg.Node, Name: cfg.Name, Version: cfg.Version, Mode: cfg.Mode,
		Trust: cfg.Trust, Wall: cfg.Wall, Apart: cfg.Apart != nil, HelloEvery: cfg.HelloEvery, DownAfter: cfg.DownAfter,
		RekeyAfter: cfg.RekeyAfter, Event: l.happened, Changed: l.changed, Read: l.read})
	if err != nil {
		return nil, fmt.Errorf("open trunks: %w", err)
	}
	switch {
	case cfg.Later && len(cfg.Peers) > 0:
		return nil, errors.New("open trunks: there are peers, and no socket for them")
	case cfg.Later:
		return l, nil
	case cfg.Grows:
		if err := l.openFamilies(); err != nil {
			l.Close()
			return nil, err
		}
	}
	for _, p := range cfg.Peers {
		if _, err = l.addPeer(p, true); err != nil {
			l.Close()
			return nil, err
		}
	}
	l.initRecv()
	return l, nil
}

// Listen opens the sockets of a Link that was opened without (Config.Later). FDs are those descriptors from then on. On
// an error there is none.
func (l *Link) Listen() error {
	if err := l.openFamilies(); err != nil {
		return errors.Join(err, l.closeSockets())
	}
	l.initRecv()
	return nil
}

// Listens reports whether the Link has its sockets.
func (l *Link) Listens() bool { return l.inMsg != nil }

// openFamilies opens the sockets of the address families that the host has.
func (l *Link) openFamilies() error {
	for f := range l.fd {
		if err := l.openFamily(f, l.recvBuf); err != nil && !udpsock.Unsupported(err) {
			return openError(l.port, err)
		}
	}
	return nil
}

// AddPeer adds a peer and returns its index, which may be that of one that was removed. Senders reach it at once. The
// caller then calls Tick.
func (l *Link) AddPeer(cfg Peer) (int, error) { return l.addPeer(cfg, false) }

// addPeer checks a peer and opens what it needs; sockets only if bind.
func (l *Link) addPeer(cfg Peer, bind bool) (int, error) {
	cfg, err := normal(cfg, l.port)
	if err != nil {
		return 0, fmt.Errorf("peer %v: %w", cfg.Addr, err)
	}
	var t *target
	if !cfg.Anywhere {
		t = newTarget(cfg.Addr, cfg.Local)
		switch {
		case l.fd[t.family] >= 0:
		case !bind:
			return 0, fmt.Errorf("peer %v: the node has no %s socket for trunks. fix: start it again", cfg.Addr,
				family(t.family))
		default:
			if err := l.openFamily(t.family, l.recvBuf); err != nil {
				return 0, openError(l.port, err)
			}
		}
	}
	i, err := l.core.AddPeer(trunk.PeerConfig{Addr: cfg.Addr, Node: cfg.Node})
	if err != nil {
		return 0, fmt.Errorf("peer %v: %w", cfg.Addr, err)
	}
	p := &l.peers[i]
	p.cfg = cfg
	p.turn.Add(1)
	p.to.Store(t)
	p.measure()
	l.core.SetLimit(i, int(p.path.Load()))
	return i, nil
}

// SetAddr sets where a peer with an address is from now on. The trunk stays up where the peer receives there.
func (l *Link) SetAddr(i int, at netip.AddrPort) error {
	p := &l.peers[i]
	cfg := p.cfg
	cfg.Addr, cfg.Anywhere = at, false
	cfg, err := normal(cfg, l.port)
	if err != nil {
		return fmt.Errorf("peer %v: %w", at, err)
	}
	t := newTarget(cfg.Addr, cfg.Local)
	if l.fd[t.family] < 0 {
		return fmt.Errorf("peer %v: the node has no %s socket for trunks. fix: start it again", at, family(t.family))
	}
	if err := l.core.SetAddr(i, cfg.Addr); err != nil {
		return fmt.Errorf("peer %v: %w", at, err)
	}
	p.cfg = cfg
	p.closeProbe()
	p.to.Store(t)
	p.measure()
	l.core.SetLimit(i, int(p.path.Load()))
	return nil
}

// RemovePeer ends the trunk to a peer at once: its keys are forgotten, and what Senders have for it is dropped. Its
// index may become that of another.
func (l *Link) RemovePeer(now mono.Time, i int) {
	l.core.RemovePeer(now, i)
	p := &l.peers[i]
	p.to.Store(nil)
	p.state.Store(nil)
	p.closeProbe()
	p.cfg = Peer{}
}

// happened handles every event: it updates the Senders before it calls Config.Event.
func (l *Link) happened(e trunk.Event) {
	if e.Up {
		l.peers[e.Peer].measure()
	}
	if l.event != nil {
		l.event(e)
	}
}

// changed hands the state of a peer to the Senders.
func (l *Link) changed(i int) {
	p := &l.peers[i]
	if !l.core.Used(i) {
		p.state.Store(nil)
		return
	}
	if a := l.core.Addr(i); p.cfg.Anywhere && a.IsValid() {
		if t := p.to.Load(); t == nil || t.addr != a {
			p.closeProbe()
			p.to.Store(newTarget(a, p.cfg.Local))
			p.measure()
			l.core.SetLimit(i, int(p.path.Load()))
		}
	}
	r := l.core.Remote(i)
	if r.Key == nil {
		p.state.Store(nil)
		return
	}
	p.state.Store(&r)
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
			Detail: fmt.Sprintf("the %s receive buffer of trunks is %d KiB of the requested %d KiB: bursts are lost and "+
				"sent again", family(f), n>>10, recvBuffer>>10),
			Fix: fmt.Sprintf("sysctl -w net.core.rmem_max=%d", recvBuffer)})
	}
	udpsock.SetSendBuffer(fd, sendBuffer)
	if l.answers[f], err = udpsock.OpenBeside(fd, v4, l.port, options(v4)); err != nil {
		l.degraded = append(l.degraded, udpsock.Degraded{Name: "trunk_answers_" + family(f),
			Detail: fmt.Sprintf("answers to hosts that have proved nothing share the %s socket of the trunks, which a "+
				"flood of first datagrams can fill: %v", family(f), err),
			Fix: "Linux 4.5 or later, without a filter of setsockopt"})
		return nil
	}
	udpsock.SetSendBuffer(l.answers[f], answerBuffer)
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

// Close closes the sockets, and ends the handshakes that go on. Packets that were not flushed are dropped. Config.Apart
// runs nothing any more, and no Sender may be used afterwards.
func (l *Link) Close() error {
	var errs []error
	l.core.Close()
	for i := range l.peers {
		errs = append(errs, l.peers[i].closeProbe())
	}
	return errors.Join(append(errs, l.closeSockets())...)
}

func (l *Link) closeSockets() error {
	var errs []error
	for _, fds := range []*[2]int{&l.answers, &l.fd} {
		for f, fd := range fds {
			if fd >= 0 {
				errs = append(errs, unix.Close(fd))
				fds[f] = -1
			}
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

// Inject passes every hello and reply through i, a stage of package fault; nil ends that, and packets
// that i holds are dropped. The trunk goes down if no hello passes.
func (l *Link) Inject(i trunk.Injector) { l.inject = i }

// Tick sends hellos and looks at timeouts and path MTUs. Call it at Deadline,
// after Recv: what waits in the sockets keeps a trunk up until it was read.
func (l *Link) Tick(now mono.Time) {
	l.core.Tick(now)
	switch {
	case l.c.DropUnknown != l.strange:
		l.strange, l.recent = l.c.DropUnknown, now.Add(strangeFor)
	case l.recent.Due(now):
		l.recent = 0
	}
	if l.mtuAt.IsZero() || l.mtuAt.Due(now) {
		l.mtuAt = now.Add(mtuEvery)
		for i := range l.core.Peers() {
			l.peers[i].measure()
		}
	}
	for i := range l.core.Peers() {
		l.core.SetLimit(i, int(l.peers[i].path.Load())) // a Sender may have found another
	}
	l.control(now)
}

// Deadline returns when Tick must be called next; 0 without peers.
func (l *Link) Deadline() mono.Time {
	d := l.core.Deadline()
	if l.inject != nil {
		d = mono.Min(d, l.inject.Deadline())
	}
	return d
}

// compute has the next part of a handshake computed, unless one is.
func (l *Link) compute(now mono.Time) {
	for !l.works {
		w, ok := l.core.Work(now)
		if !ok {
			return
		}
		l.works = l.apart(w.Run, func(now mono.Time) {
			l.works = false
			l.core.Finish(now, w)
			l.control(now)
		})
		if !l.works {
			w.Run()
			l.core.Finish(now, w)
		}
	}
}

// control sends the hellos, replies and handshakes that are due.
func (l *Link) control(now mono.Time) {
	l.compute(now)
	for {
		o, ok := l.core.Next(now, l.outBuf[:])
		if !ok {
			break
		}
		copies := 1
		if l.inject != nil && o.Peer >= 0 {
			copies = l.inject.Pass(now, o.Peer, l.outBuf[:o.Len])
		}
		var t *target
		if o.Peer >= 0 {
			t = l.peers[o.Peer].to.Load()
		}
		if t == nil || t.addr != o.To {
			t = newTarget(o.To, netip.Addr{})
		}
		for range copies {
			l.sendTo(t, l.outBuf[:o.Len], o.Unproved)
		}
	}
	if l.inject != nil {
		l.inject.Release(now, l.hello)
	}
}

// sendHello sends what an Injector held back.
func (l *Link) sendHello(peer int, datagram []byte) {
	if t := l.peers[peer].to.Load(); t != nil {
		l.sendTo(t, datagram, false)
	}
}

// sendTo sends a hello, a reply or a part of a handshake. unproved: nothing has proved that a host is at the address.
func (l *Link) sendTo(t *target, datagram []byte, unproved bool) {
	h := &l.out[0].Hdr
	h.Name, h.Namelen = &t.name[0], t.nameLen
	h.Control = nil
	if t.ctrlLen > 0 {
		h.Control = &t.ctrl[0]
	}
	h.SetControllen(t.ctrlLen)
	l.outIov.Base = &datagram[0]
	l.outIov.SetLen(len(datagram))
	h.Iov = &l.outIov
	h.SetIovlen(1)
	fd, drops := l.fd[t.family], &l.c.DropHellos
	if unproved {
		drops = &l.c.DropAnswers
		if a := l.answers[t.family]; a >= 0 {
			fd = a
		}
	}
	for {
		e := unix.EAFNOSUPPORT
		if fd >= 0 {
			_, e = udpsock.Send(fd, l.out[:])
		}
		switch e {
		case 0:
			l.c.SentHellos++
		case unix.EINTR:
			continue
		default:
			*drops++
		}
		return
	}
}

// Port returns the UDP port.
func (l *Link) Port() uint16 { return l.port }

// Peers returns the number of peers; free indices of removed ones count.
func (l *Link) Peers() int { return l.core.Peers() }

// Used reports whether an index is that of a peer.
func (l *Link) Used(peer int) bool { return l.core.Used(peer) }

// Peer returns the address of a peer, zero where it is not known. It may be called on any goroutine.
func (l *Link) Peer(peer int) netip.AddrPort {
	if t := l.peers[peer].to.Load(); t != nil {
		return t.addr
	}
	return netip.AddrPort{}
}

// Status returns the state of the trunk to a peer.
func (l *Link) Status(peer int) Status { return l.core.Status(peer) }

// Counters returns a copy of the counters of what belongs to no peer.
func (l *Link) Counters() Counters {
	c := l.c
	c.Strays = l.core.Strays()
	return c
}

// Degraded lists every state in which the link works less well than it could.
func (l *Link) Degraded() []udpsock.Degraded {
	d := append([]udpsock.Degraded(nil), l.degraded...)
	down := false
	for i := range l.core.Peers() {
		if !l.core.Used(i) {
			continue
		}
		s := l.core.Status(i)
		down = down || !s.Up
		p := &l.peers[i]
		if t := p.to.Load(); t != nil {
			d = append(d, pathDegraded(t.addr, &s, int(p.path.Load()))...)
		}
	}
	if new := l.c.DropUnknown != l.strange || l.recent != 0; down && new && !l.core.Admits(l.stranger) {
		// Most likely the peer that is missed, from another of its addresses.
		fix := "if that is the peer, give this address of it to --peer"
		if l.grows {
			fix = "weft member list --wide, for the addresses of members; weft trunk, there"
		}
		d = append(d, udpsock.Degraded{Name: "trunk_stranger",
			Detail: fmt.Sprintf("a trunk is down, and %d datagrams came from addresses of no peer, the last from %v",
				l.c.DropUnknown, l.stranger),
			Fix: fix})
	}
	return d
}

// pathDegraded lists what is wrong with the path to a peer.
func pathDegraded(at netip.AddrPort, s *Status, path int) []udpsock.Degraded {
	headers := 28
	if at.Addr().Is6() {
		headers = 48
	}
	one := func(name, detail, fix string) []udpsock.Degraded {
		return []udpsock.Degraded{{Name: name, Detail: fmt.Sprintf("the trunk to %v ", at) + detail, Fix: fix}}
	}
	switch {
	case path == 0:
		fix := "ip route"
		if at.IsValid() {
			fix = "ip route get " + at.Addr().String()
		}
		return one("trunk_path", "has no route: nothing can be sent", fix)
	case path < trunk.MinDatagram:
		return one("trunk_path", fmt.Sprintf("has a path MTU below %d: nothing can be sent", trunk.MinDatagram+28),
			"raise the MTU of the interfaces on the path")
	case s.Up && s.Hole:
		return one("trunk_mtu_hole",
			fmt.Sprintf("loses IP packets above %d octets, which both ends allow: packets are cut", s.Limit+headers),
			fmt.Sprintf("raise the MTU of what is between, or ip route change … mtu lock %d", s.Limit+headers))
	case s.Up && s.Theirs > 0 && min(s.Own, trunk.MaxDatagram) != min(s.Theirs, trunk.MaxDatagram):
		return one("trunk_mtu", fmt.Sprintf("has a path MTU of %d here and of %d there: both ends use the smaller one",
			s.Own+headers, s.Theirs+headers), fmt.Sprintf("ip link set DEV mtu %d, %s", max(s.Own, s.Theirs)+headers,
			map[bool]string{true: "here", false: "there"}[s.Own < s.Theirs]))
	}
	return nil
}
