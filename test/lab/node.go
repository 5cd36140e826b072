// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"weft/internal/control/api"
)

// limitQuick bounds what takes no time on an idle machine. On a busy one a process may get no processor for long; where
// there is a process to wait for, its end ends the wait at once.
const limitQuick = time.Minute

// Node is a running node and where its programs run.
type Node struct {
	Dir   string
	NetNS *NetNS // nil: the test's own namespace
	UID   int
	Proc  *Proc
}

// StartNode starts `weft up` in a new directory and returns when it is ready.
func StartNode(ns *NetNS, uid int, flags ...string) (*Node, error) {
	dir, err := os.MkdirTemp("", "weft-node-")
	if err != nil {
		return nil, err
	}
	// A temporary directory is private; the node's own comes below it.
	err = errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, uidOr(uid), -1))
	n := &Node{Dir: filepath.Join(dir, "node"), NetNS: ns, UID: uid}
	if err == nil {
		flags, err = secured(dir, flags)
	}
	if err == nil {
		n.Proc, err = Start(Cmd{NetNS: n.netns(), UID: uid, Args: append([]string{Bin("weft"), "up", "--dir", n.Dir},
			flags...)})
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	if _, err := n.Proc.Expect("weft: ready", limitQuick); err != nil {
		n.Proc.Kill()
		os.RemoveAll(dir)
		return nil, fmt.Errorf("%w; it printed:\n%s", err, n.Proc.Output())
	}
	return n, nil
}

// secured gives the key of all labs to a node with peers, unless its flags name another way.
func secured(dir string, flags []string) ([]string, error) {
	is := func(prefix string) bool {
		return slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, prefix) })
	}
	if !is("--peer") || is("--trunk-security") || is("--trunk-key-file") {
		return flags, nil
	}
	file := filepath.Join(dir, "trunk-key")
	const key = "8f1c35a4d7e60b9218c43f7ab5d0e6914c2b7d1f08a3e5967bd2c4f1e8a05936"
	return append(slices.Clone(flags), "--trunk-key-file", file), os.WriteFile(file, []byte(key), 0o644)
}

func uidOr(uid int) int {
	if uid == 0 {
		return os.Getuid()
	}
	return uid
}

func (n *Node) netns() string {
	if n.NetNS == nil {
		return ""
	}
	return n.NetNS.Name
}

// Close ends the node as a user would and reports if it did not end cleanly.
func (n *Node) Close() error {
	n.Proc.Signal(syscall.SIGTERM)
	err := n.Proc.Wait(limitQuick)
	if err == nil {
		if left, _ := os.ReadDir(n.Dir); len(left) > 0 {
			for _, f := range left {
				if strings.HasSuffix(f.Name(), ".sock") {
					err = fmt.Errorf("the node left %s behind", f.Name())
				}
			}
		}
	}
	return errors.Join(err, os.RemoveAll(filepath.Dir(n.Dir)))
}

// Program returns the command that runs a verbs program on the node. Words
// before "--" are flags of weft run. The node's process is the program's peer.
func (n *Node) Program(args ...string) Cmd {
	var flags []string
	for i, a := range args {
		if a == "--" {
			flags, args = args[:i], args[i+1:]
			break
		}
	}
	v := append([]string{Bin("weft"), "run", "--dir", n.Dir}, flags...)
	return Cmd{NetNS: n.netns(), UID: n.UID, Args: append(append(v, "--"), args...), Peers: []Peer{n.Proc}}
}

// Weft runs a command of the command line on the node and returns what it
// printed.
func (n *Node) Weft(args ...string) (string, error) {
	c := Cmd{NetNS: n.netns(), UID: n.UID, Args: append(append([]string{Bin("weft")}, args...), "--dir", n.Dir),
		Peers: []Peer{n.Proc}}
	out, err := Run(c, limitQuick)
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return out, err
}

func (n *Node) query(v any, args ...string) error {
	out, err := n.Weft(append(args, "-o", "json")...)
	if err == nil {
		err = json.Unmarshal([]byte(out), v)
	}
	return err
}

// Objects returns how many verbs objects, and identifiers of the connection
// manager, the node has.
func (n *Node) Objects() (int, error) {
	var r api.Resources
	err := n.query(&r, "res")
	return len(r.PDs) + len(r.MRs) + len(r.MWs) + len(r.CQs) + len(r.QPs) + len(r.SRQs) + len(r.AHs) + len(r.CMIDs), err
}

// Working returns when the process has a queue pair that can at least receive;
// the passive side of a bandwidth test stays in RTR.
func (n *Node) Working(p *Proc, limit time.Duration) error {
	return Until(p.name+" has a connected queue pair", limit, func() (bool, error) {
		var r api.Resources
		err := n.query(&r, "res")
		return slices.ContainsFunc(r.QPs, func(q api.QP) bool {
			return q.PID == p.PID() && (q.State == "RTS" || q.State == "RTR")
		}), err
	}, append([]Peer{p}, p.peers...)...)
}

// Query runs a command of the command line on the node and reads its JSON into
// v.
func (n *Node) Query(v any, args ...string) error { return n.query(v, args...) }

// Again starts a node that has ended, in the same directory.
func (n *Node) Again(flags ...string) error {
	flags, err := secured(filepath.Dir(n.Dir), flags)
	if err != nil {
		return err
	}
	p, err := Start(Cmd{NetNS: n.netns(), UID: n.UID, Args: append([]string{Bin("weft"), "up", "--dir", n.Dir},
		flags...)})
	if err != nil {
		return err
	}
	n.Proc = p
	if _, err := p.Expect("weft: ready", limitQuick); err != nil {
		p.Kill()
		return fmt.Errorf("%w; it printed:\n%s", err, p.Output())
	}
	return nil
}

// Status returns the node's status.
func (n *Node) Status() (api.Status, error) {
	var s api.Status
	err := n.query(&s, "status")
	return s, err
}

// Counters returns the node's counters.
func (n *Node) Counters() ([]api.Counter, error) {
	var c []api.Counter
	err := n.query(&c, "stat", "--all")
	return c, err
}

// GID returns the index of the GID of an address.
func (n *Node) GID(address string) (int, error) {
	want, err := netip.ParseAddr(address)
	if err != nil {
		return 0, err
	}
	var devices []api.Device
	if err := n.query(&devices, "dev"); err != nil {
		return 0, err
	}
	for _, d := range devices {
		for _, p := range d.Ports {
			for _, g := range p.GIDs {
				if a, err := netip.ParseAddr(g.Address); err == nil && a.Unmap().WithZone("") == want {
					return g.Index, nil
				}
			}
		}
	}
	return 0, fmt.Errorf("no GID of %s on the node in %s", address, n.Dir)
}

// Descriptors returns what the descriptors are that the node's process has open.
func (n *Node) Descriptors() ([]string, error) {
	dir := fmt.Sprintf("/proc/%d/fd", n.Proc.PID())
	list, err := os.ReadDir(dir)
	var open []string
	for _, e := range list {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			open = append(open, to)
		}
	}
	return open, err
}
