// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"strconv"
)

// Triangle is three namespaces of which each two are joined by a cable of their
// own, for a trunk. Another network joins all three, on eth0, for what programs
// tell each other and for a store; its hub is a namespace too.
type Triangle struct {
	Spaces [3]*NetNS
	Hub    *NetNS // V4 is its address in that network
}

// MakeTriangle makes a Triangle; mtu is that of the cables.
func MakeTriangle(mtu int) (_ *Triangle, err error) {
	t := &Triangle{}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
		}
	}()
	if t.Hub, err = newNetNS(); err != nil {
		return nil, err
	}
	if err := ip("-n", t.Hub.Name, "link", "add", "eth0", "type", "bridge"); err != nil {
		return nil, err
	}
	for i := range t.Spaces {
		if t.Spaces[i], err = newNetNS(); err != nil {
			return nil, err
		}
		port := "p" + strconv.Itoa(i)
		err = errors.Join(
			ip("-n", t.Spaces[i].Name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns",
				t.Hub.Name),
			ip("-n", t.Hub.Name, "link", "set", port, "master", "eth0", "up"),
			t.Spaces[i].addresses(79, i+1))
		if err != nil {
			return nil, err
		}
	}
	if err := t.Hub.addresses(79, 100); err != nil {
		return nil, err
	}
	m := strconv.Itoa(mtu)
	for i := range t.Spaces {
		for j := i + 1; j < len(t.Spaces); j++ {
			a, b := t.Spaces[i].Name, t.Spaces[j].Name
			err = ip("-n", a, "link", "add", cable(j), "mtu", m, "type", "veth", "peer", "name", cable(i), "mtu", m,
				"netns", b)
			for _, x := range [][2]int{{i, j}, {j, i}} {
				err = errors.Join(err,
					ip("-n", t.Spaces[x[0]].Name, "addr", "add", t.TrunkAddr(x[0], x[1])+"/24", "dev", cable(x[1])),
					ip("-n", t.Spaces[x[0]].Name, "link", "set", cable(x[1]), "up"))
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return t, nil
}

func cable(to int) string { return "trunk" + strconv.Itoa(to) }

// TrunkAddr returns the address of space i on its cable to space j.
func (t *Triangle) TrunkAddr(i, j int) string {
	host := 1
	if i > j {
		host = 2
	}
	return fmt.Sprintf("10.80.%d.%d", i+j, host)
}

// Peers returns the flags of weft up that join node i to the two others.
func (t *Triangle) Peers(i int) (flags []string) {
	for j := range t.Spaces {
		if j != i {
			flags = append(flags, "--peer", t.TrunkAddr(j, i))
		}
	}
	return flags
}

// Cut cuts the cable between two spaces, or mends it.
func (t *Triangle) Cut(i, j int, cut bool) error {
	state := "up"
	if cut {
		state = "down"
	}
	return ip("-n", t.Spaces[i].Name, "link", "set", cable(j), state)
}

// Close removes the namespaces.
func (t *Triangle) Close() error {
	var err error
	for _, n := range append([]*NetNS{t.Hub}, t.Spaces[:]...) {
		if n != nil {
			err = errors.Join(err, n.Close())
		}
	}
	return err
}
