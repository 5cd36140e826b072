// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/ib"
	"weft/internal/ipoib/neigh"
	"weft/internal/mono"
	"weft/internal/wire"
	"weft/test/lab"
)

// dissected is the link of two engines, each of which gets what the other sends, and of all
// of it a capture.
type dissected struct {
	file  bytes.Buffer
	sides [2]*neigh.Engine
	hw    [2]wire.HWAddr
	queue []func()
}

// side is one end of it.
type side struct {
	*dissected
	i int
}

func (s side) Xmit(now mono.Time, frame []byte) {
	h := wire.HardHeader(frame)
	src, dst, f := s.hw[s.i], h.Dst(), bytes.Clone(frame)
	// LINKTYPE_IPOIB: a GRH in whose octets 5 to 7 the source's queue pair is, and what
	// begins with the encapsulation header.
	var grh [40]byte
	(&wire.GRH{IPVer: 6, NxtHdr: wire.NxtHdrIBA, SGID: src.GID(), DGID: dst.GID()}).Put(grh[:])
	copy(grh[5:8], src[1:4])
	s.record(append(grh[:], f[wire.HardHeaderLen-wire.EncapLen:]...))
	kind := neigh.Host
	switch {
	case dst == wire.PseudoBroadcast:
		kind = neigh.Broadcast
	case dst.IsGroup():
		kind = neigh.Multicast
	}
	s.queue = append(s.queue, func() {
		wire.PutHardHeader(f, &wire.HWAddr{}, &src, h.Type())
		s.sides[1-s.i].Input(now, kind, f)
	})
}

func (s side) record(p []byte) {
	for _, v := range []uint32{0, 0, uint32(len(p)), uint32(len(p))} {
		s.file.Write(binary.LittleEndian.AppendUint32(nil, v))
	}
	s.file.Write(p)
}

func (side) Deliver(mono.Time, []byte)                   {}
func (side) Learned(mono.Time, netip.Addr, wire.HWAddr)  {}
func (side) Resolved(mono.Time, netip.Addr, wire.HWAddr) {}
func (side) Unresolved(mono.Time, netip.Addr)            {}
func (side) Join(mono.Time, netip.Addr)                  {}
func (side) Leave(mono.Time, netip.Addr)                 {}
func (side) Conflict(mono.Time, netip.Addr, wire.HWAddr) {}

// TestIPoIBDissected: another's dissector finds no fault in what links say to each
// other: questions, answers, announcements, and packets.
func TestIPoIBDissected(t *testing.T) {
	d := &dissected{}
	for _, v := range []uint32{0xa1b2c3d4, 4<<16 | 2, 0, 0, 65535, 242} {
		d.file.Write(binary.LittleEndian.AppendUint32(nil, v))
	}
	now := mono.Time(time.Hour)
	for i := range d.sides {
		d.hw[i] = wire.MakeHWAddr(0, ib.QPN(0x4002+i), ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(0x02aa000000010003+i)))
		d.sides[i] = neigh.New(neigh.Config{Rand: rand.New(rand.NewPCG(1, 2))}, side{d, i})
	}
	for i, e := range d.sides {
		e.SetLink(now, neigh.LinkInfo{HW: d.hw[i], PKey: 0xffff, Scope: 2, MTU: ipPayload})
		e.SetAddrs(now, []netip.Prefix{netip.MustParsePrefix(v4(i) + "/24"), netip.MustParsePrefix(v6(i) + "/64")})
		e.SetUp(now, true)
	}
	run := func(until mono.Time) {
		for ; now < until; now = now.Add(10 * time.Millisecond) {
			for _, e := range d.sides {
				e.Tick(now)
			}
			for len(d.queue) > 0 {
				f := d.queue[0]
				d.queue = d.queue[1:]
				f()
			}
		}
	}
	run(now.Add(5 * time.Second))
	for _, ip := range []string{v4(1), v6(1)} {
		d.sides[0].Resolve(now, netip.MustParseAddr(ip))
	}
	run(now.Add(50 * time.Second))
	for _, ip := range []string{v4(1), v6(1)} { // confirmed by a question to it alone
		d.sides[0].Resolve(now, netip.MustParseAddr(ip))
	}
	run(now.Add(20 * time.Second))

	file := filepath.Join(t.TempDir(), "links.pcap")
	if err := os.WriteFile(file, d.file.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	tshark := func(args ...string) string {
		t.Helper()
		out, err := lab.Run(lab.Cmd{Args: append([]string{"tshark", "-n", "-r", file, "-o", "ip.check_checksum:TRUE"}, args...)}, fabricLimit)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return out
	}
	const warning = "0x600000"
	if out := tshark("-Y", "_ws.malformed or _ws.expert.severity >= "+warning, "-V"); strings.Contains(out, "Frame ") {
		t.Errorf("faults:\n%s", out)
	}
	fields := strings.Split(tshark("-T", "fields", "-e", "arp.opcode", "-e", "icmpv6.type"), "\n")
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	for what, field := range map[string]string{"ARP request": "1", "ARP reply": "2", "solicitation": "135", "advertisement": "136"} {
		if !slices.Contains(fields, field) {
			t.Errorf("there is no %s among %q", what, fields)
		}
	}
}
