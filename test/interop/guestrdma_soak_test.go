// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"strings"
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

// TestGuestsNVMe has one guest use a disk of the other by NVMe over RDMA: the kernel's own programs of queue pairs. What
// is written comes back, and is what the other has.
func TestGuestsNVMe(t *testing.T) {
	lab.OnlySoak(t)
	for _, kernel := range []guest.Kernel{guest.Debian12, guest.Debian13} {
		t.Run(string(kernel), func(t *testing.T) {
			f := newRDMAFleet(t, kernel)
			for i := range f.guests {
				f.load(i)
			}
			f.run(0, "load nvmet_rdma; mount -t configfs none /sys/kernel/config || true; cd /sys/kernel/config/nvmet; "+
				"dd if=/dev/zero of=/dev/shm/disk bs=1M count=32 2>/dev/null; "+
				"mkdir -p subsystems/disk/namespaces/1 ports/1; echo 1 >subsystems/disk/attr_allow_any_host; "+
				"echo 1 >subsystems/disk/namespaces/1/buffered_io; "+
				"echo -n /dev/shm/disk >subsystems/disk/namespaces/1/device_path; "+
				"echo 1 >subsystems/disk/namespaces/1/enable; cd ports/1; echo rdma >addr_trtype; echo ipv4 >addr_adrfam; "+
				"echo "+guestAddr(0)+" >addr_traddr; echo 4420 >addr_trsvcid; "+
				"ln -s /sys/kernel/config/nvmet/subsystems/disk subsystems/disk")
			f.run(1, "load nvme_rdma; echo transport=rdma,traddr="+guestAddr(0)+",trsvcid=4420,nqn=disk >/dev/nvme-fabrics; "+
				until("[ -b /dev/nvme0n1 ]", veswLimit))
			const sum = " bs=1M count=16 2>/dev/null | md5sum | cut -c1-32"
			written := f.run(1, "dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null; "+
				"dd if=/tmp/data of=/dev/nvme0n1 bs=1M count=16 conv=fsync 2>/dev/null; dd if=/tmp/data"+sum)
			read := f.run(1, "echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/nvme0n1"+sum)
			there := f.run(0, "dd if=/dev/shm/disk"+sum)
			if read != written || there != written {
				t.Errorf("written %s, read %s, on the other guest %s", written, read, there)
			}
			f.run(1, "echo 1 >/sys/class/nvme/nvme0/delete_controller; "+until("[ ! -e /sys/class/nvme/nvme0 ]", veswLimit))
			f.run(0, "cd /sys/kernel/config/nvmet; rm ports/1/subsystems/disk; rmdir ports/1; "+
				"echo 0 >subsystems/disk/namespaces/1/enable; rmdir subsystems/disk/namespaces/1 subsystems/disk")
			for i := range f.guests {
				f.nothingLeft(t, i)
				f.unload(i)
			}
		})
	}
}

// verbcheckDiffers are the tests of verbcheck that do not pass in a guest, with the reason. Those of windows, "mw.", are
// not listed: the driver has none.
var verbcheckDiffers = map[string]string{
	"mr.rereg":           "a region cannot be registered again",
	"mr.zero_based":      "regions begin at their address",
	"mr.protection":      "the right to bind windows is refused",
	"mr.protected_later": "the kernel pins memory",
	"mr.unmapped_later":  "the kernel pins memory",
	"err.gone":           "the kernel pins memory",
	"cq.resize":          "completion queues keep their size",
	"cq.overflow":        "completion queues keep their size",
	"state.sqd":          "there is no event of a drained send queue",
	"state.uc":           "a UC queue pair gets no new address vector in SQD",
	"state.posting":      "the provider posts in every state",
	"mcast.self":         "another errno for a flag that is unknown",
	"event.arm.nonempty": "completions before the arming cause no event",
	"event.arm.poll_few": "completions before the arming cause no event",
}

// TestGuestsRDMAVerbcheck has verbcheck check every byte and every error between two guests, over IPv4 and IPv6.
func TestGuestsRDMAVerbcheck(t *testing.T) {
	lab.OnlySoak(t)
	f := newRDMANodes(t, guest.Debian12)
	f.config.Files = map[string]string{"/bin/verbcheck": lab.Bin("verbcheck")}
	f.fleet.boot([2]guest.Config{f.config, f.config})
	for i := range f.guests {
		f.load(i)
	}
	for _, addrs := range [][2]string{{guestAddr(0), guestAddr(1)}, {guestAddr6(0), guestAddr6(1)}} {
		server, client := f.end(0, "vroce0", addrs[0]), f.end(1, "vroce0", addrs[1])
		const port = 19100
		f.serveUntil(0, fmt.Sprintf("verbcheck -d vroce0 -g %s -p %d -w 20", server.gid, port),
			"grep -q waiting /tmp/out")
		out, err := f.runFor(1, fmt.Sprintf("timeout 590 verbcheck -d vroce0 -g %s -p %d -w 20 %s", client.gid, port,
			guestAddr(0)), 10*time.Minute)
		if theirs, serr := f.servedSoon(0, "verbcheck", err); serr != nil {
			t.Errorf("server: %v\n%s", serr, lab.Tail(theirs, 40))
		}
		passed, failed, skipped := lab.Verdicts(out)
		for name, why := range failed {
			if verbcheckDiffers[name] == "" && !strings.HasPrefix(name, "mw.") {
				t.Errorf("%s: %s", name, why)
			}
		}
		t.Logf("%v: %d passed, %d failed; the driver cannot do: %v", addrs, len(passed), len(failed), skipped)
		if err != nil && len(failed) == 0 || len(passed) < 130 {
			t.Errorf("%v\n%s", err, lab.Tail(out, 60))
		}
	}
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
