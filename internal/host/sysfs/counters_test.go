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
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func counted(data, errors uint64) *PortCounters {
	return &PortCounters{Common: []Counter{{"port_xmit_data", data}, {"symbol_error", errors}},
		Hardware: []Counter{{"sent_pkts", data / 2}}, Lifespan: 1000}
}

// TestCounters: files of counters have the values of the last update, in a new tree as well, and a program that keeps
// one open reads the current value from its start, whichever tree it opened the file in.
func TestCounters(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	d := device("weft0")
	write := func(c *PortCounters) {
		t.Helper()
		d.Ports[0].Counters = *c
		if err := Write(dir, []Device{d}); err != nil {
			t.Fatal(err)
		}
	}
	write(counted(0, 0))
	port := filepath.Join(dir, "sys/class/infiniband/weft0/ports/1")
	held, err := os.Open(filepath.Join(port, "counters/port_xmit_data"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	expect := func(c *PortCounters) {
		t.Helper()
		for name, want := range map[string]uint64{"counters/port_xmit_data": c.Common[0].Value,
			"counters/symbol_error": c.Common[1].Value, "hw_counters/sent_pkts": c.Hardware[0].Value,
			"hw_counters/lifespan": c.Lifespan} {
			b, err := os.ReadFile(filepath.Join(port, name))
			if err != nil || strings.TrimRight(string(b), "\n") != fmt.Sprint(want) {
				t.Errorf("%s: want %d, got %q, %v", name, want, b, err)
			}
		}
		b := make([]byte, 64)
		n, _ := held.ReadAt(b, 0)
		if want := fmt.Sprint(c.Common[0].Value); strings.TrimRight(string(b[:n]), "\n") != want {
			t.Errorf("a file that was open: want %q, got %q", want, b[:n])
		}
	}
	last := counted(0, 0)
	expect(last)
	// It grows, is set back, and reaches the largest value.
	for _, data := range []uint64{9, 10, 123456789, 7, 0, 1<<64 - 1, 3} {
		now := counted(data, data%5)
		for tries := 0; !cmp.Equal(last, now); tries++ {
			if err := UpdateCounters(dir, "weft0", 1, last, now); err != nil || tries > 1 {
				t.Fatal(tries, err)
			}
			expect(last) // the value, or that before, while the file becomes longer
		}
		write(now) // another tree
		expect(now)
	}
	// Only what differs is written: the file of an equal value may be missing.
	if err := os.Remove(filepath.Join(port, "counters/symbol_error")); err != nil {
		t.Fatal(err)
	}
	if err := UpdateCounters(dir, "weft0", 1, last, counted(4, last.Common[1].Value)); err != nil {
		t.Error(err)
	}
	err = UpdateCounters(dir, "weft0", 1, last, counted(4, last.Common[1].Value+1))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestCounterReaders: a program that reads while the value changes gets a value that the file had, of up to 15
// digits, if the file does not become longer within a read.
func TestCounterReaders(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	values := []uint64{199999999999999, 200000000000000, 99999, 100000, 7, 12}
	d := device("weft0")
	d.Ports[0].Counters = *counted(values[0], 0)
	if err := Write(dir, []Device{d}); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, v := range values {
		known[strconv.FormatUint(v, 10)] = true
	}
	f, err := os.Open(filepath.Join(dir, portDir("weft0", 1), "counters/port_xmit_data"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 64)
		for !done.Load() {
			if n, err := f.ReadAt(b, 0); n == 0 || !known[strings.TrimSpace(string(b[:n]))] {
				t.Errorf("read %q, %v", b[:n], err)
				return
			}
		}
	})
	for i := range 3000 {
		old, now := counted(values[i%len(values)], 0), counted(values[(i+1)%len(values)], 0)
		if err := UpdateCounters(dir, "weft0", 1, old, now); err != nil {
			t.Fatal(err)
		}
	}
	done.Store(true)
	wg.Wait()
}
