// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/fabric/trunk"
	"weft/internal/proto/ib"
)

// FuzzMessage passes to a Link any results of the kernel: address, control messages and data of a
// message. Each datagram is counted exactly once.
func FuzzMessage(f *testing.F) {
	// Without sockets: several processes fuzz at once.
	ca, _ := unopened("127.0.0.1")
	l := &Link{fd: [2]int{-1, -1}, peers: make([]peer, 1), byAddr: map[source]int{}}
	l.peers[0].probe = -1
	if err := l.peers[0].init(ca.Peers[0], portA); err != nil {
		f.Fatal(err)
	}
	l.byAddr[l.peers[0].source] = 0
	var err error
	if l.core, err = trunk.New(trunk.Config{Node: ca.Node, Epoch: 7, Peers: []ib.GUID{0},
		Event: l.changed}); err != nil {
		f.Fatal(err)
	}
	l.initRecv()
	name := bytes.Clone(l.peers[0].name[:unix.SizeofSockaddrInet4])
	hello := make([]byte, trunk.HeaderLen)
	h := trunk.Header{Kind: trunk.Hello, From: 3, To: 7, Seq: 1, Node: 0xb000}
	h.Put(hello)
	data := []byte{0, 3, 1, 2, 3}
	h.Kind = trunk.Data
	train := make([]byte, trunk.HeaderLen)
	h.Put(train)
	train = append(train, data...)
	ctrl := make([]byte, 64)
	body, n := udpsock.PutCmsg(ctrl, 0, unix.IPPROTO_UDP, unix.UDP_GRO, 4)
	ne.PutUint32(body, uint32(len(train)))
	body, n = udpsock.PutCmsg(ctrl, n, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 4)
	ne.PutUint32(body, 9)
	f.Add(name, []byte{}, hello, 0)
	f.Add(name, ctrl[:n], bytes.Repeat(train, 3), 0)
	f.Add(name, ctrl[:n], train, unix.MSG_TRUNC)
	f.Add(name[:4], []byte{}, hello, 0)
	f.Add([]byte{unix.AF_INET6, 0, 1, 2}, []byte{}, []byte{}, 0)
	f.Fuzz(func(t *testing.T, name, ctrl, data []byte, flags int) {
		m := &l.inMsg[0]
		h := &l.in[0]
		h.Hdr.Namelen = uint32(copy(m.name[:], name))
		h.Hdr.SetControllen(copy(m.ctrl[:], ctrl))
		h.N = uint32(copy(m.data[:], data))
		h.Hdr.Flags = int32(flags)
		sum := func() uint64 {
			s, c := l.Status(0), l.Counters()
			n := s.Datagrams + c.DropUnknown + c.DropTruncated
			for _, d := range s.Drop {
				n += d
			}
			return n
		}
		before := sum()
		l.cur, l.got, l.size, l.family = 0, 1, 0, 0
		l.Recv(1, func(peer int, p []byte) {
			if peer != 0 || len(p) == 0 || !bytes.Contains(data, p) && l.Status(0).Reassembled == 0 {
				t.Errorf("peer %d, packet % x of % x", peer, p, data)
			}
		})
		for l.cur < l.got {
			l.Recv(1, func(int, []byte) {})
		}
		if got := sum() - before; got < 1 || got > uint64(max(1, len(data))) {
			t.Errorf("%d octets were %d datagrams", len(data), got)
		}
	})
}

// TestFrom reads addresses of both families, and every truncation of them.
func TestFrom(t *testing.T) {
	for _, s := range []string{"10.1.2.3:4792", "[fd00::1]:4792", "[fe80::7%3]:9"} {
		var p peer
		a := netip.MustParseAddrPort(s)
		if err := p.init(Peer{Addr: a}, 1); err != nil {
			t.Fatal(err)
		}
		name := p.name[:p.nameLen]
		if got := from(name); got != p.source || got.port != a.Port() || got.addr != a.Addr().As16() ||
			(got.scope == 3) != (s[1] == 'f' && s[2] == 'e') {
			t.Errorf("%s: %+v", s, got)
		}
		for n := range name {
			if got := from(name[:n]); got == p.source {
				t.Errorf("%s: %d octets are an address", s, n)
			}
		}
	}
}
