// SPDX-License-Identifier: Apache-2.0

package home

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
)

const guid = ib.GUID(0x0200000000010000)

// sample is a member of a fabric of its own.
func sample(t *testing.T, id *member.Identity) (*Membership, *member.Roster) {
	t.Helper()
	const fabric = "0123456789abcdef"
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	a, err := member.NewAuthority(fabric, 1, now, 0)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := id.Encode()
	if err != nil {
		t.Fatal(err)
	}
	cas := []member.CA{a.CA(member.CASigning, now)}
	cert, err := a.Issue(member.Claims{Fabric: fabric, Name: "b1", GUID: guid, Roles: member.Voter,
		Seal: id.Seal.PublicKey().Bytes()}, &id.Sign.PublicKey, now, 0, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &Membership{Fabric: fabric, Name: "b1", GUID: guid, Keys: keys, Certificate: cert, CAs: cas},
		&member.Roster{Fabric: fabric, At: now, CAs: cas}
}

func folder(t *testing.T) (Dir, string) {
	t.Helper()
	node := t.TempDir()
	return Open(node), filepath.Join(node, Folder)
}

// TestJoin: an attempt that did not end gives its keys to the next one; one that ended is kept, and no other follows.
func TestJoin(t *testing.T) {
	d, path := folder(t)
	if _, err := d.Load(); !errors.Is(err, ErrNone) {
		t.Fatal(err)
	}
	id, err := d.Join(guid)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := d.Join(guid); err != nil || again.Key() != id.Key() {
		t.Errorf("the second attempt has other keys: %v", err)
	}
	if other, err := d.Join(guid + 1<<16); err != nil || other.Key() == id.Key() {
		t.Errorf("another node has the same keys: %v", err)
	}
	if id, err = d.Join(guid); err != nil {
		t.Fatal(err)
	}
	m, r := sample(t, id)
	if err := d.Commit(m, r); err != nil {
		t.Fatal(err)
	}
	got, err := d.Load()
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := got.Identity(); err != nil || kept.Key() != id.Key() || got.Name != "b1" {
		t.Errorf("%v, %v", got, err)
	}
	if r, err := d.Roster(); err != nil || r.Fabric != m.Fabric {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := d.Join(guid); err == nil || !strings.Contains(err.Error(), "weft leave") {
		t.Errorf("it joins twice: %v", err)
	}
	all, err := os.ReadDir(path)
	if err != nil || len(all) != 5 {
		t.Errorf("%v, %v", all, err)
	}
	for _, e := range all {
		if i, err := e.Info(); err != nil || i.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), i.Mode())
		}
	}
	pair, err := tls.LoadX509KeyPair(d.Path(CertFile), d.Path(KeyFile))
	if err != nil || len(pair.Certificate) != 2 {
		t.Errorf("%d certificates, %v", len(pair.Certificate), err)
	}
	pool := x509.NewCertPool()
	if ca, err := os.ReadFile(d.Path(CAFile)); err != nil || !pool.AppendCertsFromPEM(ca) {
		t.Errorf("no CA: %v", err)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: r.At,
		DNSName: member.VoterName}); err != nil {
		t.Error(err)
	}
	if err := d.Leave(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("something is left: %v", err)
	}
}

// TestAbandon: a join that was refused leaves nothing.
func TestAbandon(t *testing.T) {
	d, path := folder(t)
	if _, err := d.Join(guid); err != nil {
		t.Fatal(err)
	}
	if err := d.Abandon(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("something is left: %v", err)
	}
}

// TestRefused: files that others may read, links, damage and other versions are refused with a fix, and no text shows a
// key.
func TestRefused(t *testing.T) {
	for name, change := range map[string]func(path, file string) error{
		"mode of the file":   func(_, file string) error { return os.Chmod(file, 0o640) },
		"mode of the folder": func(path, _ string) error { return os.Chmod(path, 0o755) },
		"a link": func(path, file string) error {
			return errors.Join(os.Rename(file, file+"2"), os.Symlink(file+"2", file))
		},
		"a folder": func(_, file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) },
		"half":     func(_, file string) error { return os.Truncate(file, 40) },
		"empty":    func(_, file string) error { return os.Truncate(file, 0) },
		"version": func(_, file string) error {
			b, err := os.ReadFile(file)
			return errors.Join(err, os.WriteFile(file, []byte(strings.Replace(string(b), `"version":1`,
				`"version":2`, 1)),
				0o600))
		},
		"unknown field": func(_, file string) error { return os.WriteFile(file, []byte(`{"version":1,"x":1}`), 0o600) },
		"long":          func(_, file string) error { return os.WriteFile(file, make([]byte, 2<<20), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			d, path := folder(t)
			id, err := d.Join(guid)
			if err != nil {
				t.Fatal(err)
			}
			m, r := sample(t, id)
			if err := d.Commit(m, r); err != nil {
				t.Fatal(err)
			}
			if err := change(path, filepath.Join(path, identity)); err != nil {
				t.Fatal(err)
			}
			_, err = d.Load()
			if err == nil || errors.Is(err, ErrNone) || !strings.Contains(err.Error(), ". fix: ") {
				t.Errorf("%v", err)
			}
			if _, err := d.Join(guid); err == nil {
				t.Error("a join replaces it")
			}
		})
	}
}

// TestNoKeysInText: no formatting shows private keys.
func TestNoKeysInText(t *testing.T) {
	id, err := member.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	m, _ := sample(t, id)
	for _, text := range []string{fmt.Sprint(m), fmt.Sprintf("%v %+v %#v", *m, *m, *m)} {
		if strings.Contains(text, fmt.Sprint(m.Keys[0])+" "+fmt.Sprint(m.Keys[1])) || strings.Contains(text, "Keys") {
			t.Errorf("%s", text)
		}
	}
}

// TestCrash: a file that was written aside and not renamed does no harm, whatever is in it.
func TestCrash(t *testing.T) {
	d, path := folder(t)
	id, err := d.Join(guid)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{identity, pending, roster, reserve} {
		if err := os.WriteFile(filepath.Join(path, name+".new"), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, r := sample(t, id)
	if err := d.Commit(m, r); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Load(); err != nil {
		t.Error(err)
	}
}

// TestFullDisk: a full disk is found when a join begins, with a fix, and nothing is left on it.
func TestFullDisk(t *testing.T) {
	node := t.TempDir()
	if err := syscall.Mount("weft-test", node, "tmpfs", 0, "size=64k"); err != nil {
		condtest.Lacks(t, "needs root to mount a tmpfs of 64 KiB: %v", err)
	}
	defer syscall.Unmount(node, 0)
	_, err := Open(node).Join(guid)
	if err == nil || !strings.Contains(err.Error(), "fix: free space on the disk of "+node) {
		t.Fatalf("%v", err)
	}
	if err := Open(node).Abandon(); err != nil {
		t.Error(err)
	}
	if all, err := os.ReadDir(node); err != nil || len(all) != 0 {
		t.Errorf("%v is left, %v", all, err)
	}
}

// FuzzLoad reads any file as the kept identity.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(`{"version":1,"name":"b1","keys":""}`))
	dir := f.TempDir()
	if err := os.Mkdir(filepath.Join(dir, Folder), 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d := Open(dir)
		if err := os.WriteFile(filepath.Join(d.path, identity), text, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := d.Load()
		if err == nil && (m.Version != version || member.CheckName(m.Name) != nil || len(m.Keys) != 64) {
			t.Errorf("%+v", m)
		}
	})
}
