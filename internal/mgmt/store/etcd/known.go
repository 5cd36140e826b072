// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
)

// known is what a node keeps in its directory: the group of its replica, and the addresses of members.
type known struct {
	Replica uint64 `json:"replica,omitempty"`
	Fabric  string `json:"fabric,omitempty"` // with which the replica was last started
	// Learner: the replica has not voted yet. What it has is of the voters, or less.
	Learner bool   `json:"learner,omitempty"`
	Roster  Roster `json:"roster"`
}

const knownFile = "group.json"

// foreign reports whether the replica is of no store of the fabric: of a host that was alone, or in another fabric. A
// replica of which nothing is known is not: its group decides.
func (k *known) foreign(fabric string) bool {
	if fabric == "" || k.Fabric == fabric || k.Roster.Group.Generation == 0 {
		return false
	}
	return k.Fabric != "" || len(k.Roster.Addresses) == 0 // files of a group were not always marked
}

// files is the directory of a node's replica.
type files string

func (f files) path(parts ...string) string {
	return filepath.Join(append([]string{string(f)}, parts...)...)
}

// exist reports whether there are files of a replica.
func (f files) exist() bool {
	_, err := os.Stat(f.path("etcd", "member"))
	return err == nil
}

// restored reports whether a restore was complete at the end of the node, and had set the files before it aside: the
// node has no other store then. What another restore left counts for nothing.
func (f files) restored() bool {
	_, err := os.Stat(f.path(restoreDir, completeFile))
	return err == nil && !f.exist()
}

// adopt makes the files of a complete restore those of the replica.
func (f files) adopt() error {
	if err := os.Rename(f.path(restoreDir, "etcd"), f.path("etcd")); err != nil {
		return err
	}
	if err := flush(string(f)); err != nil {
		return err
	}
	return os.RemoveAll(f.path(restoreDir))
}

// recall reads what the node kept. What cannot be read is as if it were not there: the files of the replica have its
// group in them.
func (f files) recall(log *slog.Logger) (k known) {
	b, err := os.ReadFile(f.path(knownFile))
	if err == nil && json.Unmarshal(b, &k) != nil {
		log.Warn("what this node knew of the store is lost", "file", knownFile)
		return known{}
	}
	return k
}

// remember writes known in one piece, and to the disk; mu is held.
func (m *Member) remember() {
	b, err := json.Marshal(m.known)
	if err == nil {
		err = keep(filepath.Join(m.c.Dir, knownFile), b)
	}
	if err != nil {
		m.c.Log.Warn("what this node knows of the store is not kept", "err", err)
	}
}

// keep replaces a file: after a loss of power at any time it is as before or as after.
func keep(name string, content []byte) error {
	f, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(name+".new", name); err != nil {
		return err
	}
	return flush(filepath.Dir(name))
}

// flush writes the names in a directory to the disk.
func flush(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// setAside takes the files of the replica out of use. The last ones that were set aside are kept; those of a learner
// are not kept in the place of others, which may be the only copy of what a restore on another node lost.
func (m *Member) setAside(why string) error {
	m.c.Log.Warn("the files of this node's replica are set aside", "why", why)
	m.why = why
	if err := putAside(m.c, m.known.Learner); err != nil {
		return fmt.Errorf("set the old store aside: %w", err)
	}
	m.known.Replica, m.known.Learner = 0, false
	m.remember()
	return nil
}

// putAside renames or removes the files.
func putAside(c MemberConfig, learner bool) error {
	if c.asideFails != nil {
		return c.asideFails
	}
	f := files(c.Dir)
	if _, err := os.Stat(f.path(asideDir)); err == nil && learner {
		return os.RemoveAll(f.path("etcd"))
	}
	if err := os.RemoveAll(f.path(asideDir)); err != nil {
		return err
	}
	if err := os.Rename(f.path("etcd"), f.path(asideDir)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// asideDir has the files that were set aside.
const asideDir = "etcd.old"
