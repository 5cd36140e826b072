// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"testing"
	"time"

	"weft/test/interop/guest"
	"weft/test/lab"
)

// TestGuestsRDMAOfDebian13 is TestGuestsRDMA with the kernel of Debian 13.
func TestGuestsRDMAOfDebian13(t *testing.T) {
	lab.OnlySoak(t)
	f := newRDMAFleet(t, guest.Debian13)
	f.rdmaRows()
}

// TestGuestsRDMAKilledOften ends a guest, and unbinds its card, under traffic, many times.
func TestGuestsRDMAKilledOften(t *testing.T) {
	lab.OnlySoak(t)
	f := newRDMAFleet(t, guest.Debian12)
	for i := range f.guests {
		f.load(i)
	}
	for round := range 5 {
		f.row(fmt.Sprint("killed ", round), f.killed)
		f.row(fmt.Sprint("unbound ", round), f.unbind)
		f.row(fmt.Sprint("rebooted ", round), f.rebooted)
	}
}

// rebooted starts a guest anew from within while its program talks with the other guest.
func (f *rdmaFleet) rebooted(t *testing.T) {
	f.traffic()
	if err := f.guests[0].Reboot(2*time.Minute, f.nodes[0].Proc); err != nil {
		t.Fatal(err)
	}
	f.peerFails(t)
	f.load(0)
	f.both(pingpongs[0], f.card(0), f.card(1))
}
