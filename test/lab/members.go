// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Members is a fabric: hosts in namespaces on one network, each a member with a node. The hub is a namespace too.
type Members struct {
	Nodes []*Node // of host i; its Proc may have ended
	Hub   *NetNS
	Took  []time.Duration // host i took until its node was ready, its namespace and token too
}

// NewMembers founds a fabric on a host of its own, and has the others join it by token. The nodes run in the foreground
// with these flags. What has been made is in the Members even if there is an error.
func NewMembers(hosts, mtu int, flags ...string) (m *Members, err error) {
	m = &Members{}
	if m.Hub, err = newNetNS(); err != nil {
		return m, err
	}
	if err := ip("-n", m.Hub.Name, "link", "add", "eth0", "mtu", strconv.Itoa(mtu), "type", "bridge"); err != nil {
		return m, err
	}
	if err := ip("-n", m.Hub.Name, "link", "set", "eth0", "up"); err != nil {
		return m, err
	}
	for i := range hosts {
		began := time.Now()
		if err := m.add(i, mtu, flags); err != nil {
			return m, fmt.Errorf("host %d: %w", i, err)
		}
		m.Took = append(m.Took, time.Since(began))
	}
	return m, nil
}

// AddLeaf adds a host that joins as a leaf, as NewMembers does.
func (m *Members) AddLeaf(mtu int, flags ...string) error {
	return m.add(len(m.Nodes), mtu, flags, "--role", "leaf")
}

// add makes host i and starts its node as a member, with a token of these flags.
func (m *Members) add(i, mtu int, flags []string, token ...string) error {
	ns, err := newNetNS()
	if err != nil {
		return err
	}
	port, size := "p"+strconv.Itoa(i), strconv.Itoa(mtu)
	ns.V4 = fmt.Sprintf("10.81.0.%d", i+1)
	err = errors.Join(
		ip("-n", ns.Name, "link", "add", "eth0", "mtu", size, "type", "veth", "peer", "name", port, "mtu", size, "netns",
			m.Hub.Name),
		ip("-n", m.Hub.Name, "link", "set", port, "master", "eth0", "up"),
		ip("-n", ns.Name, "addr", "add", ns.V4+"/24", "dev", "eth0"),
		ip("-n", ns.Name, "link", "set", "eth0", "address", mac(i), "up"))
	if err != nil {
		return errors.Join(err, ns.Close())
	}
	if i == 0 {
		n, err := StartNode(ns, 0, flags...)
		if err != nil {
			return errors.Join(err, ns.Close())
		}
		m.Nodes = append(m.Nodes, n)
		return nil
	}
	dir, err := os.MkdirTemp("", "weft-node-")
	if err != nil {
		return errors.Join(err, ns.Close())
	}
	n := &Node{Dir: filepath.Join(dir, "node"), NetNS: ns}
	m.Nodes = append(m.Nodes, n)
	out, err := m.Nodes[0].Weft(append([]string{"token"}, token...)...)
	if err != nil {
		return err
	}
	line := joinLine.FindStringSubmatch(out)
	if line == nil {
		return fmt.Errorf("weft token printed no command:\n%s", out)
	}
	args := append(strings.Fields(line[1]), "--name", "host"+strconv.Itoa(i), "--no-start", "--dir", n.Dir)
	out, err = Run(Cmd{NetNS: ns.Name, Args: append([]string{Bin("weft"), "join"}, args...)}, limitQuick)
	if err != nil {
		return fmt.Errorf("weft join: %w\n%s", err, out)
	}
	return n.Again(flags...)
}

var joinLine = regexp.MustCompile(`weft join (\S.*)`)

// MAC is the hardware address of host i.
func (m *Members) MAC(i int) string { return mac(i) }

func mac(i int) string { return fmt.Sprintf("02:00:00:81:00:%02x", i+1) }

// Cut has packets of host i to host j lost on the way, without an error at either, or no more. The other way is as it
// was.
func (m *Members) Cut(i, j int, cut bool) error {
	to := mac(j)
	if cut {
		to = "02:00:00:81:ff:ff" // which no host has
	}
	return ip("-n", m.Nodes[i].NetNS.Name, "neigh", "replace", m.Nodes[j].NetNS.V4, "lladdr", to, "dev", "eth0", "nud",
		"permanent")
}

// Close ends the nodes that run and removes the namespaces.
func (m *Members) Close() error {
	var err error
	for _, n := range m.Nodes {
		if n.Proc != nil && Ended(n.Proc) == nil {
			err = errors.Join(err, n.Close())
		}
		err = errors.Join(err, os.RemoveAll(filepath.Dir(n.Dir)), n.NetNS.Close())
	}
	if m.Hub != nil {
		err = errors.Join(err, m.Hub.Close())
	}
	return err
}
