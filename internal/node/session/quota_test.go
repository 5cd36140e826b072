// SPDX-License-Identifier: Apache-2.0

package session

import (
	"testing"
	"time"

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
	for files, want := range map[uint64]int{1 << 20: 1<<20 - 256 - 1024, 20000: 18720, 4096: 2816, 1024: 512,
		1 << 63: 1<<30 - 256 - 1024} {
		if got := descriptorShare(files, 1024); got != want {
			t.Errorf("%d files: %d, want %d", files, got, want)
		}
	}
}
