// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"weft/internal/proto/ether"
	"weft/test/lab"
)

// testpmd starts DPDK's test program with a virtio-user port on each socket, of which it
// forwards to the other whatever comes. It ends with the test, or with end, which returns what it printed.
func testpmd(t *testing.T, pairs int, options string, paths ...string) (p *lab.Proc, end func() string) {
	t.Helper()
	prefix := fmt.Sprintf("weft%d", os.Getpid())
	args := []string{"--no-pci", "--no-huge", "-m", "256", "--no-telemetry", "--file-prefix", prefix, "--lcores",
		"0@(0-1),1@(0-1)"}
	for i, p := range paths {
		args = append(args, "--vdev", fmt.Sprintf("net_virtio_user%d,path=%s,queues=%d%s", i, p, pairs, options))
	}
	n := strconv.Itoa(pairs)
	args = append(args, "--", "--total-num-mbufs=8192", "--forward-mode=io", "--auto-start", "--no-flush-rx",
		"--no-mlockall", "--rxq="+n, "--txq="+n)
	if _, err := exec.LookPath("dpdk-testpmd"); err != nil {
		lab.Lacks(t, err)
	}
	stdin, keyboard, err := os.Pipe() // it ends with the input, at the latest with this process
	if err != nil {
		t.Fatal(err)
	}
	p, err = lab.Start(lab.Cmd{Args: append([]string{"dpdk-testpmd"}, args...), Stdin: stdin})
	stdin.Close()
	if err != nil {
		keyboard.Close()
		t.Fatal(err)
	}
	end = sync.OnceValue(func() string {
		keyboard.Close()
		if err := p.Wait(20 * time.Second); err != nil {
			t.Error(err)
		}
		os.RemoveAll("/var/run/dpdk/" + prefix)
		return p.Output()
	})
	t.Cleanup(func() {
		if printed := end(); t.Failed() {
			t.Logf("dpdk-testpmd printed:\n%s", printed)
		}
	})
	return p, end
}

// TestDPDKForwards: DPDK between two sockets brings every frame from one to the other, in
// order and whole, with rings of either kind.
func TestDPDKForwards(t *testing.T) {
	for _, tc := range []struct {
		name, options string
		dial          bool
		pairs         int
	}{
		{"split", "", false, 1},
		{"packed", ",packed_vq=1", false, 2},
		{"packed, without mergeable buffers", ",packed_vq=1,mrg_rxbuf=0", false, 1},
		{"split, as the socket's server", ",server=1", true, 2},
		{"packed, as the socket's server", ",server=1,packed_vq=1", true, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHub(t)
			in, out := h.add(tc.dial, false), h.add(tc.dial, false)
			p, _ := testpmd(t, tc.pairs, tc.options, in.path, out.path)
			wait(t, "both ports have a front-end", func() (ok bool) {
				h.Do(func() { ok = in.Device() != nil && out.Device() != nil })
				return ok
			}, p)
			forward(t, h, p, in, out, 20000)
			if tc.dial {
				h.again(in, p)
				h.again(out, p)
				forward(t, h, p, in, out, 2000)
				forward(t, h, p, out, in, 2000)
			}
			for _, d := range []*socket{in, out} {
				if s := h.stats(d); s.BrokenRings+s.TxShort+s.TxLong+s.TxWritable+s.RxOffload != 0 {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// forward sends frames into one socket and expects them from the other. What is sent before
// the program forwards is lost, so the count begins with the first that comes.
func forward(t *testing.T, h *hub, program *lab.Proc, in, out *socket, total uint32) {
	t.Helper()
	const window = 64
	frame := make([]byte, 1514)
	copy(frame, []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5})
	frames, off := make([][]byte, 64), make([]ether.Offload, 64)
	length := func(n uint32) int { return 60 + int(n%1455) }
	send := func(round byte, n uint32) bool {
		frame[14] = round
		binary.BigEndian.PutUint32(frame[15:], n)
		return in.WriteBatch([][]byte{frame[:length(n)]}, []ether.Offload{{}}) == 0
	}
	var sent, got uint32
	began := false
	fail := ""
	turn := func() {
		if _, err := in.TryReadBatch(frames, off); err != nil {
			fail = err.Error()
		}
		n, err := out.TryReadBatch(frames, off)
		if err != nil {
			fail = err.Error()
		}
		for _, f := range frames[:n] {
			if f[14] == 0 {
				began = true
				continue
			}
			if m := binary.BigEndian.Uint32(f[15:]); m != got || len(f) != length(m) {
				fail = fmt.Sprintf("frame %d of %d octets, want %d of %d", m, len(f), got, length(got))
			}
			got++
		}
		for began && sent < total && sent-got < window && send(1, sent) {
			sent++
		}
	}
	for end := time.Now().Add(30 * time.Second); got < total && fail == ""; time.Sleep(100 * time.Microsecond) {
		h.Do(func() {
			if !began {
				send(0, 0)
			}
			turn()
		})
		if err := lab.Ended(program); err != nil {
			fail = err.Error()
		} else if time.Now().After(end) {
			fail = "no more frames come"
		}
	}
	if fail != "" {
		t.Fatalf("%d frames of %d, %d sent: %s", got, total, sent, fail)
	}
}
