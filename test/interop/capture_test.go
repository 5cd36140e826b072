// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/wire"
)

// checkCapture expects every packet of a capture (classic pcap, Ethernet) to
// parse and to bear the right ICRC, both ends to have used every kind of
// operation, and those to groups to be as RoCEv2 has them.
func checkCapture(t *testing.T, file string, b *bench) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const fileHeader, recordHeader, ethernet = 24, 16, 14
	if len(raw) < fileHeader || binary.LittleEndian.Uint32(raw) != 0xa1b2c3d4 ||
		binary.LittleEndian.Uint32(raw[20:]) != 1 {
		t.Fatalf("%s is no pcap file of Ethernet frames", file)
	}
	ours := netip.MustParseAddr(b.ns.V4)
	seen := map[bool]map[ib.Opcode]int{true: {}, false: {}}
	groups := newGroupTraffic(b)
	packets, bad := 0, 0
	for at := fileHeader; at+recordHeader <= len(raw); {
		kept, sent := int(binary.LittleEndian.Uint32(raw[at+8:])), int(binary.LittleEndian.Uint32(raw[at+12:]))
		at += recordHeader
		if kept != sent || at+kept > len(raw) || kept < ethernet {
			t.Fatalf("packet %d: %d of %d bytes", packets, kept, sent)
		}
		whole := raw[at : at+kept]
		at += kept
		if groups.report(whole) {
			continue
		}
		frame := whole[ethernet:]
		packets++
		fault := func(why string) {
			if bad++; bad <= 10 {
				t.Errorf("packet %d of %d bytes: %s\n% x", packets, len(frame), why, frame[:min(len(frame), 80)])
			}
		}
		var ip wire.IPUDP
		p, why := ip.Parse(frame)
		if why != wire.OK {
			fault("IP: " + why.String())
			continue
		}
		var h wire.Headers
		if _, why := h.Parse(p); why != wire.OK {
			fault("transport: " + why.String())
			continue
		}
		// The IP packet ends at its own length, not where the frame does.
		n := len(p) + 28
		if !ip.IPv4 {
			n += 20
		}
		if got, want := wire.ICRC(p), wire.SumIP(frame[:n-wire.ICRCLen]); got != want {
			fault("ICRC does not match")
			continue
		}
		if why := groups.packet(whole, &ip, &h); why != "" {
			fault(why)
		}
		if ip.IPv4 {
			src := netip.AddrFrom4([4]byte(frame[12:16]))
			seen[src == ours][h.Opcode]++
		}
	}
	t.Logf("%d packets", packets)
	if packets < 1000 {
		t.Errorf("only %d packets: the capture missed the traffic", packets)
	}
	groups.check(t)
	for _, op := range []ib.Opcode{ib.SendOnly, ib.SendFirst, ib.WriteFirst, ib.ReadRequest, ib.ReadRespFirst,
		ib.Acknowledge, ib.FetchAdd, ib.AtomicAck,
		ib.ServiceUC | ib.SendFirst, ib.ServiceUD | ib.SendOnly} {
		for weft, counts := range seen {
			// Those that one row requires, in one direction.
			one := op == ib.ReadRequest || op == ib.ReadRespFirst || op == ib.FetchAdd || op == ib.AtomicAck ||
				op == ib.WriteFirst
			if counts[op] == 0 && !(one && seen[!weft][op] > 0) {
				t.Errorf("no %v from %s", op, map[bool]string{true: "weft", false: "soft-RoCE"}[weft])
			}
		}
	}
}
