// SPDX-License-Identifier: Apache-2.0

package session

import (
	"log/slog"
	"testing"
	"time"

	"weft/internal/device/unixsock"
	"weft/internal/device/vhost"
)

func TestEveryQuotaHasAFix(t *testing.T) {
	r := New(Config{})
	now := time.Now()
	all := []vhost.Quota{vhost.SessionsOfAll, vhost.SessionsOfUser, vhost.DescriptorsOfAll, vhost.DescriptorsOfUser,
		vhost.DescriptorsOfSession}
	for _, q := range all {
		r.refused[q] = refusal{at: now}
	}
	list := r.shortages(now)
	for _, d := range list {
		if d.Why == "" || d.Fix == "" {
			t.Errorf("%+v", d)
		}
	}
	if len(list) != len(all) || len(r.shortages(now.Add(refusalShown))) != 0 {
		t.Errorf("%d of %d shown", len(list), len(all))
	}
}

func TestDescriptorShare(t *testing.T) {
	for files, want := range map[int][2]int{1 << 20: {1<<20 - 4096 - 10240, 10240}, 20000: {12500, 5000},
		4096: {2560, 1024}, 1024: {512, 256}, 256: {64, 64}, 1 << 30: {1<<30 - 4096 - 10240, 10240}, 0: {0, 0}} {
		got := [2]int{descriptorShare(files), connectionShare(files)}
		if files == 0 {
			got[0] = 0 // the limit is not known: Limits does not divide it
		}
		if got != want {
			t.Errorf("%d files: %d, want %d", files, got, want)
		}
	}
}

// TestConnectionsRefused: a bound of connections that was met, and a socket that cannot accept, are degraded states; a
// user that the node does not serve is none.
func TestConnectionsRefused(t *testing.T) {
	r := New(Config{Log: slog.New(slog.DiscardHandler)})
	for _, why := range []unixsock.Refusal{unixsock.NotServed, unixsock.TooMany, unixsock.TooManyOfUser} {
		r.refusedConnection("umad.sock", unixsock.Peer{PID: 7, UID: 1000}, why)
	}
	list := r.socketsDegraded(time.Now())
	if len(list) != 2 || list[0].What != "quota_connections" || list[1].What != "quota_user_connections" ||
		list[0].Fix == "" || list[1].Fix == "" {
		t.Errorf("%+v", list)
	}
	if list := r.socketsDegraded(time.Now().Add(refusalShown)); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}
