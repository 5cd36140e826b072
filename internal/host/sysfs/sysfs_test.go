// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

func device(name string) Device {
	return Device{
		Name: name, NodeGUID: 0x025254fffe000001, SysImageGUID: 0x025254fffe000002, NodeDesc: "weft on\nhost", Firmware: "0.1.0",
		HCAType: "weft", BoardID: "WEFT1", NetDevs: []string{"eth0"}, CPUs: 2,
		Ports: []Port{{
			State: ib.PortActive, Phys: ib.PhysLinkUp, LinkLayer: "Ethernet", Rate: "100 Gb/sec (4X EDR)", CapMask: 0x10000, PKeys: []ib.PKey{ib.DefaultPKey},
			GIDs: []GID{
				{GID: ib.GIDFromAddr(netip.MustParseAddr("fe80::1")), Type: "RoCE v2", NetDev: "eth0"},
				{GID: ib.GIDFromAddr(netip.MustParseAddr("10.0.0.1")), Type: "RoCE v2", NetDev: "eth0"},
				{}, // unused, as are those up to the end
				{GID: ib.GIDFromAddr(netip.MustParseAddr("10.0.0.2")), Type: "RoCE v2"},
			},
			GIDTableLen: 256,
		}},
	}
}

// list returns every file below dir with its content, links with " -> target".
func list(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			m[rel] = " -> " + target
			return err
		case d.Type().IsRegular():
			b, err := os.ReadFile(path)
			m[rel] = string(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// InfiniBand ports have files for user MADs, in the order of their devices.
func TestMADFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	native := func(name string) Device {
		d := device(name)
		d.Ports[0].LinkLayer = "InfiniBand"
		return d
	}
	two := native("b")
	two.Ports = append(two.Ports, two.Ports[0])
	if err := Write(dir, []Device{native("c"), device("a"), two}); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name, text := range list(t, dir) {
		switch entry, mad := strings.CutPrefix(name, "sys/class/infiniband_mad/"); {
		case mad && strings.HasPrefix(text, " -> "):
			for _, file := range []string{"ibdev", "port"} {
				b, err := os.ReadFile(filepath.Join(dir, name, file))
				if err != nil {
					t.Error(err)
				}
				got[entry+"/"+file] = string(b)
			}
		case mad, strings.HasPrefix(name, "dev/infiniband/") && !strings.HasPrefix(name, "dev/infiniband/uverbs"):
			got[entry] = text
		}
	}
	want := map[string]string{"abi_version": "5\n", "dev/infiniband/rdma_cm": ""}
	for i, p := range []struct{ dev, port string }{{"b", "1"}, {"b", "2"}, {"c", "1"}} {
		for _, kind := range []string{"umad", "issm"} {
			n := kind + strconv.Itoa(i)
			want[n+"/ibdev"], want[n+"/port"], want["dev/infiniband/"+n] = p.dev+"\n", p.port+"\n", ""
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	if err := Write(dir, []Device{device("weft0")}); err != nil {
		t.Fatal(err)
	}
	const d = "sys/devices/virtual/weft/weft0/"
	const b, p = d + "infiniband/weft0/", d + "infiniband/weft0/ports/1/"
	want := map[string]string{
		"dev/infiniband/rdma_cm":                   "",
		"dev/infiniband/uverbs0":                   "",
		"sys/class/misc/rdma_cm/abi_version":       "4\n",
		"sys/class/infiniband/weft0":               " -> ../../devices/virtual/weft/weft0/infiniband/weft0",
		"sys/class/infiniband_mad/abi_version":     "5\n",
		"sys/class/infiniband_verbs/abi_version":   "6\n",
		"sys/class/infiniband_verbs/uverbs0":       " -> ../../devices/virtual/weft/weft0/infiniband_verbs/uverbs0",
		d + "infiniband_verbs/uverbs0/ibdev":       "weft0\n",
		d + "infiniband_verbs/uverbs0/abi_version": "1\n",
		d + "infiniband_verbs/uverbs0/device":      " -> ../../../weft0",
		d + "infiniband_verbs/uverbs0/subsystem":   " -> ../../../../../../class/infiniband_verbs",
		b + "subsystem":                            " -> ../../../../../../class/infiniband",
		b + "uevent":                               "NAME=weft0\n",
		d + "local_cpulist":                        "0-1\n",
		d + "local_cpus":                           "00000003\n",
		d + "numa_node":                            "-1\n",
		b + "device":                               " -> ../../../weft0",
		b + "node_guid":                            "0252:54ff:fe00:0001\n",
		b + "sys_image_guid":                       "0252:54ff:fe00:0002\n",
		b + "node_type":                            "1: CA\n",
		b + "node_desc":                            "weft on host\n",
		b + "fw_ver":                               "0.1.0\n",
		b + "hw_rev":                               "0\n",
		b + "hca_type":                             "weft\n",
		b + "board_id":                             "WEFT1\n",
		p + "state":                                "4: ACTIVE\n",
		p + "phys_state":                           "5: LinkUp\n",
		p + "link_layer":                           "Ethernet\n",
		p + "rate":                                 "100 Gb/sec (4X EDR)\n",
		p + "lid":                                  "0x0\n",
		p + "sm_lid":                               "0x0\n",
		p + "lid_mask_count":                       "0\n",
		p + "sm_sl":                                "0\n",
		p + "cap_mask":                             "0x00010000\n",
		p + "pkeys/0":                              "0xffff\n",
		p + "gids/0":                               "fe80:0000:0000:0000:0000:0000:0000:0001\n",
		p + "gids/1":                               "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
		p + "gids/3":                               "0000:0000:0000:0000:0000:ffff:0a00:0002\n",
		p + "gid_attrs/types/0":                    "RoCE v2\n",
		p + "gid_attrs/types/1":                    "RoCE v2\n",
		p + "gid_attrs/types/3":                    "RoCE v2\n",
		p + "gid_attrs/ndevs/0":                    "eth0\n",
		p + "gid_attrs/ndevs/1":                    "eth0\n",
	}
	want[p+"gid_attrs/ndevs/3"] = "" // stands for a file that cannot be read
	for i := 2; i < 256; i++ {
		if i == 3 {
			continue
		}
		n := strconv.Itoa(i)
		want[p+"gids/"+n] = "0000:0000:0000:0000:0000:0000:0000:0000\n"
		want[p+"gid_attrs/types/"+n], want[p+"gid_attrs/ndevs/"+n] = "", ""
	}
	if diff := cmp.Diff(want, list(t, dir)); diff != "" {
		t.Error(diff)
	}
	// What programs follow must lead somewhere.
	for _, name := range []string{"ports/1/state", "device/local_cpus", "device/net/eth0", "../../numa_node",
		"subsystem/weft0/device/infiniband_verbs/uverbs0/device/infiniband/weft0/node_type"} {
		if _, err := os.Stat(dir + "/sys/class/infiniband/weft0/" + name); err != nil {
			t.Error(err)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "dev/infiniband/uverbs0")); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("uverbs0: %v %v", st, err)
	}
}

func TestReplaceAndRemove(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	if err := Write(dir, []Device{device("b"), device("a")}); err != nil {
		t.Fatal(err)
	}
	// uverbs numbers follow the names' order, not the caller's.
	owners := func() (names []string) {
		for i := range 2 {
			b, _ := os.ReadFile(filepath.Join(dir, "sys/class/infiniband_verbs", "uverbs"+strconv.Itoa(i), "ibdev"))
			names = append(names, string(b))
		}
		return names
	}
	if got := owners(); got[0] != "a\n" || got[1] != "b\n" {
		t.Errorf("%q", got)
	}
	if err := os.MkdirAll(dir+".new/left", 0o755); err != nil { // by a writer that died
		t.Fatal(err)
	}
	if err := Write(dir, []Device{device("c")}); err != nil {
		t.Fatal(err)
	}
	if got := owners(); got[0] != "c\n" || got[1] != "" {
		t.Errorf("%q", got)
	}
	if err := Remove(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if err := Remove(dir); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// TestReadersSeeOneTree reads while a writer replaces: the file is always
// there and always whole.
func TestReadersSeeOneTree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	up, down := device("weft0"), device("weft0")
	down.Ports[0].State = ib.PortDown
	if err := Write(dir, []Device{up}); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "sys/devices/virtual/weft/weft0/infiniband/weft0/ports/1/state")
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !done.Load() {
			f, err := os.Open(filepath.Dir(name)) // pins one tree, as a program in it does
			if err != nil {
				continue // between two components of the path the trees changed places
			}
			if _, err := os.Stat(dir); err != nil {
				t.Errorf("the tree was away: %v", err)
			}
			f.Close()
			b, err := os.ReadFile(name)
			if err == nil && string(b) != "4: ACTIVE\n" && string(b) != "1: DOWN\n" {
				t.Errorf("read %q", b)
			}
		}
	})
	for i := range 20 {
		d := up
		if i%2 == 0 {
			d = down
		}
		if err := Write(dir, []Device{d}); err != nil {
			t.Error(err)
		}
	}
	done.Store(true)
	wg.Wait()
}

func TestNamesCannotEscape(t *testing.T) {
	for _, name := range []string{"", ".", "..", "../x", "a/b", "a\x00b"} {
		parent := t.TempDir()
		d := device("weft0")
		d.NetDevs = []string{name}
		for _, devs := range [][]Device{{device(name)}, {d}} {
			err := Write(filepath.Join(parent, "tree"), devs)
			if err == nil || !strings.Contains(err.Error(), "cannot be a file name") {
				t.Errorf("%q: %v", name, err)
			}
		}
		if left, _ := os.ReadDir(parent); len(left) != 0 {
			t.Errorf("%q left %v", name, left)
		}
	}
}

func TestCPUMask(t *testing.T) {
	for n, want := range map[int]string{0: "00000000", 1: "00000001", 2: "00000003", 32: "ffffffff",
		33: "00000001,ffffffff", 72: "000000ff,ffffffff,ffffffff"} {
		if got := cpuMask(n); got != want {
			t.Errorf("%d: want %s, got %s", n, want, got)
		}
	}
}
