// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/host/sysfs"
	"weft/internal/proto/ib"
	"weft/test/lab"
)

// TestIbstatReadsTheTree runs Debian's ibstat over a written tree, with the
// shim that redirects its paths and without a node: ibstat reads files only.
func TestIbstatReadsTheTree(t *testing.T) {
	t.Parallel()
	shim, err := filepath.Abs("../../bin/libweft-verbs.so")
	if err != nil {
		t.Fatal(err)
	}
	ibstat, err := exec.LookPath("ibstat")
	if _, serr := os.Stat(shim); err != nil || serr != nil {
		lab.Lacks(t, fmt.Errorf("needs ibstat (infiniband-diags) and %s (make build): %v, %v", shim, err, serr))
	}
	dir := t.TempDir()
	gid := ib.GID{0: 0xfe, 1: 0x80, 15: 0x42}
	err = sysfs.Write(filepath.Join(dir, "tree"), []sysfs.Device{{
		Name: "weft7", NodeGUID: 0x025254fffe000001, SysImageGUID: 0x025254fffe000002, Firmware: "1.2.3", HCAType: "weft", NetDevs: []string{"lo"},
		Ports: []sysfs.Port{
			{State: ib.PortActive, Phys: ib.PhysLinkUp, LinkLayer: "Ethernet", Rate: "100 Gb/sec (4X EDR)",
				CapMask: 0x10000,
				GIDs:    []sysfs.GID{{GID: gid, Type: "RoCE v2", NetDev: "lo"}}, GIDTableLen: 256,
				PKeys: []ib.PKey{ib.DefaultPKey}},
			{State: ib.PortDown, Phys: ib.PhysDisabled, LinkLayer: "InfiniBand", Rate: "10 Gb/sec (4X SDR)",
				LID: 0x1234, SMLID: 1, LMC: 2,
				GIDs: []sysfs.GID{{GID: gid, Type: "IB/RoCE v1"}}, PKeys: []ib.PKey{ib.DefaultPKey}},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "LC_ALL=C", "LD_PRELOAD="+shim, "WEFT_DIR="+dir)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	const port = "/sys/class/infiniband/weft7/ports/1/"
	for file, want := range map[string]string{"gids/0": gid.String() + "\n", "gid_attrs/types/0": "RoCE v2\n",
		"gids/255":            "0000:0000:0000:0000:0000:0000:0000:0000\n",
		"gid_attrs/types/255": "cat: " + port + "gid_attrs/types/255: Invalid argument\n",
		"gid_attrs/ndevs/255": "cat: " + port + "gid_attrs/ndevs/255: Invalid argument\n",
		"gids/256":            "cat: " + port + "gids/256: No such file or directory\n"} {
		if out, _ := run("cat", port+file); out != want {
			t.Errorf("cat %s: want %q, got %q", file, want, out)
		}
	}
	out, err := run(ibstat)
	if err != nil {
		t.Fatalf("ibstat: %v\n%s", err, out)
	}
	want := `CA 'weft7'
	CA type: weft
	Number of ports: 2
	Firmware version: 1.2.3
	Hardware version: 0
	Node GUID: 0x025254fffe000001
	System image GUID: 0x025254fffe000002
	Port 1:
		State: Active
		Physical state: LinkUp
		Rate: 100
		Base lid: 0
		LMC: 0
		SM lid: 0
		Capability mask: 0x00010000
		Port GUID: 0x0000000000000042
		Link layer: Ethernet
	Port 2:
		State: Down
		Physical state: Disabled
		Rate: 10
		Base lid: 4660
		LMC: 2
		SM lid: 1
		Capability mask: 0x00000000
		Port GUID: 0x0000000000000042
		Link layer: InfiniBand
`
	if diff := cmp.Diff(want, out); diff != "" {
		t.Error(diff)
	}
}
