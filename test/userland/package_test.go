// SPDX-License-Identifier: Apache-2.0

package userland

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"weft/test/lab"
)

// packaging is held while a package is made: all are laid out in the same directory.
var packaging sync.Mutex

// makePackage makes a package of a kind (deb or rpm) with a version and returns its path.
func makePackage(t *testing.T, kind, version string) string {
	t.Helper()
	packaging.Lock()
	defer packaging.Unlock()
	cmd := exec.Command("make", "-s", "-C", lab.Root(), kind, "PACKAGE_VERSION="+version)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, lab.Tail(string(out), 30))
	}
	list, err := filepath.Glob(filepath.Join(lab.Root(), "build", "weft?"+version+"*."+kind))
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	path := filepath.Join(t.TempDir(), filepath.Base(list[0]))
	if err := os.Rename(list[0], path); err != nil {
		t.Fatal(err)
	}
	return path
}

// machine is the script of the first process of a machine of root: $1 is the userland, $2 a directory for what differs
// from it, $3 a directory with packages, $4 the script of the machine. It ends with the script.
const machine = `
ip link set lo up
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$2"
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" overlay "$2/root"
root=$2/root
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for d in null zero full random urandom; do : >"$root/dev/$d"; mount --bind /dev/$d "$root/dev/$d"; done
mkdir -m 1777 "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
cp -r "$3" "$root/tmp/packages"
exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive sh -euc "$4"`

// runMachine runs a script as root in a machine with packages, and returns what it printed.
func (u *userland) runMachine(t *testing.T, script string, packages ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, p := range packages {
		to := filepath.Join(dir, fmt.Sprint(i+1))
		if err := os.Mkdir(to, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(p, filepath.Join(to, filepath.Base(p))); err != nil {
			t.Fatal(err)
		}
	}
	out, err := lab.Run(lab.Cmd{Args: []string{"unshare", "--net", "--ipc", "--uts", "--mount", "--pid", "--fork",
		"--kill-child", "sh", "-euc", machine, "sh", u.dir, t.TempDir(), dir, script}}, 3*limit)
	if err != nil {
		t.Fatalf("%v\n%s", err, lab.Tail(out, 60))
	}
	return out
}

// upgrade installs a package, upgrades it while two programs talk on its node, and purges it.
const upgrade = `
files() {
	find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /var/lib/dpkg \
		-o -path /var/cache -o -path /var/log \) -prune -o -print | sort
}
running() { grep -lx weft /proc/[0-9]*/comm 2>/dev/null || true; }
listening() { grep -qi ":$(printf %04x "$1") 00000000:0000 0A" /proc/net/tcp; }
# pair PORT N begins a pingpong of N messages and returns when its programs are connected.
pair() {
	weft run -- ibv_rc_pingpong -c -d weft0 -g 1 -p "$1" -n "$2" >"/tmp/server.$1" 2>&1 &
	server=$!
	until listening "$1"; do kill -0 $server; sleep 0.05; done
	weft run -- ibv_rc_pingpong -c -d weft0 -g 1 -p "$1" -n "$2" 127.0.0.1 >"/tmp/client.$1" 2>&1 &
	client=$!
	while listening "$1"; do kill -0 $server; sleep 0.05; done
}
# finished PORT waits until both programs have ended well.
finished() {
	wait $client || { cat "/tmp/client.$1"; exit 1; }
	wait $server || { cat "/tmp/server.$1"; exit 1; }
	grep ' iters in ' "/tmp/client.$1"
	! grep -i 'invalid data' "/tmp/client.$1" "/tmp/server.$1"
}
files >/tmp/before
dpkg -i /tmp/packages/1/weft_*.deb
[ -z "$(running)" ] || { echo "the installation started weft"; exit 1; }
dpkg -L weft | while read -r f; do [ -e "$f" ]; done
weft up --detach
node=$(weft status | sed -n 's/^node .* pid \([0-9]*\),.*/\1/p')
pair 18601 20000
kill -STOP $client || { echo "the programs ended before the upgrade"; exit 1; }
dpkg -i /tmp/packages/2/weft_*.deb
dpkg-query -W weft
kill -CONT $client
[ "$(readlink /proc/$node/exe)" = '/usr/bin/weft (deleted)' ] || { readlink /proc/$node/exe; exit 1; }
finished 18601
pair 18602 1000
finished 18602
weft down
weft uninstall --yes
if command -v systemd-sysusers >/dev/null; then getent passwd weft; fi
dpkg --purge weft
! getent passwd weft
files >/tmp/after
diff /tmp/before /tmp/after
[ -z "$(ls -d /run/weft* /tmp/weft* 2>/dev/null)" ] || { ls -d /run/weft* /tmp/weft*; exit 1; }
echo nothing is left`

// TestPackage: the package is installed, upgraded while programs talk on the node of the former version, and purged. It
// starts nothing, ends nothing, and leaves nothing.
func TestPackage(t *testing.T) {
	t.Parallel()
	lab.NeedNetNS(t)
	old, next := makePackage(t, "deb", "0.1"), makePackage(t, "deb", "0.2")
	u := unpack(t, "bookworm", installed, "ibverbs-utils", "ibverbs-providers")
	out := u.runMachine(t, upgrade, old, next)
	for _, want := range []string{"weft\t0.2", "20000 iters in ", "1000 iters in ", "nothing is left"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

// TestPackageUser: where systemd is, the package makes a user, and the units are ones that it accepts.
func TestPackageUser(t *testing.T) {
	t.Parallel()
	lab.NeedNetNS(t)
	lab.OnlySoak(t)
	old, next := makePackage(t, "deb", "0.3"), makePackage(t, "deb", "0.4")
	u := unpack(t, "bookworm", installed, "ibverbs-utils", "ibverbs-providers", "systemd")
	out := u.runMachine(t, upgrade, old, next)
	if !strings.Contains(out, "weft:x:") || !strings.Contains(out, "nothing is left") {
		t.Error(out)
	}
	const verify = `dpkg -i /tmp/packages/1/weft_*.deb
systemd-analyze verify --man=no /usr/lib/systemd/system/weft.service
XDG_RUNTIME_DIR=/run systemd-analyze verify --man=no --user /usr/lib/systemd/user/weft.service
echo verified`
	if out := u.runMachine(t, verify, old); !strings.Contains(out, "verified") {
		t.Error(out)
	}
}

// TestPackageChecks: lintian finds nothing in the package for Debian, rpm unpacks the other one, and two builds of a
// version are equal.
func TestPackageChecks(t *testing.T) {
	t.Parallel()
	lab.NeedNetNS(t)
	lab.OnlySoak(t)
	first, second := makePackage(t, "deb", "0.5"), makePackage(t, "deb", "0.5")
	a, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(second)
	if err != nil {
		t.Fatal(err)
	}
	if sha256.Sum256(a) != sha256.Sum256(b) {
		t.Error("two builds of a version differ")
	}
	u := unpack(t, "bookworm", installed, "lintian")
	const lint = `lintian --allow-root --fail-on error,warning /tmp/packages/1/weft_*.deb
echo clean`
	if out := u.runMachine(t, lint, first); !strings.Contains(out, "clean") {
		t.Error(out)
	}
	r := unpack(t, "bookworm", installed, "rpm")
	const install = `rpm --nodeps --noscripts -i /tmp/packages/1/weft-*.rpm
/usr/bin/weft version
rpm -V --nodeps weft
rpm --nodeps --noscripts -e weft
[ ! -e /usr/bin/weft ] && echo removed`
	if out := r.runMachine(t, install, makePackage(t, "rpm", "0.5")); !strings.Contains(out, "removed") {
		t.Error(out)
	}
}
