// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/pcapng"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/neigh"
	"weft/test/lab"
)

// dissected is the link of two engines, each of which gets what the other sends, and of all
// of it a capture.
type dissected struct {
	file  *pcapng.Writer
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
	if err := s.file.Write(0, time.Unix(0, int64(now)), pcapng.AppendIPoIB(nil, src, dst,
		f[wire.HardHeaderLen-wire.EncapLen:])); err != nil {
		panic(err) // a file in memory
	}
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
	t.Parallel()
	needs(t, "tshark")
	var b bytes.Buffer
	file, err := pcapng.NewWriter(&b, "weft", pcapng.Interface{Name: ipLink, Type: pcapng.LinkIPoIB})
	if err != nil {
		t.Fatal(err)
	}
	d := &dissected{file: file}
	now := mono.Time(time.Hour)
	for i := range d.sides {
		d.hw[i] = wire.MakeHWAddr(0, ib.QPN(0x4002+i), ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(0x02aa000000010003+i)))
		out := side{d, i}
		d.sides[i] = neigh.New(neigh.Config{Rand: rand.New(rand.NewPCG(1, 2))}, neigh.Out{Frames: out,
			Resolution: out, Membership: out})
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

	x := dissect(t, b.Bytes())
	x.faultless(t)
	fields := x.fields("arp.opcode", "icmpv6.type")
	for what, field := range map[string]string{"ARP request": "1", "ARP reply": "2", "solicitation": "135",
		"advertisement": "136"} {
		if !slices.Contains(fields, field) { // either protocol's alone
			t.Errorf("there is no %s among %q", what, fields)
		}
	}
}

// capture is a file that tshark reads.
type capture struct {
	t    *testing.T
	file string
}

func dissect(t *testing.T, octets []byte) capture {
	t.Helper()
	c := capture{t, filepath.Join(t.TempDir(), "capture.pcapng")}
	if err := os.WriteFile(c.file, octets, 0o644); err != nil {
		t.Fatal(err)
	}
	return c
}

// tshark checks checksums, but not the course of connections: a capture begins and ends in the middle of them.
func (c capture) tshark(args ...string) string {
	c.t.Helper()
	out, err := lab.Run(lab.Cmd{Args: append([]string{"tshark", "-n", "-r", c.file, "-o", "ip.check_checksum:TRUE",
		"-o", "tcp.check_checksum:TRUE",
		"-o", "udp.check_checksum:TRUE", "-o", "tcp.analyze_sequence_numbers:FALSE"}, args...)}, fabricLimit)
	if err != nil {
		c.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// faultless fails for anything in the file that tshark reports as malformed, or worth a warning.
func (c capture) faultless(t *testing.T) {
	t.Helper()
	const warning = "0x600000"
	if out := c.tshark("-Y", "_ws.malformed or _ws.expert.severity >= "+warning, "-V"); strings.Contains(out,
		"Frame ") {
		t.Errorf("faults:\n%s", lab.Tail(out, 200))
	}
}

// fields returns a line for each packet, with some fields of it.
func (c capture) fields(names ...string) (lines []string) {
	c.t.Helper()
	args := []string{"-T", "fields"}
	for _, n := range names {
		args = append(args, "-e", n)
	}
	for line := range strings.Lines(c.tshark(args...)) {
		if !strings.HasPrefix(line, "Running as user") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
