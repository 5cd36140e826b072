// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	trunks "weft/internal/fabric/trunk"
	"weft/test/lab"
)

// repeat is a program that may listen and send where a node does, without its keys: "repeat IF ADDRESS COUNT". It takes
// COUNT datagrams of the node's trunk to ADDRESS from the network, and sends there for each, in the node's name: it
// again, it with a later number, that with the last octet changed, and the first half of it.
func repeat(f []string) error {
	to := netip.MustParseAddr(f[2])
	count, err := strconv.Atoi(f[3])
	if err != nil {
		return err
	}
	var taken [][]byte
	if err := captureDatagrams(f[1], to, func(d []byte, _ trunks.Header) bool {
		taken = append(taken, bytes.Clone(d))
		return len(taken) < count
	}); err != nil {
		return err
	}
	sock, err := rawSocket()
	if err != nil {
		return err
	}
	for _, d := range taken {
		var h trunks.Header
		h.Parse(d)
		h.Number += 1 << 20
		later := bytes.Clone(d)
		h.Put(later)
		changed := bytes.Clone(later)
		changed[len(changed)-1] ^= 1
		for _, b := range [][]byte{d, later, changed, d[:len(d)/2]} {
			if err := sock.send(to, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// trunkTo returns the node's trunk to a peer.
func (s *subnet) trunkTo(i, j int) (k api.Trunk) {
	s.t.Helper()
	var list []api.Trunk
	if err := s.nodes[i].Query(&list, "trunk"); err != nil {
		s.t.Fatal(err)
	}
	for _, k := range list {
		if strings.HasPrefix(k.Peer, s.TrunkAddr(j, i)+":") {
			return k
		}
	}
	s.t.Fatalf("node %d has no trunk to node %d: %+v", i, j, list)
	return k
}

// refused returns how many datagrams of a peer a node counted as refused for a reason.
func (s *subnet) refused(i, j int, counter string) uint64 {
	s.t.Helper()
	list, err := s.nodes[i].Counters()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range list {
		if c.Scope == api.ScopeTrunk && c.Name == counter && strings.HasPrefix(c.Instance, s.TrunkAddr(j, i)) {
			return c.Value
		}
	}
	s.t.Fatalf("node %d does not count %s of node %d", i, counter, j)
	return 0
}

// TestForgedTrunk: three nodes whose trunks have a key. A program that reads a trunk and sends in the name of its node,
// without the key, changes nothing: what is repeated or changed is refused by name, and programs go on. A node with
// another key, or without one, at the address of a member is not a part of the subnet; the member that returns is.
func TestForgedTrunk(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, false)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	before := s.trunkTo(0, 2)
	if before.Security != "encrypt" || !before.Up {
		t.Fatalf("%+v", before)
	}
	wasRepeated, wasForged := s.refused(0, 2, "drop_duplicate"), s.refused(0, 2, "drop_forged")
	const count = 20
	p, err := lab.Start(lab.Cmd{NetNS: s.Spaces[2].Name, Args: []string{exe},
		Env: []string{fmt.Sprint(forgeEnv, "=repeat trunk0 ", s.TrunkAddr(0, 2), " ", count)}})
	if err != nil {
		t.Fatal(err)
	}
	s.between(0, 2, native).pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")
	if err := p.Wait(fabricLimit); err != nil {
		t.Fatalf("%v\n%s", err, p.Output())
	}
	// A datagram may be lost; most are not. Half of one is short, or forged.
	s.until("repeated and forged datagrams are refused by name", func() bool {
		return s.refused(0, 2, "drop_duplicate")-wasRepeated >= count*3/4 &&
			s.refused(0, 2, "drop_forged")-wasForged >= 2*count*3/4
	})
	if after := s.trunkTo(0, 2); !after.Up || after.Downs != before.Downs || after.Node != before.Node {
		t.Errorf("the trunk was %+v, is %+v", before, after)
	}

	// Another node in the place of node 2.
	s.nodes[2].Proc.Kill()
	s.until("the trunk is down", func() bool { return !s.trunkTo(0, 2).Up })
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, fmt.Appendf(nil, "%x", sha256.Sum256([]byte("another"))), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{{"--trunk-key-file", key}, {"--trunk-security", "none"}} {
		stranger, err := lab.StartNode(s.Spaces[2], 0, append(s.Peers(2), flags...)...)
		if err != nil {
			t.Fatal(err)
		}
		was := s.refused(0, 2, "handshakes_failed")
		s.until("a handshake fails at both ends, by its reason", func() bool {
			var own []api.Trunk
			if err := stranger.Query(&own, "trunk"); err != nil || len(own) != 2 {
				t.Fatalf("%v %+v", err, own)
			}
			return s.refused(0, 2, "handshakes_failed") > was && own[0].Why != ""
		})
		for until := time.Now().Add(2 * time.Second); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
			if k := s.trunkTo(0, 2); k.Up {
				t.Fatalf("%v: the stranger's trunk is up: %+v", flags, k)
			}
		}
		s.until("the subnet is that of two nodes", func() bool { return settled(s.nodes[0], s.nodes[1]) })
		if err := stranger.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.nodes[2].Again(s.flags[2]...); err != nil {
		t.Fatal(err)
	}
	s.active(0, 1, 2)
}
