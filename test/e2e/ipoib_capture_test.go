// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/pcapng"
	"weft/internal/proto/wire"
	"weft/test/lab"
)

// TestIPoIBCaptured: what passes a cable while links are at work is what another's dissector
// knows as InfiniBand and IP over it, without a fault, whatever programs send. A megabyte by TCP
// through devices with segmentation offload arrives as it was, and no datagram is
// longer than the MTU of the group (S-10).
func TestIPoIBCaptured(t *testing.T) {
	t.Parallel()
	needs(t, "tshark", "dumpcap")
	s := openSubnet(t, false, "--trunk-security", "none") // its cables are captured
	dir := t.TempDir()
	c, err := s.Capture(0, 1, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Kill()
	s.links(0, 1)
	own := startCapture(t, s.nodes[0], "--ipoib")
	s.reaches(0, v4(1))
	s.reaches(1, v6(0))
	for _, args := range [][]string{{"-c", "3", "-i", "0.05", "-s", "1900", v4(1)}, {"-c", "3", "-i", "0.05", v6(1)}} {
		if out, err := s.in(0, append([]string{"ping"}, args...)...); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
	s.group(t, "239.1.2.3:7000", 1)
	s.fetch(t, 1, 0, 1<<20)

	// The node's own view of its links.
	mine := own.end(t)
	mine.faultless(t)
	seen := strings.Join(mine.fields("frame.protocols"), "\n") + "\n"
	for _, what := range []string{"arp", "ip:icmp", "ipv6:icmpv6", "ip:tcp", "ip:udp"} {
		if !strings.Contains(seen, ":"+what+"\n") && !strings.Contains(seen, ":"+what+":") {
			t.Errorf("weft capture --ipoib has no %s", what)
		}
	}

	// Files that others can read: the packets of the cable, and what the link's are.
	var file bytes.Buffer
	w, err := pcapng.NewWriter(&file, "weft", pcapng.Interface{Name: "trunk", Type: pcapng.LinkERF})
	if err != nil {
		t.Fatal(err)
	}
	var record []byte
	packets, datagrams := 0, 0
	err = c.Packets(func(at time.Time, p []byte) {
		var l wire.LRH
		var g wire.GRH
		var h wire.Headers
		transport, why := wire.ParseIB(p, &l, &g)
		if why == wire.OK {
			why = wire.VerifyIB(p)
		}
		var payload []byte
		if why == wire.OK {
			payload, why = h.Parse(transport)
		}
		if why != wire.OK {
			t.Fatalf("%v: %x", why, p)
		}
		if h.DestQPN > ib.QPNGSI {
			if datagrams++; h.Opcode != ib.ServiceUD|ib.SendOnly || len(payload) > ipPayload+wire.EncapLen {
				t.Errorf("a datagram of %d octets, opcode %v", len(payload), h.Opcode)
			}
		}
		packets++
		record = pcapng.AppendNative(record[:0], at, p)
		if err := w.Write(0, at, record); err != nil {
			t.Fatal(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	x := dissect(t, file.Bytes())
	x.faultless(t)
	lines := x.fields("frame.protocols")
	if len(lines) != packets || datagrams < 1<<20/(ipPayload+wire.EncapLen) {
		t.Errorf("%d packets, of which %d are datagrams; tshark knows %d", packets, datagrams, len(lines))
	}
	for _, what := range []string{"arp", "ip:icmp", "ipv6:icmpv6", "ip:tcp", "ip:udp"} {
		n := 0
		for _, l := range lines {
			if strings.HasPrefix(l, "erf:infiniband") && strings.Contains(l+":", ":"+what+":") {
				n++
			}
		}
		if n == 0 {
			t.Errorf("there is no %s", what)
		}
	}
	t.Logf("%d packets, of which %d are datagrams", packets, datagrams)
}

// fetch has one node serve a file and another get it, by TCP.
func (s *subnet) fetch(t *testing.T, server, client, size int) {
	t.Helper()
	dir := t.TempDir()
	file := make([]byte, size)
	for i := range file {
		file[i] = byte(i>>12 ^ i*7)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), file, 0o644); err != nil {
		t.Fatal(err)
	}
	web, err := lab.Start(lab.Cmd{NetNS: s.Spaces[server].Name, Args: []string{"busybox", "httpd", "-f", "-p", "8000",
		"-h", dir}})
	if err != nil {
		t.Fatal(err)
	}
	defer web.Kill()
	if err := web.Listening(8000, fabricLimit); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "copy")
	s.mustIn(client, "busybox", "wget", "-q", "-O", to, fmt.Sprintf("http://%s:8000/file", v4(server)))
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, file) {
		t.Errorf("%d octets arrived as %d others: %v", len(file), len(got), err)
	}
}
