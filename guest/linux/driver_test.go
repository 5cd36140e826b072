// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestArchive: the archive has every source of the two directories, and nothing that was built.
func TestArchive(t *testing.T) {
	var first, again bytes.Buffer
	for _, w := range []io.Writer{&first, &again} {
		if err := WriteArchive(w, "1.2.3"); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), again.Bytes()) {
		t.Error("two archives of the same source differ")
	}
	zip, err := gzip.NewReader(&first)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(h.Name, "virtio-roce-1.2.3/")
		if !ok {
			t.Errorf("%s is outside the directory of the archive", h.Name)
		}
		if executable := h.Mode&0o111 != 0; executable != (name == "install") {
			t.Errorf("%s has the mode %o", name, h.Mode)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[name] = string(text)
	}
	if !strings.Contains(got["module/dkms.conf"], "\nPACKAGE_VERSION=\"1.2.3\"\n") {
		t.Errorf("dkms.conf: %s", got["module/dkms.conf"])
	}
	for _, dir := range []string{"module", "provider"} {
		for _, pattern := range []string{"*.c", "*.h", "Makefile", "Kbuild", "*.conf", "*.map", "*.driver"} {
			list, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range list {
				text, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				if _, ok := got[name]; !ok && !strings.HasSuffix(name, ".mod.c") {
					t.Errorf("the archive has no %s", name)
				} else if ok && name != "module/dkms.conf" && got[name] != string(text) {
					t.Errorf("%s differs", name)
				}
			}
		}
	}
	for name := range got {
		if strings.HasSuffix(name, ".o") || strings.HasSuffix(name, ".so") || strings.HasSuffix(name, ".ko") {
			t.Errorf("the archive has %s", name)
		}
	}
}
