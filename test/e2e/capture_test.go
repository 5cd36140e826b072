// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/test/lab"
)

// captured is a capture of a node under way.
type captured struct {
	*lab.Proc
	file string
}

// startCapture starts weft capture into a file and returns when it runs.
func startCapture(t *testing.T, n *lab.Node, args ...string) captured {
	t.Helper()
	c := captured{file: filepath.Join(t.TempDir(), "capture.pcapng")}
	var err error
	if c.Proc, err = lab.Start(captureCmd(n, append([]string{"-w", c.file}, args...)...)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	eventually(t, "a capture runs", func() bool { return strings.Contains(c.Output(), " runs: ") }, c, n.Proc)
	return c
}

func captureCmd(n *lab.Node, args ...string) lab.Cmd {
	return lab.Cmd{UID: n.UID, Args: append([]string{lab.Bin("weft"), "capture", "--dir", n.Dir}, args...),
		Peers: []lab.Peer{n.Proc}}
}

// end ends a capture that no count has ended, and opens its file.
func (c captured) end(t *testing.T) capture {
	t.Helper()
	c.Signal(syscall.SIGINT)
	if err := c.Wait(30 * time.Second); err != nil || !strings.Contains(c.Output(), ", 0 dropped") {
		t.Fatalf("%v: %s", err, c.Output())
	}
	return capture{t, c.file}
}

// eventually waits for a condition, as long as the peers live.
func eventually(t *testing.T, what string, ok func() bool, peers ...lab.Peer) {
	t.Helper()
	if err := lab.Until(what, 30*time.Second, func() (bool, error) { return ok(), nil }, peers...); err != nil {
		t.Fatal(err)
	}
}

// TestCapture: what programs of one node exchange is in a capture, every request and
// acknowledgement, as frames that another's dissector finds nothing wrong with; filters
// leave out what they shall; and a pipe into tshark shows it at once.
func TestCapture(t *testing.T) {
	t.Parallel()
	needs(t, "tshark", "dumpcap", "saquery", "sminfo")
	b := openTestbed(t, 9000, true, 0)
	// The first programs of a device have these queue pair numbers.
	const first, second = 0x4002, 0x8002
	all := startCapture(t, b.Server)
	one := startCapture(t, b.Server, "--dev", "weft0/1", "--qp", fmt.Sprint(second), "--snaplen", "70")
	const piped = 12
	tshark, err := lab.Start(lab.Cmd{Peers: []lab.Peer{b.Server.Proc}, Args: []string{"sh", "-c",
		fmt.Sprintf("%s | tshark -n -l -i - -T fields -e frame.number -e infiniband.bth.psn",
			captureCmd(b.Server, "-w", "-", "--dev", "weft_ib0", "--count", strconv.Itoa(piped)))}})
	if err != nil {
		t.Fatal(err)
	}
	defer tshark.Kill()
	eventually(t, "tshark reads", func() bool {
		return strings.Contains(tshark.Output(), "Capturing on '-'") && strings.Contains(tshark.Output(), " runs: ")
	}, tshark)
	eventually(t, "the status shows three", func() bool {
		out, err := b.Server.Weft("status")
		return err == nil && strings.Count(out, "\ncapture   ") == 3 &&
			strings.Contains(out, "reach each other by the packet path")
	}, b.Server.Proc, tshark, all, one)

	const iters = 7
	pingpong := func(device string, size int) (qpn []uint64, psn map[uint64]uint64) {
		t.Helper()
		testbed := b.Testbed
		testbed.Device = device
		p, err := testbed.Start(nil, "ibv_rc_pingpong", "-c", "-n", strconv.Itoa(iters), "-s", strconv.Itoa(size),
			"-m", "1024")
		defer p.Kill()
		if err != nil {
			t.Fatal(err)
		}
		if c, s := p.Wait(60 * time.Second); c != nil || s != nil {
			t.Fatalf("%v, %v: %s", c, s, p.Outputs())
		}
		psn = map[uint64]uint64{}
		for _, out := range []string{p.Server.Output(), p.Client.Output()} {
			var lid, q, n uint64
			at := strings.Index(out, "local address:")
			if _, err := fmt.Sscanf(out[max(at, 0):], "local address: LID 0x%x, QPN 0x%x, PSN 0x%x", &lid, &q,
				&n); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			qpn = append(qpn, q)
			psn[q] = n
		}
		return qpn, psn
	}
	roce, rocePSN := pingpong("", 3000)
	native, nativePSN := pingpong("weft_ib0", 3000)
	if slices.Sort(roce); !slices.Equal(roce, []uint64{first, second}) {
		t.Fatalf("the first queue pairs of weft0 are %#x", roce)
	}
	others, _ := pingpong("", 100)
	if slices.Contains(others, second) {
		t.Fatalf("the next queue pairs of weft0 are %#x", others)
	}

	if err := tshark.Wait(60 * time.Second); err != nil {
		t.Errorf("%v: %s", err, tshark.Output())
	}
	capturesManagement(t, b.Server)
	if out := tshark.Output(); !strings.Contains(out, fmt.Sprintf("\n%d\t", piped)) ||
		strings.Contains(out, fmt.Sprintf("\n%d\t", piped+1)) {
		t.Errorf("not %d packets by a pipe: %s", piped, out)
	}

	x := all.end(t)
	x.faultless(t)
	for _, d := range []struct {
		filter string
		qpn    []uint64
		psn    map[uint64]uint64
	}{{"eth and infiniband and !(infiniband.bth.destqp == " + fmt.Sprintf("%#x", others[0]) +
		" or infiniband.bth.destqp == " + fmt.Sprintf("%#x", others[1]) + ")", roce, rocePSN},
		{"erf and infiniband", native, nativePSN}} {
		// By receiver: three packets of each message in sequence, and one acknowledgement of the
		// last of each message the other way.
		sent, acked := map[uint64][]uint64{}, map[uint64][]uint64{}
		for _, l := range x.fields2(d.filter, "infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn") {
			var v [3]uint64
			for i, f := range strings.Split(l, "\t") {
				v[i], _ = strconv.ParseUint(f, 0, 64)
			}
			if v[0] == 17 {
				acked[v[1]] = append(acked[v[1]], v[2])
			} else {
				sent[v[1]] = append(sent[v[1]], v[2])
			}
		}
		for i, q := range d.qpn {
			peer := d.qpn[1-i]
			var want, acks []uint64
			for k := range uint64(3 * iters) {
				want = append(want, (d.psn[peer]+k)&0xffffff)
				if k%3 == 2 {
					acks = append(acks, (d.psn[peer]+k)&0xffffff)
				}
			}
			if !slices.Equal(sent[q], want) || !slices.Equal(acked[peer], acks) {
				t.Errorf("%s: to %#x: PSN %d, want %d; acknowledged to %#x: %d, want %d", d.filter, q, sent[q], want,
					peer, acked[peer], acks)
			}
		}
	}

	y := one.end(t)
	lines := y.fields2("infiniband", "infiniband.bth.destqp", "frame.cap_len", "frame.len")
	if len(lines) != 2*4*iters {
		t.Errorf("%d packets from and to queue pair %#x, want %d", len(lines), second, 2*4*iters)
	}
	long := 0
	for _, l := range lines {
		var q, got, whole int
		if _, err := fmt.Sscanf(l, "0x%x\t%d\t%d", &q, &got, &whole); err != nil || q != first && q != second ||
			got != min(whole, 70) {
			t.Errorf("%q: %v", l, err)
		}
		if whole > 1000 {
			long++
		}
	}
	if long != 2*3*iters {
		t.Errorf("%d packets are long, want %d", long, 2*3*iters)
	}
	if out, err := b.Server.Weft("status"); err != nil || strings.Contains(out, "capture ") {
		t.Errorf("%v: %s", err, out)
	}
	if st, err := os.Stat(all.file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: others may read it", st.Mode(), err)
	}
}

// capturesManagement: what programs ask the subnet manager and its administration from an InfiniBand port is there,
// with the answers.
func capturesManagement(t *testing.T, n *lab.Node) {
	t.Helper()
	var lids [2]uint64
	for i, f := range []string{"lid", "sm_lid"} {
		s, err := sysfsFile(n, f)
		if err == nil {
			lids[i], err = strconv.ParseUint(s, 0, 16)
		}
		if err != nil || lids[i] == 0 {
			t.Fatalf("%s: %q, %v", f, s, err)
		}
	}
	c := startCapture(t, n, "--dev", "weft_ib0", "--qp", "0", "--qp", "1")
	for _, program := range []string{"sminfo", "saquery"} {
		if out, err := lab.Run(n.Program(program), diagLimit); err != nil {
			t.Fatalf("%s: %v: %s", program, err, out)
		}
	}
	x := c.end(t)
	x.faultless(t)
	const get, response, getTable, tableResponse = 0x01, 0x81, 0x12, 0x92
	const subnet, administration = 0x01, 0x03
	type packet struct{ slid, dlid, qp, vl, class, method uint64 }
	seen := map[packet]bool{}
	for _, l := range x.fields2("infiniband", "infiniband.lrh.slid", "infiniband.lrh.dlid", "infiniband.bth.destqp",
		"infiniband.lrh.vl", "infiniband.mad.mgmtclass",
		"infiniband.mad.method") {
		var v [6]uint64
		for i, f := range strings.Split(l, "\t") {
			v[i], _ = strconv.ParseUint(f, 0, 64)
		}
		seen[packet{v[0], v[1], v[2], v[3], v[4], v[5]}] = true
	}
	port, sm := lids[0], lids[1]
	for _, want := range []packet{{port, sm, 0, 15, subnet, get}, {sm, port, 0, 15, subnet, response},
		{port, sm, 1, 0, administration, getTable}, {sm, port, 1, 0, administration, tableResponse}} {
		if !seen[want] {
			t.Errorf("a capture has no %+v: %+v", want, seen)
		}
	}
}

// fields2 is fields of the packets that a filter takes.
func (c capture) fields2(filter string, names ...string) []string {
	c.t.Helper()
	args := []string{"-Y", filter, "-T", "fields"}
	for _, n := range names {
		args = append(args, "-e", n)
	}
	var lines []string
	for line := range strings.Lines(c.tshark(args...)) {
		if !strings.HasPrefix(line, "Running as user") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
