// SPDX-License-Identifier: Apache-2.0

// Package interop runs Weft against Linux soft-RoCE: a stock Debian kernel in
// QEMU, on a TAP in a network namespace, Weft as client and as server.
//
// In: the built weft, root, Debian's packages. Out: one row per program and
// direction, and a capture of all of it in which every packet must parse and
// bear the right ICRC. Called by `make interop`. It must never need KVM.
package interop

import (
	"context"
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

// bench is one node and one guest at the two ends of a TAP.
type bench struct {
	t      *testing.T
	ns     *lab.NetNS
	node   *lab.Node
	guest  *guest.Guest
	v4, v6 string // the guest's addresses
	port   int
	mtu    int // of the cable
}

// up boots the guest and starts the node; both end with the test.
func up(t *testing.T, mtu int) *bench {
	t.Helper()
	lab.NeedNetNS(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		lab.Lacks(t, errors.New("a TAP needs /dev/net/tun"))
	}
	image, err := guest.Build(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, port: 19000, mtu: mtu}
	if b.ns, b.v4, b.v6, err = lab.WithTap(mtu); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.ns.Close(); err != nil {
			t.Error(err)
		}
	})
	// Not the test's context: the guest is closed after the rest.
	b.guest, err = guest.Start(context.Background(), guest.Config{Image: image, NetNS: b.ns.Name, Tap: "eth0", IP: b.v4 + "/24", IP6: b.v6 + "/64", MTU: mtu,
		Files: map[string]string{"/bin/verbcheck": lab.Bin("verbcheck")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.guest.Close)
	b.answers()
	if b.node, err = lab.StartNode(b.ns, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.node.Close(); err != nil {
			t.Errorf("%v\n%s", err, b.node.Proc.Output())
		}
		if t.Failed() {
			t.Logf("node printed:\n%s", b.node.Proc.Output())
		}
	})
	return b
}

// answers waits until the two kernels reach each other.
func (b *bench) answers() {
	b.t.Helper()
	for _, a := range []string{b.ns.V4, b.ns.V6} {
		if out, err := b.guest.Run("for i in $(seq 50); do ping -c 1 -W 1 "+a+" >/dev/null && exit 0; usleep 50000; done; ip addr; exit 1", time.Minute); err != nil {
			b.t.Fatalf("the guest does not reach %s: %v\n%s", a, err, out)
		}
	}
}

// guestGID returns the index of the guest's GID of an address as ibv_devinfo
// prints it.
func (b *bench) guestGID(address string) string {
	b.t.Helper()
	out, err := b.guest.Run("ibv_devinfo -v | grep GID", 20*time.Second)
	if err != nil {
		b.t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, address+",") {
			_, rest, _ := strings.Cut(line, "[")
			index, _, _ := strings.Cut(rest, "]")
			return strings.TrimSpace(index)
		}
	}
	b.t.Fatalf("the guest has no GID of %s:\n%s", address, out)
	return ""
}

// gids returns the indexes of Weft's and the guest's GID. Whatever the packets
// are, programs find each other over IPv4.
func (b *bench) gids(t *testing.T, v6 bool) (weft int, guest string) {
	t.Helper()
	mine, theirs := b.ns.V4, "::ffff:"+b.v4
	if v6 {
		mine, theirs = b.ns.V6, b.v6
	}
	weft, err := b.node.GID(mine)
	if err != nil {
		t.Fatal(err)
	}
	return weft, b.guestGID(theirs)
}

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

// until is a script that waits for a condition, a command of the shell, and
// fails if it does not come true in time.
func until(condition string, limit time.Duration) string {
	return fmt.Sprintf("read -r now rest </proc/uptime; end=$((${now%%.*} + %d)); "+
		"until %s; do read -r now rest </proc/uptime; [ ${now%%.*} -lt $end ] || break; usleep 50000; done; %[2]s", int(limit.Seconds()), condition)
}

// serve starts a server in the guest and returns when it is ready.
func (b *bench) serve(t *testing.T, command, ready string) {
	t.Helper()
	// What the server before printed is no sign of this one.
	out, err := b.guest.Run("rm -f /tmp/status; : >/tmp/out; ("+command+" >/tmp/out 2>&1 & echo $! >/tmp/pid; wait $!; echo $? >/tmp/status) >/dev/null 2>&1 &\n"+
		until(ready, 20*time.Second)+" || { cat /tmp/out; exit 1; }", time.Minute)
	if err != nil {
		t.Fatalf("server in the guest: %v\n%s", err, out)
	}
}

// served waits for the end of the server and returns what it printed.
func (b *bench) served() (string, error) {
	return b.guest.Run(until("[ -s /tmp/status ]", 20*time.Second)+" || { kill -9 $(cat /tmp/pid); cat /tmp/out; echo still running; exit 1; }\n"+
		"cat /tmp/out; exit $(cat /tmp/status)", time.Minute)
}

// result is what came of a program at both ends.
type result struct {
	weft, rxe       string
	weftErr, rxeErr error
}

// once runs p, Weft's end as client or as server.
func (b *bench) once(t *testing.T, p program, gid int, guestGID string, client bool) (r result) {
	t.Helper()
	b.port++
	base := filepath.Base(p.name)
	local := append([]string{p.name, "-d", "weft0", gidFlag(base), fmt.Sprint(gid), "-p", fmt.Sprint(b.port)}, strings.Fields(p.args)...)
	remote := fmt.Sprintf("%s -d rxe0 %s %s -p %d %s", base, gidFlag(base), guestGID, b.port, p.args)
	const limit = 2 * time.Minute
	if client {
		b.serve(t, remote, fmt.Sprintf("netstat -ltn | grep -q ':%d '", b.port))
		r.weft, r.weftErr = lab.Run(b.node.Program(append(local, b.v4)...), limit)
		r.rxe, r.rxeErr = b.served()
		return r
	}
	server, err := lab.Start(b.node.Program(local...))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	if err := server.Listening(b.port, 20*time.Second); err != nil {
		t.Fatalf("%v\n%s", err, server.Output())
	}
	r.rxe, r.rxeErr = b.guest.Run(fmt.Sprintf("timeout 100 %s %s", remote, b.ns.V4), limit)
	r.weftErr = server.Wait(10 * time.Second)
	r.weft = server.Output()
	return r
}

// gaveUp reports whether an end of a pingpong had no answer for half a second,
// its fixed patience. So long the guest can be without a processor.
func (r result) gaveUp() bool {
	return strings.Contains(r.weft, lab.GaveUp) || strings.Contains(r.rxe, lab.GaveUp)
}

// ways runs p, Weft as client of the guest or as its server.
func (b *bench) ways(t *testing.T, p program, v6 bool, ways []bool) {
	gid, guestGID := b.gids(t, v6)
	name := filepath.Base(p.name) + " " + p.args
	if v6 {
		name += " over IPv6"
	}
	if strings.HasPrefix(filepath.Base(p.name), "ib_") {
		p.args += " -u 18" // patience of eight seconds
	}
	for _, client := range ways {
		t.Run(name+map[bool]string{true: " weft as client", false: " weft as server"}[client], func(t *testing.T) {
			r := b.once(t, p, gid, guestGID, client)
			for try := 0; try < 2 && r.gaveUp(); try++ {
				t.Logf("no answer in time: weft: %v, guest: %v", r.weftErr, r.rxeErr)
				r = b.once(t, p, gid, guestGID, client)
			}
			why := ""
			if r.weftErr == nil && r.rxeErr == nil && p.check != nil {
				why = p.check(r.weft, r.rxe)
			}
			if r.weftErr != nil || r.rxeErr != nil || why != "" {
				t.Fatalf("weft: %v, guest: %v %s\n-- weft --\n%s\n-- guest --\n%s", r.weftErr, r.rxeErr, why, r.weft, r.rxe)
			}
		})
	}
}

// killed ends a program without a word: soft-RoCE's end, which mostly waits for
// its messages, hears of it all the same, and goes on working.
func (b *bench) killed(t *testing.T) {
	gid, guestGID := b.gids(t, false)
	b.port++
	args := fmt.Sprintf("-p %d -n 100000000", b.port)
	b.serve(t, "ibv_rc_pingpong -d rxe0 -g "+guestGID+" "+args, fmt.Sprintf("netstat -ltn | grep -q ':%d '", b.port))
	client, err := lab.Start(b.node.Program(append(append([]string{"ibv_rc_pingpong", "-d", "weft0", "-g", fmt.Sprint(gid)}, strings.Fields(args)...), b.v4)...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Kill()
	if err := b.node.Working(client, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	client.Kill()
	if out, err := b.served(); err == nil || strings.Contains(out, "still running") || !strings.Contains(out, "tatus") {
		t.Errorf("the guest's end: %v\n%s", err, out)
	}
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
	p, err := lab.Start(lab.Cmd{NetNS: b.ns.Name, Args: []string{"dumpcap", "-q", "-P", "-i", "eth0", "-B", "64", "-f", "udp port 4791 or " + memberships, "-w", file}})
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
func TestSoftRoCE(t *testing.T) {
	b := up(t, 1500)
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
	if out, err := b.guest.Run(fmt.Sprintf("ip link set eth0 mtu %d", mtu), 20*time.Second); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := lab.Run(lab.Cmd{NetNS: b.ns.Name, Args: []string{"ip", "link", "set", "eth0", "mtu", fmt.Sprint(mtu)}}, 20*time.Second); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b.mtu = mtu
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		s, err := b.node.Status()
		if err != nil {
			t.Fatal(err)
		}
		if s.Devices[0].ActiveMTU == 4096 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("weft0 has MTU %d", s.Devices[0].ActiveMTU)
		}
	}
	out, err := b.guest.Run("ibv_devinfo", 20*time.Second)
	if err != nil || !strings.Contains(out, "active_mtu:\t\t4096") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// verbcheck checks every byte and every error between the two, by all tests or by those of a pattern. What sends both
// ways, and what is tried at either end, whichever begins, it does twice only in a soak.
func (b *bench) verbcheck(t *testing.T, client bool, v6 bool, only ...string) {
	gid, guestGID := b.gids(t, v6)
	b.port++
	args, least := "--peer=rxe -w 20", 100
	for _, pattern := range only {
		args, least = args+" -t "+pattern, 1
	}
	var out string
	var err error
	if client {
		b.serve(t, fmt.Sprintf("verbcheck -d rxe0 -g %s -p %d -w 20", guestGID, b.port), "grep -q waiting /tmp/out")
		argv := append([]string{lab.Bin("verbcheck"), "-d", "weft0", "-g", fmt.Sprint(gid), "-p", fmt.Sprint(b.port)}, strings.Fields(args)...)
		out, err = lab.Run(b.node.Program(append(argv, b.v4)...), 10*time.Minute)
		if theirs, serr := b.served(); serr != nil {
			t.Errorf("server in the guest: %v\n%s", serr, theirs)
		}
	} else {
		if !lab.Soak {
			args += " -x '*.sizes' -x 'obj.*'"
		}
		server, serr := lab.Start(b.node.Program(lab.Bin("verbcheck"), "-d", "weft0", "-g", fmt.Sprint(gid), "-p", fmt.Sprint(b.port), "-w", "20"))
		if serr != nil {
			t.Fatal(serr)
		}
		defer server.Kill()
		if _, err := server.Expect("waiting", 20*time.Second); err != nil {
			t.Fatal(err)
		}
		out, err = b.guest.Run(fmt.Sprintf("timeout 590 verbcheck -d rxe0 -g %s -p %d %s %s", guestGID, b.port, args, b.ns.V4), 10*time.Minute)
	}
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
