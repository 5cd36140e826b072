// SPDX-License-Identifier: Apache-2.0

// Package guest boots a stock Debian kernel with Linux soft-RoCE (rdma_rxe) in
// QEMU, so that tests have a genuine RDMA peer on any machine.
//
// In: Debian packages of the host, files of a test for the guest, a TAP in a
// network namespace of the caller's. Out: a running guest that executes shell
// commands and returns what they print. Called by the interop tests and by
// cmd/guest. It must never need KVM, touch the host's own network, or leave a
// process behind.
package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"
)

// Image is a bootable kernel and its root file system.
type Image struct {
	Kernel  string // path of what QEMU boots
	Initrd  string // path of a newc archive
	Release string // of the kernel, as uname -r prints it
	Package string // version of the kernel's Debian package
}

// Kernel is the Debian package that depends on the newest kernel of a series.
type Kernel string

const (
	// Debian12 is the kernel of the release, 6.1 in Debian 12.
	Debian12 Kernel = "linux-image-amd64"
	// Debian13 is the kernel of Debian 13, 6.12, which the security archive of Debian 12 has too.
	Debian13 Kernel = "linux-image-6.12-amd64"
)

// packages are the Debian packages with the programs that the guest runs, and xz, which unpacks a kernel's modules. The
// kernel is only unpacked, never installed.
var packages = []string{"qemu-system-x86", "busybox-static", "iproute2", "ibverbs-utils", "ibverbs-providers",
	"perftest", "rdmacm-utils", "qperf", "iperf3", "ethtool", "xz-utils"}

// programs go into every guest with the libraries they load.
var programs = []string{
	"/usr/bin/rdma", "/sbin/ip", "/usr/bin/iperf3", "/usr/sbin/ethtool",
	"/usr/bin/ibv_devices", "/usr/bin/ibv_devinfo",
	"/usr/bin/ibv_rc_pingpong", "/usr/bin/ibv_uc_pingpong", "/usr/bin/ibv_ud_pingpong", "/usr/bin/ibv_srq_pingpong",
	"/usr/bin/ib_send_bw", "/usr/bin/ib_write_bw", "/usr/bin/ib_read_bw", "/usr/bin/ib_atomic_bw",
	"/usr/bin/ib_send_lat", "/usr/bin/ib_write_lat", "/usr/bin/ib_read_lat", "/usr/bin/ib_atomic_lat",
	"/usr/bin/rping", "/usr/bin/ucmatose", "/usr/bin/udaddy", "/usr/bin/mckey", "/usr/bin/cmtime",
	"/usr/bin/rdma_server", "/usr/bin/rdma_client", "/usr/bin/rdma_xserver", "/usr/bin/rdma_xclient",
	"/usr/bin/rstream", "/usr/bin/riostream",
	"/usr/bin/qperf",
	"/lib/x86_64-linux-gnu/libgcc_s.so.1", // rping's threads end by it
}

// modules are loaded by the guest's init, each after what it depends on. crc32_pclmul is not among them: the carry-less
// multiplications of an emulated processor take longer than the tables of crc32_generic.
var modules = []string{"virtio_pci", "virtio_net", "crc32_generic", "ib_uverbs", "rdma_ucm", "veth", "8021q"}

// drivers are modules that a guest loads by the command load, with what each depends on.
var drivers = []string{"rdma_rxe"}

// loadScript is the command load of the guest: it loads the drivers that its arguments name.
const loadScript = `#!/bin/busybox sh
for driver; do
	while read -r m; do
		name=${m##*/}; name=${name%.ko}
		[ -e /sys/module/$name ] || insmod $m || { echo "load $driver: cannot load $name" >&2; exit 1; }
	done </lib/modules/$driver.order || exit 1
done
`

// networkScript is the command network of the guest: it gives eth0 its addresses, also after its driver was replaced.
const networkScript = `#!/bin/busybox sh
for a in $(cat /proc/cmdline); do
	case $a in ip=*) IP=${a#ip=};; ip6=*) IP6=${a#ip6=};; mtu=*) MTU=${a#mtu=};; esac
done
ip() { /sbin/ip "$@"; } # busybox's shell would take its own
n=0; until [ -e /sys/class/net/eth0 ] || [ $n = 100 ]; do usleep 100000; n=$((n+1)); done
ip link set lo up &&
	{ [ -z "$MTU" ] || ip link set eth0 mtu $MTU; } &&
	ip link set eth0 up &&
	{ [ -z "$IP" ] || ip addr replace $IP dev eth0; } &&
	{ [ -z "$IP6" ] || ip -6 addr replace $IP6 dev eth0 nodad; }
`

const initScript = `#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /root
/bin/busybox --install -s /bin
export PATH=/sbin:/usr/bin:/bin HOME=/root
ip() { /sbin/ip "$@"; } # busybox's shell would take its own
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm
ulimit -l unlimited
while read -r m; do insmod $m || echo "GUEST-FAIL insmod $m"; done </lib/modules/order
for a in $(cat /proc/cmdline); do case $a in drivers=*) DRIVERS=$(echo ${a#drivers=} | tr , ' ');; esac; done
load $DRIVERS || echo "GUEST-FAIL load $DRIVERS"
network || echo "GUEST-FAIL eth0"
case " $DRIVERS " in *" rdma_rxe "*) rdma link add rxe0 type rxe netdev eth0 || echo "GUEST-FAIL rxe0";; esac
exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty raw -echo
echo GUEST-READY
while read -r n; do
	head -c $n >/tmp/step
	sh /tmp/step </dev/null 2>&1
	echo "GUEST-STEP $?"
done
poweroff -f
`

// cache is the directory of what is made once for all tests.
func cache() string {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	return filepath.Join(base, "weft-guest")
}

// Build returns the guest's image with a kernel, made in the directory weft-guest of
// the user's cache when it is not there yet or when a file that goes into it changed.
// It installs missing Debian packages, which needs root, and names them when it cannot.
func Build(ctx context.Context, k Kernel) (Image, error) {
	cacheDir := filepath.Join(cache(), string(k))
	if err := install(ctx, packages); err != nil {
		return Image{}, err
	}
	boot, err := unpackKernel(ctx, k, cacheDir)
	if err != nil {
		return Image{}, err
	}
	return build(boot, cacheDir, contents{})
}

// contents is what an image has besides the kernel's modules and the programs of every image.
type contents struct {
	name     string            // of the image, part of its file's name
	programs []string          // programs of the host
	modules  []string          // modules that init loads
	drivers  []string          // modules for the command load
	built    map[string]string // modules that are not the kernel's: name -> file
	files    map[string]string // path in the guest -> file of the host; with its libraries
}

// build makes the image of an unpacked kernel, unless it is there.
func build(boot, cacheDir string, c contents) (Image, error) {
	image := Image{}
	var err error
	if image.Release, image.Package, err = kernelVersion(boot); err != nil {
		return Image{}, err
	}
	var a archive
	if err := a.fill(filepath.Dir(filepath.Dir(boot)), c); err != nil {
		return Image{}, fmt.Errorf("guest root: %w", err)
	}
	root := a.close()
	sum := sha256.Sum256(root)
	image.Initrd = filepath.Join(cacheDir, "initrd-"+c.name+hex.EncodeToString(sum[:8]))
	if err := retain(image.Initrd, filepath.Join(cacheDir, "initrd-*")); errors.Is(err, fs.ErrNotExist) {
		err = writeFile(image.Initrd, root)
		if err != nil {
			return Image{}, err
		}
	}
	if image.Kernel, err = unpacked(boot, filepath.Join(cacheDir, "vmlinux-"+image.Release)); err != nil {
		return Image{}, fmt.Errorf("guest kernel: %w", err)
	}
	return image, nil
}

// unusedFor is how long the cache keeps something after its last use: other trees may need it.
const unusedFor = 24 * time.Hour

// retain marks a file of the cache, or a directory, as used now, and removes the files of a pattern that were not used
// for long. It returns an error if the file does not exist.
func retain(name, pattern string) error {
	now := time.Now()
	err := os.Chtimes(name, now, now)
	list, _ := filepath.Glob(pattern)
	for _, f := range list {
		if st, err := os.Stat(f); err == nil && now.Sub(st.ModTime()) > unusedFor {
			os.RemoveAll(f)
		}
	}
	return err
}

// kernelVersion returns the release of a boot image, and the version of its Debian package.
func kernelVersion(image string) (release, pkg string, err error) {
	b, err := os.ReadFile(image)
	if err != nil {
		return "", "", err
	}
	const offset, sector = 0x20e, 0x200 // of Linux's boot protocol: where the text of the version is
	if len(b) > offset+2 {
		if at := int(binary.LittleEndian.Uint16(b[offset:])) + sector; at < len(b) {
			text, _, _ := bytes.Cut(b[at:], []byte{0})
			if m := kernelText.FindSubmatch(text); m != nil {
				return string(m[1]), string(m[2]), nil
			}
		}
	}
	return "", "", fmt.Errorf("%s is no kernel of Debian: it does not tell its version", image)
}

var kernelText = regexp.MustCompile(`^(\S+) .* Debian (\S+) \(`)

// unpacked returns the file to, a kernel that QEMU boots as it is. It is made of the boot image when it is not there
// yet: an image that the emulated processor unpacks costs as much time as all the rest of the boot. An image that is
// not packed by xz is returned itself. The fields are those of Linux's boot protocol 2.08.
func unpacked(image, to string) (string, error) {
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	b, err := os.ReadFile(image)
	if err != nil {
		return "", err
	}
	const sector, setupSects, payloadOffset, payloadLength, header = 512, 0x1f1, 0x248, 0x24c, 0x268
	if len(b) < header || string(b[0x202:0x206]) != "HdrS" {
		return "", fmt.Errorf("%s is no boot image of Linux", image)
	}
	at := (uint64(b[setupSects])+1)*sector + uint64(binary.LittleEndian.Uint32(b[payloadOffset:]))
	end := at + uint64(binary.LittleEndian.Uint32(b[payloadLength:]))
	if end > uint64(len(b)) {
		return "", fmt.Errorf("%s ends within its kernel", image)
	}
	payload := b[at:end]
	if !bytes.HasPrefix(payload, []byte("\xfd7zXZ\x00")) {
		return image, nil
	}
	xz := exec.Command("xz", "--decompress", "--stdout", "--single-stream") // the kernel's length follows the stream
	xz.Stdin = bytes.NewReader(payload)
	kernel, err := xz.Output()
	if err != nil {
		return "", fmt.Errorf("unpack %s: %w", image, err)
	}
	return to, writeFile(to, kernel)
}

// writeFile makes name appear whole or not at all, so that a second builder
// never boots half a file.
func writeFile(name string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

func install(ctx context.Context, pkgs []string) error {
	var missing []string
	for _, p := range pkgs {
		out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${db:Status-Status}", p).Output()
		if err != nil || string(out) != "installed" {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("guest: packages missing. fix: sudo apt-get install %s", strings.Join(missing, " "))
	}
	return apt(ctx, "", append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...)...)
}

// apt runs apt-get in dir, refreshing the package lists if they turn out to be
// missing or stale.
func apt(ctx context.Context, dir string, args ...string) error {
	run := func(args ...string) error {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
		return nil
	}
	if run(args...) == nil {
		return nil
	}
	if err := run("update", "-q"); err != nil {
		return err
	}
	return run(args...)
}

// unpackKernel returns the boot image of a kernel, in a directory boot beside the kernel's modules.
func unpackKernel(ctx context.Context, k Kernel, cacheDir string) (string, error) {
	if k, _ := filepath.Glob(filepath.Join(cacheDir, "linux-image-*", "boot", "vmlinuz-*")); len(k) > 0 {
		return k[len(k)-1], nil
	}
	name := func() string {
		out, _ := exec.CommandContext(ctx, "apt-cache", "depends", string(k)).Output()
		for line := range strings.Lines(string(out)) {
			if p, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
				return "linux-image-" + p
			}
		}
		return ""
	}
	pkg := name()
	if pkg == "" {
		if err := apt(ctx, "", "update", "-q"); err != nil {
			return "", err
		}
		if pkg = name(); pkg == "" {
			return "", fmt.Errorf("kernel package: apt knows no %s. fix: check /etc/apt/sources.list", k)
		}
	}
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return "", err
	}
	dl, err := os.MkdirTemp(cacheDir, ".kernel-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dl)
	if err := apt(ctx, dl, "download", "-q", pkg); err != nil {
		return "", err
	}
	root := filepath.Join(dl, "root")
	if err := unpackPackages(ctx, dl, root, 1); err != nil {
		return "", fmt.Errorf("unpack %s: %w", pkg, err)
	}
	final := filepath.Join(cacheDir, pkg)
	os.RemoveAll(final)
	if err := os.Rename(root, final); err != nil {
		return "", err
	}
	images, _ := filepath.Glob(filepath.Join(final, "boot", "vmlinuz-*"))
	if len(images) != 1 {
		return "", fmt.Errorf("kernel in %s: %d boot images. fix: remove the directory", final, len(images))
	}
	return images[0], nil
}

// unpackPackages unpacks the Debian packages in a directory, which are so many, into root.
func unpackPackages(ctx context.Context, dir, root string, count int) error {
	debs, _ := filepath.Glob(filepath.Join(dir, "*.deb"))
	if len(debs) != count {
		return fmt.Errorf("%d files, not %d", len(debs), count)
	}
	for _, deb := range debs {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, root).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", filepath.Base(deb), err, out)
		}
	}
	return nil
}

// fill adds everything that every guest has, and the contents of this one.
func (a *archive) fill(kdir string, c contents) error {
	for _, d := range []string{"dev", "proc", "sys", "tmp"} {
		a.dir(d)
	}
	a.file("init", 0o755, []byte(initScript))
	a.file("sbin/load", 0o755, []byte(loadScript))
	a.file("sbin/network", 0o755, []byte(networkScript))
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	if err := a.host("bin/busybox", busybox); err != nil {
		return err
	}
	for _, p := range slices.Concat(programs, c.programs) {
		if err := a.program(p, p); err != nil {
			return err
		}
	}
	const lib = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so"
	providers, _ := filepath.Glob(lib)
	if len(providers) == 0 {
		return fmt.Errorf("%s: not found. fix: apt-get install ibverbs-providers", lib)
	}
	for _, p := range providers {
		if err := a.program(p, p); err != nil {
			return err
		}
	}
	for _, to := range slices.Sorted(maps.Keys(c.files)) {
		if err := a.program(to, c.files[to]); err != nil {
			return err
		}
	}
	if err := a.host("etc/libibverbs.d/rxe.driver", "/etc/libibverbs.d/rxe.driver"); err != nil {
		return err
	}
	return a.modules(kdir, c)
}

// program adds an executable or shared object as to, and all that it loads. It adds any other file alone.
func (a *archive) program(to, file string) error {
	if err := a.host(to, file); err != nil {
		return err
	}
	if f, err := elf.Open(file); err != nil {
		return nil
	} else {
		f.Close()
	}
	out, err := exec.Command("ldd", file).Output()
	if err != nil {
		return fmt.Errorf("ldd %s: %w", file, err)
	}
	for _, w := range strings.Fields(string(out)) {
		if strings.HasPrefix(w, "/") {
			if err := a.host(w, w); err != nil {
				return err
			}
		}
	}
	return nil
}

// modules adds the modules that init loads and the drivers, what they depend on, /lib/modules/order for init, and
// /lib/modules/DRIVER.order for the command load. Dependencies are read from the modules
// themselves, so the host needs no depmod.
func (a *archive) modules(kdir string, c contents) error {
	files := map[string]string{}
	err := filepath.WalkDir(kdir, func(p string, d fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(strings.TrimSuffix(filepath.Base(p), ".xz"), ".ko"); ok {
			files[strings.ReplaceAll(name, "-", "_")] = p
		}
		return err
	})
	if err != nil {
		return err
	}
	for name, file := range c.built {
		files[name] = file
	}
	for _, name := range slices.Concat(drivers, c.drivers) {
		if files[name] == "" {
			return fmt.Errorf("kernel in %s has no module %s", kdir, name)
		}
		if err := a.order(files, name+".order", name); err != nil {
			return err
		}
	}
	return a.order(files, "order", slices.Concat(modules, c.modules)...)
}

// order adds modules and what they depend on, and a list of the paths, in which each follows what it depends on. A
// module without a file is part of the kernel.
func (a *archive) order(files map[string]string, list string, modules ...string) error {
	var order []string
	done := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		name = strings.ReplaceAll(name, "-", "_")
		file, ok := files[name]
		if done[name] || !ok {
			return nil
		}
		done[name] = true
		module, err := readModule(file)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		deps, err := dependencies(module)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, d := range deps {
			if err := add(d); err != nil {
				return err
			}
		}
		order = append(order, "/lib/modules/"+name+".ko")
		a.file("lib/modules/"+name+".ko", 0o644, module)
		return nil
	}
	for _, m := range modules {
		if err := add(m); err != nil {
			return err
		}
	}
	a.file("lib/modules/"+list, 0o644, []byte(strings.Join(order, "\n")+"\n"))
	return nil
}

// readModule returns a module of the kernel, unpacked.
func readModule(file string) ([]byte, error) {
	if !strings.HasSuffix(file, ".xz") {
		return os.ReadFile(file)
	}
	return exec.Command("xz", "--decompress", "--stdout", file).Output()
}

// dependencies returns the modules that a module names in its modinfo. A soft
// dependency on a provider of crc32 is covered by the list itself.
func dependencies(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("no .modinfo section")
	}
	b, err := s.Data()
	if err != nil {
		return nil, err
	}
	for _, kv := range strings.Split(string(b), "\x00") {
		if v, ok := strings.CutPrefix(kv, "depends="); ok && v != "" {
			return strings.Split(v, ","), nil
		}
	}
	return nil, nil
}

// archive builds a cpio archive in the "newc" format, which the kernel unpacks
// as its first root. Same input, same bytes.
type archive struct {
	buf  bytes.Buffer
	seen map[string]bool
	ino  int
}

const (
	modeDir  = 0o040755
	modeFile = 0o100000
)

func (a *archive) entry(name string, mode int, data []byte) {
	if a.seen == nil {
		a.seen = map[string]bool{}
	}
	if a.seen[name] {
		return
	}
	a.seen[name] = true
	a.ino++
	fmt.Fprintf(&a.buf, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	a.pad()
	a.buf.Write(data)
	a.pad()
}

func (a *archive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}

// dir adds a directory and its parents.
func (a *archive) dir(name string) {
	if parent := path.Dir(name); parent != "." && parent != "/" {
		a.dir(parent)
	}
	a.entry(name, modeDir, nil)
}

func (a *archive) file(name string, perm int, data []byte) {
	name = strings.TrimPrefix(path.Clean(name), "/")
	if parent := path.Dir(name); parent != "." {
		a.dir(parent)
	}
	a.entry(name, modeFile|perm, data)
}

// host adds the host's file src, links resolved.
func (a *archive) host(name, src string) error {
	f, err := os.Open(src)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	a.file(name, int(st.Mode().Perm()), b)
	return nil
}

// close ends the archive; another one may follow it in the same file.
func (a *archive) close() []byte {
	a.entry("TRAILER!!!", 0, nil)
	return a.buf.Bytes()
}

// extra returns an archive of host files, keyed by their path in the guest.
func extra(files map[string]string) ([]byte, error) {
	var a archive
	names := make([]string, 0, len(files))
	for n := range files {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		if err := a.host(n, files[n]); err != nil {
			return nil, err
		}
	}
	return a.close(), nil
}
