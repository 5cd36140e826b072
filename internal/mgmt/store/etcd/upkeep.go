// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"

	"weft/internal/mgmt/store"
)

// upkeepEvery is how often the server looks at its size, so for how long a
// full store refuses what there would be room for.
const upkeepEvery = 2 * time.Second

// upkeep makes room until ctx ends: etcd refuses every put once its file has
// reached its bound, and never takes that back by itself.
func (s *Server) upkeep(ctx context.Context) {
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	var tried store.Rev // the revision at which there was nothing to gain
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		full := false
		for _, a := range s.etcd.alarms() {
			full = full || a.Alarm == pb.AlarmType_NOSPACE
		}
		u, err := s.used(ctx)
		if err != nil {
			continue // it ends
		}
		loose := u.size > s.c.maxSize/4*3 && u.inUse < u.size/2
		rev := u.rev
		if (full || loose) && rev != tried {
			gained, err := s.makeRoom(ctx, full)
			if err != nil && ctx.Err() == nil {
				bridge(s.c.Log, nil, nil).Error("cannot make room in the store: " + err.Error())
			}
			// A put that was refused before may report only now that the store is full: the successful
			// remedy is applied again.
			if err == nil && !gained {
				tried = rev
			}
		}
	}
}

// usage is how large the file of a replica is, and how much of that has data in it.
type usage struct {
	size, inUse int64
	rev         store.Rev
}

func (s *Server) used(ctx context.Context) (usage, error) {
	return inside(ctx, s.etcd, func(_ context.Context, e *etcdserver.EtcdServer) (usage, error) {
		be := e.Backend()
		return usage{size: be.Size(), inUse: be.SizeInUse(), rev: store.Rev(e.KV().Rev())}, nil
	})
}

// makeRoom forgets the history and writes the file anew. If that helps, puts
// are taken again.
func (s *Server) makeRoom(ctx context.Context, full bool) (gained bool, err error) {
	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	return inside(ctx, s.etcd, func(ctx context.Context, e *etcdserver.EtcdServer) (gained bool, err error) {
		_, err = e.Compact(ctx, &pb.CompactionRequest{Revision: e.KV().Rev(), Physical: true})
		if err != nil && !strings.Contains(err.Error(), "compacted") { // it is already
			return false, err
		}
		if err := e.Defragment(); err != nil {
			return false, err
		}
		if e.Backend().Size() > s.c.maxSize/10*9 {
			return false, nil
		}
		if !full {
			return true, nil
		}
		_, err = e.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, Alarm: pb.AlarmType_NOSPACE,
			MemberID: s.etcd.id()})
		return err == nil, err
	})
}
