// SPDX-License-Identifier: Apache-2.0

package roceframe

import (
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft/internal/fabric/link/fault"
	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

var _ fault.Link = linkAndBlocked{}

// linkAndBlocked is what node makes of a Link for a stage of faults.
type linkAndBlocked struct{ *Link }

func (linkAndBlocked) Blocked() bool { return false }

// port is a Link with what is around it.
type port struct {
	*Link
	asked   []netip.Addr
	full    bool // Resolve refuses
	pushed  int
	drain   func() // what Push does
	arrived int
	member  map[ib.GID]bool
}

var (
	macA = [6]byte{2, 0, 0, 0, 0, 0xa}
	macB = [6]byte{2, 0, 0, 0, 0, 0xb}
)

func newPort(mac [6]byte, gids ...ib.GID) *port {
	p := &port{member: map[ib.GID]bool{}}
	p.Link = New(Config{Function: 7,
		Resolve: func(ip netip.Addr) bool {
			if p.full {
				return false
			}
			p.asked = append(p.asked, ip)
			return true
		},
		Push: func(mono.Time) {
			p.pushed++
			if p.drain != nil {
				p.drain()
			}
		},
		Arrived: func() { p.arrived++ },
		Member:  func(g ib.GID) bool { return p.member[g] }})
	p.SetPort(mac, gids)
	return p
}

func gid(s string) ib.GID { return ib.GIDFromAddr(netip.MustParseAddr(s)) }

// resolve gives the port a resolved neighbour.
func (p *port) resolve(now mono.Time, g ib.GID, mac [6]byte) {
	p.find(now, &ib.Path{DGID: g})
	p.Resolved(now, g.Addr(), mac, true)
}

// read returns copies of the frames that wait.
func (p *port) read() (frames [][]byte, off []ether.Offload) {
	f, o := make([][]byte, 16), make([]ether.Offload, 16)
	for {
		n := p.Read(f, o)
		if n == 0 {
			return frames, off
		}
		for i := range n {
			frames, off = append(frames, append([]byte(nil), f[i]...)), append(off, o[i])
		}
	}
}

// cut makes of a frame what leaves the node.
func cut(t testing.TB, frame []byte, off ether.Offload) (out [][]byte) {
	t.Helper()
	in := ether.Classify(frame)
	if why := off.Check(frame, &in); why != ether.OK {
		t.Fatalf("a frame with %+v: %v", off, why)
	}
	var s ether.Splitter
	n, why := s.Start(frame, off, &in, 0)
	if why != ether.OK {
		t.Fatal(why)
	}
	for range n {
		b := make([]byte, s.Len())
		for i := range b {
			b[i] = 0xa5
		}
		s.Next(b)
		out = append(out, b)
	}
	return out
}

// dropped lists the counters of refusals and losses that are not zero.
func (p *port) dropped() map[string]uint64 {
	m := map[string]uint64{}
	c := p.Counters()
	c.Each(func(name string, v uint64) {
		if v != 0 && (strings.HasPrefix(name, "drop_") || name == "rcvbuf_overflow") {
			m[name] = v
		}
	})
	return m
}

// data is the payload of a run.
func data(t testing.TB, r *pkt.Burst) []byte {
	t.Helper()
	b := make([]byte, r.Data.Len)
	if len(b) > 0 && mem.NewBatch(4096).Gather([][]byte{b}, &r.Data, 0) != mem.OK {
		t.Fatal("the payload of a received run cannot be read")
	}
	return b
}

// vector is a whole RoCEv2 packet of test/vectors/icrc.json.
type vector struct {
	ID, Kind string
	Valid    bool
	Frame    hexBytes `json:"frame_hex"`
}

type hexBytes []byte

func (h *hexBytes) UnmarshalText(t []byte) (err error) {
	*h, err = hex.DecodeString(string(t))
	return err
}

// vectors are those that are Ethernet's to carry.
func vectors(t testing.TB) (list []vector) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "test", "vectors", "icrc.json"))
	var f struct{ Vectors []vector }
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range f.Vectors {
		if strings.HasPrefix(v.Kind, "rocev2-") {
			list = append(list, v)
		}
	}
	if len(list) < 30 {
		t.Fatalf("only %d vectors", len(list))
	}
	return list
}

// framed is an IP packet in a frame.
func framed(ip []byte, dst, src [6]byte) []byte {
	f := append(append(dst[:], src[:]...), 0x08, 0x00)
	if ip[0]>>4 == 6 {
		f[12], f[13] = 0x86, 0xdd
	}
	return append(f, ip...)
}
