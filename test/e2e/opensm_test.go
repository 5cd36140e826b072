// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

// opensm is Debian's subnet manager at work on a node.
type opensm struct {
	*lab.Proc
	s     *subnet
	log   string // its file
	downs uint64 // of trunks before it was started
}

// startOpenSM starts OpenSM on a node, with its caches in dir, and returns when
// it has brought the subnet up. Without -g it takes the first port that is up,
// in the order of device names: the Ethernet one. With -d 2 it writes every line
// of its log at once, with -t a busy machine does not pass for one that is gone.
func (s *subnet) startOpenSM(node int, dir, name string, more ...string) *opensm {
	s.t.Helper()
	o := &opensm{s: s, log: filepath.Join(dir, name), downs: s.downs()}
	guid := fmt.Sprintf("%#x", uint64(identity(s.t, s.nodes[node]))+3)
	var err error
	args := append([]string{"env", "OSM_TMP_DIR=" + dir, "OSM_CACHE_DIR=" + dir, "opensm", "-d", "2", "-D", "3", "-t",
		"2000", "-g", guid, "-f", o.log}, more...)
	o.Proc, err = lab.Start(s.nodes[node].Program(args...))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("opensm on node %d, %s:\n%s", node, name, lab.Tail(o.text(), 60))
		}
		o.Kill()
	})
	s.other = append(s.other, o.Proc)
	s.until("opensm brings the subnet up", func() bool { return strings.Contains(o.text(), "SUBNET UP") })
	return o
}

func (o *opensm) text() string {
	b, _ := os.ReadFile(o.log)
	return string(b)
}

// faultless expects no error in the log, as long as no trunk has been down: on a
// machine that is too busy for a third of a second trunks are, and requests on
// their way are lost.
func (o *opensm) faultless(t *testing.T) {
	t.Helper()
	var list []string
	for line := range strings.Lines(o.text()) {
		if strings.Contains(line, "ERR ") {
			list = append(list, line)
		}
	}
	downs := o.s.downs()
	if len(list) > 0 && downs == o.downs {
		t.Errorf("opensm logs\n%s", strings.Join(list, ""))
	} else if downs != o.downs {
		t.Logf("trunks went down %d times meanwhile; opensm logs %d errors", downs-o.downs, len(list))
	}
}

// downs is how often trunks went down.
func (s *subnet) downs() uint64 {
	s.t.Helper()
	n, err := countDowns(s.nodes[:]...)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// trunksUp waits until each node receives hellos of both others.
func (s *subnet) trunksUp() {
	s.t.Helper()
	s.until("every trunk is up", func() bool {
		for _, n := range s.nodes {
			var list []api.Trunk
			if n.Query(&list, "trunk") != nil || slices.ContainsFunc(list, func(t api.Trunk) bool { return !t.Up }) {
				return false
			}
		}
		return true
	})
}

// TestOpenSM has Debian's OpenSM manage three nodes, and infiniband-diags look
// at them.
func TestOpenSM(t *testing.T) {
	t.Parallel()
	needs(t, "opensm", "ibstat", "saquery", "ibtracert")
	s := startSubnet(t, false, "--sm", "external", "--store", "memory")
	s.trunksUp()
	dir := t.TempDir()
	o := s.startOpenSM(1, dir, "first")
	f := s.learn(t)
	t.Run("diagnostics", f.diagnose)
	meet := func(t *testing.T) {
		for _, p := range pairsOfThree {
			for _, program := range []string{"ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong",
				"ibv_srq_pingpong"} {
				t.Run(fmt.Sprintf("%s %d-%d", program, p[0], p[1]), func(t *testing.T) {
					s.between(p[0], p[1], native).pair(t, 60*time.Second, program, "-c")
				})
			}
		}
	}
	meet(t)
	t.Run("ib_send_bw multicast", func(t *testing.T) {
		needs(t, "ib_send_bw")
		s.between(0, 2, native).multicast(t, native, 0)
	})
	o.faultless(t)

	// Without a manager everything goes on, and the port shows that there is none.
	o.Kill()
	s.until("the port shows that no manager is there", func() bool {
		mask, _ := sysfsFile(s.nodes[1], "cap_mask")
		v, err := strconv.ParseUint(mask, 0, 32)
		return err == nil && v&2 == 0
	})
	s.between(0, 2, native).pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")

	// The next one, also one that knows nothing of the first, leaves LIDs alone.
	o = s.startOpenSM(1, dir, "second")
	s.learn(t).same(t, f)
	o.Kill()
	o = s.startOpenSM(0, t.TempDir(), "third")
	s.learn(t).same(t, f)
	meet(t)
	o.faultless(t)

	// It is told of a trunk that goes, and finds the way over the third node.
	if err := s.Cut(1, 2, true); err != nil {
		t.Fatal(err)
	}
	want := f.way(1, 0, 2)
	s.until("opensm leads over the third node", func() bool { return slices.Equal(f.traced(t, 1, 2), want) })
	s.between(1, 2, native).pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")
	if err := s.Cut(1, 2, false); err != nil {
		t.Fatal(err)
	}
	want = f.way(1, 2)
	s.until("opensm leads over the trunk again", func() bool { return slices.Equal(f.traced(t, 1, 2), want) })
	s.learn(t).same(t, f)
}

// TestOpenSMGuards has OpenSM guard the nodes with an M_Key: it goes on to manage them, and
// no other manager does.
func TestOpenSMGuards(t *testing.T) {
	t.Parallel()
	needs(t, "opensm", "smpquery", "ibportstate")
	const key = "0x1122334455667788"
	s := startSubnet(t, false, "--sm", "external", "--store", "memory")
	s.trunksUp()
	dir := t.TempDir()
	conf := filepath.Join(dir, "conf")
	if err := os.WriteFile(conf, []byte("m_key "+key+
		"\nm_key_lease_period 60\nm_key_protection_level 1\nm_key_lookup FALSE\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := s.startOpenSM(1, dir, "log", "-F", conf)
	f := s.learn(t)
	guarded := func() {
		t.Helper()
		for i := range s.nodes {
			for _, lid := range []string{f.lid[i], f.sw[i]} {
				port := "1"
				if lid == f.sw[i] {
					port = "0"
				}
				out := f.run(t, 0, "smpquery", "-K", "-y", key, "portinfo", lid, port)
				if !regexp.MustCompile(`Mkey:\.+`+key+`\n`).MatchString(out) ||
					!regexp.MustCompile(`ProtectBits:\.+1\n`).MatchString(out) {
					t.Errorf("LID %s is not guarded:\n%s", lid, out)
				}
				if out = f.run(t, 0, "smpquery", "-K", "portinfo", lid, port); strings.Contains(out, key) {
					t.Errorf("LID %s shows its M_Key:\n%s", lid, out)
				}
			}
		}
	}
	guarded()
	for _, lid := range []string{f.sw[0], f.sw[2]} {
		if out, err := lab.Run(s.nodes[0].Program("ibportstate", lid, "1", "disable"), diagLimit); err == nil {
			t.Errorf("a Set without the M_Key was obeyed:\n%s", out)
		}
	}
	s.between(0, 2, native).pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")
	o.faultless(t)

	// Its traps are answered with the key, and what it is told of is mended.
	if err := s.Cut(0, 2, true); err != nil {
		t.Fatal(err)
	}
	want := f.way(0, 1, 2)
	s.until("opensm leads over the third node", func() bool { return slices.Equal(f.traced(t, 0, 2), want) })
	if err := s.Cut(0, 2, false); err != nil {
		t.Fatal(err)
	}
	want = f.way(0, 2)
	s.until("opensm leads over the trunk again", func() bool { return slices.Equal(f.traced(t, 0, 2), want) })
	s.learn(t).same(t, f)
	guarded()
}

// known is the subnet of three nodes as programs show it.
type known struct {
	s    *subnet
	base [3]uint64 // GUID of the switch
	lid  [3]string // of the adapter's port
	sw   [3]string // LID of the switch
	sm   string    // LID of the master
	text string    // of ibnetdiscover
}

func (f *known) switchGUID(i int) string { return fmt.Sprintf("%016x", f.base[i]) }
func (f *known) caGUID(i int) string     { return fmt.Sprintf("%016x", f.base[i]+2) }
func (f *known) portGUID(i int) string   { return fmt.Sprintf("%016x", f.base[i]+3) }

// trunk is the port of node i's switch that leads to node j: the highest ones,
// in the order of --peer.
func trunk(i, j int) int {
	p := 36
	for k := range j {
		if k != i {
			p--
		}
	}
	return p
}

// learn waits for a subnet that is whole, and reads LIDs.
func (s *subnet) learn(t *testing.T) *known {
	t.Helper()
	f := &known{s: s}
	for i := range s.nodes {
		if out, err := s.nodes[i].Weft("wait", "--for=active", "--timeout", "20s"); err != nil {
			t.Fatalf("node %d: %v %s", i, err, out)
		}
		f.base[i] = uint64(identity(t, s.nodes[i]))
	}
	s.until("every link is active", func() bool {
		out, err := lab.Run(s.nodes[0].Program("iblinkinfo", "-l"), diagLimit)
		return err == nil && strings.Count(out, "Active/") == 12
	})
	f.text = f.run(t, 0, "ibnetdiscover")
	for i := range s.nodes {
		m := regexp.MustCompile(`(?m)^Switch\t36 "S-` + f.switchGUID(i) +
			`".* enhanced port 0 lid (\d+) lmc 0$`).FindStringSubmatch(f.text)
		if m == nil {
			t.Fatalf("ibnetdiscover shows no switch %d:\n%s", i, f.text)
		}
		f.sw[i] = m[1]
		p := s.device(i, native)
		f.lid[i], f.sm = fmt.Sprint(p.LID), fmt.Sprint(p.SMLID)
	}
	return f
}

// same expects the LIDs of earlier.
func (f *known) same(t *testing.T, earlier *known) {
	t.Helper()
	if f.lid != earlier.lid || f.sw != earlier.sw {
		t.Errorf("adapters have LIDs %v and had %v, switches %v and had %v", f.lid, earlier.lid, f.sw, earlier.sw)
	}
}

func (f *known) run(t *testing.T, node int, args ...string) string {
	t.Helper()
	out, err := lab.Run(f.s.nodes[node].Program(args...), diagLimit)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// links are all links, each from both ends, as four words made of the ends.
func (f *known) links(ca, sw func(i int) string) (list []string) {
	for i := range 3 {
		list = append(list, fmt.Sprintf("%s 1 %s 1", ca(i), sw(i)), fmt.Sprintf("%s 1 %s 1", sw(i), ca(i)))
		for j := range 3 {
			if i != j {
				list = append(list, fmt.Sprintf("%s %d %s %d", sw(i), trunk(i, j), sw(j), trunk(j, i)))
			}
		}
	}
	slices.Sort(list)
	return list
}

// way is how a packet from node nodes[0] passes others to the last: GUIDs and
// ports as ibtracert names them.
func (f *known) way(nodes ...int) (list []string) {
	list = append(list, f.caGUID(nodes[0])+" 1", f.switchGUID(nodes[0])+" 1")
	for k, j := range nodes[1:] {
		i := nodes[k]
		list = append(list, fmt.Sprintf("out %d", trunk(i, j)), fmt.Sprintf("%s %d", f.switchGUID(j), trunk(j, i)))
	}
	return append(list, "out 1", f.portGUID(nodes[len(nodes)-1])+" 1")
}

var traceLine = regexp.MustCompile(`(?m)^(?:From ca \{0x([0-9a-f]+)\} portnum (\d+)|\[(\d+)\] -> (?:switch|ca) port \{0x([0-9a-f]+)\}\[(\d+)\])`)

// traced is the way that ibtracert shows between the adapters of two nodes.
func (f *known) traced(t *testing.T, from, to int) (list []string) {
	// fails where there is no way yet
	out, _ := lab.Run(f.s.nodes[from].Program("ibtracert", f.lid[from], f.lid[to]), diagLimit)
	for _, m := range traceLine.FindAllStringSubmatch(out, -1) {
		switch {
		case m[1] != "":
			list = append(list, m[1]+" "+m[2])
		default:
			if len(list) > 1 {
				list = append(list, "out "+m[3])
			}
			list = append(list, m[4]+" "+m[5])
		}
	}
	return list
}

// equal compares what a program shows with what there is.
func equal(t *testing.T, what string, got, want []string, text string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant:\n%s\nof:\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"),
			lab.Tail(text, 80))
	}
}

// recordLine begins a record; other dumps are of parts of one.
var recordLine = regexp.MustCompile(`Record( (member|group))? dump:$|ClassPortInfo:$`)

// records reads what saquery prints: fields of records by name.
func records(out string) (list []map[string]string) {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if recordLine.MatchString(line) {
			list = append(list, map[string]string{})
			continue
		}
		name, value, ok := strings.Cut(line, "..")
		if ok && len(list) > 0 {
			list[len(list)-1][strings.TrimSuffix(name, ":")] = strings.TrimLeft(value, ".")
		}
	}
	return list
}

// each makes one line of some fields of every record.
func each(list []map[string]string, names ...string) (lines []string) {
	for _, r := range list {
		var v []string
		for _, n := range names {
			v = append(v, r[n])
		}
		lines = append(lines, strings.Join(v, " "))
	}
	return lines
}

// diagnose expects Debian's diagnostics to show the three nodes as they are.
func (f *known) diagnose(t *testing.T) {
	ca := func(i int) string { return "H-" + f.caGUID(i) }
	sw := func(i int) string { return "S-" + f.switchGUID(i) }
	lidOf := func(i int) string { return f.lid[i] }
	swLID := func(i int) string { return f.sw[i] }
	t.Run("ibnetdiscover", func(t *testing.T) {
		var links []string
		here := ""
		for line := range strings.Lines(f.text) {
			if m := regexp.MustCompile(`^(?:Switch|Ca)\t\d+ "(\S+)"`).FindStringSubmatch(line); m != nil {
				here = m[1]
			} else if m := regexp.MustCompile(`^\[(\d+)\](?:\([0-9a-f]+\))?\s+"(\S+)"\[(\d+)\].* 4xEDR$`).FindStringSubmatch(strings.TrimSpace(line)); m != nil {
				links = append(links, fmt.Sprintf("%s %s %s %s", here, m[1], m[2], m[3]))
			}
		}
		equal(t, "links", links, f.links(ca, sw), f.text)
	})
	t.Run("iblinkinfo", func(t *testing.T) {
		out := f.run(t, 2, "iblinkinfo", "-l")
		var links []string
		re := regexp.MustCompile(`(?m)^0x([0-9a-f]+) ".*" +(\d+) +(\d+)\[  \] ==\( 4X +25\.78125 Gbps Active/ +LinkUp\)==> +0x([0-9a-f]+) +(\d+) +(\d+)\[`)
		for _, m := range re.FindAllStringSubmatch(out, -1) {
			links = append(links, fmt.Sprintf("%s/%s %s %s/%s %s", m[1], m[2], m[3], m[4], m[5], m[6]))
		}
		equal(t, "links", links, f.links(func(i int) string { return f.portGUID(i) + "/" + f.lid[i] },
			func(i int) string { return f.switchGUID(i) + "/" + f.sw[i] }), out)
		if n := strings.Count(out, "Down/ Polling"); n != 3*33 {
			t.Errorf("%d ports of switches are down\n%s", n, lab.Tail(out, 120))
		}
	})
	t.Run("ibtracert", func(t *testing.T) {
		for i := range 3 {
			for j := range 3 {
				if i != j && !slices.Equal(f.traced(t, i, j), f.way(i, j)) {
					t.Errorf("%d to %d: %v, want %v", i, j, f.traced(t, i, j), f.way(i, j))
				}
			}
		}
	})
	for i := range 3 {
		t.Run(fmt.Sprintf("node %d", i), func(t *testing.T) {
			for _, d := range []struct {
				args string
				want []string
			}{
				{"ibstat " + native + " 1", []string{`State: Active`, `Physical state: LinkUp`, `Rate: 100`,
					`Base lid: ` + f.lid[i] + `\n`, `SM lid: ` + f.sm + `\n`,
					`Port GUID: 0x` + f.portGUID(i), `Link layer: InfiniBand`}},
				{"sminfo", []string{`sm lid ` + f.sm +
					` sm guid 0x[0-9a-f]+, activity count \d+ priority \d+ state 3 SMINFO_MASTER`}},
				{"ibhosts", []string{`0x` + f.caGUID(0), `0x` + f.caGUID(1), `0x` + f.caGUID(2)}},
			} {
				out := f.run(t, i, strings.Fields(d.args)...)
				for _, w := range d.want {
					if !regexp.MustCompile(w).MatchString(out) {
						t.Errorf("%s shows no %v:\n%s", d.args, w, out)
					}
				}
			}
		})
	}
	t.Run("saquery", func(t *testing.T) { f.askSA(t, lidOf, swLID) })
	t.Run("perfquery", f.count)
}

// askSA expects true records of the three nodes from the subnet administration.
func (f *known) askSA(t *testing.T, lidOf, swLID func(i int) string) {
	ask := func(args ...string) (out string, list []map[string]string) {
		t.Helper()
		// Of ports that are down OpenSM keeps nothing, which saquery warns of.
		out = f.run(t, 1, append([]string{"sh", "-c", `exec saquery "$@" 2>/dev/null`, "saquery"}, args...)...)
		return out, records(out)
	}
	want := func(format string, of ...func(i int) []any) (list []string) {
		for i := range 3 {
			for _, g := range of {
				list = append(list, fmt.Sprintf(format, g(i)...))
			}
		}
		return list
	}
	out, got := ask("NR")
	equal(t, "NodeRecord", each(got, "lid", "node_guid", "port_guid", "node_type", "num_ports"), want("%s 0x%s 0x%s %s",
		func(i int) []any { return []any{f.lid[i], f.caGUID(i), f.portGUID(i), "Channel Adapter 1"} },
		func(i int) []any { return []any{f.sw[i], f.switchGUID(i), f.switchGUID(i), "Switch 36"} }), out)
	for i := range 3 {
		out, got = ask("PIR", f.lid[i]+"/1")
		equal(t, "PortInfoRecord", each(got, "EndPortLid", "PortNum", "Lid", "SMLid", "LinkState"),
			[]string{fmt.Sprintf("%s 1 %s %s Active", f.lid[i], f.lid[i], f.sm)}, out)
		out, got = ask("PIR", f.sw[i])
		if len(got) != 37 {
			t.Errorf("switch %d has %d PortInfoRecords", i, len(got))
		}
		got = slices.DeleteFunc(got, func(r map[string]string) bool { return r["LinkState"] == "Down" })
		equal(t, "PortInfoRecord", each(got, "EndPortLid", "PortNum", "LinkState"),
			[]string{f.sw[i] + " 0 Active", f.sw[i] + " 1 Active", f.sw[i] + " 35 Active", f.sw[i] + " 36 Active"}, out)
		out, got = ask("SWIR", f.sw[i])
		equal(t, "SwitchInfoRecord", each(got, "LID", "LinearFDBCap"), []string{f.sw[i] + " 0xC000"}, out)

		out, _ = ask("LFTR", f.sw[i])
		var routes []string
		for _, m := range regexp.MustCompile(`(?m)^\s+(\d+)\s+(\d+)$`).FindAllStringSubmatch(out, -1) {
			if m[2] != "255" {
				routes = append(routes, m[1]+" "+m[2])
			}
		}
		to := []string{f.lid[i] + " 1", f.sw[i] + " 0"}
		for j := range 3 {
			if j != i {
				to = append(to, fmt.Sprintf("%s %d", f.lid[j], trunk(i, j)), fmt.Sprintf("%s %d", f.sw[j], trunk(i, j)))
			}
		}
		equal(t, "LFTRecord", routes, to, out)
		for j := range 3 {
			out, got = ask("-p", "--src-to-dst", f.lid[i]+":"+f.lid[j])
			equal(t, "PathRecord", each(got, "slid", "dlid", "pkey", "mtu", "rate"),
				[]string{fmt.Sprintf("%s %s 0xFFFF 0x85 0x90", f.lid[i], f.lid[j])}, out)
		}
	}
	out, got = ask("GIR")
	equal(t, "GUIDInfoRecord", each(got, "LID", "Block", "GUID 0"), want("%s 0 0x%s",
		func(i int) []any { return []any{f.lid[i], f.portGUID(i)} }, func(i int) []any {
			return []any{f.sw[i],
				f.switchGUID(i)}
		}), out)
	out, got = ask("LR")
	equal(t, "LinkRecord", each(got, "FromLID", "FromPort", "ToLID", "ToPort"), f.links(lidOf, swLID), out)
	out, got = ask("SMIR")
	masters := slices.DeleteFunc(each(got, "LID", "SMState"), func(l string) bool {
		return !strings.HasSuffix(l,
			" 3")
	})
	equal(t, "SMInfoRecord", masters, []string{f.sm + " 3"}, out)
	out, got = ask("MCMR")
	qkey := "0x80000b1b"
	var m api.Manager
	if err := f.s.nodes[0].Query(&m, "sm"); err != nil {
		t.Fatal(err)
	}
	if m.State == "external" {
		qkey = "0xb1b"
	}
	equal(t, "MCMemberRecord", each(got, "MGID", "pkey", "qkey"), []string{"ff12:401b:ffff::ffff:ffff 0xffff " +
		qkey}, out)
	out, got = ask("-c")
	equal(t, "ClassPortInfo", each(got, "Base version", "Class version"), []string{"1 2"}, out)
	for _, kind := range []string{"SL2VL", "VLAR", "MFTR", "SR", "IIR"} { // there may be none
		ask(kind)
	}
}

// count expects the counters of every port to show which way packets went.
func (f *known) count(t *testing.T) {
	read := func() map[string]uint64 {
		c := map[string]uint64{}
		get := func(lid string, port int) {
			out := f.run(t, 2, "perfquery", "-x", lid, fmt.Sprint(port))
			if !strings.Contains(out, fmt.Sprintf("# Port extended counters: Lid %s port %d ", lid, port)) {
				t.Fatalf("LID %s port %d:\n%s", lid, port, out)
			}
			for _, m := range regexp.MustCompile(`(?m)^Port(Xmit|Rcv)Data:\.+(\d+)$`).FindAllStringSubmatch(out, -1) {
				c[fmt.Sprintf("%s/%d %s", lid, port, m[1])], _ = strconv.ParseUint(m[2], 10, 64)
			}
		}
		for i := range 3 {
			get(f.lid[i], 1)
			get(f.sw[i], 1)
			for j := range 3 {
				if i != j {
					get(f.sw[i], trunk(i, j))
				}
			}
		}
		return c
	}
	before := read()
	if len(before) != 24 {
		t.Fatalf("%d counters: %v", len(before), before)
	}
	const n, size = 2000, 4096
	f.s.between(0, 1, native).pair(t, 60*time.Second, "ibv_rc_pingpong", "-c", "-n", fmt.Sprint(n), "-s",
		fmt.Sprint(size))
	after := read()
	const words = n * size / 4
	for name, v := range after {
		more := v - before[name]
		used := false
		for _, p := range []string{f.lid[0] + "/1 ", f.sw[0] + "/1 ", fmt.Sprintf("%s/%d ", f.sw[0], trunk(0, 1)),
			f.lid[1] + "/1 ", f.sw[1] + "/1 ", fmt.Sprintf("%s/%d ", f.sw[1], trunk(1, 0))} {
			used = used || strings.HasPrefix(name, p)
		}
		if used && (more < words || more > 2*words) || !used && more > words/10 {
			t.Errorf("%s counted %d words of a pingpong of %d each way", name, more, words)
		}
	}
}
