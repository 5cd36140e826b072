// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"weft/internal/host/hostnet"
	"weft/internal/host/rundir"
	"weft/internal/host/sysfs"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// portCapMask is what a RoCE port says of itself: CM, device management and
// IP based GIDs (verbs port capability flags).
const portCapMask = 1<<16 | 1<<19 | 1<<26

// writeTree writes the files that programs read below /sys and /dev. Only one
// may do so at a time: ports is held, or nobody else is there yet.
func (n *Node) writeTree() error {
	n.mu.Lock()
	t := n.table
	n.mu.Unlock()
	var list []sysfs.Device
	for _, f := range n.functions() {
		d := sysfs.Device{Name: f.a.Name, NodeGUID: f.a.NodeGUID, SysImageGUID: n.identity, NodeDesc: f.a.Name, Firmware: buildVersion(),
			HCAType: "weft", BoardID: "weft", CPUs: runtime.NumCPU()}
		if p := f.a.Port(); p.Link == ib.LinkInfiniBand {
			d.Ports = []sysfs.Port{nativePort(p)}
		} else if f.st != nil {
			d.Ports = []sysfs.Port{stationPort(p)}
		} else {
			d.NodeGUID, d.SysImageGUID = t.NodeGUID, t.NodeGUID
			d.Ports, d.NetDevs = ethernetPort(p, t)
		}
		list = append(list, d)
	}
	return sysfs.Write(n.treeDir(), list)
}

// ethernetRate is what every Ethernet port claims.
const ethernetRate = "25 Gb/sec (1X EDR)"

func ethernetPort(p *hca.Port, t *hostnet.Table) (ports []sysfs.Port, devs []string) {
	port := sysfs.Port{State: p.State, Phys: p.Phys, LinkLayer: p.Link.String(), Rate: ethernetRate,
		CapMask: portCapMask, PKeys: p.PKeys}
	for _, e := range t.Entries {
		port.GIDs = append(port.GIDs, sysfs.GID{GID: e.GID, Type: "RoCE v2", NetDev: e.Interface})
		if e.Interface != "" && !slices.Contains(devs, e.Interface) {
			devs = append(devs, e.Interface)
		}
	}
	return []sysfs.Port{port}, devs
}

// stationPort is an Ethernet port that no network interface of the host stands for.
func stationPort(p *hca.Port) sysfs.Port {
	port := sysfs.Port{State: p.State, Phys: p.Phys, LinkLayer: p.Link.String(), Rate: ethernetRate, CapMask: portCapMask, PKeys: p.PKeys}
	for _, g := range p.GIDs {
		port.GIDs = append(port.GIDs, sysfs.GID{GID: g.GID, Type: "RoCE v2"})
	}
	return port
}

func nativePort(p *hca.Port) sysfs.Port {
	port := sysfs.Port{State: p.State, Phys: p.Phys, LinkLayer: p.Link.String(), Rate: rateText(p),
		LID: p.LID, SMLID: p.SMLID, LMC: p.LMC, SMSL: p.SMSL, CapMask: p.CapMask, PKeys: p.PKeys}
	for _, g := range p.GIDs {
		port.GIDs = append(port.GIDs, sysfs.GID{GID: g.GID, Type: "IB/RoCE v1"})
	}
	return port
}

// speedNames are the kernel's names of lane speeds.
var speedNames = map[ib.LinkSpeedExt]string{ib.SpeedFDR: " FDR", ib.SpeedEDR: " EDR", ib.SpeedHDR: " HDR", ib.SpeedNDR: " NDR"}

// rateText prints a port's rate as the kernel does: "100 Gb/sec (4X EDR)".
func rateText(p *hca.Port) string {
	speed := speedNames[p.SpeedExt]
	switch {
	case speed != "":
	case p.Speed == ib.SpeedDDR:
		speed = " DDR"
	case p.Speed == ib.SpeedQDR:
		speed = " QDR"
	}
	return fmt.Sprintf("%v (%s%s)", ib.RateOf(p.Width, p.Speed, p.SpeedExt), strings.ToUpper(p.Width.String()), speed)
}

func (n *Node) treeDir() string { return filepath.Join(n.cfg.Dir, rundir.TreeDir) }
