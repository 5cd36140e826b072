// SPDX-License-Identifier: Apache-2.0

package vesw

import (
	"bytes"
	"net/netip"
	"testing"

	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/service/vnic"
	"weft/internal/verbs/hca"
)

// arpReply is the frame with which a station answers a question of another one.
func arpReply(from, to [6]byte, ip, of netip.Addr) []byte {
	b := make([]byte, ether.MinFrame)
	a, src, dst := b[ether.HeaderLen:], ip.As4(), of.As4()
	copy(b, to[:])
	copy(b[6:], from[:])
	copy(b[12:], []byte{0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 2})
	copy(a[8:], from[:])
	copy(a[14:], src[:])
	copy(a[18:], to[:])
	copy(a[24:], dst[:])
	return b
}

// newTestGuest returns the port of a guest with the address own, the rings of the guest, the segment of another station
// of the switch, and a turn of the data path.
func newTestGuest(t *testing.T, own netip.Addr) (p *GuestPort, guest, station *plug, turn func() [2]vnic.Counters) {
	t.Helper()
	h := &Host{cfg: Config{Now: func() mono.Time { return 1 }}}
	p = h.NewGuestPort(nil)
	p.makeLink(hca.NewAdapter(&hca.Port{}, hca.DefaultLimits))
	guest, station = &plug{}, &plug{}
	g := &guestSegment{Segment: guest, p: p, vesw: testVESW}
	v, link := twoPorts(t, true, [2]vnic.Segment{g, station})
	h.data, g.port, p.at = v, v.ports[0], g
	p.gids = []hca.GIDEntry{{GID: ib.GIDFromAddr(own)}}
	p.dev = vnic.Device{MAC: macOf(1), MaxMTU: 1500, Carrier: true}
	p.link.SetPort(p.dev.MAC, []ib.GID{p.gids[0].GID})
	p.ask.SetMAC(p.dev.MAC)
	return p, guest, station, turns(v, link)
}

// sendDatagrams sends datagrams on a path, each of one frame.
func sendDatagrams(t *testing.T, p *GuestPort, path *ib.Path, count int) {
	t.Helper()
	for range count {
		r := pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: ib.DefaultPKey, DestQPN: 2}, Count: 1,
			Path: path, Data: mem.BytesPayload(make([]byte, 8))}
		if got := p.link.Send(1, &r, new(mem.Batch)); got != mem.OK {
			t.Fatal(got)
		}
	}
}

// TestPushReadsNoRings: a queue pair of a guest sends more than its link holds. The link's frames leave at once, but the
// rings of the guest are not read: its commands come with its frames, and may end the queue pair that sends.
func TestPushReadsNoRings(t *testing.T) {
	own, peer := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	p, guest, station, turn := newTestGuest(t, own)
	frame := arpReply(macOf(1), macOf(2), own, peer)
	copy(frame[12:], []byte{0x88, 0xb5})
	guest.out, guest.outOff = [][]byte{frame}, make([]ether.Offload, 1)
	const datagrams = 3000 // the link holds 1024 frames
	sendDatagrams(t, p, &ib.Path{SGID: p.gids[0].GID, DGID: ib.GIDFromAddr(peer), DMAC: macOf(2)}, datagrams)
	if c := p.link.Counters(); c.SentFrames == 0 || c.DropBlocked != 0 {
		t.Fatalf("%+v, want frames pushed and none lost", c)
	}
	if len(guest.out) != 1 {
		t.Error("a push has read a frame of the guest")
	}
	for range 4 {
		turn()
	}
	if len(guest.out) != 0 || len(station.in) != datagrams+1 {
		t.Errorf("%d frames arrived, want %d; %d are left in the guest", len(station.in), datagrams+1, len(guest.out))
	}
}

// TestAnswerWithinBatch: an address is resolved for which more frames wait than the link of a guest's port holds. The
// frames of the batch with the answer arrive once, as they are, and the frames that waited leave with the next turn.
func TestAnswerWithinBatch(t *testing.T) {
	const waiting = 1200 // datagrams; the link holds 1024 frames
	own, peer := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	p, guest, station, turn := newTestGuest(t, own)
	sendDatagrams(t, p, &ib.Path{SGID: p.gids[0].GID, DGID: ib.GIDFromAddr(peer)}, waiting)
	turn()
	if c := p.ask.Counters(); c.Questions != 1 { // which is for a group that this switch does not have
		t.Fatalf("%+v, want a question", c)
	}
	answer := arpReply(macOf(2), macOf(1), peer, own)
	other := bytes.Clone(answer)
	copy(other[12:], []byte{0x88, 0xb5})
	station.out, station.outOff = [][]byte{answer, other}, make([]ether.Offload, 2)
	turn()
	turn()
	if len(guest.in) != 2 || !bytes.Equal(guest.in[0], answer) || !bytes.Equal(guest.in[1], other) {
		t.Errorf("the guest got %d frames, want the answer and the frame behind it", len(guest.in))
	}
	c := p.link.Counters()
	if n := len(station.in); n != int(c.SentFrames) || n+int(c.DropBlocked) != waiting || n < 1024 {
		t.Errorf("%d frames arrived of %d, and the link counted %+v", n, waiting, c)
	}
}
