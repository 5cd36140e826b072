// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"weft/test/lab"
)

// inRelease runs a command in a new root of a Debian release with packages, and returns what it printed. archive is the
// driver of guests, in the directory /opt of that root. Nothing of the root is left.
func inRelease(t *testing.T, release, packages, command string) string {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "driver.tar.gz")
	if out, err := lab.Run(lab.Cmd{Args: []string{lab.Bin("weft"), "vm", "driver", archive}}, time.Minute); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	script := filepath.Join(filepath.Dir(archive), "script")
	if err := os.WriteFile(script, []byte("set -e\ncd /opt\ntar xzf driver.tar.gz\ncd virtio-roce-*\n"+command+"\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	out, err := lab.Run(lab.Cmd{Args: []string{"mmdebstrap", "--quiet", "--variant=minbase", "--format=null",
		`--aptopt=Acquire::Check-Valid-Until "false"`, "--include=" + packages,
		"--customize-hook=copy-in " + archive + " " + script + " /opt",
		"--chrooted-customize-hook=sh /opt/script", release, "-"}}, 15*time.Minute)
	if err != nil {
		t.Fatalf("%s: %v\n%s", release, err, lab.Tail(out, 60))
	}
	return out
}

// TestGuestDriverInstalls: the archive of weft vm driver installs on Debian 12 by its own installer, a second time over
// the first, and leaves nothing when it is removed.
func TestGuestDriverInstalls(t *testing.T) {
	lab.OnlySoak(t)
	inRelease(t, "bookworm", "dkms,gcc,make,libc6-dev,libibverbs-dev,ibverbs-providers,linux-headers-amd64", `
KERNEL=$(ls /lib/modules)
export KERNEL
module=/lib/modules/$KERNEL/updates/dkms/virtio_roce.ko
provider=/usr/lib/x86_64-linux-gnu/libibverbs/libvroce-rdmav34.so
for again in 1 2; do
	./install
	test -s $module
	ldd -r $provider
	grep -q "^driver vroce" /etc/libibverbs.d/vroce.driver
done
./install --remove
for left in $module $provider /etc/libibverbs.d/vroce.driver /usr/src/virtio-roce-*; do
	! test -e $left
done`)
}

// TestGuestModuleOfUnstable: the module builds for the kernel of Debian's unstable release.
func TestGuestModuleOfUnstable(t *testing.T) {
	lab.OnlySoak(t)
	out := inRelease(t, "sid", "gcc,make,linux-headers-amd64", `
make -C module KDIR="$(echo /usr/src/linux-headers-*-amd64)"
echo "built for $(ls -d /usr/src/linux-headers-*-amd64)"`)
	t.Log(lab.Tail(out, 3))
}
