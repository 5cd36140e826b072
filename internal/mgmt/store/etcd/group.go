// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/voters"
)

// Replica is a replica of a group.
type Replica struct {
	ID      uint64 `json:"id"`
	Name    string `json:"name"` // of its member
	URL     string `json:"url"`
	Learner bool   `json:"learner,omitempty"`
}

// Report is what a replica reports about itself and its group to any member of the fabric.
type Report struct {
	Name     string          `json:"name"`
	ID       uint64          `json:"id"`
	Group    voters.Identity `json:"group"`
	Replicas []Replica       `json:"replicas"`
	Leader   uint64          `json:"leader"` // 0: it has none
	Applied  uint64          `json:"applied"`
	CAs      string          `json:"cas,omitempty"` // digest of those by which it verifies other replicas
	// Removed: the replica in the request is one that left the group.
	Removed bool `json:"removed"`

	address string // where it was given
}

// reportPath is where a replica reports; the parameter is the number of the replica that the question is about.
const reportPath = "/weft/store"

// maxReport bounds the octets of a Report.
const maxReport = 64 << 10

// peerIdle is how long a connection of HTTP/1.1 stays without a request; that of a report is used again within.
const peerIdle = 90 * time.Second

// peerServer answers the other replicas, and requests for a report.
func (s *Server) peerServer() *http.Server {
	peers := s.etcd.peers()
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+reportPath, func(w http.ResponseWriter, r *http.Request) {
		if _, ok := s.admitted(w, r); !ok {
			return
		}
		id, _ := strconv.ParseUint(r.URL.Query().Get("replica"), 16, 64)
		report, err := s.Report(r.Context(), id)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(report) // the connection has ended
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c, ok := s.admitted(w, r)
		switch {
		case !ok:
		case s.c.Admit != nil && (!c.Voter || !s.hasReplica(c.Name)):
			refuse(w, c.Name+" has no replica of the store")
		default:
			peers.ServeHTTP(w, r)
		}
	})
	return &http.Server{Handler: mux, ReadHeaderTimeout: handshakeTimeout, IdleTimeout: peerIdle,
		MaxHeaderBytes: 16 << 10, ErrorLog: discard}
}

// admitted returns the sender of a request; otherwise the refusal has been sent.
func (s *Server) admitted(w http.ResponseWriter, r *http.Request) (c Caller, ok bool) {
	if s.c.Admit == nil {
		return c, true
	}
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		refuse(w, "no certificate")
		return c, false
	}
	c, err := s.c.Admit(r.TLS.VerifiedChains[0][0])
	if err != nil {
		refuse(w, err.Error())
		return c, false
	}
	return c, true
}

// refuse answers a request that the certificate of its connection does not allow, and ends the connection: the next one
// has the certificate that its client has then. The status is not 403, by which etcd's replicas report that the
// receiver was removed for good: a replica that gets it ends itself.
func refuse(w http.ResponseWriter, why string) {
	w.Header().Set("Connection", "close")
	http.Error(w, why, http.StatusUnauthorized)
}

func (s *Server) hasReplica(name string) bool {
	return slices.ContainsFunc(s.etcd.members(), func(m *membership.Member) bool { return m.Name == name })
}

// ID is the number of the replica.
func (s *Server) ID() uint64 { return s.etcd.id() }

// ClusterID is the number of the group, chosen at random when it was made.
func (s *Server) ClusterID() uint64 { return s.etcd.cluster() }

// Leads reports whether this replica is the leader as far as it can tell.
func (s *Server) Leads() bool { return s.down() == "" && s.etcd.leader() == s.etcd.id() }

// Votes reports whether the replica is a voter.
func (s *Server) Votes() bool {
	m := s.etcd.self()
	return m != nil && !m.IsLearner
}

// Replicas are the replicas of the group, in the order of their numbers.
func (s *Server) Replicas() (list []Replica) {
	for _, m := range s.etcd.members() {
		r := Replica{ID: uint64(m.ID), Name: m.Name, Learner: m.IsLearner}
		if len(m.PeerURLs) > 0 {
			r.URL = m.PeerURLs[0]
		}
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Replica) int { return int(int64(a.ID>>1) - int64(b.ID>>1)) })
	return list
}

// Report describes the replica; asked is the number of the replica that the question is about.
func (s *Server) Report(ctx context.Context, asked uint64) (Report, error) {
	generation, err := s.generation(ctx)
	if err != nil {
		return Report{}, err
	}
	return Report{Name: s.c.Name, ID: s.ID(), Group: voters.Identity{Cluster: s.ClusterID(), Generation: generation},
		Replicas: s.Replicas(), Leader: s.etcd.leader(), Applied: s.etcd.applied(), CAs: s.c.cas,
		Removed: asked != 0 && s.etcd.removed(asked)}, nil
}

// Change executes a change that package voters decided, on the leader. url is that of a new learner.
func (s *Server) Change(ctx context.Context, c voters.Change, url string) error {
	_, err := inside(ctx, s.etcd, func(ctx context.Context, e *etcdserver.EtcdServer) (_ struct{}, err error) {
		switch c.Kind {
		case voters.None:
		case voters.AddLearner:
			urls, uerr := types.NewURLs([]string{url})
			if uerr != nil {
				return struct{}{}, uerr
			}
			now := time.Now()
			_, err = e.AddMember(ctx, *membership.NewMemberAsLearner(c.Name, urls, "", &now))
		case voters.Promote:
			_, err = e.PromoteMember(ctx, c.ID)
		case voters.Remove, voters.MakeClient:
			_, err = e.RemoveMember(ctx, c.ID)
		case voters.Transfer:
			err = e.MoveLeader(ctx, s.ID(), c.ID)
		}
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("%v %s: %w", c.Kind, c.Name, err)
	}
	return nil
}

// Readdress makes the URL of this replica the one where others reach it now.
func (s *Server) Readdress(ctx context.Context) error {
	m := s.etcd.self()
	if s.c.Advertise == "" || m == nil || len(m.PeerURLs) == 1 && m.PeerURLs[0] == s.c.Advertise && m.Name == s.c.Name {
		return nil
	}
	next := *m
	next.PeerURLs = []string{s.c.Advertise}
	_, err := inside(ctx, s.etcd, func(ctx context.Context, e *etcdserver.EtcdServer) ([]*membership.Member, error) {
		return e.UpdateMember(ctx, next)
	})
	if err != nil {
		return fmt.Errorf("change the address of this replica to %s: %w", s.c.Advertise, err)
	}
	return nil
}

// host is the part of a URL behind the scheme.
func host(url string) string {
	_, h, _ := strings.Cut(url, "://")
	return h
}

// discard is for servers with errors that are those of their clients.
var discard = log.New(io.Discard, "", 0)

// keyGeneration is where the group keeps how often it was restored; without it the generation is 1.
const keyGeneration = "store/generation"

// generation reads the generation from the replica's own copy: it never changes within a group.
func (s *Server) generation(ctx context.Context) (uint64, error) {
	r, err := s.copied(ctx, cmp.Or(s.c.Namespace, DefaultNamespace)+"/"+keyGeneration, "")
	if err != nil {
		return 0, err
	}
	if len(r.KVs) == 0 {
		return 1, nil
	}
	n, err := strconv.ParseUint(string(r.KVs[0].Value), 10, 64)
	if err != nil {
		return 1, nil
	}
	return n, nil
}

// copied reads the keys from key to end from the replica's own copy, which may lag; an empty end means the one key.
func (s *Server) copied(ctx context.Context, key, end string) (*mvcc.RangeResult, error) {
	var last []byte
	if end != "" {
		last = []byte(end)
	}
	r, err := inside(ctx, s.etcd, func(ctx context.Context, e *etcdserver.EtcdServer) (*mvcc.RangeResult, error) {
		return e.KV().Range(ctx, []byte(key), last, mvcc.RangeOptions{})
	})
	if err != nil {
		return nil, &store.Error{Kind: store.ErrUnavailable, What: "cannot read the copy of the store",
			Why: reason(err), Fix: "weft store status lists the nodes that have one", Err: err}
	}
	return r, nil
}
