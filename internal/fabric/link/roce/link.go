// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/proto/ib"
	"weft/internal/proto/pkt"
	"weft/internal/proto/problem"
	"weft/internal/proto/wire"
)

// Limits.
const (
	// MaxRun bounds the payload of one burst that Send accepts, and MaxCount its packets: the slices
	// of one process_vm_readv call.
	MaxRun   = 256 << 10
	MaxCount = 1024

	maxTrain      = 64    // packets of one UDP_SEGMENT call: the kernel's limit
	maxTrainBytes = 65000 // below 65535 - 20 - 8, the largest datagram
	perPacket     = wire.MaxHeaderLen + 3 + wire.ICRCLen

	sendBytes    = 1 << 20   // transmit buffer
	flushBytes   = 128 << 10 // sent at once when this much is waiting, while it is in cache
	sendMessages = 128       // per socket
	// runMessages bounds the messages of a burst: MaxRun bytes for large packets, MaxCount packets for
	// small ones. A burst may start behind a full train and end with a shorter packet.
	runMessages = 4 + MaxRun/(maxTrainBytes-4096-perPacket) + MaxCount/maxTrain

	recvMessages = 16
	recvBytes    = 64 << 10 // per message: the largest datagram or train
	recvRuns     = 1024     // packets, as bursts or parts of them, that one Recv returns
)

// Config configures a Link. The zero value is the default.
type Config struct {
	// Port is the UDP port to receive on, and PeerPort the one to send to;
	// 4791, and Port, if 0. Peers other than tests use one port for both.
	Port, PeerPort uint16
	// SourcePorts is the number of transmit sockets per family, each with its own source port in
	// 0xC000 … 0xFFFF; 4 if 0. If negative, packets are sent from Port, for firewalls that require it.
	SourcePorts int
	// SendOnly opens no socket to receive on: another Link of the process does.
	SendOnly bool
	// RecvBuffer is the requested size of each socket's receive buffer in bytes; 16 MiB if 0. Degraded
	// reports a much smaller actual size.
	RecvBuffer int
	// ICRC selects how received packets are checked.
	ICRC ICRCMode
	// IfIndex returns the interface of a local address, by its index in the GID table and the GID; 0
	// if unknown. It is called for link-local and multicast destinations only. nil is a function that
	// returns 0.
	IfIndex func(index uint8, sgid ib.GID) uint32
	// Allow is the addresses of other nodes that packets are accepted from and sent to; nil: all. A group that packets
	// are sent to is such an address too. Own reports that an address is this node's, which is always allowed; nil is
	// a function that returns false. It is called for addresses outside Allow only.
	Allow *ib.AddrSet
	Own   func(ib.GID) bool
}

// Degraded is a state in which a Link works, but less well than it could.
type Degraded = udpsock.Degraded

// Link is a RoCEv2 endpoint on the host's own addresses. The package comment states its concurrency.
type Link struct {
	port, peer uint16
	ifindex    func(uint8, ib.GID) uint32
	allow      *ib.AddrSet // nil: all
	own        func(ib.GID) bool
	stranger   ib.GID // the last source that allow does not contain
	c          Counters
	degraded   []Degraded
	tooBig     tooBig

	// Sending. Packets lie in buf[:tail], each train of them as one range.
	send    [2][]*sender // IPv4, IPv6
	buf     []byte
	tail    int
	open    *sender // the newest message is its last and may still grow
	seed    wire.Seed
	blocked bool
	undo    undo
	noGSO   bool
	dst     [MaxCount][]byte
	pieces  [MaxCount]piece

	// Receiving.
	recv     [2]receiver
	from     *receiver // of the messages at hand
	turn     int       // which of the two is next
	in       [recvMessages]udpsock.Message
	inMsg    *[recvMessages]inMessage
	got, cur int // messages received, and the one being cut
	off      int // where in it
	hint     uint16
	at       arrival
	inSeed   wire.Seed
	joiner   *pkt.Joiner
	heads    *heads // nil: identifications are not seen
	icrc     ICRCMode
	icrcWhy  string
}

type receiver struct {
	fd   int // -1: the family is absent
	lost uint32
}

// Open binds the sockets. It fails if the port is in use, with the owner in the error, or if neither
// IPv4 nor IPv6 is available. Degraded reports lesser restrictions.
func Open(cfg Config) (*Link, error) {
	if cfg.Port == 0 {
		cfg.Port = wire.UDPPort
	}
	if cfg.PeerPort == 0 {
		cfg.PeerPort = cfg.Port
	}
	if cfg.SourcePorts == 0 {
		cfg.SourcePorts = 4
	}
	if cfg.RecvBuffer == 0 {
		cfg.RecvBuffer = 16 << 20
	}
	if cfg.IfIndex == nil {
		cfg.IfIndex = func(uint8, ib.GID) uint32 { return 0 }
	}
	if cfg.Own == nil {
		cfg.Own = func(ib.GID) bool { return false }
	}
	l := &Link{port: cfg.Port, peer: cfg.PeerPort, ifindex: cfg.IfIndex, allow: cfg.Allow, own: cfg.Own}
	l.recv[0].fd, l.recv[1].fd = -1, -1
	var absent [2]error
	for f := range l.recv {
		if err := l.openFamily(f, cfg); err != nil {
			if !udpsock.Unsupported(err) {
				l.Close()
				return nil, openError(cfg.Port, err)
			}
			absent[f] = err
		}
	}
	if absent[0] != nil && absent[1] != nil {
		return nil, openError(cfg.Port, errors.Join(absent[:]...))
	}
	for f, err := range absent {
		if err != nil {
			l.degrade("no_"+family(f), fmt.Sprintf("no %s on this host (%v): peers with such addresses cannot be reached", family(f), err),
				"none needed if every peer uses the other family")
		}
	}
	if !cfg.SendOnly {
		if err := l.openICRC(cfg); err != nil {
			l.Close()
			return nil, err
		}
	}
	l.buf = make([]byte, sendBytes)
	l.initRecv()
	return l, nil
}

func family(f int) string { return [2]string{"ipv4", "ipv6"}[f] }

func (l *Link) degrade(name, detail, fix string) {
	l.degraded = append(l.degraded, Degraded{Name: name, Detail: detail, Fix: fix})
}

func openError(port uint16, err error) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("open RoCE port %d: %w", port, err)
	}
	who := udpsock.PortOwner("/proc", port)
	if who == "" {
		who = "an unknown process"
	}
	return &problem.Error{What: fmt.Sprintf("open RoCE port %d", port), Why: fmt.Sprintf("held by %s: %v", who, err),
		Fix: fmt.Sprintf("stop it, or use another port: weft up --roce-port %d, "+
			"or WEFT_ROCE_PORT=%d weft run -- PROGRAM", port+2,
			port+2), Err: err}
}

func (l *Link) openFamily(f int, cfg Config) error {
	v4 := f == 0
	if !cfg.SendOnly {
		if err := l.openRecv(f, cfg); err != nil {
			return err
		}
	}
	// Spread over the range, from a place that differs between nodes of one
	// network namespace.
	const lo, n = 0xc000, 0x4000
	stride := n / max(cfg.SourcePorts, 1)
	for i := range cfg.SourcePorts {
		for try := range 16 {
			p := uint16(lo + (i*stride+int(cfg.Port)*31+try*7)%n)
			s, err := newSender(v4, p)
			if errors.Is(err, unix.EADDRINUSE) {
				continue
			}
			if err != nil {
				return err
			}
			l.send[f] = append(l.send[f], s)
			break
		}
	}
	if len(l.send[f]) == 0 && cfg.SendOnly {
		return fmt.Errorf("no UDP port in 0xC000-0xFFFF is free: %w", unix.EADDRINUSE)
	}
	if len(l.send[f]) < cfg.SourcePorts {
		l.degrade("few_source_ports_"+family(f),
			fmt.Sprintf("%d of %d %s source ports in 0xC000-0xFFFF are free: fewer paths through the network are used", len(l.send[f]), cfg.SourcePorts, family(f)),
			"stop programs that hold UDP ports 49152-65535 (ss -ulpn)")
	}
	if len(l.send[f]) == 0 && !cfg.SendOnly {
		l.send[f] = append(l.send[f], initSender(l.recv[f].fd, cfg.Port))
	}
	return nil
}

// openRecv binds the socket that receives for one family.
func (l *Link) openRecv(f int, cfg Config) error {
	v4 := f == 0
	fd, err := udpsock.Open(v4, cfg.Port, common(v4), receiving(v4))
	if err != nil {
		return err
	}
	l.recv[f].fd = fd
	// Half of it may be refused, silently; less than two trains per peer of a
	// small fabric costs retransmissions.
	if n := udpsock.SetRecvBuffer(fd, cfg.RecvBuffer); n < cfg.RecvBuffer/2 {
		l.smallBuffer(n, cfg.RecvBuffer)
	}
	udpsock.SetSendBuffer(fd, sendBuffer)
	return nil
}

// smallBuffer reports a receive buffer of n bytes, once for both families: they have one limit.
func (l *Link) smallBuffer(n, requested int) {
	if slices.ContainsFunc(l.degraded, func(d Degraded) bool { return d.Name == "small_rcvbuf" }) {
		return
	}
	l.degrade("small_rcvbuf", fmt.Sprintf("the receive buffer is %d KiB of the requested %d KiB: bursts are lost and sent again",
		n>>10, requested>>10), fmt.Sprintf("sysctl -w net.core.rmem_max=%d", requested))
}

// Close closes the sockets. Packets that were not flushed are dropped.
func (l *Link) Close() error {
	var errs []error
	for f := range l.recv {
		for _, s := range l.send[f] {
			if s.fd != l.recv[f].fd {
				errs = append(errs, unix.Close(s.fd))
			}
		}
		if l.recv[f].fd >= 0 {
			errs = append(errs, unix.Close(l.recv[f].fd))
		}
		l.send[f], l.recv[f].fd = nil, -1
	}
	errs = append(errs, l.heads.close())
	l.heads = nil
	return errors.Join(errs...)
}

// FDs returns the descriptors to watch: in for input (level-triggered: Recv may leave data), out for
// output (while Blocked: call Flush when one becomes writable). A descriptor can be in both.
func (l *Link) FDs() (in, out []int) {
	for f := range l.recv {
		if l.recv[f].fd >= 0 {
			in = append(in, l.recv[f].fd)
		}
		for _, s := range l.send[f] {
			out = append(out, s.fd)
		}
	}
	return in, out
}

// allows reports whether packets from an address, and to it, are allowed.
func (l *Link) allows(g *ib.GID) bool { return l.allow == nil || l.allow.Contains(g) || l.own(*g) }

// Strangers returns the last source outside of Config.Allow, and the number of packets from such sources.
func (l *Link) Strangers() (last ib.GID, packets uint64) { return l.stranger, l.c.DropSourceNotAllowed }

// Port returns the UDP port the link receives on.
func (l *Link) Port() uint16 { return l.port }

// Counters returns a copy of the counters.
func (l *Link) Counters() Counters { return l.c }

// Degraded lists every state in which the link works less well than it could.
func (l *Link) Degraded() []Degraded {
	d := append([]Degraded(nil), l.degraded...)
	if l.noGSO {
		d = append(d, Degraded{Name: "no_gso",
			Detail: "the kernel refused to cut datagrams (no checksum offload on an interface): every packet is sent by itself",
			Fix:    "ethtool -K DEV tx on, or a kernel of 6.11 or later"})
	}
	if l.tooBig.n > 0 {
		d = append(d, Degraded{Name: "path_mtu",
			Detail: fmt.Sprintf("%d packets were refused as larger than the path's MTU, the last one with %d bytes to %v",
				l.c.DropTooBig, l.tooBig.n, l.tooBig.to.Addr()),
			Fix: "raise the MTU of the interfaces on the path to 4200 or more, or let the program use a smaller path MTU"})
	}
	return d
}

// tooBig is the newest packet that the kernel refused for its size.
type tooBig struct {
	to ib.GID
	n  int
}
