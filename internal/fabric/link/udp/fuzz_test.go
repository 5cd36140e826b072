// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/fabric/trunk"
	"weft/internal/fabric/trunk/handshake"
	"weft/internal/fabric/trunk/seal"
)

// FuzzMessage passes to a Link any results of the kernel: address, control messages and data of a
// message. Each datagram is counted exactly once.
func FuzzMessage(f *testing.F) {
	// Without sockets: several processes fuzz at once.
	l := &Link{fd: [2]int{-1, -1}}
	at := newTarget(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), portB), netip.Addr{})
	for i := range l.peers {
		l.peers[i].probe = -1
	}
	var err error
	if l.core, err = trunk.New(trunk.Config{Node: 0xa000, Event: l.happened, Changed: func(int) {}}); err != nil {
		f.Fatal(err)
	}
	if _, err = l.core.AddPeer(trunk.PeerConfig{Addr: at.addr, Limit: 1472}); err != nil {
		f.Fatal(err)
	}
	l.peers[0].to.Store(at)
	key, err := seal.NewKey(make([]byte, 32), 7)
	if err != nil {
		f.Fatal(err)
	}
	hello := handshake.Hello{Mode: seal.None, Limit: 1472, Epoch: 1, Node: 0xb000}
	l.core.Install(1, 0, handshake.Result{Identity: handshake.Identity{Node: 0xb000}, Local: hello, Remote: hello,
		Send: key, Recv: key})
	l.initRecv()
	name := bytes.Clone(at.name[:unix.SizeofSockaddrInet4])
	h := trunk.Header{Kind: trunk.Control, Stream: 64, Index: 7, Number: 1}
	control := make([]byte, trunk.HeaderLen+12, 100)
	h.Put(control)
	control[trunk.HeaderLen], control[trunk.HeaderLen+1] = 1, 1 // a hello that receives
	up := key.Seal(new(seal.Scratch), seal.Encrypt, control, trunk.HeaderLen, 64<<56|1)
	data := []byte{0, 3, 1, 2, 3}
	h.Kind, h.Stream = trunk.Data, 1
	train := make([]byte, trunk.HeaderLen)
	h.Put(train)
	train = append(train, data...)
	ctrl := make([]byte, 64)
	body, n := udpsock.PutCmsg(ctrl, 0, unix.IPPROTO_UDP, unix.UDP_GRO, 4)
	ne.PutUint32(body, uint32(len(train)))
	body, n = udpsock.PutCmsg(ctrl, n, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 4)
	ne.PutUint32(body, 9)
	f.Add(name, []byte{}, up, 0)
	f.Add(name, ctrl[:n], bytes.Repeat(train, 3), 0)
	f.Add(name, ctrl[:n], train, unix.MSG_TRUNC)
	f.Add(name[:4], []byte{}, up, 0)
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
			for i := range s.Drop {
				n += s.Drop[i] + c.Strays.Drop[i]
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
		p, err := normal(Peer{Addr: netip.MustParseAddrPort(s)}, 1)
		if err != nil {
			t.Fatal(err)
		}
		at := newTarget(p.Addr, netip.Addr{})
		name := at.name[:at.nameLen]
		if got := from(name); got != p.Addr || got.String() != s {
			t.Errorf("%s: %v", s, got)
		}
		for n := range name {
			if got := from(name[:n]); got == p.Addr {
				t.Errorf("%s: %d octets are an address", s, n)
			}
		}
	}
}
