// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"weft/test/lab"
)

// TestRoCEAllow: of three hosts in a network two list each other in --roce-allow, and work together. The third, which
// lists nothing, gets nothing from them: by addresses that the programs exchange, by rdma_cm, and by either direction.
// What it sends is counted.
func TestRoCEAllow(t *testing.T) {
	t.Parallel()
	lab.NeedNetNS(t)
	tri, err := lab.MakeTriangle(9000)
	if err != nil {
		t.Fatal(err)
	}
	var nodes [3]*lab.Node
	t.Cleanup(func() {
		for _, n := range nodes {
			if n == nil {
				continue
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Logf("node in %s printed:\n%s", n.Dir, lab.Tail(n.Proc.Output(), 30))
			}
		}
		if err := tri.Close(); err != nil {
			t.Error(err)
		}
	})
	const stranger = 2
	for i := range nodes {
		flags := []string{"--fabric=false"}
		if i != stranger {
			for _, s := range tri.Spaces[:stranger] {
				flags = append(flags, "--roce-allow", s.V4, "--roce-allow", s.V6+"/128")
			}
		}
		if nodes[i], err = lab.StartNode(tri.Spaces[i], 0, flags...); err != nil {
			t.Fatal(err)
		}
	}
	for _, address := range []func(*lab.NetNS) string{
		func(n *lab.NetNS) string { return n.V4 }, func(n *lab.NetNS) string { return n.V6 }} {
		if out, err := rocePingPong(nodes[0], nodes[1], address); err != nil {
			t.Errorf("the allowed pair: %v\n%s", err, out)
		}
		// Of the two programs that of the restricted host fails, and its peer with it.
		at := address(tri.Spaces[stranger])
		why := "the node may not send RoCEv2 to " + at + ": --roce-allow does not list it"
		for _, pair := range [][2]*lab.Node{{nodes[0], nodes[stranger]}, {nodes[stranger], nodes[1]}} {
			if out, err := rocePingPong(pair[0], pair[1], address); err == nil || !strings.Contains(out, why) {
				t.Errorf("with the third host: %v, want %q\n%s", err, why, out)
			}
		}
	}
	roceStrangerByAddress(t, nodes, stranger)
}

// rocePingPong runs ibv_rc_pingpong between two nodes, by the GIDs of an address of each.
func rocePingPong(server, client *lab.Node, address func(*lab.NetNS) string) (out string, err error) {
	tcp := lab.Port()
	var cmd [2]lab.Cmd
	for i, n := range []*lab.Node{server, client} {
		gid, err := n.GID(address(n.NetNS))
		if err != nil {
			return "", err
		}
		args := []string{"ibv_rc_pingpong", "-d", "weft0", "-n", "50", "-p", strconv.Itoa(tcp), "-g", strconv.Itoa(gid)}
		if i == 1 {
			args = append(args, server.NetNS.V4)
		}
		cmd[i] = n.Program(args...)
	}
	p, err := lab.StartPair(tcp, cmd[0], cmd[1])
	defer p.Kill()
	if err != nil {
		return p.Outputs(), err
	}
	if err = p.Client.WaitBeside(p.Server, cmLimit); err == nil {
		err = p.Server.Wait(cmLimit)
	} else {
		// The end whose call fails prints why as it exits, perhaps after its peer; a server waits on after its client
		// has failed.
		err = errors.Join(err, lab.Until("one prints why", cmLimit, func() (bool, error) {
			return strings.Contains(p.Outputs(), "weft: "), nil
		}, p.Server))
	}
	return p.Outputs(), err
}

// roceStrangerByAddress runs rping: the server of a restricted host does not see the request of the third host, which
// is counted and in the status, and its client has no address to connect to. The allowed host reaches the same server.
func roceStrangerByAddress(t *testing.T, nodes [3]*lab.Node, stranger int) {
	at := nodes[0].NetNS.V4
	server, err := lab.Start(nodes[0].Program("rping", "-s", "-P", "-C", "3", "-a", at))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	if err := lab.Until("the server listens", cmLimit, func() (bool, error) {
		ids := cmIDs(t, nodes[0], server.PID())
		return len(ids) > 0, nil
	}, server); err != nil {
		t.Fatalf("%v\n%s", err, server.Output())
	}
	before := roceDropped(t, nodes[0])
	refused, err := lab.Start(nodes[stranger].Program("rping", "-c", "-C", "3", "-v", "-a", at))
	if err != nil {
		t.Fatal(err)
	}
	defer refused.Kill()
	if err := lab.Until("the requests of the third host are counted", cmLimit, func() (bool, error) {
		return roceDropped(t, nodes[0]) > before, nil
	}, server, nodes[0].Proc, nodes[stranger].Proc); err != nil {
		t.Errorf("%v\n%s", err, refused.Output())
	}
	// The positive control, while the request of the other is sent again.
	out, err := lab.Run(nodes[1].Program("rping", "-c", "-C", "3", "-v", "-a", at), cmLimit)
	if err != nil || !strings.Contains(out, "ping data: rdma-ping-2:") {
		t.Errorf("the allowed host: %v\n%s", err, out)
	}
	if out := refused.Output(); strings.Contains(out, "ping data") {
		t.Errorf("the third host is served:\n%s", out)
	}
	if out, err := nodes[0].Weft("status"); err != nil || !strings.Contains(out, "notice    roce_not_allowed: ") ||
		!strings.Contains(out, "the last from "+nodes[stranger].NetNS.V4) || !strings.Contains(out, "roce only") {
		t.Errorf("%v\n%s", err, out)
	}
	// The other direction: the address is not resolved.
	out, err = lab.Run(nodes[0].Program("rping", "-c", "-C", "3", "-v", "-a", nodes[stranger].NetNS.V4), cmLimit)
	if err == nil || !strings.Contains(out, "RDMA_CM_EVENT_ADDR_ERROR, error -13") {
		t.Errorf("to the third host: %v\n%s", err, out)
	}
}

// roceDropped is the number of packets of strangers that a node dropped.
func roceDropped(t *testing.T, n *lab.Node) (sum uint64) {
	t.Helper()
	list, err := n.Counters()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.Name == "drop_source_not_allowed" {
			sum += c.Value
		}
	}
	return sum
}
