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
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sort"
	"strings"
)

// Image is a bootable kernel and its root file system.
type Image struct {
	Kernel string // path of what QEMU boots
	Initrd string // path of a newc archive
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
	"/usr/bin/rdma_server", "/usr/bin/rdma_client", "/usr/bin/rdma_xserver", "/usr/bin/rdma_xclient", "/usr/bin/rstream", "/usr/bin/riostream",
	"/usr/bin/qperf",
	"/lib/x86_64-linux-gnu/libgcc_s.so.1", // rping's threads end by it
}

// modules are loaded by the guest's init, each after what it depends on. crc32_pclmul is not among them: the carry-less
// multiplications of an emulated processor take longer than the tables of crc32_generic.
var modules = []string{"virtio_pci", "virtio_net", "crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe", "veth", "8021q"}

const initScript = `#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /root
/bin/busybox --install -s /bin
export PATH=/sbin:/usr/bin:/bin HOME=/root
ip() { /sbin/ip "$@"; } # busybox's shell would take its own
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm
ulimit -l unlimited
while read -r m; do insmod $m || echo "GUEST-FAIL insmod $m"; done </lib/modules/order
for a in $(cat /proc/cmdline); do case $a in ip=*) IP=${a#ip=};; ip6=*) IP6=${a#ip6=};; mtu=*) MTU=${a#mtu=};; esac; done
{ ip link set lo up &&
  { [ -z "$MTU" ] || ip link set eth0 mtu $MTU; } &&
  ip link set eth0 up &&
  { [ -z "$IP" ] || ip addr add $IP dev eth0; } &&
  { [ -z "$IP6" ] || ip -6 addr add $IP6 dev eth0 nodad; }
} || echo "GUEST-FAIL eth0"
rdma link add rxe0 type rxe netdev eth0 || echo "GUEST-FAIL rxe0"
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
	kdir, err := unpackKernel(ctx, k, cacheDir)
	if err != nil {
		return Image{}, err
	}
	kernels, _ := filepath.Glob(filepath.Join(kdir, "boot", "vmlinuz-*"))
	if len(kernels) != 1 {
		return Image{}, fmt.Errorf("kernel in %s: %d boot images. fix: remove the directory", kdir, len(kernels))
	}
	var a archive
	if err := a.fill(kdir); err != nil {
		return Image{}, fmt.Errorf("guest root: %w", err)
	}
	root := a.close()
	sum := sha256.Sum256(root)
	initrd := filepath.Join(cacheDir, "initrd-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(initrd); errors.Is(err, fs.ErrNotExist) {
		old, _ := filepath.Glob(filepath.Join(cacheDir, "initrd-*"))
		for _, f := range old {
			os.Remove(f)
		}
		if err := writeFile(initrd, root); err != nil {
			return Image{}, err
		}
	}
	release := strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-")
	kernel, err := unpacked(kernels[0], filepath.Join(cacheDir, "vmlinux-"+release))
	if err != nil {
		return Image{}, fmt.Errorf("guest kernel: %w", err)
	}
	return Image{Kernel: kernel, Initrd: initrd}, nil
}

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

// unpackKernel returns a directory with boot/vmlinuz-* and the modules of a kernel.
func unpackKernel(ctx context.Context, k Kernel, cacheDir string) (string, error) {
	if k, _ := filepath.Glob(filepath.Join(cacheDir, "linux-image-*", "boot", "vmlinuz-*")); len(k) > 0 {
		return filepath.Dir(filepath.Dir(k[len(k)-1])), nil
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
	debs, _ := filepath.Glob(filepath.Join(dl, "*.deb"))
	if len(debs) != 1 {
		return "", fmt.Errorf("download %s: %d files", pkg, len(debs))
	}
	root := filepath.Join(dl, "root")
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", debs[0], root).CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpack %s: %w: %s", pkg, err, out)
	}
	final := filepath.Join(cacheDir, pkg)
	os.RemoveAll(final)
	return final, os.Rename(root, final)
}

// fill adds everything that every guest has.
func (a *archive) fill(kdir string) error {
	for _, d := range []string{"dev", "proc", "sys", "tmp"} {
		a.dir(d)
	}
	a.file("init", 0o755, []byte(initScript))
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	if err := a.host("bin/busybox", busybox); err != nil {
		return err
	}
	for _, p := range programs {
		if err := a.program(p); err != nil {
			return err
		}
	}
	const lib = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so"
	drivers, _ := filepath.Glob(lib)
	if len(drivers) == 0 {
		return fmt.Errorf("%s: not found. fix: apt-get install ibverbs-providers", lib)
	}
	for _, d := range drivers {
		if err := a.program(d); err != nil {
			return err
		}
	}
	if err := a.host("etc/libibverbs.d/rxe.driver", "/etc/libibverbs.d/rxe.driver"); err != nil {
		return err
	}
	return a.modules(kdir)
}

// program adds an executable or shared object and all that it loads.
func (a *archive) program(file string) error {
	if err := a.host(file, file); err != nil {
		return err
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

// modules adds the modules of the list, what they depend on, and
// /lib/modules/order for init. Dependencies are read from the modules
// themselves, so the host needs no depmod.
func (a *archive) modules(kdir string) error {
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
	var order []string
	done := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		name = strings.ReplaceAll(name, "-", "_")
		file, ok := files[name]
		if done[name] || !ok { // built into the kernel
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
	if !done["rdma_rxe"] {
		return fmt.Errorf("kernel in %s has no rdma_rxe module", kdir)
	}
	a.file("lib/modules/order", 0o644, []byte(strings.Join(order, "\n")+"\n"))
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
