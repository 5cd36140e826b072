// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/device/vhost"
)

// Limits divides sessions and descriptors. The node's own user and root may have all; each other user may have half, so
// that no user locks another out. One session may have half of the descriptors of one user.
func (r *Registry) Limits() vhost.Limits {
	l := vhost.Limits{Sessions: r.cfg.Sessions, UserSessions: r.cfg.Sessions / 2,
		Free: func(uid uint32) bool { return OwnUser(int(uid)) }}
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		// The rest is for the sockets of sessions and for the node itself.
		l.Descriptors = descriptorShare(files.Cur, l.Sessions)
		l.UserDescriptors, l.SessionDescriptors = l.Descriptors/2, max(l.Descriptors/4, 16)
	}
	return l
}

// nodeFiles is how many descriptors the node itself needs: lanes, links, the
// control interface.
const nodeFiles = 256

// descriptorShare returns how many of files descriptors so many sessions may
// hold besides their sockets.
func descriptorShare(files uint64, sessions int) int {
	n := int(min(files, 1<<30))
	return max(n-nodeFiles-sessions, n/2)
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

// shortages lists the quotas that were met of late.
func (r *Registry) shortages(now time.Time) (list []api.Degraded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for q := range vhost.Quota(len(shortageOf)) {
		if last, ok := r.refused[q]; ok && now.Sub(last.at) < refusalShown {
			list = append(list, api.Degraded{What: "quota_" + q.Name(),
				Why: fmt.Sprintf("process %d of uid %d was refused, as the last of %d: %s", last.pid, last.uid,
					last.count, shortageOf[q].why), Fix: shortageOf[q].fix})
		}
	}
	return list
}
