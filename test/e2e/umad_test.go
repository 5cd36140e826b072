// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/test/lab"
)

// managed is what the programs of a subnet's management shall find: two nodes
// joined by a trunk.
type managed struct {
	*testbed
	words *strings.Replacer // {…} of the expectations
}

// nativeDevice is the device of a node's InfiniBand port.
const nativeDevice = "weft_ib0"

const diagLimit = 30 * time.Second

// run runs a program on the first node and expects it to succeed.
func (m *managed) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := lab.Run(m.Server.Program(args...), diagLimit)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// sysfs reads a file of a node's InfiniBand port.
func sysfsFile(n *lab.Node, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(n.Dir, "tree/sys/class/infiniband", nativeDevice, "ports/1", name))
	return strings.TrimSpace(string(b)), err
}

// identity returns the base of a node's GUIDs.
func identity(t *testing.T, n *lab.Node) ib.GUID {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(n.Dir, "identity"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return ib.GUID(v)
}

// needs skips where programs are missing.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			lab.Lacks(t, err)
		}
	}
}

// awaitActive waits until one manager has made the InfiniBand ports of both
// nodes active, then learns the LIDs.
func (m *managed) awaitActive(t *testing.T) {
	t.Helper()
	var words []string
	var a, c, la, lc, sa, sc string
	if err := lab.Until("one manager has made both ports active", diagLimit, func() (bool, error) {
		a, _ = sysfsFile(m.Server, "state") // the tree is exchanged now and then
		c, _ = sysfsFile(m.Client, "state")
		la, _ = sysfsFile(m.Server, "lid")
		lc, _ = sysfsFile(m.Client, "lid")
		sa, _ = sysfsFile(m.Server, "sm_lid")
		sc, _ = sysfsFile(m.Client, "sm_lid")
		// Until the trunk is up, and the managers have elected a master, each
		// node may be a subnet of its own, with the same LIDs.
		return a == "4: ACTIVE" && c == a && la != lc && sa == sc && settled(m.Server, m.Client), nil
	}, m.Server.Proc, m.Client.Proc); err != nil {
		t.Fatalf("%v: the ports are %q with LID %s and %q with LID %s; the managers are %s and %s", err, a, la, c, lc,
			sa, sc)
	}
	for name, n := range map[string]*lab.Node{"1": m.Server, "2": m.Client} {
		g := uint64(identity(t, n))
		lid, err := sysfsFile(n, "lid")
		if err != nil {
			t.Fatal(err)
		}
		l, err := strconv.ParseUint(lid, 0, 16)
		if err != nil || l == 0 {
			t.Fatalf("node %s has LID %q", name, lid)
		}
		words = append(words, "{lid"+name+"}", fmt.Sprint(l), "{sw"+name+"}", fmt.Sprintf("%016x", g), "{ca"+name+"}",
			fmt.Sprintf("%016x", g+2),
			"{port"+name+"}", fmt.Sprintf("%016x", g+3), "{SW"+name+"}", fmt.Sprintf("%x", g), "{CA"+name+
				"}", fmt.Sprintf("%x", g+2), "{xlid"+name+"}", fmt.Sprintf("%x", l))
		sm, err := sysfsFile(n, "sm_lid")
		if err != nil {
			t.Fatal(err)
		}
		s, _ := strconv.ParseUint(sm, 0, 16)
		words = append(words, "{sm"+name+"}", fmt.Sprint(s))
	}
	m.words = strings.NewReplacer(words...)
	for _, name := range []string{"1", "2"} {
		re := regexp.MustCompile(m.words.Replace(`0x{sw` + name +
			`} ports \d+ ".* weft switch" enhanced port 0 lid (\d+) lmc 0`))
		var lid []string
		out := ""
		// A switch's own LID comes with the same sweep, or the one after.
		if err := lab.Until(fmt.Sprintf("ibswitches shows %v", re), diagLimit, func() (bool, error) {
			out = m.run(t, "ibswitches")
			lid = re.FindStringSubmatch(out)
			return lid != nil && lid[1] != "0", nil
		}, m.Server.Proc, m.Client.Proc); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		words = append(words, "{swlid"+name+"}", lid[1])
	}
	m.words = strings.NewReplacer(words...)
}

// diags are programs of infiniband-diags, and what they must print: regular
// expressions, of which {…} are the fabric's numbers.
var diags = []struct {
	args string
	want []string
}{
	{"ibstat weft_ib0 1", []string{`State: Active`, `Physical state: LinkUp`, `Rate: 100`, `Base lid: {lid1}\n`,
		`SM lid: {sm1}\n`, `Port GUID: 0x{port1}`, `Link layer: InfiniBand`}},
	{"ibaddr", []string{`GID fe80::\S+ LID start 0x0*{xlid1} end 0x0*{xlid1}\n`}},
	{"sminfo", []string{`sm lid {sm1} sm guid 0x[0-9a-f]+, activity count \d+ priority \d+ state 3 SMINFO_MASTER`}},
	{"ibhosts", []string{`0x{ca1} ports 1 ".*weft_ib0"`, `0x{ca2} ports 1 ".*weft_ib0"`}},
	{"ibswitches", []string{`0x{sw1} ports 36`, `0x{sw2} ports 36`}},
	{"ibnetdiscover", []string{`switchguid=0x{SW1}\(`, `(?m)^\[36\]\s+"S-{sw2}"\[36\]`,
		`(?m)^\[1\]\s+"H-{ca1}"\[1\].*lid {lid1} 4xEDR`, `caguid=0x{CA2}\n`}},
	{"iblinkinfo -l", []string{`{swlid1}\s+36\[  \] ==\( 4X +25.78125 Gbps Active/ +LinkUp\)==>\s+0x{sw2}\s+{swlid2}\s+36`, `0x{port2}.*Active/ +LinkUp`}},
	{"smpquery nodeinfo {lid2}", []string{`NodeType:\.+Channel Adapter`, `Guid:\.+0x{ca2}`, `PortGuid:\.+0x{port2}`}},
	{"smpquery -D nodeinfo 0,1,36,1", []string{`Guid:\.+0x{ca2}`, `LocalPort:\.+1\n`}},
	{"smpquery portinfo {lid2} 1", []string{`Lid:\.+{lid2}\n`, `SMLid:\.+{sm2}\n`, `LinkState:\.+Active`,
		`NeighborMTU:\.+4096`}},
	{"smpquery switchinfo {swlid2}", []string{`LinearFdbCap:\.+49152`, `EnhancedPort0:\.+1`}},
	{"smpquery pkeys {lid2}", []string{`0: 0x[7f]fff`, `32 pkeys capacity`}},
	{"smpquery sl2vl {lid2} 1", []string{`\| 0\| 0\| 0\|`}},
	{"smpquery vlarb {lid2} 1", []string{`VLArbitration tables: Lid {lid2}`}},
	{"perfquery {lid2} 1", []string{`Port counters: Lid {lid2} port 1`, `PortXmitData:\.+\d+`}},
	{"perfquery -x {lid1} 1", []string{`Port extended counters: Lid {lid1} port 1`, `PortUnicastRcvPkts:`}},
	{"perfquery -a {swlid2}", []string{`Port counters: Lid {swlid2} port 255`}},
	{"ibroute {swlid1}", []string{`(?i)0x[0-9a-f]{4} 001 : \(Channel Adapter portguid 0x{port1}`,
		`0x[0-9a-f]{4} 036 : \(Channel Adapter portguid 0x{port2}`}},
	{"ibtracert {lid1} {lid2}", []string{`\[1\] -> switch port \{0x{sw1}\}\[1\]`,
		`\[36\] -> switch port \{0x{sw2}\}\[36\]`, `\[1\] -> ca port \{0x{port2}\}\[1\]`}},
	{"saquery", []string{`node_guid\.+0x{ca2}`, `node_guid\.+0x{sw1}`, `port_guid\.+0x{port1}`}},
	{"saquery -c", []string{`Redirect QP\.+0x0*1?\n`, `Class version\.+2`}},
	{"saquery -p --src-to-dst {lid1}:{lid2}", []string{`dlid\.+{lid2}\n`, `slid\.+{lid1}\n`, `pkey\.+0xFFFF`,
		`mtu\.+0x85`}},
	{"saquery -x", []string{`FromLID\.+{swlid1}\n\s+FromPort\.+36\n\s+ToPort\.+36\n\s+ToLID\.+{swlid2}`}},
	{"saquery LFTR {swlid1}", []string{`LID\.+{swlid1}\n`}},
	{"saquery PIR {lid2}/1", []string{`EndPortLid\.+{lid2}\n`, `\sLid:\.+{lid2}\n`}},
	{"saquery -s", []string{`EndPortLid\.+{sm1}\n`}},
}

func (m *managed) diagnose(t *testing.T) {
	for _, d := range diags {
		t.Run(strings.Fields(d.args)[0]+" "+strings.Join(strings.Fields(d.args)[1:], "_"), func(t *testing.T) {
			args := strings.Fields(m.words.Replace(d.args))
			out := m.run(t, args...)
			for _, w := range d.want {
				if re := regexp.MustCompile(m.words.Replace(w)); !re.MatchString(out) {
					t.Errorf("%s shows no %v:\n%s", strings.Join(args, " "), re, lab.Tail(out, 80))
				}
			}
		})
	}
}

var fabricFlags = []string{"--fabric", "--peer", peer, "--store", "memory"}

// TestDiagnostics runs Debian's infiniband-diags in a fabric that Weft
// manages.
func TestDiagnostics(t *testing.T) {
	t.Parallel()
	needs(t, "ibstat", "saquery", "ibtracert", "ibping")
	m := &managed{testbed: openTestbed(t, 1500, false, 0, fabricFlags...)}
	m.awaitActive(t)
	m.diagnose(t)
	t.Run("ibping", m.ping)
}

// ping has a program on the second node answer MADs of a vendor class.
func (m *managed) ping(t *testing.T) {
	server, err := lab.Start(m.Client.Program("ibping", "-S"))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	want := "2 packets transmitted, 2 received, 0% packet loss"
	out := ""
	// The server does not say when it has registered.
	if err := lab.Until("ibping prints "+want, diagLimit, func() (bool, error) {
		out = m.run(t, "ibping", "-c", "2", m.words.Replace("{lid2}"))
		return strings.Contains(out, want), nil
	}, server, m.Server.Proc, m.Client.Proc); err != nil {
		t.Fatalf("%v:\n%s\n%s", err, out, server.Output())
	}
}

// TestGuardedSubnet: with an M_Key the diagnostics show the fabric as they do without it;
// a program without it changes nothing, and cannot read it.
func TestGuardedSubnet(t *testing.T) {
	t.Parallel()
	needs(t, "ibstat", "saquery", "ibtracert", "ibportstate")
	const key = "0x1122334455667788"
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &managed{testbed: openTestbed(t, 1500, false, 0, append(slices.Clone(fabricFlags), "--m-key-file", file)...)}
	m.awaitActive(t)
	m.diagnose(t)
	info := strings.Fields(m.words.Replace("smpquery -K portinfo {lid2} 1"))
	shows := func(out, mkey string) {
		t.Helper()
		if !regexp.MustCompile(`Mkey:\.+`+mkey+`\n`).MatchString(out) ||
			!regexp.MustCompile(`ProtectBits:\.+1\n`).MatchString(out) {
			t.Errorf("no M_Key %s:\n%s", mkey, out)
		}
	}
	shows(m.run(t, info...), "0x0+")
	shows(m.run(t, append([]string{"smpquery", "-y", key}, info[1:]...)...), key)
	set := strings.Fields(m.words.Replace("ibportstate {swlid2} 1 lid 77"))
	if out, err := lab.Run(m.Server.Program(set...), diagLimit); err == nil {
		t.Errorf("a Set without the M_Key was obeyed:\n%s", out)
	}
	if lid, err := sysfsFile(m.Client, "lid"); err != nil || lid != m.words.Replace("0x{xlid2}") {
		t.Errorf("LID %q, %v", lid, err)
	}
}
