// SPDX-License-Identifier: Apache-2.0

package rundir

import (
	"os"
	"path/filepath"
	"testing"
)

func TestIdentity(t *testing.T) {
	open := func(dir string) *Dir {
		t.Helper()
		d, err := Acquire(dir, 0o700)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	a, b := open(filepath.Join(t.TempDir(), "a")), open(filepath.Join(t.TempDir(), "b"))
	first, err := a.Identity()
	if err != nil {
		t.Fatal(err)
	}
	if first>>56 != 2 || first&0xffff != 0 {
		t.Errorf("identity %v is not locally administered, or leaves no room for GUIDs", first)
	}
	if again, err := a.Identity(); err != nil || again != first {
		t.Errorf("asked again: %v, %v; want %v", again, err, first)
	}
	if other, err := b.Identity(); err != nil || other == first {
		t.Errorf("another directory: %v, %v", other, err)
	}
	for _, bad := range []string{"", "zz", "0200000000000000\n", "1200000000010000\n", "0200000000010001\n"} {
		if err := os.WriteFile(filepath.Join(a.Path(), IdentityFile), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if v, err := a.Identity(); err == nil {
			t.Errorf("%q was taken as %v", bad, v)
		}
	}
}
