// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/device/unixsock"
	"weft/internal/device/vhost"
)

// Limits divides sessions and descriptors. The node's own user and root may have all; each other user may have half, so
// that no user locks another out. One session may have half of the descriptors of one user.
func (r *Registry) Limits() vhost.Limits {
	l := vhost.Limits{Sessions: r.cfg.Sessions, UserSessions: r.cfg.Sessions / 2,
		Free: func(uid uint32) bool { return OwnUser(int(uid)) }}
	if files := openFiles(); files > 0 {
		l.Descriptors = descriptorShare(files)
		l.UserDescriptors, l.SessionDescriptors = l.Descriptors/2, max(l.Descriptors/4, 16)
	}
	return l
}

// openFiles is the limit of open files of the process, 0 if it is not known.
func openFiles() int {
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return 0
	}
	return int(min(files.Cur, 1<<30))
}

// The limit of open files is divided into three shares, so that no user can use it up: connections to the sockets of
// the node, descriptors that sessions hand over, and descriptors of the node itself (lanes, links, files of the store,
// and connections of members and of hosts that join).
const (
	minNodeFiles   = 256
	maxNodeFiles   = 4096
	maxConnections = 10240 // to all sockets: more than their own bounds allow together
)

// connectionShare returns how many of files descriptors are for connections to the sockets of the node.
func connectionShare(files int) int { return min(files/4, maxConnections) }

// descriptorShare returns how many of files descriptors sessions may hold besides their sockets.
func descriptorShare(files int) int {
	node := min(max(files/8, minNodeFiles), maxNodeFiles)
	return max(files-node-connectionShare(files), files/4)
}

// refusal is the last of its kind.
type refusal struct {
	at       time.Time
	uid, pid int
	count    uint64
}

// refusalShown is for how long a refusal counts as a degraded state.
const refusalShown = 10 * time.Minute

// Refused notes that a client met a quota.
func (r *Registry) Refused(s *vhost.Session, q vhost.Quota) {
	p := s.Peer()
	r.mu.Lock()
	r.refused[q] = refusal{time.Now(), int(p.Uid), int(p.Pid), r.refused[q].count + 1}
	r.mu.Unlock()
	w := shortageOf[q]
	r.Complain("refused", "pid", p.Pid, "uid", p.Uid, "why", w.why, "fix", w.fix)
}

const fewer = "end programs that are not needed (weft res lists them), or run another node in a directory of its own"

var shortageOf = map[vhost.Quota]struct{ why, fix string }{
	vhost.SessionsOfAll:  {"every session of the node is in use", fewer},
	vhost.SessionsOfUser: {"its user has as many sessions as one user may", fewer},
	vhost.DescriptorsOfAll: {"the node keeps as many descriptors as its limit of open files allows",
		"raise the limit of the node (ulimit -n) and start it again"},
	vhost.DescriptorsOfUser: {"its user's sessions keep as many descriptors as one user may",
		"let completion queues share completion channels, or raise the node's limit of open files (ulimit -n)"},
	vhost.DescriptorsOfSession: {"it has handed over as many descriptors as one session may",
		"use fewer completion queues with a channel, or raise the node's limit of open files (ulimit -n)"},
}

// refusedConnection notes that a connection to a socket of the node was closed at once.
func (r *Registry) refusedConnection(socket string, p unixsock.Peer, why unixsock.Refusal) {
	if why != unixsock.NotServed {
		r.mu.Lock()
		r.excess[why] = refusal{time.Now(), p.UID, p.PID, r.excess[why].count + 1}
		r.mu.Unlock()
	}
	r.Complain("connection refused", "socket", socket, "pid", p.PID, "uid", p.UID, "why", excessOf[why].why)
}

var excessOf = map[unixsock.Refusal]struct{ quota, why, fix string }{
	unixsock.NotServed: {why: "the node does not serve the user"},
	unixsock.TooMany: {"connections", "the node's sockets have as many connections as its limit of open files allows",
		"raise the limit of the node (ulimit -n, or LimitNOFILE= of its unit) and start it again"},
	unixsock.TooManyOfUser: {"user_connections", "its user has as many connections to the sockets of the node as one " +
		"user may", "end programs of that user (weft res lists them), or raise the node's limit of open files"},
}

// socketsDegraded lists the sockets that accept no connection now, and the bounds of connections that were met of late.
func (r *Registry) socketsDegraded(now time.Time) (list []api.Degraded) {
	for _, f := range r.guard.Failures() {
		list = append(list, api.Degraded{What: "socket_accept",
			Why: fmt.Sprintf("%s has accepted no connection for %v: %v", f.Socket,
				now.Sub(f.Since).Round(time.Millisecond), f.Err),
			Fix: "free descriptors and memory of the host (cat /proc/sys/fs/file-nr, free), or raise the limit of " +
				"the node (ulimit -n, or LimitNOFILE= of its unit) and start it again"})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, why := range []unixsock.Refusal{unixsock.TooMany, unixsock.TooManyOfUser} {
		if last, ok := r.excess[why]; ok && now.Sub(last.at) < refusalShown {
			list = append(list, last.degraded(excessOf[why].quota, excessOf[why].why, excessOf[why].fix))
		}
	}
	return list
}

// degraded reports a refusal.
func (x refusal) degraded(quota, why, fix string) api.Degraded {
	return api.Degraded{What: "quota_" + quota, Fix: fix,
		Why: fmt.Sprintf("process %d of uid %d was refused, as the last of %d: %s", x.pid, x.uid, x.count, why)}
}

// shortages lists the quotas that were met of late.
func (r *Registry) shortages(now time.Time) (list []api.Degraded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for q := range vhost.Quota(len(shortageOf)) {
		if last, ok := r.refused[q]; ok && now.Sub(last.at) < refusalShown {
			list = append(list, last.degraded(q.Name(), shortageOf[q].why, shortageOf[q].fix))
		}
	}
	return list
}
