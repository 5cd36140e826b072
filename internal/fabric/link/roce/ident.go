// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/proto/problem"
	"weft/internal/proto/wire"
)

// ICRCMode is how well a Link checks the ICRC of what it receives over IPv4;
// over IPv6 a UDP socket hides nothing and the check is always full.
type ICRCMode uint8

const (
	// ICRCAuto is ICRCFull if the host permits a raw socket, else ICRCSolve.
	ICRCAuto ICRCMode = iota
	// ICRCFull learns the identification of each packet from its IP header, which
	// takes CAP_NET_RAW: all 32 bits are checked.
	ICRCFull
	// ICRCSolve accepts an identification for which the ICRC is right: 16 bits
	// are checked where the peer's identifications cannot be foreseen.
	ICRCSolve
)

// The kernel delivers each packet to raw sockets before the UDP socket. The raw socket's filter
// accepts the headers of IPv4 packets to our port with an identification other than zero. So packets
// of a peer that counts 0, 1, 2, … in trains, as this package does, cost nothing here; others cost one
// short message for each packet that the kernel did not coalesce. The messages are read only when the
// ICRC of a packet needs an identification that was not predicted.

const (
	headBytes    = 20 + 8 + wire.BTHLen
	headMessages = 64
	// bound of calls per lookup, so that a flood does not hold the lane: more than a buffer of 16 MiB holds
	headReads = 1024
	headSets  = 8192
	headWays  = 4
)

// head identifies a packet of a flow. Both the beginning of a UDP datagram and the raw socket's
// messages contain it.
type head struct {
	src, dst uint32
	port     uint16
	bth      [wire.BTHLen]byte
}

// headSet holds up to headWays identifications of packets of one hash.
type headSet struct {
	key  [headWays]head
	id   [headWays]uint16 // 0: free
	next uint8            // to be replaced
}

// heads is the raw socket and the identifications of packets that the UDP socket has not delivered
// yet. Entries of packets that it never delivers are replaced over time.
type heads struct {
	fd   int
	seed uint64
	msg  [headMessages]udpsock.Message
	iov  [headMessages]unix.Iovec
	data [headMessages][headBytes]byte
	set  [headSets]headSet
}

// openHeads opens the raw socket for datagrams to port.
func openHeads(port uint16, buffer int) (*heads, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return nil, fmt.Errorf("raw socket: %w", err)
	}
	if err := filterHeads(fd, port); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("raw socket: %w", err)
	}
	udpsock.SetRecvBuffer(fd, buffer)
	h := &heads{fd: fd, seed: rand.Uint64()}
	for i := range h.msg {
		h.iov[i].Base = &h.data[i][0]
		h.iov[i].SetLen(headBytes)
		h.msg[i].Hdr.Iov = &h.iov[i]
		h.msg[i].Hdr.SetIovlen(1)
	}
	return h, nil
}

// filterHeads has the kernel keep the headers, and these of few packets only.
// What slipped in before the filter was there is harmless.
func filterHeads(fd int, port uint16) error {
	const ldb, ldh, jeq, ret = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, unix.BPF_LD | unix.BPF_H | unix.BPF_ABS,
		unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	code := []unix.SockFilter{
		{Code: ldh, K: 22}, // UDP destination port
		{Code: jeq, K: uint32(port), Jf: 7},
		{Code: ldh, K: 4}, // identification
		{Code: jeq, K: 0, Jt: 5},
		{Code: ldb, K: 0}, // a header of 20 bytes
		{Code: jeq, K: 0x45, Jf: 3},
		{Code: ldh, K: 6}, // DF, and not a fragment
		{Code: jeq, K: 0x4000, Jf: 1},
		{Code: ret, K: headBytes},
		{Code: ret, K: 0},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
}

func (h *heads) close() error {
	if h == nil {
		return nil
	}
	return unix.Close(h.fd)
}

// sight is the result of the lookup of a packet's identification.
type sight uint8

const (
	// no message for the packet: the raw socket's buffer was full, or the kernel coalesced it into another
	// packet
	unseen  sight = iota
	seen          // it bore this one
	another       // it bore another one
)

// lookup reports whether a packet had identification id, and removes the entry if so.
func (h *heads) lookup(k *head, id uint16) sight {
	s := &h.set[h.hash(k)]
	v := s.take(k, id)
	for range headReads {
		if v == seen {
			break
		}
		if !h.read() {
			return s.take(k, id)
		}
		v = s.take(k, id)
	}
	return v
}

func (s *headSet) take(k *head, id uint16) sight {
	v := unseen
	for i := range s.id {
		switch {
		case s.id[i] == 0 || s.key[i] != *k:
		case s.id[i] == id:
			s.id[i] = 0
			return seen
		default:
			v = another
		}
	}
	return v
}

// read reads messages of the raw socket, and reports whether there may be more.
func (h *heads) read() bool {
	n, e := udpsock.Recv(h.fd, h.msg[:])
	for i := range n {
		if h.msg[i].N >= headBytes {
			h.note(&h.data[i])
		}
	}
	return n == headMessages || e == unix.EINTR
}

// note enters a packet. The kernel checked its headers.
func (h *heads) note(b *[headBytes]byte) {
	k := head{src: be.Uint32(b[12:]), dst: be.Uint32(b[16:]), port: be.Uint16(b[20:]), bth: [wire.BTHLen]byte(b[28:])}
	s := &h.set[h.hash(&k)]
	i := s.next % headWays
	for j := range s.id {
		if s.id[j] == 0 {
			i = uint8(j)
			break
		}
	}
	s.key[i], s.id[i], s.next = k, be.Uint16(b[4:]), i+1
}

func (h *heads) hash(k *head) uint64 {
	const m = 0x9e3779b97f4a7c15
	x := h.seed ^ uint64(k.src)<<32 ^ uint64(k.dst)
	for _, v := range [...]uint64{uint64(k.port), ne.Uint64(k.bth[:]), uint64(ne.Uint32(k.bth[8:]))} {
		hi, lo := bits.Mul64(x^m, v^h.seed)
		x = hi ^ lo ^ x*m
	}
	return (x >> 7) % headSets
}

// openICRC opens what the check of the ICRC takes.
func (l *Link) openICRC(cfg Config) error {
	l.icrc, l.icrcWhy = ICRCSolve, "as asked for"
	if l.recv[0].fd < 0 {
		l.icrc, l.icrcWhy = ICRCFull, "IPv6 hides nothing of a packet, and there is no IPv4"
		return nil
	}
	if cfg.ICRC == ICRCSolve {
		return nil
	}
	h, err := openHeads(cfg.Port, cfg.RecvBuffer)
	switch {
	case err == nil:
		l.heads = h
		l.icrc, l.icrcWhy = ICRCFull, "a raw socket sees the identification of IPv4 packets"
	case cfg.ICRC == ICRCFull:
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			return &problem.Error{What: "check all of the ICRC", Why: err.Error(),
				Fix: "run as root, setcap cap_net_raw+ep WEFT, or --icrc=solve", Err: err}
		}
		return fmt.Errorf("check all of the ICRC: %w", err)
	default:
		l.icrcWhy = fmt.Sprintf("the identification of IPv4 packets is hidden (%v)", err)
	}
	return nil
}

// ICRC returns how received packets are checked, ICRCFull or ICRCSolve, and
// why so; of a Link that only sends, ICRCAuto.
func (l *Link) ICRC() (mode ICRCMode, why string) { return l.icrc, l.icrcWhy }

// genuine reports whether the ICRC of p, BTH … ICRC, is right. It tries the identification predicted from the packet's
// position in its message. If that fails, it computes the one identification that makes the ICRC right. It then
// rejects the packet only if the raw socket saw it with another identification.
func (l *Link) genuine(p []byte) bool {
	first, want := l.off == 0, l.hint
	l.hint++ // as the next packet of a train bears
	id, ok := l.inSeed.VerifyAnyID(want, p)
	if !ok || id == want {
		return ok
	}
	l.hint = id + 1
	if !first && id == want-1 {
		return true // the peer counts, or does not; the kernel coalesces both
	}
	if l.heads != nil {
		src, dst := &l.at.path.SGID, &l.at.path.DGID
		k := head{src: be.Uint32(src[12:]), dst: be.Uint32(dst[12:]), port: l.at.path.SrcPort,
			bth: [wire.BTHLen]byte(p)}
		switch l.heads.lookup(&k, id) {
		case seen:
			l.c.RcvdIDSeen++
			return true
		case another:
			return false
		}
	}
	l.c.RcvdIDSolved++
	return true
}
