// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/voters"
	"weft/internal/proto/mono"
)

// lead is what the leader of the group remembers between its looks. Another leader begins anew, so that a voter is
// absent for longer than the setting before it is replaced, never for less.
type lead struct {
	m     *Member
	s     *Server
	seen  map[string]mono.Time // members
	since map[replicaRole]mono.Time
	said  string
}

type replicaRole struct {
	id      uint64
	learner bool
}

// synced is how many entries of the log a learner may lack and yet count as caught up: etcd checks it again.
const synced = 1000

// step looks at members and replicas, and makes one change of the group if one is due; the member's mu is held.
func (l *lead) step(ctx context.Context, now mono.Time) error {
	ctx, stop := context.WithTimeout(ctx, 4*time.Second)
	defer stop()
	c, _ := l.m.client()
	if c == nil || c.server != l.s {
		return errors.New("this replica has just become the leader")
	}
	if err := l.s.Readdress(ctx); err != nil {
		return err
	}
	records, err := c.List(ctx, treeMember)
	if err != nil {
		return err
	}
	present, err := c.List(ctx, treePresent)
	if err != nil {
		return err
	}
	replicas := l.replicas(ctx, now)
	members, addresses := l.members(now, records, present, replicas)
	if err := l.write(ctx, c, addresses); err != nil {
		return err
	}
	change := voters.Decide(now, l.m.c.Settings, members, replicas)
	if change.Kind == voters.None {
		if change.Why != l.said {
			l.m.c.Log.Debug("the group of the store stays", "why", change.Why)
		}
		l.said = change.Why
		return nil
	}
	url := ""
	if change.Kind == voters.AddLearner {
		url = l.m.scheme() + addresses[change.Name]
	}
	l.m.c.Log.Info("the group of the store changes", "change", change.Kind.String(), "member", change.Name,
		"why", change.Why)
	if err := l.s.Change(ctx, change, url); err != nil {
		return err
	}
	return l.write(ctx, c, addresses)
}

// replicas requests the report of every other replica.
func (l *lead) replicas(ctx context.Context, now mono.Time) []voters.Replica {
	list := l.s.Replicas()
	out := make([]voters.Replica, len(list))
	applied := l.s.etcd.applied()
	keep := map[replicaRole]mono.Time{}
	var all sync.WaitGroup
	for i, r := range list {
		role := replicaRole{r.ID, r.Learner}
		if keep[role] = l.since[role]; keep[role] == 0 {
			keep[role] = now
		}
		out[i] = voters.Replica{ID: r.ID, Name: r.Name, Learner: r.Learner, Since: keep[role]}
		if r.ID == l.s.ID() {
			out[i].Alive, out[i].Leader = true, true
			continue
		}
		all.Go(func() {
			a, err := l.m.ask(ctx, host(r.URL), 0)
			out[i].Alive = err == nil && a.ID == r.ID && a.Leader == l.s.ID()
			out[i].Synced = out[i].Alive && a.Applied+synced >= applied
		})
	}
	all.Wait()
	l.since = keep
	return out
}

// members combines records and presence.
func (l *lead) members(now mono.Time, records, present store.Listing, replicas []voters.Replica) ([]voters.Member,
	map[string]string) {
	here := map[string]presence{}
	for _, e := range present.Entries {
		var p presence
		if json.Unmarshal(e.Value, &p) == nil {
			here[e.Key[len(treePresent)+1:]] = p
		}
	}
	runs := map[string]uint64{}
	for _, r := range replicas {
		runs[r.Name] = r.ID
	}
	var list []voters.Member
	addresses := map[string]string{}
	seen := map[string]mono.Time{}
	for _, e := range records.Entries {
		var r Record
		// A member writes its own key alone, and so about itself alone.
		if json.Unmarshal(e.Value, &r) != nil || r.Name == "" || r.Name != e.Key[len(treeMember)+1:] {
			continue
		}
		p, is := here[r.Name]
		able := !r.Unable && l.m.c.Security.mayHold(&r)
		// The member of a replica that does not run is absent as far as the replica is concerned.
		if id, has := runs[r.Name]; has && p.Replica != id {
			is = false
		}
		if seen[r.Name] = l.seen[r.Name]; is || seen[r.Name] == 0 {
			seen[r.Name] = now
		}
		if able {
			addresses[r.Name] = r.Address
		}
		list = append(list, voters.Member{Name: r.Name, Joined: uint64(e.Created), Seen: seen[r.Name], Present: is,
			Able: able, Leaving: r.Leaving})
	}
	l.seen = seen
	return list, addresses
}

// mayHold reports whether a member may have a replica: the fabric lets it, and it has an address.
func (s *Security) mayHold(r *Record) bool {
	_, err := types.NewURLs([]string{"https://" + r.Address})
	return r.Address != "" && err == nil && (s == nil || s.Able == nil || s.Able(r.Name))
}

// write makes the roster in the store that of the group.
func (l *lead) write(ctx context.Context, c *Client, addresses map[string]string) error {
	generation, err := l.s.generation(ctx)
	if err != nil {
		return err
	}
	b, err := json.Marshal(Roster{Group: voters.Identity{Cluster: l.s.ClusterID(), Generation: generation},
		Replicas: l.s.Replicas(), Addresses: addresses})
	if err != nil {
		return err
	}
	e, err := c.Get(ctx, keyRoster)
	if err != nil && !errors.Is(err, store.ErrNotFound) || bytes.Equal(e.Value, b) {
		return err
	}
	_, err = store.Put(ctx, c, keyRoster, b)
	return err
}

// newPoller makes the client for reports.
func (m *Member) newPoller() *http.Client {
	t := &http.Transport{DialContext: (&net.Dialer{Timeout: pollTimeout}).DialContext, IdleConnTimeout: time.Minute,
		MaxIdleConnsPerHost: 1, ResponseHeaderTimeout: pollTimeout}
	if m.c.Security != nil {
		t.TLSClientConfig = m.c.Security.Client.Clone()
		t.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	return &http.Client{Transport: t, Timeout: 2 * pollTimeout}
}

// pollTimeout bounds the wait for the report of one member.
const pollTimeout = time.Second

// ask returns the report of the member at an address; about is the replica that the question is about. A report that
// does not count is an error.
func (m *Member) ask(ctx context.Context, address string, about uint64) (r Report, err error) {
	ctx, stop := context.WithTimeout(ctx, pollTimeout)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		fmt.Sprintf("%s%s%s?replica=%x", m.scheme(), address, reportPath, about), nil)
	if err != nil {
		return r, err
	}
	resp, err := m.poller.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return r, fmt.Errorf("%s: %s", address, resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxReport)).Decode(&r); err != nil {
		return r, err
	}
	return r, m.c.Security.believe(resp.TLS, &r)
}

// believe returns why a report does not count: it does where the other end of its connection is a voter of the fabric
// that reports about itself. Any other member could make this node end its replica, or use a store of its own.
func (s *Security) believe(c *tls.ConnectionState, r *Report) error {
	if s == nil {
		return nil
	}
	if c == nil || len(c.PeerCertificates) == 0 {
		return errors.New("the other end has no certificate")
	}
	from, err := s.Admit(c.PeerCertificates[0])
	switch {
	case err != nil:
		return err
	case !from.Voter:
		return fmt.Errorf("%s reports a store and is no voter of the fabric", from.Name)
	case from.Name != r.Name:
		return fmt.Errorf("%s reports as %q", from.Name, r.Name)
	}
	return nil
}

// maxAsked bounds how many members are asked at once, again and again: those with a replica are among them, and the
// others have their turn.
const maxAsked = 64

// askAll returns the reports of the members that have a replica and answer, of at most n, 0: of all; mu is held, or
// nothing runs yet.
func (m *Member) askAll(ctx context.Context, about uint64, n int) []Report {
	return collect(ctx, m.addresses(n), about, m.ask)
}

// collect returns the reports of the members at addresses that answer; about is the replica that the question is about.
func collect(ctx context.Context, addresses []string, about uint64,
	ask func(ctx context.Context, address string, about uint64) (Report, error)) (list []Report) {
	reports := make([]*Report, len(addresses))
	var all sync.WaitGroup
	for i, a := range addresses {
		all.Go(func() {
			if r, err := ask(ctx, a, about); err == nil {
				r.address = a
				reports[i] = &r
			}
		})
	}
	all.Wait()
	for _, r := range reports {
		if r != nil {
			list = append(list, *r)
		}
	}
	return list
}

// resume finds out from at most n others, 0: from all, whether this node's replica is one of the group.
func (m *Member) resume(ctx context.Context, n int) (voters.Verdict, string) {
	return voters.Resume(m.known.Roster.Group, answers(m.askAll(ctx, m.known.Replica, n)))
}
