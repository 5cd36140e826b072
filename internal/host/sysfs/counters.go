// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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

// UpdateCounters writes the counters of a port into the files of the tree at dir. files are the values that the files
// have, and now the values that they get: UpdateCounters writes the values that differ, and brings files up to date. A
// value that is longer than its file waits for the next call, which must come later than a read takes. Write must have
// written the port with the same names. Only the goroutine that may call Write may call UpdateCounters.
//
// It writes into the file in place: a program that keeps the file open and reads it again from its start, as it may
// with a file of the kernel, reads the current value. A file that replaces the other by rename would leave such a
// program with the old value forever.
func UpdateCounters(dir, device string, port int, files, now *PortCounters) error {
	base := filepath.Join(dir, portDir(device, port))
	err := updateFiles(filepath.Join(base, commonDir), files.Common, now.Common)
	return errors.Join(err, updateFiles(filepath.Join(base, hardwareDir), files.Hardware, now.Hardware))
}

func updateFiles(dir string, files, now []Counter) error {
	for i, c := range now {
		if files[i] == c {
			continue
		}
		done, err := overwrite(filepath.Join(dir, c.Name), c.Value)
		if err != nil {
			return err
		}
		if done {
			files[i] = c
		}
	}
	return nil
}

// counterText is what the file of a counter has, as in the kernel.
func counterText(v uint64) string { return strconv.FormatUint(v, 10) + "\n" }

// overwrite replaces the value in a file by one write, which does not change the length of the file: empty lines follow
// a shorter value. If the value is longer than the file, overwrite only makes the file as long, by empty lines,
// and returns false. Programs that read a number skip space behind it.
//
// The reason: a read of a file that grows meanwhile is of two parts, and may return the start of one value and the end
// of another. The first 16 octets of a file that does not grow are copied at once on the processors that were tried,
// which covers values of up to 15 digits. A longer value may be read with last digits that are older than the others.
func overwrite(name string, v uint64) (done bool, err error) {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return false, err
	}
	text := counterText(v)
	switch space := st.Size() - int64(len(text)); {
	case space < 0:
		_, err = f.WriteAt([]byte(strings.Repeat("\n", int(-space))), st.Size())
		return false, err
	case space > 0:
		text += strings.Repeat("\n", int(space))
	}
	_, err = f.WriteAt([]byte(text), 0)
	return err == nil, err
}

// counters writes the counters of a port, or adopts the files of the tree that this one replaces: UpdateCounters
// reaches programs that have such a file open in either tree. An adopted file keeps its value.
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
	case errors.Is(err, fs.ErrNotExist):
		w.err = os.WriteFile(at, []byte(counterText(v)), 0o644)
	default:
		w.err = fmt.Errorf("link %s: %w", name, err)
	}
}
