// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft/test/interop/guest"
	"weft/test/lab"
)

// bench is one node and one guest at the two ends of a TAP.
type bench struct {
	t      *testing.T
	ns     *lab.NetNS
	node   *lab.Node
	image  guest.Image
	guest  *guest.Guest // of the row that runs
	guests supply       // where it comes from
	v4, v6 string       // the guest's addresses
	port   int
	mtu    int // of the cable
}

// openBench boots the guest and starts the node; both end with the test.
func openBench(t *testing.T, kernel guest.Kernel, mtu int) *bench {
	t.Helper()
	lab.NeedNetNS(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		lab.Lacks(t, errors.New("a TAP needs /dev/net/tun"))
	}
	b := &bench{t: t, port: 19000, mtu: mtu}
	var err error
	if b.image, err = guest.Build(t.Context(), kernel); err != nil {
		t.Fatal(err)
	}
	if b.ns, b.v4, b.v6, err = lab.WithTap(mtu); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.ns.Close(); err != nil {
			t.Error(err)
		}
	})
	b.guests.boot = func() (machineOfRow, error) {
		g, err := b.boot()
		b.guest = g
		return g, err
	}
	t.Cleanup(func() {
		b.guests.close()
		if n := b.guests.deaths; n > 0 {
			t.Logf("guests that died of their kernel, each replaced by a fresh one: %d", n)
		}
	})
	if err := b.guests.ready(); err != nil {
		t.Fatal(err)
	}
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

// boot starts a guest at the MTU of the cable, and returns when the two kernels reach each other.
func (b *bench) boot() (*guest.Guest, error) {
	// Not the test's context: the guest is closed after the rest.
	g, err := guest.Start(context.Background(), guest.Config{Image: b.image, NetNS: b.ns.Name, Tap: "eth0",
		IP: b.v4 + "/24", IP6: b.v6 + "/64", MTU: b.mtu,
		Files: map[string]string{"/bin/verbcheck": lab.Bin("verbcheck")}})
	if err != nil {
		return nil, err
	}
	for _, a := range []string{b.ns.V4, b.ns.V6} {
		ping := "for i in $(seq 50); do ping -c 1 -W 1 " + a +
			" >/dev/null && exit 0; usleep 50000; done; ip addr; exit 1"
		if out, err := g.Run(ping, time.Minute); err != nil {
			g.Close()
			return nil, fmt.Errorf("the guest does not reach %s: %w\n%s", a, err, out)
		}
	}
	return g, nil
}

// run is subtest name of one row, which returns what is wrong.
func (b *bench) run(t *testing.T, name string, row func(t *testing.T) error) {
	t.Run(name, func(t *testing.T) {
		if err := b.guests.run(t, func() error { return row(t) }); err != nil {
			t.Error(err)
		}
	})
}

// beside runs a program that cannot go on without the guest: the end of the guest is its end.
func (b *bench) beside(c lab.Cmd, limit time.Duration) (string, error) {
	p, err := lab.Start(c)
	if err != nil {
		return "", err
	}
	err = b.waitBeside(p, limit)
	return p.Output(), err
}

// waitBeside waits for the end of a program, which ends with the guest at the latest.
func (b *bench) waitBeside(p *lab.Proc, limit time.Duration) error {
	over := make(chan struct{})
	defer close(over)
	g := b.guest
	go func() {
		select {
		case <-g.Done():
			p.Kill()
		case <-over:
		}
	}()
	return p.WaitBeside(g, limit)
}

// guestGID returns the index of the guest's GID of an address as ibv_devinfo
// prints it.
func (b *bench) guestGID(address string) (string, error) {
	out, err := b.guest.Run("ibv_devinfo -v | grep GID", time.Minute)
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, address+",") {
			_, rest, _ := strings.Cut(line, "[")
			index, _, _ := strings.Cut(rest, "]")
			return strings.TrimSpace(index), nil
		}
	}
	return "", fmt.Errorf("the guest has no GID of %s:\n%s", address, out)
}

// gids returns the indexes of Weft's and the guest's GID. Whatever the packets
// are, programs find each other over IPv4.
func (b *bench) gids(v6 bool) (weft int, guest string, err error) {
	mine, theirs := b.ns.V4, "::ffff:"+b.v4
	if v6 {
		mine, theirs = b.ns.V6, b.v6
	}
	if weft, err = b.node.GID(mine); err != nil {
		return 0, "", err
	}
	guest, err = b.guestGID(theirs)
	return weft, guest, err
}

// until is a script that waits for a condition, a command of the shell, and
// fails if it does not come true in time.
func until(condition string, limit time.Duration) string {
	return fmt.Sprintf("read -r now rest </proc/uptime; end=$((${now%%.*} + %d)); "+
		"until %s; do read -r now rest </proc/uptime; [ ${now%%.*} -lt $end ] || break; usleep 50000; done; %[2]s",
		int(limit.Seconds()), condition)
}

// serverLimit is how long a server in the guest may take to begin or to end.
const serverLimit = time.Minute

// serve starts a server in the guest and returns when it is ready, or has ended before.
func (b *bench) serve(command, ready string) error {
	// What the server before printed is no sign of this one.
	script := "rm -f /tmp/status; : >/tmp/out; (" + command + " >/tmp/out 2>&1 & echo $! >/tmp/pid; " +
		"wait $!; echo $? >/tmp/status) >/dev/null 2>&1 &\n" +
		until("{ "+ready+"; } || [ -s /tmp/status ]", serverLimit) + "; { " + ready + "; } || { cat /tmp/out; exit 1; }"
	if out, err := b.guest.Run(script, 2*serverLimit); err != nil {
		return fmt.Errorf("server in the guest: %w\n%s", err, out)
	}
	return nil
}

// served waits for the end of the server and returns what it printed.
func (b *bench) served() (string, error) {
	return b.guest.Run(until("[ -s /tmp/status ]", serverLimit)+
		" || { kill -9 $(cat /tmp/pid); cat /tmp/out; echo still running; exit 1; }\n"+
		"cat /tmp/out; exit $(cat /tmp/status)", 2*serverLimit)
}

// listensOn is the condition, for serve, that a server listens on a TCP port.
func listensOn(port int) string { return fmt.Sprintf("netstat -ltn | grep -q ':%d '", port) }

// result is what came of a program at both ends.
type result struct {
	weft, rxe       string
	weftErr, rxeErr error
}

// once runs p, Weft's end as client or as server.
func (b *bench) once(p program, gid int, guestGID string, client bool) (r result, err error) {
	b.port++
	base := filepath.Base(p.name)
	local := append([]string{p.name, "-d", "weft0", gidFlag(base), fmt.Sprint(gid), "-p", fmt.Sprint(b.port)},
		strings.Fields(p.args)...)
	remote := fmt.Sprintf("%s -d rxe0 %s %s -p %d %s", base, gidFlag(base), guestGID, b.port, p.args)
	const limit = 2 * time.Minute
	if client {
		if err := b.serve(remote, listensOn(b.port)); err != nil {
			return r, err
		}
		r.weft, r.weftErr = b.beside(b.node.Program(append(local, b.v4)...), limit)
		r.rxe, r.rxeErr = b.served()
		return r, nil
	}
	server, err := lab.Start(b.node.Program(local...))
	if err != nil {
		return r, err
	}
	defer server.Kill()
	if err := server.Listening(b.port, serverLimit); err != nil {
		return r, fmt.Errorf("%w\n%s", err, server.Output())
	}
	r.rxe, r.rxeErr = b.guest.Run(fmt.Sprintf("timeout 100 %s %s", remote, b.ns.V4), limit, server)
	r.weftErr = b.waitBeside(server, lab.PeerPatience)
	r.weft = server.Output()
	return r, nil
}
