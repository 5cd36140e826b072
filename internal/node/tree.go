// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"weft/internal/host/hostnet"
	"weft/internal/host/rundir"
	"weft/internal/host/sysfs"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// portCapMask is the capability mask of a RoCE port: CM, device management and IP based GIDs (verbs
// port capability flags).
const portCapMask = 1<<16 | 1<<19 | 1<<26

// portTree has the files that programs read of devices and ports, below /sys and /dev, and passes changes of ports to
// programs. Every method may be called from any goroutine.
type portTree struct {
	node      string // the directory of the node
	identity  ib.GUID
	log       *slog.Logger
	functions *functionTable
	// host returns the addresses of the host.
	host func() *hostnet.Table
	// notify notifies the sessions of a function.
	notify func(a *hca.Adapter, events []ib.Event)

	// mu is held while a port changes, its files are written and its clients are notified. It is locked after the
	// functionEditor's, and before the mutexes of a vesw.DevicePort and the functionTable. No goroutine waits for
	// another with mu held.
	mu sync.Mutex
	// written are the devices in the tree, with the counters in their files. mu guards it.
	written map[*hca.Adapter]sysfs.PortCounters
}

// dir is the directory of the files.
func (t *portTree) dir() string { return filepath.Join(t.node, rundir.TreeDir) }

// remove removes the files, after the last change.
func (t *portTree) remove() { sysfs.Remove(t.dir()) }

// functionsChanged writes the files after functions were added or removed.
func (t *portTree) functionsChanged() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.write()
}

// changed writes the files and notifies the clients of functions after their ports got another description.
func (t *portTree) changed(changes ...subnet.PortChange) {
	t.update(func() []subnet.PortChange { return changes })
}

// update has change change ports, one change of the node at a time, and publishes what it returns. Files come first: a
// client may read them when it receives the event.
func (t *portTree) update(change func() []subnet.PortChange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changes := change()
	if len(changes) == 0 {
		return
	}
	if err := t.write(); err != nil {
		t.log.Warn("the tree of files for programs is out of date", "err", err)
	}
	for _, p := range changes {
		t.notify(p.Adapter, p.Events)
	}
}

// changePort makes an Ethernet port what next returns, if that differs, and notifies the users of the port.
func (t *portTree) changePort(a *hca.Adapter, next func() *hca.Port) {
	t.update(func() []subnet.PortChange {
		p, old := next(), a.Port()
		events := p.Changes(old)
		if len(events) == 0 && p.MTU == old.MTU {
			return nil
		}
		a.SetPort(p)
		return []subnet.PortChange{{Adapter: a, Events: events}}
	})
}

// setDown takes down, or sets up, a port that no agent manages.
func (t *portTree) setDown(a *hca.Adapter, down bool) {
	t.update(func() []subnet.PortChange {
		old := a.Port()
		p := *old
		p.State, p.Phys = ib.PortDown, ib.PhysDisabled
		if !down {
			p.State, p.Phys = ib.PortActive, ib.PhysLinkUp
			if p.Link == ib.LinkInfiniBand {
				p.State = ib.PortInit
			}
		}
		a.SetPort(&p)
		return []subnet.PortChange{{Adapter: a, Events: p.Changes(old)}}
	})
}

// write writes the files; mu is held.
func (t *portTree) write() error {
	host := t.host()
	var list []sysfs.Device
	written := map[*hca.Adapter]sysfs.PortCounters{}
	for _, f := range t.functions.all() {
		if f.guest != nil {
			continue // no program of the host can use it
		}
		d := sysfs.Device{Name: f.a.Name, NodeGUID: f.a.NodeGUID, SysImageGUID: t.identity, NodeDesc: f.a.Name,
			Firmware: buildVersion(), HCAType: "weft", BoardID: "weft", CPUs: runtime.NumCPU()}
		var port sysfs.Port
		if p := f.a.Port(); p.Link == ib.LinkInfiniBand {
			port = nativePort(p)
		} else if f.st != nil {
			port = addGIDs(ethernetPort(p), p, "RoCE v2")
		} else {
			d.NodeGUID, d.SysImageGUID = host.NodeGUID, host.NodeGUID
			port, d.NetDevs = hostPort(p, host)
		}
		port.Counters = t.counters(f)
		d.Ports = []sysfs.Port{port}
		list = append(list, d)
		written[f.a] = port.Counters
	}
	if err := sysfs.Write(t.dir(), list); err != nil {
		return err
	}
	t.written = written
	return nil
}

// ethernetRate is what every Ethernet port claims.
const ethernetRate = "25 Gb/sec (1X EDR)"

// ethernetPort describes an Ethernet port, but for its GIDs.
func ethernetPort(p *hca.Port) sysfs.Port {
	return sysfs.Port{State: p.State, Phys: p.Phys, LinkLayer: p.Link.String(), Rate: ethernetRate,
		CapMask: portCapMask, GIDTableLen: p.GIDTableLen(), PKeys: p.PKeys}
}

// hostPort is the Ethernet port with the host's addresses. devs are the network interfaces that it stands for.
func hostPort(p *hca.Port, t *hostnet.Table) (port sysfs.Port, devs []string) {
	port = ethernetPort(p)
	for _, e := range t.Entries {
		port.GIDs = append(port.GIDs, sysfs.GID{GID: e.GID, Type: "RoCE v2", NetDev: e.Interface})
		if e.Interface != "" && !slices.Contains(devs, e.Interface) {
			devs = append(devs, e.Interface)
		}
	}
	return port, devs
}

// addGIDs adds the GIDs of a port that no network interface of the host stands for.
func addGIDs(port sysfs.Port, p *hca.Port, kind string) sysfs.Port {
	for _, g := range p.GIDs {
		port.GIDs = append(port.GIDs, sysfs.GID{GID: g.GID, Type: kind})
	}
	return port
}

func nativePort(p *hca.Port) sysfs.Port {
	return addGIDs(sysfs.Port{State: p.State, Phys: p.Phys, LinkLayer: p.Link.String(), Rate: rateText(p), LID: p.LID,
		SMLID: p.SMLID, LMC: p.LMC, SMSL: p.SMSL, CapMask: p.CapMask,
		GIDTableLen: p.GIDTableLen(), PKeys: p.PKeys}, p, "IB/RoCE v1")
}

// speedNames are the kernel's names of lane speeds.
var speedNames = map[ib.LinkSpeedExt]string{
	ib.SpeedFDR: " FDR",
	ib.SpeedEDR: " EDR",
	ib.SpeedHDR: " HDR",
	ib.SpeedNDR: " NDR",
}

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

// buildVersion is the version the linker noted.
func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
