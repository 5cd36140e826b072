// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"weft/test/lab"
)

// buildPackages are the Debian packages that build the guest's driver.
var buildPackages = []string{"gcc", "make", "libc6-dev", "libelf1", "libibverbs-dev"}

// Sources is the directory of the driver of cards with a RoCE half: a kernel module and a provider of libibverbs.
func Sources() string { return filepath.Join(lab.Root(), "guest", "linux") }

// withDriver is what an image for cards with a RoCE half has.
var withDriver = contents{
	name:     "rdma-",
	programs: []string{"/usr/bin/ibv_asyncwatch", "/usr/bin/ibv_xsrq_pingpong"},
	modules:  []string{"ib_umad", "rdma_cm"},
	drivers:  []string{"virtio_roce", "nvme_rdma", "nvmet_rdma"},
}

// BuildRDMA returns the image of Build that has in addition the driver of cards with a RoCE half: the module
// virtio_roce, for the command load, and the provider of libibverbs. It builds both from the directory sources, against
// the kernel headers of the kernel's version, if the cache does not have them. A failed build is an error with the
// lines of the compiler.
func BuildRDMA(ctx context.Context, k Kernel, sources string) (Image, error) {
	cacheDir := filepath.Join(cache(), string(k))
	if err := install(ctx, slices.Concat(packages, buildPackages)); err != nil {
		return Image{}, err
	}
	boot, headers, err := withHeaders(ctx, k, cacheDir)
	if err != nil {
		return Image{}, err
	}
	dir, err := buildDriver(ctx, sources, headers, cacheDir)
	if err != nil {
		return Image{}, err
	}
	c := withDriver
	c.built = map[string]string{"virtio_roce": filepath.Join(dir, "module", "virtio_roce.ko")}
	c.files = map[string]string{"etc/libibverbs.d/vroce.driver": filepath.Join(dir, "provider", "vroce.driver")}
	providers, _ := filepath.Glob(filepath.Join(dir, "provider", "libvroce-rdmav*.so"))
	for _, p := range providers {
		c.files["usr/lib/x86_64-linux-gnu/libibverbs/"+filepath.Base(p)] = p
	}
	return build(boot, cacheDir, c)
}

// errNotOffered means that apt does not have a package in the version that is needed.
var errNotOffered = errors.New("apt does not offer them")

// withHeaders returns the boot image of a kernel and the directory of its headers. If apt does not offer
// the headers of the kernel in the cache any more, the newest kernel replaces it.
func withHeaders(ctx context.Context, k Kernel, cacheDir string) (boot, headers string, err error) {
	for range 2 {
		if boot, err = unpackKernel(ctx, k, cacheDir); err != nil {
			return "", "", err
		}
		if headers, err = unpackHeaders(ctx, boot, cacheDir); !errors.Is(err, errNotOffered) {
			break
		}
		if err := os.RemoveAll(filepath.Dir(filepath.Dir(boot))); err != nil {
			return "", "", err
		}
	}
	return boot, headers, err
}

// unpackHeaders returns the directory in which modules for the kernel of a boot image are built.
func unpackHeaders(ctx context.Context, boot, cacheDir string) (string, error) {
	release, version, err := kernelVersion(boot)
	if err != nil {
		return "", err
	}
	final := filepath.Join(cacheDir, "headers-"+version)
	build := filepath.Join(final, "usr", "src", "linux-headers-"+release)
	if _, err := os.Stat(build); err == nil {
		return build, nil
	}
	pkgs, err := headerPackages(ctx, release, version)
	if err != nil {
		return "", err
	}
	dl, err := os.MkdirTemp(cacheDir, ".headers-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dl)
	if err := apt(ctx, dl, append([]string{"download", "-q"}, pkgs...)...); err != nil {
		return "", err
	}
	root := filepath.Join(dl, "root")
	if err := unpackPackages(ctx, dl, root, len(pkgs)); err != nil {
		return "", fmt.Errorf("unpack the headers of %s: %w", release, err)
	}
	makefile := filepath.Join(root, "usr", "src", "linux-headers-"+release, "Makefile")
	b, err := os.ReadFile(makefile)
	if err != nil {
		return "", err
	}
	b = []byte(strings.ReplaceAll(string(b), "/usr/src/", final+"/usr/src/"))
	if err := os.WriteFile(makefile, b, 0o644); err != nil {
		return "", err
	}
	if err := os.Rename(root, final); err != nil {
		if _, there := os.Stat(build); there != nil {
			return "", err
		} // else another process was faster
	}
	return build, nil
}

// headerPackages returns the headers' package of a kernel in a version, as name=version, and those packages
// that modules are built with.
func headerPackages(ctx context.Context, release, version string) ([]string, error) {
	pkg := "linux-headers-" + release + "=" + version
	show := func() string {
		out, _ := exec.CommandContext(ctx, "apt-cache", "show", pkg).Output()
		for line := range strings.Lines(string(out)) {
			if list, ok := strings.CutPrefix(line, "Depends: "); ok {
				return list
			}
		}
		return ""
	}
	list := show()
	if list == "" {
		if err := apt(ctx, "", "update", "-q"); err != nil {
			return nil, err
		}
		if list = show(); list == "" {
			return nil, fmt.Errorf("headers %s: %w", pkg, errNotOffered)
		}
	}
	pkgs := []string{pkg}
	for _, m := range headerDependency.FindAllStringSubmatch(list, -1) {
		name := m[1]
		if m[2] != "" {
			name += "=" + m[2]
		}
		pkgs = append(pkgs, name)
	}
	return pkgs, nil
}

var headerDependency = regexp.MustCompile(`((?:linux-headers|linux-kbuild)-[^ ,]+)(?: \(= ([^)]+)\))?`)

// source matches the names of files that the driver is built from, not those that a build makes.
var source = regexp.MustCompile(`\.(c|h|map|driver)$|^(Makefile|Kbuild)$`)

// buildDriver returns a directory with the module and the provider, built.
func buildDriver(ctx context.Context, sources, headers, cacheDir string) (string, error) {
	files := map[string][]byte{}
	sum := sha256.New()
	fmt.Fprintln(sum, headers)
	for _, tool := range [][]string{{"gcc", "--version"}, {"dpkg-query", "-W", "libibverbs-dev"}} {
		out, err := exec.CommandContext(ctx, tool[0], tool[1:]...).Output()
		if err != nil {
			return "", fmt.Errorf("%v: %w", tool, err)
		}
		sum.Write(out)
	}
	for _, part := range []string{"module", "provider"} {
		entries, err := os.ReadDir(filepath.Join(sources, part))
		if err != nil {
			return "", err
		}
		for _, e := range entries {
			name := filepath.Join(part, e.Name())
			if !source.MatchString(e.Name()) || strings.HasSuffix(name, ".mod.c") {
				continue
			}
			if files[name], err = os.ReadFile(filepath.Join(sources, name)); err != nil {
				return "", err
			}
			fmt.Fprintln(sum, name, len(files[name]))
			sum.Write(files[name])
		}
	}
	final := filepath.Join(cacheDir, "driver-"+hex.EncodeToString(sum.Sum(nil)[:8]))
	if err := retain(final, filepath.Join(cacheDir, "driver-*")); !errors.Is(err, fs.ErrNotExist) {
		return final, err
	}
	dir, err := os.MkdirTemp(cacheDir, ".driver-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	for name, b := range files {
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(to, b, 0o644); err != nil {
			return "", err
		}
	}
	module := filepath.Join(dir, "module")
	// Type information for BPF needs a program that Debian's headers do not have.
	if err := runMake(ctx, dir, "-C", headers, "M="+module, "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"); err != nil {
		return "", fmt.Errorf("build the module virtio_roce with %s: %w", filepath.Base(headers), err)
	}
	if err := runMake(ctx, dir, "-C", filepath.Join(dir, "provider")); err != nil {
		return "", fmt.Errorf("build the provider of libibverbs: %w", err)
	}
	if err := os.Rename(dir, final); err != nil {
		if _, there := os.Stat(final); there != nil {
			return "", err
		} // else another process was faster
	}
	return final, nil
}

// telling matches lines of a build that report what is wrong.
var telling = regexp.MustCompile(`(?i)error|warning|undefined|\*\*\*|No such file`)

// runMake runs make for sources below dir. The error has the lines of the compiler, with paths relative to dir.
func runMake(ctx context.Context, dir string, args ...string) error {
	const most = 40 // lines
	out, err := exec.CommandContext(ctx, "make", append([]string{"--no-print-directory"}, args...)...).CombinedOutput()
	if err == nil {
		return nil
	}
	var lines []string
	for line := range strings.Lines(strings.ReplaceAll(string(out), dir+"/", "")) {
		if telling.MatchString(line) {
			lines = append(lines, line)
		}
	}
	return fmt.Errorf("%w:\n%s", err, strings.Join(lines[:min(len(lines), most)], ""))
}
