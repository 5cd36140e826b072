// SPDX-License-Identifier: Apache-2.0

// Package interop runs Weft against Linux soft-RoCE: a stock Debian kernel in
// QEMU, on a TAP in a network namespace, Weft as client and as server.
//
// In: the built weft, root, Debian's packages. Out: one row per program and
// direction, and a capture of all of it in which every packet must parse and
// bear the right ICRC. Called by `make interop`. It must never need KVM.
package interop

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/test/interop/guest"
	"weft/test/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, nil)) }

// program is one to run both ways.
type program struct {
	name, args string
	check      func(weftOutput, rxeOutput string) string
}

func gidFlag(name string) string {
	if strings.HasPrefix(name, "ib_") {
		return "-x"
	}
	return "-g"
}

// gaveUp reports whether an end of a pingpong had no answer for half a second,
// its fixed patience. So long the guest can be without a processor.
func (r result) gaveUp() bool {
	return strings.Contains(r.weft, lab.GaveUp) || strings.Contains(r.rxe, lab.GaveUp)
}

// ways runs p, Weft as client of the guest or as its server.
func (b *bench) ways(t *testing.T, p program, v6 bool, ways []bool) {
	name := filepath.Base(p.name) + " " + p.args
	if v6 {
		name += " over IPv6"
	}
	if strings.HasPrefix(filepath.Base(p.name), "ib_") {
		p.args += " -u 18" // patience of eight seconds
	}
	for _, client := range ways {
		way := map[bool]string{true: " weft as client", false: " weft as server"}[client]
		b.run(t, name+way, func(t *testing.T) error {
			gid, guestGID, err := b.gids(v6)
			if err != nil {
				return err
			}
			r, err := b.once(p, gid, guestGID, client)
			for try := 0; err == nil && try < 2 && r.gaveUp(); try++ {
				t.Logf("no answer in time: weft: %v, guest: %v", r.weftErr, r.rxeErr)
				r, err = b.once(p, gid, guestGID, client)
			}
			if err != nil {
				return err
			}
			why := ""
			if r.weftErr == nil && r.rxeErr == nil && p.check != nil {
				why = p.check(r.weft, r.rxe)
			}
			if r.weftErr != nil || r.rxeErr != nil || why != "" {
				return fmt.Errorf("weft: %v, guest: %v %s\n-- weft --\n%s\n-- guest --\n%s", r.weftErr, r.rxeErr, why,
					r.weft, r.rxe)
			}
			return nil
		})
	}
}

// killed ends a program without notice: the end of soft-RoCE, which mostly waits for
// messages, gets an error all the same, and works with the next program.
func (b *bench) killed(t *testing.T) {
	b.run(t, "the peer gets an error", func(t *testing.T) error {
		gid, guestGID, err := b.gids(false)
		if err != nil {
			return err
		}
		b.port++
		args := fmt.Sprintf("-p %d -n 100000000", b.port)
		if err := b.serve("ibv_rc_pingpong -d rxe0 -g "+guestGID+" "+args, listensOn(b.port)); err != nil {
			return err
		}
		argv := append([]string{"ibv_rc_pingpong", "-d", "weft0", "-g", fmt.Sprint(gid)}, strings.Fields(args)...)
		program := b.node.Program(append(argv, b.v4)...)
		program.Peers = append(program.Peers, b.guest)
		client, err := lab.Start(program)
		if err != nil {
			return err
		}
		defer client.Kill()
		if err := b.node.Working(client, time.Minute); err != nil {
			return err
		}
		client.Kill()
		if out, err := b.served(); err == nil || strings.Contains(out, "still running") ||
			!strings.Contains(out, "tatus") {
			return fmt.Errorf("the guest's end: %v\n%s", err, out)
		}
		return nil
	})
	b.ways(t, program{name: "ibv_rc_pingpong", args: "-n 100", check: pingpong}, false, []bool{true})
}

// Contents are checked at both ends.
func pingpong(weftOut, rxeOut string) string {
	for _, out := range []string{weftOut, rxeOut} {
		if !strings.Contains(out, " iters in ") {
			return "no result"
		}
		if strings.Contains(out, "invalid data") {
			return "wrong contents"
		}
	}
	return ""
}

func (b *bench) capture(t *testing.T) (file string, stop func()) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "tap.pcap")
	p, err := lab.Start(lab.Cmd{NetNS: b.ns.Name, Args: []string{"dumpcap", "-q", "-P", "-i", "eth0", "-B", "64",
		"-f", "udp port 4791 or " + memberships, "-w", file}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	if _, err := p.Expect("File:", 20*time.Second); err != nil {
		t.Fatalf("%v\n%s", err, p.Output())
	}
	return file, func() {
		p.Signal(syscall.SIGINT)
		if err := p.Wait(20 * time.Second); err != nil {
			t.Errorf("%v\n%s", err, p.Output())
		}
	}
}

// TestSoftRoCE is Weft and soft-RoCE at the two ends of a cable: one guest for
// all rows. One row per behaviour, in one of the two directions by turns; a soak runs
// all of them both ways, over IPv4 and IPv6, with large packets too.
func TestSoftRoCE(t *testing.T) { softRoCE(t, guest.Debian12) }

// TestSoftRoCEOfDebian13 is the same with the newer kernel.
func TestSoftRoCEOfDebian13(t *testing.T) {
	lab.OnlySoak(t)
	softRoCE(t, guest.Debian13)
}

func softRoCE(t *testing.T, kernel guest.Kernel) {
	b := openBench(t, kernel, 1500)
	file, stop := b.capture(t)
	b.groups(t)
	b.programs(t, false)
	stop()
	t.Run("capture", func(t *testing.T) { checkCapture(t, file, b) })
	t.Run("verbcheck weft as client", func(t *testing.T) { b.verbcheck(t, true, false) })
	t.Run("verbcheck weft as server", func(t *testing.T) { b.verbcheck(t, false, false) })
	if lab.Soak {
		b.programs(t, true)
		t.Run("verbcheck weft as client over IPv6", func(t *testing.T) { b.verbcheck(t, true, true) })
		t.Run("verbcheck weft as server over IPv6", func(t *testing.T) { b.verbcheck(t, false, true) })
	}
	t.Run("killed", b.killed)
	t.Run("by address", b.byAddress)
	t.Run("a kernel that dies", b.kernelDies)
	t.Run("MTU 9000", func(t *testing.T) {
		b.large(t)
		b.programs(t, false)
		if lab.Soak {
			b.programs(t, true)
			b.verbcheck(t, true, false)
		}
	})
}

// programs runs Debian's programs between the two ends.
func (b *bench) programs(t *testing.T, v6 bool) {
	n, bw := "-n 100", "-n 50 -s 65536 -F"
	if lab.Soak {
		n, bw = "-n 1000", "-n 2000 -s 65536 -F"
	}
	const lat = "-n 100 -F"
	for i, p := range []program{ // with large packets too: messages of several
		{"ibv_rc_pingpong", "-c " + n, pingpong},
		{"ibv_rc_pingpong", "-c -e -s 5001 " + n, pingpong},
		{"ibv_uc_pingpong", "-c " + n, pingpong},
		{"ibv_ud_pingpong", "-c -s 1000 " + n, pingpong},
		{"ibv_srq_pingpong", "-c " + n, pingpong},
		{"ib_send_bw", bw, nil},
		{"ib_write_bw", bw, nil},
		{"ib_read_bw", bw, nil},
		{"ib_write_bw", "-n 5 -s 1048576 -F", nil}, // a thousand packets
		{"ib_atomic_bw", lat, nil},
		{"ib_atomic_bw", "-A CMP_AND_SWAP " + lat, nil},
		{"ib_send_bw", "-c UD -s 1000 -n 100 -F", nil},
		{"ib_send_lat", lat, nil},
		{"ib_write_lat", lat, nil},
		{"ib_read_lat", lat, nil},
		{"ib_atomic_lat", lat, nil},
		{"ib_atomic_lat", "-A CMP_AND_SWAP " + lat, nil},
	} {
		large := i == 1 || i == 3 || i >= 6 && i <= 8
		ways := []bool{i%2 == 0}
		if lab.Soak || i < 5 && b.mtu == 1500 {
			ways = []bool{true, false}
		}
		if !lab.Soak && b.mtu > 1500 && !large {
			continue // the size of packets is of no interest
		}
		b.ways(t, p, v6, ways)
	}
	if !v6 && !lab.Soak && b.mtu == 1500 {
		b.ways(t, program{"ibv_rc_pingpong", "-c " + n, pingpong}, true, []bool{true})
		b.ways(t, program{"ibv_ud_pingpong", "-c -s 1000 " + n, pingpong}, true, []bool{false})
		b.ways(t, program{"ib_read_lat", lat, nil}, true, []bool{true})
	}
}

// large lets both ends have packets of 9000 bytes from now on.
func (b *bench) large(t *testing.T) {
	t.Helper()
	const mtu = 9000
	if out, err := lab.Run(lab.Cmd{NetNS: b.ns.Name, Args: []string{"ip", "link", "set", "eth0", "mtu",
		fmt.Sprint(mtu)}}, 20*time.Second); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b.mtu = mtu // of a guest that boots from now on
	if err := b.guests.ready(); err != nil {
		t.Fatal(err)
	}
	if out, err := b.guest.Run(fmt.Sprintf("ip link set eth0 mtu %d", mtu), 20*time.Second); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := lab.Until("weft0 has MTU 4096", 20*time.Second, func() (bool, error) {
		s, err := b.node.Status()
		return err == nil && s.Devices[0].ActiveMTU == 4096, err
	}, b.node.Proc); err != nil {
		t.Fatal(err)
	}
	out, err := b.guest.Run("ibv_devinfo", 20*time.Second)
	if err != nil || !strings.Contains(out, "active_mtu:\t\t4096") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// verbcheck checks every byte and every error between the two, by all tests or by those of a pattern. What sends both
// ways, and what is tried at either end, whichever begins, it does twice only in a soak.
func (b *bench) verbcheck(t *testing.T, client bool, v6 bool, only ...string) {
	args, least := "--peer=rxe -w 20", 100
	for _, pattern := range only {
		args, least = args+" -t "+pattern, 1
	}
	if !client && !lab.Soak {
		args += " -x '*.sizes' -x 'obj.*'"
	}
	var out string
	err := b.guests.run(t, func() (err error) {
		once := b.verbcheckServer
		if client {
			once = b.verbcheckClient
		}
		out, err = once(v6, args)
		return err
	})
	passed, failed, skipped := lab.Verdicts(out)
	for _, name := range passed {
		t.Run(name, func(*testing.T) {})
	}
	for name, why := range failed {
		t.Run(name, func(t *testing.T) { t.Error(why) })
	}
	t.Logf("%d passed, %d failed; soft-RoCE cannot do: %v", len(passed), len(failed), skipped)
	if err != nil && len(failed) == 0 || len(passed) < least {
		t.Errorf("%v\n%s", err, out)
	}
}

// verbcheckLimit is for a run of verbcheck, which bounds each of its own waits.
const verbcheckLimit = 10 * time.Minute

// verbcheckClient runs verbcheck with Weft as the client, and returns what that printed.
func (b *bench) verbcheckClient(v6 bool, args string) (out string, err error) {
	gid, guestGID, err := b.gids(v6)
	if err != nil {
		return "", err
	}
	b.port++
	if err := b.serve(fmt.Sprintf("verbcheck -d rxe0 -g %s -p %d -w 20", guestGID, b.port),
		"grep -q waiting /tmp/out"); err != nil {
		return "", err
	}
	argv := append([]string{lab.Bin("verbcheck"), "-d", "weft0", "-g", fmt.Sprint(gid), "-p", fmt.Sprint(b.port)},
		strings.Fields(args)...)
	out, err = b.beside(b.node.Program(append(argv, b.v4)...), verbcheckLimit)
	if theirs, serr := b.served(); serr != nil {
		err = errors.Join(err, fmt.Errorf("server in the guest: %w\n%s", serr, theirs))
	}
	return out, err
}

// verbcheckServer runs verbcheck with Weft as the server, and returns what the client in the guest printed.
func (b *bench) verbcheckServer(v6 bool, args string) (out string, err error) {
	gid, guestGID, err := b.gids(v6)
	if err != nil {
		return "", err
	}
	b.port++
	port := fmt.Sprint(b.port)
	server, err := lab.Start(b.node.Program(lab.Bin("verbcheck"), "-d", "weft0", "-g", fmt.Sprint(gid), "-p", port,
		"-w", "20"))
	if err != nil {
		return "", err
	}
	defer server.Kill()
	if _, err := server.Expect("waiting", serverLimit); err != nil {
		return "", err
	}
	return b.guest.Run(fmt.Sprintf("timeout 590 verbcheck -d rxe0 -g %s -p %s %s %s", guestGID, port, args, b.ns.V4),
		verbcheckLimit, server)
}
