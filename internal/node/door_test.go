// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/fabric/link/roce"
	"weft/internal/node/lane"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/hca/replicate"
)

// testNode is a node without sockets but its door. ends hears why sessions
// end.
func testNode(t *testing.T) (n *Node, path string, ends chan error) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	n = &Node{log: log, base: time.Now().Add(-time.Second), sessions: make(map[*vhost.Session]*door)}
	n.adapter = hca.NewAdapter(&hca.Port{Link: ib.LinkEthernet, State: ib.PortActive, MTU: ib.MTU1024, MaxMTU: ib.MTU4096, PKeys: []ib.PKey{ib.DefaultPKey},
		MaxRun: lane.RoCEBurst, MaxLocalRun: lane.LocalBurst}, hca.DefaultLimits)
	var err error
	n.lanes, err = lane.Open(lane.Config{Count: 1, Functions: hca.NewFunctions(n.adapter), Multicast: replicate.DefaultConfig,
		RoCE: roce.Config{Port: uint16(freePort(t)), IfIndex: n.ifIndex}, Now: n.now, Log: log, MemoryOwner: n.memoryOwner})
	if err != nil {
		t.Fatal(err)
	}
	n.lanes.Start()
	path, ends = filepath.Join(t.TempDir(), "door.sock"), make(chan error, 1)
	s, err := vhost.Listen(path, 0o600, vhost.Config{New: func(s *vhost.Session) (vhost.Device, error) { return n.admit(&function{n: n, a: n.adapter}, s) }, OnEnd: func(s *vhost.Session, why error) {
		n.ended(s, why)
		ends <- why
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		n.lanes.Close()
	})
	return n, path, ends
}

// TestProcessMemoryFirst: a program may hand over its memory before it has
// asked for anything that needs the device.
func TestProcessMemoryFirst(t *testing.T) {
	n, path, _ := testNode(t)
	f, err := vhosttest.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Get(abi.ReqHello, abi.Hello{ABI: abi.Version, PID: uint32(os.Getpid())}.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if err := f.Send(abi.ReqSetProtocolFeatures, abi.VUVersion, binary.NativeEndian.AppendUint64(nil, 1<<abi.ProtoWeft|1<<abi.ProtoReplyAck)); err != nil {
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
	d := n.snapshot()
	if len(d) != 1 || d[0].memory() != "process" {
		t.Errorf("sessions %v", d)
	}
	if err := f.Do(abi.ReqProcMem, m.Append(nil), fd); !errors.Is(err, unix.EBUSY) {
		t.Errorf("again: %v", err)
	}
}
