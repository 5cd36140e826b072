// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/proto/problem"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// sound is a host with which nothing is wrong.
func sound(t *testing.T) *Host {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "node")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return &Host{Dir: dir, UID: os.Geteuid(), Now: now, Built: now.Add(-time.Hour), RoCEPort: 4791, TrunkPort: 4792,
		Bind: func(int) error { return nil }, Free: func(string) (uint64, error) { return 1 << 40, nil },
		Files: func() (uint64, error) { return 4096, nil }, Library: func() (string, error) { return "/lib/x.so", nil }}
}

// expect compares the findings that are no success with what is wanted: level, check and a part of the text.
func expect(t *testing.T, list []api.Finding, want ...string) {
	t.Helper()
	var bad []string
	for _, f := range list {
		if (f.Level == api.LevelOK) != (f.Fix == "") {
			t.Errorf("a finding without a fix, or with one too many: %+v", f)
		}
		if f.Level != api.LevelOK {
			bad = append(bad, f.Level+" "+f.Check+" "+f.What)
		}
	}
	if len(bad) != len(want) {
		t.Fatalf("got %q, want %q", bad, want)
	}
	for i := range bad {
		if level, text, _ := strings.Cut(want[i], ": "); !strings.HasPrefix(bad[i], level) || !strings.Contains(bad[i],
			text) {
			t.Errorf("got %q, want %q", bad[i], want[i])
		}
	}
}

// TestLocal breaks a sound host in one way each.
func TestLocal(t *testing.T) {
	busy := &net.OpError{Op: "listen", Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	for name, c := range map[string]struct {
		damage  func(h *Host)
		running bool
		want    []string
	}{
		"sound":        {func(*Host) {}, false, nil},
		"no directory": {func(h *Host) { h.Dir += "/below/it" }, false, nil},
		"a file": {func(h *Host) { os.Remove(h.Dir); os.WriteFile(h.Dir, nil, 0o600) }, false,
			[]string{"fail directory: is no directory"}},
		"others write": {func(h *Host) { os.Chmod(h.Dir, 0o777) }, false, []string{"fail directory: others may write"}},
		"another user": {func(h *Host) { h.UID = 12345 }, false, []string{"fail directory: this is uid 12345"}},
		"full disk": {func(h *Host) { h.Free = func(string) (uint64, error) { return 1 << 20, nil } }, false,
			[]string{"fail disk: 1 MiB are free"}},
		"little space": {func(h *Host) { h.Free = func(string) (uint64, error) { return 100 << 20, nil } }, false,
			[]string{"warn disk: 100 MiB"}},
		"no statfs": {func(h *Host) { h.Free = func(string) (uint64, error) { return 0, errors.New("bad") } }, false,
			[]string{"warn disk: bad"}},
		"a taken port": {func(h *Host) {
			h.Bind = func(p int) error {
				if p == 4792 {
					return busy
				}
				return nil
			}
		}, false, []string{"fail ports: UDP port 4792 of trunks cannot be used: address already in use"}},
		"its own ports": {func(h *Host) { h.Bind = func(int) error { return busy } }, true, nil},
		"an early clock": {func(h *Host) { h.Built = now.Add(48 * time.Hour) }, false,
			[]string{"fail clock: 2026-11-01, before"}},
		"few files": {func(h *Host) { h.Files = func() (uint64, error) { return 256, nil } }, false,
			[]string{"warn limits: 256 open files"}},
		"no limits": {func(h *Host) { h.Files = func() (uint64, error) { return 0, errors.New("bad") } }, false,
			[]string{"warn limits: bad"}},
		"no library": {func(h *Host) {
			h.Library = func() (string, error) { return "", problem.New("", "not here", "make") }
		},
			false, []string{"fail library: not here"}},
		"a damaged membership": {func(h *Host) {
			os.Mkdir(filepath.Join(h.Dir, "member"), 0o700)
			os.WriteFile(filepath.Join(h.Dir, "member", "identity.json"), []byte("{"), 0o600)
		}, false, []string{"fail membership: identity.json"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := sound(t)
			c.damage(h)
			expect(t, h.Local(c.running), c.want...)
		})
	}
}

func TestValidity(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a"}, NotBefore: now,
		NotAfter: now.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &c, &c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{der, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})} {
		if begins, ends, err := validity(b); err != nil || !begins.Equal(now) || !ends.Equal(now.Add(time.Hour)) {
			t.Errorf("%v to %v, %v", begins, ends, err)
		}
	}
	if _, _, err := validity([]byte("x")); err == nil {
		t.Error("no error")
	}
}

// TestBindUDP: a port that is in use is no free one, and a free one is free afterwards.
func TestBindUDP(t *testing.T) {
	c, err := net.ListenUDP("udp", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	port := c.LocalAddr().(*net.UDPAddr).Port
	if err := BindUDP(port); !errors.Is(err, syscall.EADDRINUSE) || last(err) != "address already in use" {
		t.Errorf("%v", err)
	}
	c.Close()
	for range 2 {
		if err := BindUDP(port); err != nil {
			t.Error(err)
		}
	}
}

func TestNode(t *testing.T) {
	s := api.Status{Ready: true, Version: "v1", Trunks: []api.Trunk{{Up: true}}}
	expect(t, Node(&s, "v1", false))
	s.Notices = []api.Degraded{{What: "roce_open", Why: "a", Fix: "x"}}
	expect(t, Node(&s, "v1", false))
	s.Notices = append(s.Notices, api.Degraded{What: "gid_no_address", Why: "b", Fix: "x"})
	expect(t, Node(&s, "v1", false), "warn gid_no_address: b")
	s.Version, s.Ready, s.Notices = "v2", false, nil
	s.Faults = []api.Fault{{ID: 3}}
	s.Degraded = []api.Degraded{{What: "trunk_down", Why: "a", Fix: "x"}, {What: "slow_memory_access", Why: "b", Fix: "x"},
		{What: "partition_differs", Why: "c", Fix: "x"}, {What: "vesw_lab", Why: "d", Fix: "x"},
		{What: "trunk_mtu", Why: "e", Fix: "x"}, {What: "store_no_majority", Why: "f", Fix: "x"}}
	all := []string{"fail node: starting", "warn version: v2", "fail trunk_down: a", "warn slow_memory_access: b",
		"fail partition_differs: c", "fail vesw_lab: d", "fail trunk_mtu: e", "fail store_no_majority: f",
		"warn fault: fault 3"}
	expect(t, Node(&s, "v1", false), all...)
	// The checks of the fabric report partitions themselves.
	expect(t, Node(&s, "v1", true), append(append([]string{}, all[:4]...), all[5:]...)...)
}

func TestManagerStoreMembers(t *testing.T) {
	expect(t, Manager(&api.Manager{State: "external"}))
	expect(t, Manager(&api.Manager{State: "standby", Master: api.Master{GUID: "1"}}))
	expect(t, Manager(&api.Manager{State: "standby"}), "fail manager: knows no master")
	expect(t, Manager(&api.Manager{State: "failed", Store: api.Store{Down: "gone"}}), "fail manager: gone")
	expect(t, Store(&api.Store{Kind: "none"}))
	expect(t, Store(&api.Store{Kind: "embedded", Replicas: make([]api.StoreReplica, 3)}))
	expect(t, Store(&api.Store{Kind: "embedded", Down: "no majority"}), "fail store: no majority")
	expect(t, Store(&api.Store{Kind: "embedded", SetAside: "old"}), "warn store: old")
	s := api.Subnet{Nodes: []api.FabricNode{{GUID: "1"}}}
	expect(t, Members(nil, &s))
	m := []api.FabricMember{{Name: "a", GUID: "1", State: "active"}, {Name: "b", GUID: "2", State: "joining"}}
	expect(t, Members(m, &s))
	m[1].State = "active"
	expect(t, Members(m, &s), "fail members: b is not in the subnet")
}
