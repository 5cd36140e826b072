// SPDX-License-Identifier: Apache-2.0

// Package linux is the source of the driver that a Linux guest needs for a card
// with a RoCE half: a kernel module and a provider for libibverbs.
//
// In: the files beside this one, at build time. Out: an archive of them, which
// weft vm driver writes. Called by package cli and by the tests of guests. It
// must never contain anything that was built.
package linux

import (
	"archive/tar"
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

//go:embed install README module/Kbuild module/Makefile module/dkms.conf module/*.c module/*.h
//go:embed provider/Makefile provider/vroce.driver provider/*.c provider/*.h provider/*.map
var files embed.FS

// archiveTime is the time of all files of the archive. make compares it with the times of what it has built.
var archiveTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// versionMark stands in dkms.conf for the version of the driver.
const versionMark = "@VERSION@"

// Files returns the source by path, such as module/main.c. version is the version of the driver for DKMS.
func Files(version string) (map[string][]byte, error) {
	list := map[string][]byte{}
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(name, ".mod.c") { // the kernel's build makes those
			return err
		}
		b, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		list[name] = []byte(strings.ReplaceAll(string(b), versionMark, version))
		return nil
	})
	return list, err
}

// WriteArchive writes the source to w as a compressed archive with the only
// directory virtio-roce-VERSION. The same source gives the same octets.
func WriteArchive(w io.Writer, version string) error {
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	top := "virtio-roce-" + version
	list, err := Files(version)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		mode := int64(0o644)
		if name == "install" {
			mode = 0o755
		}
		header := &tar.Header{Name: path.Join(top, name), Typeflag: tar.TypeReg, Mode: mode,
			Size: int64(len(list[name])), ModTime: archiveTime}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if _, err := archive.Write(list[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return errors.Join(archive.Close(), zip.Close())
}
