// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"weft/internal/device/ethdev"
	"weft/internal/device/ethdev/ethdevtest"
	"weft/internal/device/vhost"
	"weft/internal/service/vnic"
	"weft/test/interop/guest"
	"weft/test/lab"
)

// hub is a lane with sockets for machines, and a switch between them that knows
// nothing: the device sockets are tested.
type hub struct {
	*ethdevtest.Hub
	t      *testing.T
	dir    string
	socket []*socket
}

type socket struct {
	*ethdev.Port
	server *vhost.Server
	path   string
}

func newHub(t *testing.T) *hub {
	t.Helper()
	dir, err := os.MkdirTemp("", "weft-sockets")
	if err != nil {
		t.Fatal(err)
	}
	h := &hub{t: t, dir: dir}
	if h.Hub, err = ethdevtest.NewHub(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, d := range h.socket {
			d.server.Close()
		}
		h.Close()
		os.RemoveAll(dir)
	})
	return h
}

// add makes a device socket; dial: the machine is the socket's server.
func (h *hub) add(dial bool, plug bool) *socket {
	h.t.Helper()
	d := &socket{path: filepath.Join(h.dir, strconv.Itoa(len(h.socket)))}
	var err error
	if d.Port, err = ethdev.New(ethdev.Config{Lane: h}); err != nil {
		h.t.Fatal(err)
	}
	c := vhost.Config{New: func(s *vhost.Session) (vhost.Device, error) {
		v, err := d.Attach(s)
		if err != nil {
			return vhost.Device{}, err
		}
		return v.Parts(), nil
	}, OnEnd: func(_ *vhost.Session, reason error) { h.t.Logf("socket %s: %v", filepath.Base(d.path), reason) }}
	if dial {
		d.server = vhost.Dial(d.path, c)
	} else if d.server, err = vhost.Listen(d.path, 0o600, c); err != nil {
		h.t.Fatal(err)
	}
	h.Do(func() {
		d.Configure(vnic.Device{MAC: [6]byte{2, 0, 0, 0, 0, byte(len(h.socket))}, MTU: 1500, MaxMTU: 9000, Carrier: true})
	})
	if plug {
		if err := h.Add(d.Port); err != nil {
			h.t.Fatal(err)
		}
	}
	h.socket = append(h.socket, d)
	return d
}

func (h *hub) stats(d *socket) (s ethdev.Stats) {
	h.Do(func() { s = d.Stats })
	return s
}

// again ends the session at a socket and waits for the next, with its peer.
func (h *hub) again(d *socket, peer lab.Peer) {
	h.t.Helper()
	var was *ethdev.Device
	h.Do(func() {
		if was = d.Device(); was != nil {
			was.Fail(errors.New("the test requires a new session"))
		}
	})
	if err := lab.Until("the front-end comes back", time.Minute, func() (bool, error) {
		var now *ethdev.Device
		h.Do(func() { now = d.Device() })
		return now != nil && now != was, nil
	}, peer); err != nil {
		h.t.Fatalf("%v: %v", err, d.server.Waiting())
	}
}

// machine boots a stock Linux on a socket.
func machine(t *testing.T, c guest.Config) *guest.Guest {
	g, err := guest.Start(context.Background(), c)
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(g.Close)
	return g
}

// TestGuestsOnSockets: two stock machines on sockets of the device: one a client of its socket with split
// rings, one a server with packed rings and two queue pairs.
func TestGuestsOnSockets(t *testing.T) {
	image, err := guest.Build(t.Context(), guest.Debian12)
	if err != nil {
		t.Fatal(err)
	}
	h := newHub(t)
	split, packed := h.add(false, true), h.add(true, true)
	var a, b *guest.Guest
	var wg sync.WaitGroup
	wg.Go(func() {
		a = machine(t, guest.Config{Image: image, Vhost: split.path, MAC: "52:54:00:00:00:0a", IP: "10.99.0.1/24",
			IP6: "fd99::1/64"})
	})
	wg.Go(func() {
		b = machine(t, guest.Config{Image: image, Vhost: packed.path, Listen: true, Device: ",packed=on", Queues: 2,
			CPUs: 2, Reboot: true,
			MAC: "52:54:00:00:00:0b", IP: "10.99.0.2/24", IP6: "fd99::2/64"})
	})
	wg.Wait()
	if t.Failed() {
		return
	}
	run := func(g *guest.Guest, script string) string {
		t.Helper()
		other := a
		if g == a {
			other = b
		}
		out, err := g.Run(script, time.Minute, other)
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return out
	}
	reaches := func(g *guest.Guest, addr string) {
		t.Helper()
		run(g, until("ping -c 1 -W 1 "+addr+" >/dev/null", 20*time.Second))
	}

	reaches(a, "10.99.0.2")
	reaches(b, "fd99::1")
	for _, size := range []int{0, 1, 1472, 1473, 8000, 60000} {
		out := run(a, fmt.Sprintf("ping -c 5 -i 0.05 -W 5 -s %d 10.99.0.2", size))
		if !strings.Contains(out, " 0% packet loss") {
			t.Errorf("%d octets: %s", size, out)
		}
	}
	if out := run(b, "/usr/sbin/ethtool -l eth0; /usr/sbin/ethtool -k eth0"); !regexp.MustCompile(`(?s)Current.*Combined:\s+2`).MatchString(out) ||
		!strings.Contains(out, "tcp-segmentation-offload: on") {
		t.Errorf("queue pairs or offloads: %s", out)
	}

	// TCP both ways, several flows at once: whole segments pass, and no frame is a lie.
	run(b, "iperf3 -s -D; "+until("netstat -ltn | grep -q ':5201 '", 20*time.Second))
	before := [2]ethdev.Stats{h.stats(split), h.stats(packed)}
	for _, way := range []string{"", "-R"} {
		out := run(a, "iperf3 -c 10.99.0.2 -n 16M -P 4 "+way)
		t.Log(lastLine(out))
	}
	run(a, "iperf3 -u -b 20M -l 1400 -c 10.99.0.2 -t 1")
	for i, d := range []*socket{split, packed} {
		s := h.stats(d)
		if n := (s.TxBytes - before[i].TxBytes) / (s.TxFrames - before[i].TxFrames); n < 1600 {
			t.Errorf("socket %d: %d octets per frame: segments are cut by the guest", i, n)
		}
		if s.RxOffload+s.BrokenRings+s.TxShort+s.TxLong+s.TxWritable != 0 {
			t.Errorf("socket %d: %+v", i, s)
		}
	}
	h.Do(func() {
		if h.Refused != 0 {
			t.Errorf("%d frames refused", h.Refused)
		}
	})

	// The back-end goes and comes again under load, often, with the machine as the server.
	sessions := 5
	if lab.Soak {
		sessions = 20
	}
	run(a, "ping -i 0.02 10.99.0.2 >/tmp/ping 2>&1 & echo $! >/tmp/pinger")
	for range sessions {
		h.again(packed, b)
		n := h.stats(packed)
		wait(t, "frames both ways after a new session", func() bool {
			s := h.stats(packed)
			return s.TxFrames > n.TxFrames && s.RxFrames > n.RxFrames
		}, a, b)
	}
	// And twice with the machine as the client, which waits a second.
	for range 2 {
		h.again(split, a)
		n := h.stats(split)
		wait(t, "frames both ways after a new session", func() bool {
			s := h.stats(split)
			return s.TxFrames > n.TxFrames && s.RxFrames > n.RxFrames
		}, a, b)
	}
	t.Log(lastLine(run(a, "kill -INT $(cat /tmp/pinger); "+until("grep -q ' packet loss' /tmp/ping", 20*time.Second)+"; cat /tmp/ping")))
	run(a, "iperf3 -c 10.99.0.2 -n 1M")

	if err := b.Reboot(2 * time.Minute); err != nil {
		t.Fatal(err)
	}
	reaches(b, "10.99.0.1")
	reaches(a, "fd99::2")
	if s := h.stats(packed); s.BrokenRings != 0 {
		t.Errorf("%+v", s)
	}

	// A kernel that dies is the end of a machine that may reboot, too.
	began := time.Now()
	_, err = b.Run(panicScript+" sleep 1000", 20*time.Minute)
	if wrong := dies(b, began, err); wrong != nil {
		t.Error(wrong)
	}
}

// TestMovingGuest: a machine moves from one socket to another while it is sent to, and
// while it sends: what the device writes meanwhile moves with it, and its flows go on.
func TestMovingGuest(t *testing.T) {
	image, err := guest.Build(t.Context(), guest.Debian12)
	if err != nil {
		t.Fatal(err)
	}
	h := newHub(t)
	from, peer, to := h.add(false, true), h.add(false, true), h.add(false, true)
	moving := guest.Config{Image: image, Vhost: from.path, MAC: "52:54:00:00:00:0a", IP: "10.99.0.1/24", MemMB: 384}
	var a, b, c *guest.Guest
	var wg sync.WaitGroup
	wg.Go(func() { a = machine(t, moving) })
	wg.Go(func() {
		b = machine(t, guest.Config{Image: image, Vhost: peer.path, MAC: "52:54:00:00:00:0b", IP: "10.99.0.2/24",
			MemMB: 384})
	})
	wg.Wait()
	if t.Failed() {
		return
	}
	// What is received is compared with what was sent: every page counts.
	data := "/bin/busybox"
	sum, err := b.Run("httpd -p 5000 -h /bin && md5sum <"+data, time.Minute)
	if err != nil {
		t.Fatal(err, sum)
	}
	loop := "n=0; while [ ! -e /tmp/stop ]; do wget -q -O /tmp/got http://10.99.0.2:5000/busybox && [ \"$(md5sum </tmp/got)\" = \"" + strings.TrimSpace(sum) +
		"\" ] && n=$((n+1)) && echo $n >/tmp/n || echo bad >>/tmp/bad; done"
	if out, err := a.Run("("+loop+") >/dev/null 2>&1 & "+until("[ -s /tmp/n ]", time.Minute),
		2*time.Minute, b); err != nil {
		t.Fatal(err, out)
	}
	moving.Vhost, moving.Incoming = to.path, filepath.Join(h.dir, "moving")
	if c = machine(t, moving); c == nil {
		return
	}
	wait(t, "the other machine waits", func() bool { _, err := os.Stat(moving.Incoming); return err == nil }, c)
	for _, command := range []string{`{"execute": "migrate-set-parameters", "arguments": {"max-bandwidth": 1000000000, "downtime-limit": 2000}}`,
		`{"execute": "migrate", "arguments": {"uri": "unix:` + moving.Incoming + `"}}`} {
		if out, err := a.Command(command); err != nil {
			t.Fatal(err, out)
		}
	}
	var logged bool
	if err := lab.Until("the machine has moved", 2*time.Minute, func() (bool, error) {
		h.Do(func() {
			if d := from.Device(); d != nil {
				logged = logged || d.Logging()
			}
		})
		out, err := a.Command(`{"execute": "query-migrate"}`)
		if err == nil && strings.Contains(out, `"failed"`) {
			err = errors.New(out)
		}
		return strings.Contains(out, `"completed"`), err
	}, a, b, c); err != nil {
		t.Fatal(err)
	}
	if !logged {
		t.Error("the device never kept a log")
	}
	out, err := c.Run("old=$(cat /tmp/n); "+until("[ $(cat /tmp/n) -ge $((old+3)) ]", time.Minute)+
		"; touch /tmp/stop; cat /tmp/bad 2>/dev/null; cat /tmp/n", 2*time.Minute, b)
	if err != nil || strings.Contains(out, "bad\n") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s transfers", strings.TrimSpace(out))
	if s := h.stats(to); s.BrokenRings != 0 || s.TxFrames == 0 || s.RxFrames == 0 {
		t.Errorf("%+v", s)
	}
	if s := h.stats(from); s.BrokenRings != 0 {
		t.Errorf("%+v", s)
	}
}

// wait waits for a condition that the peers make true, as long as all of them live.
func wait(t *testing.T, what string, f func() bool, peers ...lab.Peer) {
	t.Helper()
	if err := lab.Until(what, time.Minute, func() (bool, error) { return f(), nil }, peers...); err != nil {
		t.Fatal(err)
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "\n")
}
