// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/voters"
)

// MemberStatus is the part of a member in the store.
type MemberStatus struct {
	Role     Role
	Group    voters.Identity
	Replicas []Replica
	Leader   string // name of its member; empty: there is none
	Leads    bool   // this member's replica leads the group, as far as it can tell
	Voters   int    // that a majority is counted of
	// Alone: this node has a copy, but the group has no majority that it could reach. What is stored cannot change.
	Alone bool
	Why   string // why this node's replica was set aside, empty if it was not
	Room  error  // why this node has no replica at present: its disk has no room for it; nil otherwise
}

// Yield passes the lead of the group on, where this member has it, as Server.Yield does: for a node that is about to
// end.
func (m *Member) Yield() {
	if s := m.view.Load().server; s != nil {
		s.Yield()
	}
}

// Part describes the part of this member in the store, without waiting.
func (m *Member) Part() MemberStatus {
	v := m.view.Load()
	st := MemberStatus{Group: v.group, Replicas: v.replicas, Why: v.why, Room: v.room}
	leader := uint64(0)
	if s := v.server; s != nil && s.down() == "" {
		st.Role, st.Replicas, leader = RoleLearner, s.Replicas(), s.etcd.leader()
		st.Leads = s.Leads()
		if s.Votes() {
			st.Role = RoleVoter
		}
		// A store without a group has no majority to lose: it works, or Status reports why not.
		// A voter is without a leader for a moment whenever the leader changes.
		st.Alone = v.advertise != "" && (leader == 0 || st.Role == RoleLearner) && v.solitary >= alonePatience
	}
	for _, r := range st.Replicas {
		if !r.Learner {
			st.Voters++
		}
		if r.ID == leader {
			st.Leader = r.Name
		}
	}
	return st
}

// Alone reports whether this node has a copy, and the group no majority that the node could reach.
func (m *Member) Alone() bool { return m.Part().Alone }

// replica returns the server of this node, or why there is none.
func (v *view) replica(what string) (*Server, error) {
	s := v.server
	if s == nil {
		return nil, &store.Error{Kind: store.ErrUnavailable, What: what, Why: "this node has no copy of the store",
			Fix: "weft store status lists the nodes that have one"}
	}
	return s, nil
}

// Copy lists what this node's own copy has below tree, also while the group has no majority.
func (m *Member) Copy(ctx context.Context, tree string) (store.Listing, error) {
	s, err := m.view.Load().replica("cannot read the copy of the store")
	if err != nil {
		return store.Listing{}, err
	}
	return s.Copy(ctx, tree)
}

// Backup returns the content of the store: of this node's copy, or over the network where it has none.
func (m *Member) Backup(ctx context.Context) (*Backup, error) {
	if s, err := m.view.Load().replica("cannot back up the store"); err == nil {
		return s.Backup(ctx)
	}
	l, err := m.List(ctx, "")
	if err != nil {
		return nil, err
	}
	b := &Backup{Version: BackupVersion, Revision: l.Rev, Group: m.Part().Group}
	for _, e := range l.Entries {
		if e.Lease == 0 && e.Key != keyGeneration && !isVolatile(e.Key) {
			b.Entries = append(b.Entries, BackupEntry{e.Key, e.Value})
		}
	}
	return b, nil
}

// Defrag writes the file of this node's replica anew. It returns its size before and after, in bytes.
func (m *Member) Defrag() (before, after int64, err error) {
	s, err := m.view.Load().replica("cannot defragment the store")
	if err != nil {
		return 0, 0, err
	}
	return s.Defrag()
}

// Restore makes this node the only voter of a new group of the next generation, with the content of a backup, or with
// that of its own copy where b is nil. The other members follow; their replicas of the group before are set aside,
// also if they return later. Without force it is refused while the group has its majority.
//
// What the group before acknowledged and this content lacks is lost. The new group is complete before the old files are
// touched.
func (m *Member) Restore(ctx context.Context, b *Backup, force bool) error {
	const what = "cannot restore the store"
	m.mu.Lock()
	defer m.unlock()
	if m.closed {
		return store.Closed()
	}
	if !force && m.healthy(ctx) {
		return &store.Error{Kind: store.ErrInvalid, What: what,
			Why: "the store has its majority, and what was changed since would be lost",
			Fix: "nothing is to be done; to go back to a backup: weft store restore --force FILE"}
	}
	var own *Backup
	if m.server != nil {
		var err error
		if own, err = m.server.Backup(ctx); err != nil && b == nil {
			return err
		}
	}
	if b == nil {
		if own == nil {
			return &store.Error{Kind: store.ErrInvalid, What: what, Why: "this node has no copy of the store",
				Fix: "weft store restore FILE with a backup, or weft store restore on a node that has a copy"}
		}
		c := *own
		b = &c
	}
	if s := m.c.Security; s != nil && s.Retain != nil {
		c := *b
		c.Entries = slices.Clone(b.Entries)
		if err := s.Retain(&c, own); err != nil {
			return err
		}
		b = &c
	}
	generation := max(m.known.Roster.Group.Generation, b.Group.Generation)
	for _, r := range m.askAll(ctx, 0, 0) {
		generation = max(generation, r.Group.Generation)
	}
	generation++
	fresh := filepath.Join(m.c.Dir, restoreDir)
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	built := false
	defer func() {
		if built {
			return
		}
		if err := os.RemoveAll(fresh); err != nil { // else a later start would complete what failed
			m.c.Log.Error("a restore that failed is still there", "dir", fresh, "err", err)
		}
	}()
	if err := m.build(ctx, fresh, b, generation); err != nil {
		return err
	}
	if err := keep(filepath.Join(fresh, completeFile), nil); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	m.reunite()
	m.use(nil)
	m.remote, m.lead = nil, nil
	if m.server != nil {
		m.end()
	}
	if err := m.setAside("the store was restored on this node"); err != nil {
		return err
	}
	built, m.why = true, ""
	if m.c.interrupt != nil {
		return m.c.interrupt
	}
	if err := files(m.c.Dir).adopt(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := m.startRestored(ctx); err != nil {
		return err
	}
	m.c.Log.Warn("the store was restored", "generation", generation, "entries", len(b.Entries))
	return m.pick()
}

// restoreDir has a restore that is under way in it, and completeFile once nothing is missing from that.
const (
	restoreDir   = "restore"
	completeFile = "complete"
)

// startRestored starts the only replica of a group; mu is held.
func (m *Member) startRestored(ctx context.Context) error {
	if err := m.startReplica(ctx, nil); err != nil {
		return err
	}
	m.known.Roster.Replicas = m.server.Replicas()
	m.remember()
	return nil
}

// build makes the files of a new group with the content of a backup. Its first change is the generation, then the
// revision is raised, then comes the content: each entry is newer than all that was.
func (m *Member) build(ctx context.Context, dir string, b *Backup, generation uint64) error {
	err := m.with(ctx, dir, func(s *Server, c store.Store) error {
		if _, err := store.Put(ctx, c, keyGeneration, fmt.Append(nil, generation)); err != nil {
			return err
		}
		return s.snapshot(ctx, c)
	})
	if err != nil {
		return err
	}
	rev := max(int64(b.Revision)+skipped, int64(generation)*skipped) // also where a backup is restored again
	if err := raiseRevision(filepath.Join(dir, "etcd", "member", "snap", "db"), rev); err != nil {
		return fmt.Errorf("raise the revision of the restored store: %w", err)
	}
	return m.with(ctx, dir, func(_ *Server, c store.Store) error { return fill(ctx, c, b) })
}

// with runs a server that is alone for f.
func (m *Member) with(ctx context.Context, dir string, f func(*Server, store.Store) error) error {
	s, err := Start(ctx, ServerConfig{Dir: dir, Name: m.c.Name, Namespace: m.c.Namespace, Timeout: m.c.Timeout,
		Log: m.c.Log, snapshotCount: 1})
	if err != nil {
		return err
	}
	defer s.Close()
	c, err := s.Client()
	if err != nil {
		return err
	}
	return f(s, c)
}

// snapshot waits for a snapshot of the log, which a server with a snapshotCount of 1 makes soon. When the server starts
// again its log begins there: a replica that joins gets the file of the store, with the raised revision in it, and not
// the changes before, which would lead it elsewhere.
func (s *Server) snapshot(ctx context.Context, c store.Store) error {
	for {
		if _, err := store.Put(ctx, c, keyRoster, []byte("{}")); err != nil {
			return err
		}
		found, err := filepath.Glob(filepath.Join(s.dir, "etcd", "member", "snap", "*.snap"))
		if err != nil || len(found) > 0 {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// skipped is how many revisions lie between a backup and the store that is made of it, and between two generations:
// more than were made after the backup. A comparison of revisions, or of terms, which are revisions, shows the restored
// state as the newer one.
const skipped = 1 << 30

// raiseRevision makes the next revision of a store that does not run the one after rev, or leaves it where it is later.
// etcd keeps each change under its revision: two numbers of 64 bits with an underscore between them. The last change is
// put again under a later one, as etcdutl does for a snapshot (--bump-revision).
func raiseRevision(file string, rev int64) error {
	db, err := bbolt.Open(file, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		changes := tx.Bucket([]byte("key"))
		if changes == nil {
			return errors.New("it has no changes in it")
		}
		k, v := changes.Cursor().Last()
		if len(k) != 17 || v == nil { // a deletion has another octet at its end
			return errors.New("its last change is not a value")
		}
		if int64(binary.BigEndian.Uint64(k)) >= rev {
			return nil
		}
		next := make([]byte, 17)
		binary.BigEndian.PutUint64(next, uint64(rev))
		next[8] = '_'
		return changes.Put(next, slices.Clone(v))
	})
	if cerr := db.Close(); err == nil {
		err = cerr
	}
	return err
}

// healthy reports whether the store takes changes; mu is held.
func (m *Member) healthy(ctx context.Context) bool {
	c, _ := m.client()
	if c == nil {
		return false
	}
	ctx, stop := context.WithTimeout(ctx, 3*time.Second)
	defer stop()
	_, err := c.Get(ctx, keyRoster) // by the leader
	return err == nil || errors.Is(err, store.ErrNotFound)
}
