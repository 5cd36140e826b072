// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

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
		for _, a := range s.etcd.Alarms() {
			full = full || a.Alarm == pb.AlarmType_NOSPACE
		}
		be := s.etcd.Backend()
		loose := be.Size() > s.c.maxSize/4*3 && be.SizeInUse() < be.Size()/2
		rev := store.Rev(s.etcd.KV().Rev())
		if (full || loose) && rev != tried {
			gained, err := s.makeRoom(ctx, full)
			if err != nil && ctx.Err() == nil {
				bridge(s.c.Log, nil).Error("cannot make room in the store: " + err.Error())
			}
			// A put that was refused before may report only now that the store is full: the successful
			// remedy is applied again.
			if err == nil && !gained {
				tried = rev
			}
		}
	}
}

// makeRoom forgets the history and writes the file anew. If that helps, puts
// are taken again.
func (s *Server) makeRoom(ctx context.Context, full bool) (gained bool, err error) {
	rev := s.etcd.KV().Rev()
	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	_, err = s.etcd.Compact(ctx, &pb.CompactionRequest{Revision: rev, Physical: true})
	if err != nil && !strings.Contains(err.Error(), "compacted") { // it is already
		return false, err
	}
	be := s.etcd.Backend()
	if err := be.Defrag(); err != nil {
		return false, err
	}
	if be.Size() > s.c.maxSize/10*9 {
		return false, nil
	}
	if !full {
		return true, nil
	}
	_, err = s.etcd.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, Alarm: pb.AlarmType_NOSPACE,
		MemberID: uint64(s.etcd.MemberID())})
	return err == nil, err
}
