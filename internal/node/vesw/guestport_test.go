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

// TestAnswerWithinBatch: an address is resolved for which more frames wait than the link of a guest's port holds. The
// frames of the batch with the answer arrive once, as they are, and the frames that waited leave with the next turn.
func TestAnswerWithinBatch(t *testing.T) {
	const waiting = 1200 // datagrams; the link holds 1024 frames
	own, peer := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	h := &Host{cfg: Config{Now: func() mono.Time { return 1 }}}
	p := h.NewGuestPort(nil)
	p.makeLink(hca.NewAdapter(&hca.Port{}, hca.DefaultLimits))
	guest, station := &plug{}, &plug{}
	g := &guestSegment{Segment: guest, p: p, vesw: testVESW}
	v, link := twoPorts(t, true, [2]vnic.Segment{g, station})
	h.data, g.port, p.at = v, v.ports[0], g
	p.gids = []hca.GIDEntry{{GID: ib.GIDFromAddr(own)}}
	p.dev = vnic.Device{MAC: macOf(1), MaxMTU: 1500, Carrier: true}
	p.link.SetPort(p.dev.MAC, []ib.GID{p.gids[0].GID})
	p.ask.SetMAC(p.dev.MAC)

	turn := turns(v, link)
	path := ib.Path{SGID: p.gids[0].GID, DGID: ib.GIDFromAddr(peer)}
	for range waiting {
		r := pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: ib.DefaultPKey, DestQPN: 2}, Count: 1,
			Path: &path, Data: mem.BytesPayload(make([]byte, 8))}
		if got := p.link.Send(1, &r, new(mem.Batch)); got != mem.OK {
			t.Fatal(got)
		}
	}
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
