// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/fabric/link/roce"
	"weft/internal/node/lane"
	"weft/internal/proto/abi"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/hca/replicate"
)

// newTestRegistry returns a registry with one lane, and the device socket of its adapter.
func newTestRegistry(t *testing.T) (r *Registry, path string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	base := time.Now().Add(-time.Second)
	a := hca.NewAdapter(&hca.Port{Link: ib.LinkEthernet, State: ib.PortActive, MTU: ib.MTU1024, MaxMTU: ib.MTU4096,
		PKeys:  []ib.PKey{ib.DefaultPKey},
		MaxRun: lane.RoCEBurst, MaxLocalRun: lane.LocalBurst}, hca.DefaultLimits)
	now := func() mono.Time { return mono.Time(time.Since(base)) }
	r = New(Config{Now: now, Log: log, Admit: func() error { return nil }})
	g, err := lane.Open(lane.Config{Count: 1, Functions: hca.NewFunctions(a), Multicast: replicate.DefaultConfig,
		RoCE: roce.Config{Port: uint16(condtest.Port(t)), IfIndex: func(uint8,
			ib.GID) uint32 {
			return 0
		}}, Now: now, Log: log, MemoryOwner: r.MemoryOwner})
	if err != nil {
		t.Fatal(err)
	}
	g.Start()
	r.SetLanes(g)
	path = filepath.Join(t.TempDir(), "device.sock")
	s, err := vhost.Listen(path, 0o600, vhost.Config{New: func(s *vhost.Session) (vhost.Device,
		error) {
		return r.Admit(a, nil, s)
	}, OnEnd: r.Ended})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		g.Close()
	})
	return r, path
}

// TestProcessMemoryFirst: a program may pass its memory before its first request to the device.
func TestProcessMemoryFirst(t *testing.T) {
	r, path := newTestRegistry(t)
	f, err := vhosttest.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Get(abi.ReqHello, abi.Hello{ABI: abi.Version, PID: uint32(os.Getpid())}.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if err := f.Send(abi.ReqSetProtocolFeatures, abi.VUVersion, binary.NativeEndian.AppendUint64(nil,
		1<<abi.ProtoWeft|1<<abi.ProtoReplyAck)); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var image uint64 // where this program lies
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(maps), "%x-", &image); err != nil {
		t.Fatal(err)
	}
	var word [8]byte
	if _, err := unix.Pread(fd, word[:], int64(image)); err != nil {
		t.Fatal(err)
	}
	m := abi.ProcMem{ProbeAddr: image, ProbeValue: binary.NativeEndian.Uint64(word[:])}
	if err := f.Do(abi.ReqProcMem, m.Append(nil), fd); err != nil {
		t.Fatal(err)
	}
	d := r.Programs()
	if len(d) != 1 || d[0].Memory() != "process" {
		t.Errorf("sessions %v", d)
	}
	if err := f.Do(abi.ReqProcMem, m.Append(nil), fd); !errors.Is(err, unix.EBUSY) {
		t.Errorf("again: %v", err)
	}
}

// TestEndingRefuses: once the node has decided to end, no session begins that would end at once.
func TestEndingRefuses(t *testing.T) {
	r := New(Config{Admit: func() error { return nil }})
	if !r.EndIfIdle(0, func() bool { return false }) {
		t.Fatal("a node without sessions is not idle")
	}
	if err := r.Use(); !errors.Is(err, ErrEnding) {
		t.Errorf("use: %v", err)
	}
	if _, err := r.Admit(nil, nil, &vhost.Session{}); !errors.Is(err, ErrEnding) {
		t.Errorf("admit: %v", err)
	}
}

// TestDrainRefuses: a drained node begins no session, ends those of programs by force, and begins sessions again after
// it.
func TestDrainRefuses(t *testing.T) {
	r, path := newTestRegistry(t)
	connect := func() (*vhosttest.Front, error) {
		f, err := vhosttest.Dial(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		_, err = f.Get(abi.ReqHello, abi.Hello{ABI: abi.Version, PID: uint32(os.Getpid())}.Append(nil))
		return f, err
	}
	first, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	var gate atomic.Pointer[error]
	drained := errors.New("the host is drained")
	gate.Store(&drained)
	r.cfg.Admit = func() error { return *gate.Load() }
	if err := r.Use(); !errors.Is(err, drained) {
		t.Errorf("use: %v", err)
	}
	if _, err := connect(); err == nil {
		t.Error("a session begins")
	}
	hello := abi.Hello{ABI: abi.Version, PID: uint32(os.Getpid())}.Append(nil)
	if _, err := first.Get(abi.ReqHello, hello); err != nil && !errors.Is(err, unix.EBUSY) {
		t.Errorf("the session that was there: %v", err)
	}
	r.EndPrograms(drained)
	condtest.Until(t, "no session stays", func() bool { return r.Connected() == 0 })
	gate.Store(new(error))
	if _, err := connect(); err != nil {
		t.Errorf("after the drain: %v", err)
	}
}
