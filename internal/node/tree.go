// SPDX-License-Identifier: Apache-2.0

package node

import (
	"path/filepath"
	"runtime"
	"slices"

	"weft/internal/hostnet"
	"weft/internal/ib"
	"weft/internal/rundir"
	"weft/internal/sysfs"
)

// portCapMask is what a RoCE port says of itself: CM, device management and
// IP based GIDs (verbs port capability flags).
const portCapMask = 1<<16 | 1<<19 | 1<<26

// writeTree writes the files that programs read below /sys and /dev.
func (n *Node) writeTree(t *hostnet.Table) error {
	port := sysfs.Port{State: sysfs.PortActive, Phys: sysfs.PhysLinkUp, LinkLayer: "Ethernet", Rate: "25 Gb/sec (1X EDR)",
		CapMask: portCapMask, PKeys: []ib.PKey{ib.DefaultPKey}}
	var devs []string
	for _, e := range t.Entries {
		port.GIDs = append(port.GIDs, sysfs.GID{GID: e.GID, Type: "RoCE v2", NetDev: e.Interface})
		if e.Interface != "" && !slices.Contains(devs, e.Interface) {
			devs = append(devs, e.Interface)
		}
	}
	return sysfs.Write(n.treeDir(), []sysfs.Device{{Name: n.cfg.Device, NodeGUID: t.NodeGUID, SysImageGUID: t.NodeGUID,
		NodeDesc: n.cfg.Device, Firmware: buildVersion(), HCAType: "weft", BoardID: "weft", NetDevs: devs, CPUs: runtime.NumCPU(),
		Ports: []sysfs.Port{port}}})
}

func (n *Node) treeDir() string { return filepath.Join(n.cfg.Dir, rundir.TreeDir) }
