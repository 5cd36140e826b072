// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
	"weft/internal/proto/wire"
)

// foreign is a frame of a peer that counts its identifications as it likes.
type foreign struct {
	id, icrcID uint16 // on the wire, and the one that the ICRC covers
	psn        ib.PSN
	flip       int // bit of BTH … ICRC to be inverted; < 0: none
}

// put builds BTH … ICRC.
func (f foreign) put(s wire.Seed, b, data []byte) []byte {
	h := wire.Headers{Opcode: ib.WriteMiddle, PKey: 0xffff, DestQPN: 0x11, PSN: f.psn}
	n := h.Put(b)
	n += copy(b[n:], data)
	wire.PutICRC(b[n:], s.Sum(f.icrcID, b[:n]))
	if n += wire.ICRCLen; f.flip >= 0 {
		b[f.flip/8] ^= 1 << (f.flip % 8)
	}
	return b[:n]
}

// onto puts the frame on a cable.
func (f foreign) onto(t *testing.T, c *cable, src, dst string, data []byte) {
	t.Helper()
	b := make([]byte, 14+wire.MaxIPUDPLen+len(data)+64)
	copy(b, c.nearMAC)
	copy(b[6:], c.farMAC)
	ip := wire.IPUDP{Src: gid(src), Dst: gid(dst), IPv4: gid(dst).IsIPv4(), HopLimit: 64, DF: true, ID: f.id,
		SrcPort: 0xd00d, DstPort: wire.UDPPort}
	b[12], b[13] = 0x86, 0xdd
	if ip.IPv4 {
		b[12], b[13] = 8, 0
	}
	n := len(f.put(wire.NewSeed(ip.Src, ip.Dst, ip.SrcPort, ip.DstPort), b[14+ip.Len():], data))
	ip.Put(b[14:], n)
	if _, err := unix.Write(c.fd, b[:14+ip.Len()+n]); err != nil {
		t.Fatal(err)
	}
}

// last sends a good packet that marks the end of the packets before it, and returns the PSNs received
// until then.
func last(t *testing.T, c *cable, l *Link, src, dst string) (psns []ib.PSN) {
	t.Helper()
	const end = 0xffffff
	foreign{psn: end, flip: -1}.onto(t, c, src, dst, []byte("done"))
	for {
		for _, r := range await(t, l, 1) {
			if r.PSN == end {
				return psns
			}
			for i := range r.Count {
				psns = append(psns, r.PSN.Add(i))
			}
		}
	}
}

func openICRC(t *testing.T, mode ICRCMode) *Link {
	t.Helper()
	l := open(t, Config{ICRC: mode})
	if got, why := l.ICRC(); got != mode || why == "" {
		t.Fatalf("asked for mode %v, got %v: %s", mode, got, why)
	}
	return l
}

// TestIdentification sends packets with an ICRC that is right for an identification other than their own, as
// may be the case for a corrupted packet: they are refused only where the raw socket shows
// identifications.
func TestIdentification(t *testing.T) {
	onWire(t, 9000, func(t *testing.T, c *cable) {
		for _, mode := range []ICRCMode{ICRCFull, ICRCSolve} {
			l := openICRC(t, mode)
			for _, f := range []foreign{
				{psn: 1, id: 0xabcd, icrcID: 0xabcd},
				{psn: 2, id: 0xabcd, icrcID: 0xabce}, // wrong
				{psn: 3, id: 0xffff, icrcID: 0xffff},
				{psn: 3, id: 1, icrcID: 1}, // sent again
				{psn: 4, id: 0, icrcID: 0}, // as Weft does
				{psn: 5, id: 3, icrcID: 3}, // from the middle of a train
				{psn: 6, id: 7, icrcID: 0}, // wrong, but predicted: 32 bits cannot detect it
				{psn: 7, id: 0, icrcID: 7}, // wrong, but not seen by the raw socket
			} {
				f.flip = -1
				f.onto(t, c, farV4, nearV4, random(1024))
			}
			got, n := fmt.Sprint(last(t, c, l, farV4, nearV4)), l.Counters()
			if mode == ICRCFull {
				if got != "[1 3 3 4 5 6 7]" || n.DropRefusal[wire.BadICRC] != 1 || n.RcvdIDSeen != 4 ||
					n.RcvdIDSolved != 1 {
					t.Errorf("full: received %v: %+v", got, n)
				}
			} else if got != "[1 2 3 3 4 5 6 7]" || n.DropRefusal[wire.BadICRC] != 0 || n.RcvdIDSeen != 0 ||
				n.RcvdIDSolved != 6 {
				t.Errorf("solve: received %v: %+v", got, n)
			}
			l.Close()
		}
	})
}

// TestEveryBitOnTheWire inverts each bit of a packet in turn: no packet passes
// but those with a masked bit, and all are counted.
func TestEveryBitOnTheWire(t *testing.T) {
	onWire(t, 1500, func(t *testing.T, c *cable) {
		data := random(256)
		bits := (wire.BTHLen + len(data) + wire.ICRCLen) * 8
		for _, mode := range []ICRCMode{ICRCFull, ICRCSolve} {
			for _, a := range [][2]string{{farV4, nearV4}, {farV6, nearV6}} {
				l := openICRC(t, mode)
				var got []ib.PSN
				for bit := range bits {
					foreign{id: uint16(bit) + 5, icrcID: uint16(bit) + 5, psn: ib.PSN(bit), flip: bit}.onto(t, c,
						a[0], a[1], data)
					if bit%32 == 31 || bit == bits-1 { // less than a cable holds
						got = append(got, last(t, c, l, a[0], a[1])...)
					}
				}
				if want := "[32 33 34 35 36 37 38 39]"; fmt.Sprint(got) != want {
					t.Errorf("mode %v, to %s: packets with bits %v inverted passed, want %s", mode, a[1], got, want)
				}
				n := l.Counters()
				var refused uint64
				for _, v := range n.DropRefusal {
					refused += v
				}
				if refused != uint64(bits-8) || n.DropRefusal[wire.BadICRC] < uint64(bits-8-64) {
					t.Errorf("mode %v, to %s: %d of %d refused, %d for their ICRC", mode, a[1], refused, bits-8,
						n.DropRefusal[wire.BadICRC])
				}
				l.Close()
			}
		}
	})
}

// TestCoalesced cuts messages as the kernel coalesces them: only the first
// packet's identification can be seen, and the others follow it or equal it.
func TestCoalesced(t *testing.T) {
	seed := wire.NewSeed(gid(farV4), gid(nearV4), 0xd00d, wire.UDPPort)
	p := path(farV4, nearV4)
	p.SrcPort = 0xd00d
	const size = wire.BTHLen + 256 + wire.ICRCLen
	for _, x := range []struct {
		name         string
		ids          []uint16
		bad          int // index of a packet with a wrong ICRC, or < 0
		seen, solved uint64
	}{
		{"a train of Weft", []uint16{0, 1, 2, 3}, -1, 0, 0},
		{"a train joined in the middle", []uint16{40, 41, 42, 43}, -1, 1, 0},
		{"single packets of Weft", []uint16{0, 0, 0, 0}, -1, 0, 0},
		{"one that counts", []uint16{0xfffe, 0xffff, 0, 1}, -1, 1, 0},
		{"one that does not", []uint16{9, 9, 9, 9}, -1, 1, 0},
		{"one that counts other flows, too", []uint16{9, 10, 12, 13}, -1, 1, 1},
		{"one corrupted", []uint16{9, 10, 11, 12}, 1, 1, 0},
		{"the first corrupted", []uint16{0, 1, 2, 3}, 0, 0, 0},
	} {
		l := &Link{port: wire.UDPPort, heads: &heads{fd: -1}}
		l.initRecv()
		m := &l.inMsg[0]
		n := 0
		for i, id := range x.ids {
			f := foreign{id: id, icrcID: id, psn: ib.PSN(i), flip: -1}
			if i == x.bad {
				f.flip = 8 * 100
			}
			b := f.put(seed, m.data[n:], random(256))
			if i == 0 && id != 0 {
				var h [headBytes]byte
				ip := wire.IPUDP{Src: p.SGID, Dst: p.DGID, IPv4: true, DF: true, ID: id, SrcPort: p.SrcPort,
					DstPort: wire.UDPPort}
				copy(h[ip.Put(h[:], len(b)):], b)
				l.heads.note(&h)
			}
			n += len(b)
		}
		l.at = arrival{path: *p, segment: size, ipv4: true, here: true, known: true}
		if !l.arrived(n, 0) || !l.packets(m.data[:n], &l.at.path) {
			t.Fatal("refused")
		}
		bad := uint64(0)
		if x.bad >= 0 {
			bad = 1
		}
		if c := l.Counters(); c.RcvdIDSeen != x.seen || c.RcvdIDSolved != x.solved ||
			c.DropRefusal[wire.BadICRC] != bad || c.RcvdPackets != 4-bad {
			t.Errorf("%s: %+v", x.name, c)
		}
	}
}

// headOf is the raw socket's message of a packet.
func headOf(id uint16, psn uint32) *[headBytes]byte {
	b := new([headBytes]byte)
	ip := wire.IPUDP{Src: gid(farV4), Dst: gid(nearV4), IPv4: true, DF: true, ID: id, SrcPort: 0xd00d,
		DstPort: wire.UDPPort}
	n := ip.Put(b[:], 100)
	be.PutUint32(b[n+8:], psn)
	return b
}

func keyOf(b *[headBytes]byte) *head {
	return &head{src: be.Uint32(b[12:]), dst: be.Uint32(b[16:]), port: be.Uint16(b[20:]),
		bth: [wire.BTHLen]byte(b[28:])}
}

// TestHeads: each seen identification is returned once, in any order, and memory is bounded.
func TestHeads(t *testing.T) {
	h := &heads{fd: -1, seed: 7}
	look := func(psn uint32, id uint16, want sight) {
		t.Helper()
		if got := h.lookup(keyOf(headOf(id, psn)), id); got != want {
			t.Errorf("PSN %d, id %d: %v, want %v", psn, id, got, want)
		}
	}
	look(1, 5, unseen)
	h.note(headOf(5, 1))
	h.note(headOf(6, 1)) // sent again
	h.note(headOf(5, 2))
	look(1, 7, another)
	look(1, 6, seen)
	look(1, 6, another)
	look(1, 5, seen)
	look(1, 5, unseen)
	look(2, 5, seen)
	// The newest are kept.
	for id := range uint16(100) {
		h.note(headOf(id+1, 3))
	}
	for id := uint16(100); id > 100-headWays; id-- {
		look(3, id, seen)
	}
	look(3, 1, unseen)
	const many = headSets // a quarter of the room
	for psn := range uint32(many) {
		h.note(headOf(9, psn))
	}
	lost := 0
	for psn := range uint32(many) {
		if h.lookup(keyOf(headOf(9, psn)), 9) != seen {
			lost++
		}
	}
	if lost > many/100 {
		t.Errorf("%d of %d lost: the hash does not spread", lost, many)
	}
	k, b := keyOf(headOf(1, 1)), headOf(1, 1)
	if n := testing.AllocsPerRun(100, func() {
		h.note(b)
		if h.lookup(k, 1) != seen {
			t.Fatal("not seen")
		}
	}); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
}

// TestRecvForeignNoAllocation receives from a peer with identifications that need the raw socket, without
// allocating.
func TestRecvForeignNoAllocation(t *testing.T) {
	tx := newRawPeer(t, 256)
	l := open(t, Config{Port: rawPeerPort, ICRC: ICRCFull})
	tx.send(t)
	await(t, l, rawPeerPackets)
	n := testing.AllocsPerRun(20, func() {
		tx.send(t)
		for got := 0; got < rawPeerPackets; {
			runs, _ := l.Recv()
			for i := range runs {
				got += int(runs[i].Count)
			}
		}
	})
	if c := l.Counters(); n != 0 || c.RcvdIDSeen != 22*rawPeerPackets || c.RcvdIDSolved != 0 {
		t.Errorf("%v allocations per %d packets: %+v", n, rawPeerPackets, c)
	}
}

// TestWithoutPrivilege: an explicit mode that is not available is an error; an automatic one is
// reported in Degraded.
func TestWithoutPrivilege(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with what it has lost
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&hdr, &data[0]); err != nil {
			t.Error(err)
			return
		}
		data[0].Effective &^= 1 << unix.CAP_NET_RAW
		if err := unix.Capset(&hdr, &data[0]); err != nil {
			t.Error(err)
			return
		}
		if l, err := Open(Config{Port: 16795, ICRC: ICRCFull}); !errors.Is(err, unix.EPERM) ||
			!strings.Contains(err.Error(), "fix: ") {
			t.Errorf("full: %v, %v", l, err)
		}
		for _, m := range []ICRCMode{ICRCAuto, ICRCSolve} {
			l, err := Open(Config{Port: 16795, ICRC: m})
			if err != nil {
				t.Error(err)
				return
			}
			if got, why := l.ICRC(); got != ICRCSolve || strings.Contains(why, "hidden") != (m == ICRCAuto) {
				t.Errorf("mode %v without privilege is %v: %s", m, got, why)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	<-done
}

const (
	rawPeerPort    = 16797
	rawPeerPackets = 64
)

// rawPeer sends WRITEs over loopback with identifications that count from an
// arbitrary number, one datagram per packet, as soft-RoCE does.
type rawPeer struct {
	fd  int
	msg [rawPeerPackets]udpsock.Message
	iov [rawPeerPackets]unix.Iovec
	to  [16]byte
}

func newRawPeer(t testing.TB, mtu int) *rawPeer {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		condtest.Lacks(t, "needs CAP_NET_RAW: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	p := &rawPeer{fd: fd}
	ne.PutUint16(p.to[:], unix.AF_INET)
	copy(p.to[4:], []byte{127, 0, 0, 2})
	data := random(mtu)
	ip := wire.IPUDP{Src: gid("127.0.0.1"), Dst: gid("127.0.0.2"), IPv4: true, HopLimit: 64, DF: true,
		SrcPort: 0xd00d, DstPort: rawPeerPort}
	seed := wire.NewSeed(ip.Src, ip.Dst, ip.SrcPort, ip.DstPort)
	for i := range p.msg {
		ip.ID = 0x1234 + uint16(i)
		b := make([]byte, ip.Len()+mtu+64)
		n := len(foreign{id: ip.ID, icrcID: ip.ID, psn: ib.PSN(i), flip: -1}.put(seed, b[ip.Len():], data))
		b = b[:ip.Put(b, n)+n]
		p.iov[i].Base = &b[0]
		p.iov[i].SetLen(len(b))
		h := &p.msg[i].Hdr
		h.Iov, h.Name, h.Namelen = &p.iov[i], &p.to[0], uint32(len(p.to))
		h.SetIovlen(1)
	}
	return p
}

func (p *rawPeer) send(t testing.TB) {
	for n := 0; n < len(p.msg); {
		k, e := udpsock.Send(p.fd, p.msg[n:])
		if e != 0 {
			t.Fatal(e)
		}
		n += k
	}
}

// BenchmarkForeign receives 64 packets of a peer with unpredictable identifications; the time
// includes sending.
func BenchmarkForeign(b *testing.B) {
	for _, mtu := range []int{256, 1024, 4096} {
		for name, mode := range map[string]ICRCMode{"solve": ICRCSolve, "full": ICRCFull} {
			b.Run(fmt.Sprintf("icrc=%s/MTU%d", name, mtu), func(b *testing.B) {
				tx := newRawPeer(b, mtu)
				l := open(b, Config{Port: rawPeerPort, ICRC: mode})
				b.ReportAllocs()
				b.SetBytes(int64(rawPeerPackets * mtu))
				for b.Loop() {
					tx.send(b)
					for got := 0; got < rawPeerPackets; {
						runs, _ := l.Recv()
						for i := range runs {
							got += int(runs[i].Count)
						}
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rawPeerPackets), "ns/packet")
			})
		}
	}
}

// FuzzHeads reads arbitrary headers: each lookup result was in a message.
func FuzzHeads(f *testing.F) {
	f.Add(bytes.Repeat(headOf(5, 1)[:], 3), uint16(5))
	f.Add([]byte{}, uint16(0))
	h := &heads{fd: -1, seed: 1}
	f.Fuzz(func(t *testing.T, data []byte, id uint16) {
		clear(h.set[:])
		heard := map[head]map[uint16]bool{}
		var keys []*head
		for len(data) >= headBytes {
			b := (*[headBytes]byte)(data)
			k := keyOf(b)
			if heard[*k] == nil {
				heard[*k] = map[uint16]bool{}
			}
			heard[*k][be.Uint16(b[4:])] = true
			keys = append(keys, k)
			h.note(b)
			data = data[headBytes:]
		}
		for _, k := range keys {
			if h.lookup(k, id) == seen && !heard[*k][id] {
				t.Errorf("%+v with %d was never heard", k, id)
			}
		}
	})
}
