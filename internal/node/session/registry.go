// SPDX-License-Identifier: Apache-2.0

// Package session holds the sessions of a node: those of programs at device sockets, those of the node itself (internal
// sessions), and the record sockets beside the devices.
//
// What comes in: vhost-user connections, connections to record sockets, and requests of other rooms for internal
// sessions; what goes out: devices on lanes, requests to and completions from the adapter. The node opens the device
// sockets and gives them to Registry.Admit. A session touches its device on the lane only.
package session

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft/internal/control/api"
	"weft/internal/device/unixsock"
	"weft/internal/device/vhost"
	"weft/internal/node/lane"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/verbs/hca"
)

// Config is what a registry needs from its node.
type Config struct {
	Now       func() mono.Time
	Log       *slog.Logger
	AllowUIDs []int // users that may use the node beside root and its own
	Sessions  int   // of programs at most
	// Admit returns why the host accepts no program; nil: it does. It is called with mu of the registry held.
	Admit func() error
}

// Registry holds the sessions of a node. Its methods may be called on any goroutine, unless they say otherwise.
type Registry struct {
	cfg   Config
	lanes *lane.Group // set once, before the first session
	stats Stats
	guard *unixsock.Guard // of every socket at which the node listens

	mu       sync.Mutex // guards what follows; never held while waiting for a lane, nothing else is locked with mu held
	programs map[*vhost.Session]*Session
	guests   map[*vhost.Session]*Guest
	internal []*Internal
	serial   uint32
	refused  map[vhost.Quota]refusal
	excess   map[unixsock.Refusal]refusal
	log      logLimit
	idle     time.Time     // when the last session ended, or a program announced itself
	ending   bool          // the node ends because it was idle
	left     chan struct{} // is closed when a session leaves its function
	records  int           // open files of user MADs and channels of the connection manager
}

// Stats count connections to record sockets that were refused.
type Stats struct {
	RefusedLimit atomic.Uint64 `counter:"record_refused_limit"` // beyond the number for a user or for all
}

// ErrEnding is the error of a node that ends because it was idle.
var ErrEnding = &api.Error{Code: api.CodeNotReady, What: "cannot use the node",
	Why: "it ends, because it was not used", Fix: "start another: weft up"}

// New returns an empty registry.
func New(c Config) *Registry {
	r := &Registry{cfg: c, programs: make(map[*vhost.Session]*Session),
		guests: make(map[*vhost.Session]*Guest), refused: make(map[vhost.Quota]refusal),
		excess: make(map[unixsock.Refusal]refusal), idle: time.Now(), left: make(chan struct{})}
	r.guard = unixsock.NewGuard(unixsock.Config{Served: r.Allowed, Own: OwnUser,
		Connections: connectionShare(openFiles()), OnRefuse: r.refusedConnection})
	return r
}

// Guard returns the bounds of the sockets at which the node listens.
func (r *Registry) Guard() *unixsock.Guard { return r.guard }

// SetLanes gives the registry its lanes, before the first session.
func (r *Registry) SetLanes(g *lane.Group) { r.lanes = g }

// Stats returns the counters of refused connections.
func (r *Registry) Stats() *Stats { return &r.stats }

// Admit makes the session of a program that has connected to the device socket of an adapter. on is its lane, nil: the
// one with the fewest sessions.
func (r *Registry) Admit(a *hca.Adapter, on *lane.Lane, s *vhost.Session) (vhost.Device, error) {
	p := s.Peer()
	if !r.Allowed(int(p.Uid)) {
		return vhost.Device{}, fmt.Errorf("uid %d may not use this node: %w", p.Uid, os.ErrPermission)
	}
	d := &Session{r: r, adapter: a, s: s, mem: s.Mem(), pid: int(p.Pid), uid: int(p.Uid), comm: Comm(int(p.Pid)),
		rings: make(map[int]*vhostRing)}
	d.make = d.newDevice
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.closed(); err != nil {
		return vhost.Device{}, err
	}
	r.serial++
	d.serial, d.lane = r.serial, on
	if on == nil {
		d.lane = r.quietest()
	}
	r.programs[s] = d
	return d.parts(), nil
}

// quietest returns the lane with the fewest sessions, a lane that is stuck only where all are; the caller holds mu.
func (r *Registry) quietest() *lane.Lane { return r.lanes.Quietest(r.count()) }

// count counts the sessions by lane; the caller holds mu.
func (r *Registry) count() []int {
	count := make([]int, len(r.lanes.All()))
	for _, d := range r.programs {
		count[d.lane.ID()]++
	}
	for _, g := range r.guests {
		count[g.lane.ID()]++
	}
	for _, i := range r.internal {
		count[i.lane.ID()]++
	}
	return count
}

// Count counts the sessions by lane, those of programs without a device included.
func (r *Registry) Count() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count()
}

// Ended removes the session of a program that is over.
func (r *Registry) Ended(s *vhost.Session, reason error) {
	r.mu.Lock()
	d := r.programs[s]
	delete(r.programs, s)
	r.idle = time.Now()
	r.mu.Unlock()
	if d == nil || reason == nil || errors.Is(reason, vhost.Gone) || errors.Is(reason, vhost.Shutdown) {
		return
	}
	r.Complain("session ended", "session", d.serial, "pid", d.pid, "program", d.comm, "reason", reason)
}

// Programs lists the sessions of programs that have a device, in the order of their numbers.
func (r *Registry) Programs() []*Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]*Session, 0, len(r.programs))
	for _, d := range r.programs {
		if d.Dev != nil {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b *Session) int { return cmp.Compare(a.serial, b.serial) })
	return list
}

// Connected counts the sessions of programs, those without a device included.
func (r *Registry) Connected() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.programs)
}

// Internal lists the internal sessions in the order of their numbers.
func (r *Registry) Internal() []*Internal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.internal)
}

// View is a session of a program that has a device, or one of the node itself. Any goroutine may call its methods.
type View interface {
	// Owner describes the owner of the session to people.
	Owner() api.Owner
	Lane() *lane.Lane
	// Memory returns how the session's registered memory is accessed, Kind how one region is, as text for people.
	Memory() string
	Kind(mem.Space) string
	// Session is the session of the adapter, which belongs to the lane.
	Session() *hca.Session
}

// Guests lists the RoCE halves of cards that have a device, in the order of their numbers.
func (r *Registry) Guests() (list []*Guest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.guests {
		if g.Dev != nil {
			list = append(list, g)
		}
	}
	slices.SortFunc(list, func(a, b *Guest) int { return cmp.Compare(a.serial, b.serial) })
	return list
}

// All lists the sessions of programs that have a device, then those of guests, then those of the node itself, each in
// the order of their numbers.
func (r *Registry) All() (list []View) {
	for _, d := range r.Programs() {
		list = append(list, d)
	}
	for _, g := range r.Guests() {
		list = append(list, g)
	}
	for _, i := range r.Internal() {
		list = append(list, i)
	}
	return list
}

// NotifyPort reports events of an adapter's port to the sessions of that adapter.
func (r *Registry) NotifyPort(a *hca.Adapter, events []ib.Event) {
	for _, v := range r.All() {
		v.Lane().Post(func() {
			if s := v.Session(); s.Adapter() == a {
				for _, e := range events {
					s.PortChanged(e)
				}
			}
		})
	}
}

// Detach ends the number of a session that is over; it runs on the session's lane.
func (r *Registry) Detach(s *hca.Session) {
	r.mu.Lock()
	s.Adapter().Detach(s)
	r.mu.Unlock()
	r.leave()
}

// leave reports that a session has left its function: it is detached, or only queue pairs are left that notify peers.
func (r *Registry) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.left)
	r.left = make(chan struct{})
}

// nextLeave returns a channel that is closed when the next session leaves its function.
func (r *Registry) nextLeave() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left
}

// MemoryOwner returns the session of a program with mapped memory at addr, or nil. Lanes call it.
func (r *Registry) MemoryOwner(addr uintptr) lane.MemoryOwner {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.programs {
		if d.owns(addr) {
			return d
		}
	}
	return nil
}

// Use announces a program that is about to use the node: the time until an idle node ends begins anew.
func (r *Registry) Use() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.closed(); err != nil {
		return err
	}
	r.idle = time.Now()
	return nil
}

// closed returns why no session begins; the caller holds mu.
func (r *Registry) closed() error {
	if r.ending {
		return ErrEnding
	}
	return r.cfg.Admit()
}

// EndPrograms ends the sessions of programs: they receive the event that their device is lost.
func (r *Registry) EndPrograms(reason error) {
	r.mu.Lock()
	over := slices.Collect(maps.Keys(r.programs))
	r.mu.Unlock()
	for _, s := range over {
		s.Fail(vhost.Shutdown, reason)
	}
}

// EndIfIdle reports whether the node has not been used for a duration, and from then on refuses new sessions. inUse
// reports whether the node is in use by others than sessions; it must not call the registry.
func (r *Registry) EndIfIdle(after time.Duration, inUse func() bool) bool {
	used := inUse()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ending = !used && len(r.programs) == 0 && len(r.internal) == 0 && r.records == 0 && time.Since(r.idle) >= after
	return r.ending
}

// Complain logs a mistake of a client, unless there are too many; counters count all.
func (r *Registry) Complain(msg string, args ...any) {
	r.mu.Lock()
	held, ok := r.log.allow(time.Now())
	r.mu.Unlock()
	if !ok {
		return
	}
	if held > 0 {
		args = append(args, "not_logged", held)
	}
	r.cfg.Log.Warn(msg, args...)
}

// Allowed reports whether a user may use the node: its own, root, and those that the configuration names.
func (r *Registry) Allowed(uid int) bool {
	return OwnUser(uid) || slices.Contains(r.cfg.AllowUIDs, uid)
}

// Own reports whether a user is root or the node's own.
func (*Registry) Own(uid int) bool { return OwnUser(uid) }

// OwnUser reports whether a user is root or the node's own.
func OwnUser(uid int) bool { return uid == 0 || uid == os.Geteuid() }
