// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Counter is a file with one number.
type Counter struct {
	Name  string
	Value uint64
}

// PortCounters are the counters of a port: the files in its directories counters and hw_counters, with the names that
// the kernel and rdma_rxe use. Data in Common are in units of four octets, as in PortCountersExtended (IBA volume 1,
// 16.1.4).
type PortCounters struct {
	Common   []Counter
	Hardware []Counter
	// Lifespan is hw_counters/lifespan: how old the values may be, in milliseconds.
	Lifespan uint64
}

// Directories of a port with counters.
const (
	commonDir   = "counters"
	hardwareDir = "hw_counters"
)

// devicesDir has the directory of each device, below the tree.
const devicesDir = "sys/devices/virtual/weft"

// portDir is the directory of a port, below the tree.
func portDir(device string, port int) string {
	return devicesDir + "/" + device + "/infiniband/" + device + "/ports/" + strconv.Itoa(port)
}

// UpdateCounters writes the counters of a port that differ from old into the files of the tree at dir. Write must have
// written the port with the same names. Only the goroutine that may call Write may call it.
//
// It writes into the file in place: a program that keeps the file open and reads it again from its start, as it may
// with a file of the kernel, reads the current value. A file that replaces the other by rename would leave such a
// program with the old value forever.
func UpdateCounters(dir, device string, port int, old, now *PortCounters) error {
	base := filepath.Join(dir, portDir(device, port))
	err := updateFiles(filepath.Join(base, commonDir), old.Common, now.Common)
	return errors.Join(err, updateFiles(filepath.Join(base, hardwareDir), old.Hardware, now.Hardware))
}

func updateFiles(dir string, old, now []Counter) error {
	for i, c := range now {
		if i < len(old) && old[i] == c {
			continue
		}
		if err := overwrite(filepath.Join(dir, c.Name), c.Value); err != nil {
			return err
		}
	}
	return nil
}

// counterLen is the length of the file of a counter: that of the largest value, and a newline.
const counterLen = 20 + 1

// counterText is what the file of a counter has: the line of the kernel, and empty lines up to counterLen. The length
// is constant because a read of a file that grows meanwhile is of two parts, and may return the start of one value and
// the end of another. Programs that read a number skip space behind it. The kernel copies the first 16 octets at once
// on the processors that were tried, which covers values of up to 15 digits. A longer value may be read with last
// digits that are older than the others.
func counterText(v uint64) []byte {
	b := strconv.AppendUint(make([]byte, 0, counterLen), v, 10)
	for len(b) < counterLen {
		b = append(b, '\n')
	}
	return b
}

// overwrite writes a value over that of a file.
func overwrite(name string, v uint64) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(counterText(v), 0)
	return errors.Join(err, f.Close())
}

// counters writes the counters of a port, or adopts the files of the tree that this one replaces: UpdateCounters
// reaches programs that have such a file open in either tree.
func (w *writer) counters(port string, c *PortCounters) {
	if len(c.Common)+len(c.Hardware) == 0 {
		return
	}
	w.dir(port + "/" + commonDir)
	w.dir(port + "/" + hardwareDir)
	w.file(port+"/"+hardwareDir+"/lifespan", "%d", c.Lifespan)
	for _, k := range c.Common {
		w.counter(port+"/"+commonDir+"/"+k.Name, k.Value)
	}
	for _, k := range c.Hardware {
		w.counter(port+"/"+hardwareDir+"/"+k.Name, k.Value)
	}
}

func (w *writer) counter(name string, v uint64) {
	if w.err != nil {
		return
	}
	at := filepath.Join(w.root, name)
	err := unix.Link(filepath.Join(w.old, name), at)
	switch {
	case err == nil:
		w.err = overwrite(at, v)
	case errors.Is(err, fs.ErrNotExist):
		w.err = os.WriteFile(at, counterText(v), 0o644)
	default:
		w.err = fmt.Errorf("link %s: %w", name, err)
	}
}
