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
