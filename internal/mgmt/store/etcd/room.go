// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"weft/internal/mgmt/store"
)

// etcd takes a full disk for the end of its process: it gives up in the middle of a write, with locks held, and cannot
// be ended in order afterwards. So a replica never finds its disk full where that can be prevented. Each look allocates
// the blocks that etcd writes until the next look, behind the end of the log and of the table. When they cannot be
// allocated, or another segment of the log has no room, the replica ends in order, with blocks for what that writes.
const (
	roomEvery    = 100 * time.Millisecond
	segmentSize  = 4 << 20 // of the log
	snapshotRoom = 1 << 20 // of the log's snapshot: the replicas of the group, also those that left it
	logAhead     = 2 << 20 // that a batch of changes may go beyond the end of a segment
	tableAhead   = 4 << 20
	// runRoom is how much must be free on the disk of a replica that runs. startRoom must be free for one to start: it
	// is larger, so that the replica does not end again at once.
	runRoom   = segmentSize + snapshotRoom
	startRoom = runRoom + logAhead + tableAhead + 2*segmentSize
)

// noRoom is the error of a replica that has no room on its disk.
func noRoom(dir string, free int64, needed int64) error {
	return &store.Error{Kind: store.ErrUnavailable, What: "the copy of the store on this host has ended",
		Why: fmt.Sprintf("the disk of %s has %d MiB free, and %d MiB are needed", dir, free>>20, needed>>20),
		Fix: "df " + dir + "; free space there, and the copy starts again by itself", Err: errNoRoom}
}

var errNoRoom = errors.New("no space left on the disk of the store")

// isFull reports whether an error is of a disk without room, or without what its user may use.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// freeSpace is how many octets the disk of a directory has free for this process. If the directory does not exist yet,
// its parent counts.
func freeSpace(dir string) (int64, error) {
	var st syscall.Statfs_t
	err := syscall.Statfs(dir, &st)
	for errors.Is(err, syscall.ENOENT) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		err = syscall.Statfs(dir, &st)
	}
	if err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// allocateAhead allocates the blocks that etcd writes next, and returns why the replica has to end; nil: it goes on.
func (s *Server) allocateAhead(ctx context.Context) error {
	u, err := s.used(ctx)
	if err != nil {
		return nil // it has ended
	}
	err = allocate(filepath.Join(s.dir, "etcd", "member", "snap", "db"), u.size+tableAhead)
	if tail := lastSegment(filepath.Join(s.dir, "etcd", "member", "wal")); err == nil && tail != "" {
		err = allocate(tail, segmentSize+logAhead)
	}
	free, ferr := s.c.free(s.dir)
	if ferr != nil {
		return nil
	}
	if err != nil || free < runRoom {
		return noRoom(s.dir, free, startRoom)
	}
	return nil
}

// lastSegment is the path of the newest segment of the log, which etcd writes; "" if there is no segment.
func lastSegment(dir string) string {
	list, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, e := range slices.Backward(list) { // in the order of their numbers
		if strings.HasSuffix(e.Name(), ".wal") {
			return filepath.Join(dir, e.Name())
		}
	}
	return ""
}

// keepSize is FALLOC_FL_KEEP_SIZE of fallocate(2).
const keepSize = 1

// allocate gives a file the blocks of its first octets, also beyond its end, and leaves its size as it is. It returns
// an error only if the disk is full. It returns nil if the file system cannot allocate ahead, and if etcd has just
// replaced the file: the next look opens the new one.
func allocate(path string, octets int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	var st syscall.Stat_t
	if syscall.Fstat(int(f.Fd()), &st) == nil && st.Blocks*512 >= octets {
		return nil
	}
	if err := syscall.Fallocate(int(f.Fd()), keepSize, 0, octets); isFull(err) {
		return err
	}
	return nil
}

// watchRoom ends the replica in order when its disk has no room for it any more.
func (s *Server) watchRoom(ctx context.Context) {
	tick := time.NewTicker(roomEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.failed:
			return
		case <-ctx.Done():
			return
		}
		if err := s.allocateAhead(ctx); err != nil {
			s.outOfRoom(err)
			return
		}
	}
}

// outOfRoom ends the replica once it is open, on a goroutine for which Close waits.
func (s *Server) outOfRoom(why error) {
	s.mu.Lock()
	first := s.room == nil
	if first {
		s.room = why
	}
	s.mu.Unlock()
	if first {
		s.withhold(why)
		go func() {
			<-s.opened
			s.Close()
		}()
	}
}

// lacksRoom returns why the replica has ended if its disk is full, nil otherwise.
func (s *Server) lacksRoom() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room
}

// fatal is called by a goroutine of etcd that gives up; the goroutine ends when fatal returns. If it ended before etcd
// itself ends, another one of etcd's would panic: it would hand work to one that is not there any more.
func (s *Server) fatal(why string, err error) {
	if isFull(err) {
		free, _ := s.c.free(s.dir) // 0 if it cannot be read
		s.fail(why)
		s.outOfRoom(noRoom(s.dir, free, startRoom))
	}
	s.fail(why)
	select {
	case <-s.running:
		<-s.etcd.stopping()
	default: // etcd is being made: nothing waits for its goroutines
	}
}

// Times after which the wait for the end of an etcd that failed is given up. One that had no room ends in order, unless
// the disk was full before it was looked at.
const (
	failedEnd = 2 * time.Second
	roomEnd   = 10 * time.Second
)

func (s *Server) endPatience() time.Duration {
	if s.lacksRoom() != nil {
		return roomEnd
	}
	return failedEnd
}

// ended reports whether etcd has closed its files. Otherwise another replica cannot use them.
func (s *Server) ended() bool {
	if s.etcd == nil {
		return true
	}
	select {
	case <-s.etcd.stopped():
		return true
	default:
		return false
	}
}

// stuck is the error of a replica that did not end in order.
func stuck(dir string) error {
	return &store.Error{Kind: store.ErrUnavailable, What: "the copy of the store on this host has ended",
		Why: "the disk of " + dir + " was full at once, and etcd did not end in order: it has to end with the node",
		Fix: "free space there; weft down; weft up", Err: errNoRoom}
}

// suspend ends the replica until its disk has room again: this node is a client of the others meanwhile; mu is held.
func suspend(m *Member, why error) {
	s := m.server
	m.c.Log.Error("the replica of the store ends until its disk has room", "err", why)
	m.use(nil)
	m.remote, m.lead = nil, nil
	m.end()
	if !s.ended() {
		m.unended = s
	}
	lackRoom(m, why)
}

// lackRoom notes why there is no replica; mu is held.
func lackRoom(m *Member, why error) {
	m.room = why
	if !m.split {
		m.because(why)
	}
}

// roomAgain returns why the replica still cannot start; nil: it can. mu is held.
func roomAgain(m *Member) error {
	if m.unended != nil && !m.unended.ended() {
		return stuck(m.c.Dir)
	}
	m.unended = nil
	free, err := m.c.free(m.c.Dir)
	if err != nil || free >= startRoom { // the start finds out what is wrong with a disk that cannot be looked at
		return nil
	}
	return noRoom(m.c.Dir, free, startRoom)
}

// watchRoom suspends the replica when its disk is full, and starts it again when the disk has room.
func watchRoom(ctx context.Context, m *Member, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			lookForRoom(ctx, m)
		case <-ctx.Done():
			return
		}
	}
}

func lookForRoom(ctx context.Context, m *Member) {
	if v := m.view.Load(); v.room == nil && (v.server == nil || v.server.lacksRoom() == nil) {
		return // without mu, which may be held for long
	}
	m.mu.Lock()
	defer m.unlock()
	if m.server != nil {
		if why := m.server.lacksRoom(); why != nil {
			suspend(m, why)
		}
	}
	if m.room == nil {
		return
	}
	why := roomAgain(m)
	lackRoom(m, why)
	if why == nil {
		m.c.Log.Info("the disk of the store has room again")
		if err := startAgain(ctx, m); err != nil {
			lackRoom(m, err) // it is tried again
		}
	}
	if err := m.pick(); err != nil {
		m.c.Log.Warn("the store cannot be used", "err", err)
	}
}
