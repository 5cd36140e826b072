// SPDX-License-Identifier: Apache-2.0

// Package sysfs writes the files that verbs programs and their tools read
// below /sys/class/infiniband and /dev/infiniband, where the kernel has none.
//
// What comes in: a plain description of the devices; what goes out: a
// directory tree that the shim redirects those paths to. Called by node at
// start, at every change and at the end. It never touches /sys or /dev
// themselves. docs/notes/abi.md §1 names the place, and the comments below
// name the program that needs a file.
package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weft/internal/proto/ib"
)

// Device describes one verbs device.
type Device struct {
	Name         string
	NodeGUID     ib.GUID
	SysImageGUID ib.GUID
	NodeDesc     string
	Firmware     string
	HCAType      string
	BoardID      string
	NetDevs      []string // network interfaces the device stands on
	CPUs         int      // processors near the device: the first so many
	Ports        []Port   // Ports[0] is port 1
}

// Port describes one port.
type Port struct {
	State     ib.PortState
	Phys      ib.PhysState
	LinkLayer string // "Ethernet" or "InfiniBand"
	Rate      string // as the kernel prints it: "100 Gb/sec (4X EDR)"
	LID       ib.LID
	SMLID     ib.LID
	LMC       uint8
	SMSL      uint8
	CapMask   uint32
	// GIDs is the table by index; entries with a zero GID are unused.
	GIDs []GID
	// GIDTableLen is the length of the table; its entries behind GIDs are unused.
	GIDTableLen int
	PKeys       []ib.PKey
	// Counters are the counters of the port; without any there is no directory of them.
	Counters PortCounters
}

// GID is one entry of a port's GID table.
type GID struct {
	GID    ib.GID
	Type   string // "RoCE v2" or "IB/RoCE v1"
	NetDev string
}

// Write replaces the tree at dir by one that describes devs. A reader sees
// the old tree or the new one, never a mixture; one that has a directory open
// keeps the old. The files of counters are the same in both. Only one
// goroutine may write a given tree.
func Write(dir string, devs []Device) error {
	next := dir + ".new"
	if err := os.RemoveAll(next); err != nil { // left by a writer that died
		return err
	}
	w := writer{root: next, old: dir}
	w.tree(devs)
	if w.err != nil {
		os.RemoveAll(next)
		return fmt.Errorf("write the device tree: %w", w.err)
	}
	err := unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE)
	if errors.Is(err, fs.ErrNotExist) { // the first tree
		return os.Rename(next, dir)
	}
	if err != nil {
		os.RemoveAll(next)
		return fmt.Errorf("exchange the device tree %s: %w", dir, err)
	}
	return os.RemoveAll(next)
}

// Remove removes the tree at dir and what a writer that died left beside it.
func Remove(dir string) error {
	return errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+".new"))
}

// writer creates files below root and keeps the first error.
type writer struct {
	root string
	old  string // the tree that this one replaces
	err  error
}

func (w *writer) dir(name string) {
	if w.err == nil {
		w.err = os.MkdirAll(filepath.Join(w.root, name), 0o755)
	}
}

// file writes one line, in a directory that exists.
func (w *writer) file(name, format string, args ...any) {
	if w.err == nil {
		line := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ") + "\n"
		w.err = os.WriteFile(filepath.Join(w.root, name), []byte(line), 0o644)
	}
}

// indexed makes files with one text in a directory that exists, named by the indexes of a table. They are hard links to
// the first of them, named from within the directory: most entries of a GID table are unused, hundreds, and files of
// their own take several times as long.
func (w *writer) indexed(dir, text string, indexes []int) {
	if w.err != nil || len(indexes) == 0 {
		return
	}
	dir = filepath.Join(w.root, dir)
	first := strconv.Itoa(indexes[0])
	if w.err = os.WriteFile(filepath.Join(dir, first), []byte(text), 0o644); w.err != nil {
		return
	}
	d, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		w.err = err
		return
	}
	defer unix.Close(d)
	for _, i := range indexes[1:] {
		if w.err = unix.Linkat(d, first, d, strconv.Itoa(i), 0); w.err != nil {
			return
		}
	}
}

func (w *writer) link(target, name string) {
	if w.err == nil {
		w.err = os.Symlink(target, filepath.Join(w.root, name))
	}
}

// element refuses what would leave its directory as a file name.
func (w *writer) element(name string) {
	if w.err == nil && (name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00")) {
		w.err = fmt.Errorf("%q cannot be a file name", name)
	}
}

func (w *writer) tree(devs []Device) {
	const (
		class = "sys/class/infiniband"
		verbs = "sys/class/infiniband_verbs"
		mads  = "sys/class/infiniband_mad"
		dev   = "dev/infiniband"
	)
	for _, d := range []string{class, verbs, mads, devicesDir, dev} {
		w.dir(d)
	}
	w.file(verbs+"/abi_version", "6")
	w.file(mads+"/abi_version", "5")
	w.dir("sys/class/misc/rdma_cm")
	w.file("sys/class/misc/rdma_cm/abi_version", "4")
	w.node(dev + "/rdma_cm")
	umads := 0
	devs = slices.Clone(devs)
	slices.SortFunc(devs, func(a, b Device) int { return strings.Compare(a.Name, b.Name) })
	for i, d := range devs {
		w.element(d.Name)
		// The depth is that of a PCI device: UCX takes the directory two or
		// three levels above the real path for the device's own.
		w.device(devicesDir+"/"+d.Name, d)
		uverbs := w.member(d.Name, "infiniband_verbs", "uverbs"+strconv.Itoa(i))
		w.file(uverbs+"/ibdev", "%s", d.Name)
		w.file(uverbs+"/abi_version", "1")
		w.node(dev + "/uverbs" + strconv.Itoa(i))
		for k, p := range d.Ports {
			if p.LinkLayer != infiniBand {
				continue
			}
			for _, kind := range []string{"umad", "issm"} {
				name := kind + strconv.Itoa(umads)
				mad := w.member(d.Name, "infiniband_mad", name)
				w.file(mad+"/ibdev", "%s", d.Name)
				w.file(mad+"/port", "%d", k+1)
				w.node(dev + "/" + name)
			}
			umads++
		}
	}
}

// member makes the directory of a member of a class below that of its device, with the links that the kernel makes:
// from the class, to the class and to the device. It returns the name of the directory.
func (w *writer) member(device, class, name string) string {
	dir := devicesDir + "/" + device + "/" + class + "/" + name
	w.dir(dir)
	w.link("../../devices/virtual/weft/"+device+"/"+class+"/"+name, "sys/class/"+class+"/"+name)
	w.link("../../../../../../class/"+class, dir+"/subsystem")
	w.link("../../../"+device, dir+"/device")
	return dir
}

// infiniBand is the link layer of ports with queue pairs 0 and 1 for programs
// of management.
const infiniBand = "InfiniBand"

// node makes the placeholder of a character device; the shim reports it as one. UCX checks read and
// write access before it uses a device.
func (w *writer) node(name string) {
	if w.err == nil {
		name = filepath.Join(w.root, name)
		w.err = errors.Join(os.WriteFile(name, nil, 0o666), os.Chmod(name, 0o666))
	}
}

// device writes the files of d; home is the directory of its bus device.
func (w *writer) device(home string, d Device) {
	w.dir(home + "/net") // pyverbs lists it to find the interface
	for _, n := range d.NetDevs {
		w.element(n)
		w.dir(home + "/net/" + n)
	}
	// No bus has the device, so that what only devices of a bus have is not there: vendor, class, modalias, resource.
	w.file(home+"/local_cpus", "%s", cpuMask(d.CPUs)) // UCX, Open MPI
	w.file(home+"/local_cpulist", "%s", cpuList(d.CPUs))
	w.file(home+"/numa_node", "-1")
	base := w.member(d.Name, "infiniband", d.Name)
	w.dir(base + "/ports")
	w.file(base+"/uevent", "NAME=%s", d.Name)
	w.file(base+"/node_guid", "%s", d.NodeGUID)
	w.file(base+"/sys_image_guid", "%s", d.SysImageGUID)
	w.file(base+"/node_type", "1: CA")
	w.file(base+"/node_desc", "%s", d.NodeDesc)
	w.file(base+"/fw_ver", "%s", d.Firmware)
	w.file(base+"/hw_rev", "0")
	w.file(base+"/hca_type", "%s", d.HCAType)
	w.file(base+"/board_id", "%s", d.BoardID)
	for i, p := range d.Ports {
		w.port(portDir(d.Name, i+1), p)
	}
}

// port writes what libibumad (ibstat) and UCX read of a port.
func (w *writer) port(base string, p Port) {
	for _, d := range []string{"/gids", "/gid_attrs/types", "/gid_attrs/ndevs", "/pkeys"} {
		w.dir(base + d)
	}
	w.file(base+"/state", "%d: %s", p.State, portStateName(p.State))
	w.file(base+"/phys_state", "%d: %s", p.Phys, physStateName(p.Phys))
	w.file(base+"/link_layer", "%s", p.LinkLayer)
	w.file(base+"/rate", "%s", p.Rate)
	w.file(base+"/lid", "%#x", uint16(p.LID))
	w.file(base+"/sm_lid", "%#x", uint16(p.SMLID))
	w.file(base+"/lid_mask_count", "%d", p.LMC)
	w.file(base+"/sm_sl", "%d", p.SMSL)
	w.file(base+"/cap_mask", "0x%08x", p.CapMask)
	w.counters(base, &p.Counters)
	for i, k := range p.PKeys {
		w.file(fmt.Sprintf("%s/pkeys/%d", base, i), "0x%04x", uint16(k))
	}
	var unused, noNetDev []int
	for i := range max(len(p.GIDs), p.GIDTableLen) {
		if i >= len(p.GIDs) || p.GIDs[i].GID.IsZero() {
			unused, noNetDev = append(unused, i), append(noNetDev, i)
			continue
		}
		g := p.GIDs[i]
		w.file(fmt.Sprintf("%s/gids/%d", base, i), "%s", g.GID)
		w.file(fmt.Sprintf("%s/gid_attrs/types/%d", base, i), "%s", g.Type)
		if g.NetDev == "" {
			noNetDev = append(noNetDev, i)
			continue
		}
		w.file(fmt.Sprintf("%s/gid_attrs/ndevs/%d", base, i), "%s", g.NetDev)
	}
	// The kernel cannot read the attributes of an unused entry, nor the name of an interface that is not there. The
	// shim has open fail with EINVAL if the file of an attribute is empty.
	w.indexed(base+"/gids", ib.GID{}.String()+"\n", unused)
	w.indexed(base+"/gid_attrs/types", "", unused)
	w.indexed(base+"/gid_attrs/ndevs", "", noNetDev)
}

func portStateName(s ib.PortState) string {
	switch s {
	case ib.PortDown:
		return "DOWN"
	case ib.PortInit:
		return "INIT"
	case ib.PortArmed:
		return "ARMED"
	case ib.PortActive:
		return "ACTIVE"
	}
	return "<unknown>"
}

func physStateName(s ib.PhysState) string {
	switch s {
	case ib.PhysPolling:
		return "Polling"
	case ib.PhysDisabled:
		return "Disabled"
	case ib.PhysLinkUp:
		return "LinkUp"
	}
	return "<unknown>"
}

// cpuList prints the set of the first n processors as the kernel does in a list.
func cpuList(n int) string {
	switch {
	case n <= 0:
		return ""
	case n == 1:
		return "0"
	}
	return fmt.Sprintf("0-%d", n-1)
}

// cpuMask prints the set of the first n processors as the kernel does: groups
// of 32 bits in hexadecimal, highest first.
func cpuMask(n int) string {
	var groups []string
	for n > 0 {
		k := min(n, 32)
		groups = append(groups, fmt.Sprintf("%08x", uint32(1<<k-1)))
		n -= k
	}
	if groups == nil {
		return "00000000"
	}
	slices.Reverse(groups)
	return strings.Join(groups, ",")
}
