// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/test/lab"
)

// TestMulticast checks every copy of multicast packets between sessions of one
// lane, of several, and of two nodes over IPv4 and IPv6. Afterwards no payload
// is held and no group is joined.
func TestMulticast(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name    string
		oneNode bool
		v6      bool
		flags   []string // of the nodes
		run     []string // of weft run
	}{
		{"one lane", true, false, []string{"--lanes", "1"}, nil},
		{"three lanes", true, false, []string{"--lanes", "3"}, nil},
		{"one node, full packet path", true, false, []string{"--wire-local"}, nil},
		{"arena", true, true, nil, []string{"--arena"}},
		{"two nodes", false, false, nil, nil},
		{"two nodes, IPv6", false, true, []string{"--lanes", "2"}, nil},
		{"small store", false, false, []string{"--mcast-payloads", "64", "--mcast-threshold", "0"}, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			b := openTestbed(t, 9000, x.oneNode, 0, x.flags...)
			b.V6 = x.v6
			verbcheck(t, b, verbcheckLimit, x.run, "-t", "mcast.*")
			for _, n := range []*lab.Node{b.Server, b.Client} {
				counters, err := n.Counters()
				if err != nil {
					t.Fatal(err)
				}
				c := map[string]uint64{}
				for _, v := range counters {
					if v.Scope == api.ScopeMcast {
						c[v.Name] = v.Value
					}
				}
				if c["injected"] == 0 || c["payloads"] != 0 || c["popped"] != c["received"] || c["high_payloads"] == 0 {
					t.Errorf("counters %v", c)
				}
				if out, err := n.Weft("mcast", "list"); err != nil || !strings.Contains(out, "in no multicast group") {
					t.Errorf("%v\n%s", err, out)
				}
				out, err := lab.Run(lab.Cmd{NetNS: n.NetNS.Name, Args: []string{"ip", "maddr"}}, diagLimit)
				if err != nil || strings.Contains(out, " 239.86.") || strings.Contains(out, "ff05::7663") {
					t.Errorf("a group is still joined (%v):\n%s", err, out)
				}
			}
		})
	}
}

// multicast runs ib_send_bw with a multicast group, which it joins by itself
// where the device has an InfiniBand port; it ends well only when every message
// has come. Where a trunk went down meanwhile it is run again.
func (b *testbed) multicast(t *testing.T, device string, gid int) {
	t.Helper()
	for try := 0; ; try++ {
		since := b.downs()
		why := b.multicastOnce(t, device, gid)
		if why == "" {
			return
		}
		if since() == 0 || try == 3 {
			t.Error(why)
			return
		}
		t.Logf("trunks went down meanwhile: once more: %s", why)
	}
}

func (b *testbed) multicastOnce(t *testing.T, device string, gid int) (why string) {
	t.Helper()
	port := lab.Port()
	args := []string{"ib_send_bw", "-d", device, "-x", fmt.Sprint(gid), "-c", "UD", "-g", "-s", "256", "-n", "400",
		"-r", "512", "-F", "-p", fmt.Sprint(port)}
	server, err := lab.Start(b.Server.Program(args...))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	if err := server.Listening(port, diagLimit); err != nil {
		t.Fatalf("%v\n%s", err, server.Output())
	}
	out, err := lab.RunBeside(server, b.Client.Program(append(args, b.Server.NetNS.V4)...), diagLimit)
	if err == nil {
		err = server.Wait(diagLimit)
	}
	if err != nil || !strings.Contains(server.Output(), "Multicast Test") || checkOutput("ib_send_bw", out) != "" {
		return fmt.Sprintf("%v\n%s\n%s", err, out, server.Output())
	}
	return ""
}

// TestPerftestMulticast runs Debian's ib_send_bw with a multicast group, which
// takes as long as every message has come: by LID between two nodes, where it
// joins through the subnet administration and the switches have the way, and on
// the Ethernet port of one.
func TestPerftestMulticast(t *testing.T) {
	t.Parallel()
	needs(t, "ib_send_bw")
	t.Run("two nodes by LID", func(t *testing.T) {
		m := &managed{testbed: openTestbed(t, 9000, false, 0, fabricFlags...)}
		m.awaitActive(t)
		m.multicast(t, nativeDevice, 0)
		// Within one port a group needs no way through the switch.
		out, err := lab.Run(m.Server.Program(lab.Bin("verbcheck"), "--local", "-d", nativeDevice, "-t", "mcast.*"),
			verbcheckLimit)
		rows(t, out)
		if err != nil && !t.Failed() {
			t.Errorf("%v\n%s", err, lab.Tail(out, 20))
		}
	})
	t.Run("one node, IPv6", func(t *testing.T) {
		b := openTestbed(t, 9000, true, 0)
		gid, err := b.Server.GID(b.Server.NetNS.V6)
		if err != nil {
			t.Fatal(err)
		}
		b.multicast(t, "weft0", gid)
		// A member that is killed leaves its group.
		server, err := lab.Start(b.Server.Program("ib_send_bw", "-d", "weft0", "-x", fmt.Sprint(gid), "-c", "UD",
			"-g", "-F", "-p", "19851", "-D", "30"))
		if err != nil {
			t.Fatal(err)
		}
		defer server.Kill()
		if err := server.Listening(19851, diagLimit); err != nil {
			t.Fatal(err)
		}
		client, err := lab.Start(b.Server.Program("ib_send_bw", "-d", "weft0", "-x", fmt.Sprint(gid), "-c", "UD",
			"-g", "-F", "-p", "19851", "-D", "30", b.Server.NetNS.V4))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Kill()
		list := func(what string, want bool, peers ...lab.Peer) {
			t.Helper()
			out := ""
			if err := lab.Until(what, diagLimit, func() (_ bool, err error) {
				out, err = b.Server.Weft("mcast", "list")
				return strings.Contains(out, "ff01:0:2:c985::") == want, err
			}, append(peers, b.Server.Proc)...); err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
		}
		list("the group has a member", true, server, client)
		server.Kill()
		list("a member that was killed has left its group", false)
	})
}
