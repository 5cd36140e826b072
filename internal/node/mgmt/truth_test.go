// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"slices"
	"testing"

	"weft/internal/mgmt/sm"
	"weft/internal/proto/ib"
)

// TestMissed: a link that the members removed, since their plan has it no more, is not missed.
func TestMissed(t *testing.T) {
	lost := []sm.LostLink{{A: 1, B: 2}, {A: 1, B: 3}, {A: 2, B: 3}}
	if got := missed(slices.Clone(lost), nil); !slices.Equal(got, lost) {
		t.Errorf("without a plan: %v", got)
	}
	planned := func(a, b ib.GUID) bool { return a+b != 4 }
	if got := missed(slices.Clone(lost), planned); !slices.Equal(got, []sm.LostLink{lost[0], lost[2]}) {
		t.Errorf("with a plan: %v", got)
	}
}
