// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/interop/guest"
	"weft/test/lab"
)

// endless is a program that goes on for longer than every row. The client always has requests on their way.
var endless = program{name: "ib_write_bw", args: "-D 600 -s 4096"}

// traffic starts a program without end between guest 0, the server, and guest 1.
func (f *rdmaFleet) traffic() {
	f.t.Helper()
	impatient := func(e rdmaEnd) string { return strings.ReplaceAll(e.command(endless), "-u 18", "-u 16") }
	f.serve(0, impatient(f.card(0)))
	f.run(1, "rm -f /tmp/status; ("+impatient(f.card(1))+" "+guestAddr(0)+
		" >/tmp/out 2>&1; echo $? >/tmp/status) >/dev/null 2>&1 &")
	f.wait("the guests talk", func() bool {
		for i := range f.guests {
			if !strings.Contains(fmt.Sprint(f.vm(i).RoCE.QPs), "RTS") {
				return false
			}
		}
		return true
	})
	for range 5 {
		sent := f.sent(1)
		f.wait("the traffic goes on", func() bool { return f.sent(1) > sent+100 })
	}
}

// sent is how many packets the card of a guest has sent.
func (f *rdmaFleet) sent(i int) uint64 {
	f.t.Helper()
	list, err := f.nodes[i].Counters()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, c := range list {
		if c.Scope == api.ScopeLink && c.Instance == f.vms[i].Name && c.Name == "sent_packets" {
			return c.Value
		}
	}
	f.t.Fatalf("node %d has no counter of the packets of its guest", i)
	return 0
}

// peerFails expects that the program in guest 1 ends with an error.
func (f *rdmaFleet) peerFails(t *testing.T) {
	t.Helper()
	out, err := f.runFor(1, until("[ -s /tmp/status ]", veswLimit)+" || { cat /tmp/out; echo goes on; killall -9 "+
		endless.name+"; exit 1; }; cat /tmp/out; exit $(cat /tmp/status)", 2*time.Minute)
	if err == nil || strings.Contains(out, "goes on") || !strings.Contains(out, "ailed status") {
		t.Errorf("the peer's program: %v\n%s", err, out)
	}
	f.nothingLeft(t, 1)
}

// unbind takes the card from the driver while a program uses it.
func (f *rdmaFleet) unbind(t *testing.T) {
	f.traffic()
	f.run(0, "cd /sys/bus/virtio/drivers/virtio_roce; set -- virtio*; echo $1 >/tmp/card; echo $1 >unbind; "+
		"! [ -e /sys/class/infiniband/vroce0 ]")
	f.peerFails(t)
	// The program of the card that went has lost the connection by which the other end would end it, too.
	if out, err := f.servedSoon(0, endless.name, errors.New("the card went")); err == nil {
		t.Errorf("the program of the card that went:\n%s", out)
	}
	f.run(0, "cat /tmp/card >/sys/bus/virtio/drivers/virtio_roce/bind; network")
	f.ready(0)
	f.both(pingpongs[0], f.card(0), f.card(1))
}

// killed ends a guest while its program talks with the other.
func (f *rdmaFleet) killed(t *testing.T) {
	f.traffic()
	f.guests[0].Close()
	f.guests[0] = nil
	f.peerFails(t)
	f.wait("the node has nothing of the guest", func() bool { v := f.vm(0); return !v.Guest && v.RoCE == nil })
	f.again(0)
	f.both(pingpongs[0], f.card(0), f.card(1))
}

// nodeAnew ends node 1 under traffic, and starts it again. The guest gets its card back as
// docs/notes/qemu.md describes.
func (f *rdmaFleet) nodeAnew(t *testing.T) {
	f.traffic()
	n := f.nodes[1]
	n.Proc.Kill()
	if err := n.Again(f.flags[1]...); err != nil {
		t.Fatal(err)
	}
	if err := f.guests[1].Replug(t.Context(), &f.vms[1]); err != nil {
		t.Fatal(err)
	}
	f.run(1, until("{ [ -e /sys/class/infiniband/vroce0 ] && [ -e /sys/class/net/eth0 ]; }", veswLimit)+"; network")
	f.tap(1)
	f.ready(1)
	f.servedSoon(0, endless.name, errors.New("the node ended"))
	f.reaches(0, guestAddr(1))
	f.both(pingpongs[0], f.card(0), f.card(1))
}

// again boots a guest again, with the driver.
func (f *rdmaFleet) again(i int) {
	f.t.Helper()
	g, err := guest.Start(context.Background(), f.withCard(i, f.config, []lab.Peer{f.nodes[i].Proc}))
	if err != nil {
		f.t.Fatal(err)
	}
	f.guests[i] = g
	f.load(i)
}
