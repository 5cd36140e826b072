// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/device/vhost"
)

// doorLimits share out sessions and descriptors. The node's own user and root
// may have everything; the others, each, half: nobody keeps them out. Half of
// what one user may have is the most of one session.
func (n *Node) doorLimits() vhost.Limits {
	l := vhost.Limits{Sessions: n.adapter.Limits().Sessions, UserSessions: n.adapter.Limits().Sessions / 2, Free: n.own}
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

// own reports whether uid may do with the node what it likes anyway.
func (n *Node) own(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// refusal is the last of its kind.
type refusal struct {
	at       time.Time
	uid, pid int
	count    uint64
}

// refusalShown is for how long a refusal is a state that people should know.
const refusalShown = 10 * time.Minute

// refusedRoom notes that a client met a quota.
func (n *Node) refusedRoom(s *vhost.Session, q vhost.Quota) {
	p := s.Peer()
	n.mu.Lock()
	n.noRoom[q] = refusal{time.Now(), int(p.Uid), int(p.Pid), n.noRoom[q].count + 1}
	n.mu.Unlock()
	w := shortageOf[q]
	n.complain("refused", "pid", p.Pid, "uid", p.Uid, "why", w.why, "fix", w.fix)
}

const fewer = "end programs that are not needed (weft res lists them), or run another node in a directory of its own"

var shortageOf = map[vhost.Quota]struct{ why, fix string }{
	vhost.SessionsOfAll:        {"every session of the node is in use", fewer},
	vhost.SessionsOfUser:       {"its user has as many sessions as one user may", fewer},
	vhost.DescriptorsOfAll:     {"the node keeps as many descriptors as its limit of open files allows", "raise the limit of the node (ulimit -n) and start it again"},
	vhost.DescriptorsOfUser:    {"its user's sessions keep as many descriptors as one user may", "let completion queues share completion channels, or raise the node's limit of open files (ulimit -n)"},
	vhost.DescriptorsOfSession: {"it has handed over as many descriptors as one session may", "use fewer completion queues with a channel, or raise the node's limit of open files (ulimit -n)"},
}

// shortages lists the quotas that were met of late; the caller holds mu.
func (n *Node) shortages(now time.Time) (list []api.Degraded) {
	for q := range vhost.Quota(len(shortageOf)) {
		if r, ok := n.noRoom[q]; ok && now.Sub(r.at) < refusalShown {
			list = append(list, api.Degraded{What: "quota_" + q.Name(),
				Why: fmt.Sprintf("process %d of uid %d was refused, as the last of %d: %s", r.pid, r.uid, r.count, shortageOf[q].why), Fix: shortageOf[q].fix})
		}
	}
	return list
}
