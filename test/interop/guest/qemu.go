// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// genericDevice is the device of QEMU that takes every property of a card from its vhost-user back-end.
const genericDevice = "vhost-user-test-device-pci"

// NewQEMU returns the command of a QEMU that has the generic vhost-user device, QEMU 11 or later, for Config.Emulator.
// The command runs the QEMU of Debian's unstable release with the libraries of that release. The release is unpacked in
// the directory weft-guest of the user's cache when it is not there yet.
func NewQEMU(ctx context.Context) ([]string, error) {
	dir := filepath.Join(cache(), "qemu-sid")
	if _, err := os.Stat(dir); err != nil {
		if err := unpackQEMU(ctx, dir); err != nil {
			return nil, fmt.Errorf("unpack QEMU: %w", err)
		}
	}
	lib := filepath.Join(dir, "usr/lib/x86_64-linux-gnu")
	command := []string{"env", "QEMU_MODULE_DIR=" + filepath.Join(lib, "qemu"), // not modules of the host's QEMU
		filepath.Join(dir, "lib64/ld-linux-x86-64.so.2"), "--library-path", lib + ":" + filepath.Join(lib, "pulseaudio"),
		filepath.Join(dir, "usr/bin/qemu-system-x86_64")}
	for _, firmware := range []string{"usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"} {
		command = append(command, "-L", filepath.Join(dir, firmware))
	}
	args := append(command[1:len(command):len(command)], "-device", genericDevice+",help")
	if out, err := exec.CommandContext(ctx, command[0], args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("QEMU in %s: no device %s: %w: %s. fix: rm -r %[1]s", dir, genericDevice, err,
			strings.TrimSpace(string(out)))
	}
	return command, nil
}

// unpackQEMU makes dir, which appears whole or not at all.
func unpackQEMU(ctx context.Context, dir string) error {
	if err := install(ctx, []string{"mmdebstrap"}); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".qemu-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	root := filepath.Join(tmp, "root")
	out, err := exec.CommandContext(ctx, "mmdebstrap", "--quiet", "--variant=minbase",
		`--aptopt=Acquire::Check-Valid-Until "false"`, "--include=qemu-system-x86", "sid", root).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mmdebstrap: %w: %s", err, strings.TrimSpace(string(out)))
	}
	if err := os.Rename(root, dir); err != nil {
		if _, there := os.Stat(dir); there != nil {
			return err
		} // else another process was faster
	}
	return nil
}
