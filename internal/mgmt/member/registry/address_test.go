// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"slices"
	"strings"
	"testing"

	"weft/internal/mgmt/member"
)

// TestReportedAddress: a member reports the address of a host that is none yet. The host joins, and has the
// address; with one that a member joined with it is refused.
func TestReportedAddress(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	b := l.join(a, 2, "b1")
	if err := b.Report(t.Context(), member.Report{Addresses: []string{"h2:4792", "h3:4792"}}); err != nil {
		t.Fatal(err)
	}
	c := l.join(a, 3, "c1")
	r := l.roster(c)
	if got := r.ByName("c1").Addresses; !slices.Equal(got, []string{"h3:4792"}) {
		t.Errorf("c1 has %q", got)
	}
	if got := r.ByName("b1").Addresses; !slices.Equal(got, []string{"h2:4792"}) {
		t.Errorf("b1 has %q", got)
	}
	d := l.host(4)
	q := l.request(d, 4, "d1", l.token(a, TokenSpec{Uses: 1}))
	q.Addresses = []string{"h2:4792"}
	if _, err := a.Join(t.Context(), q, 1500, "a1"); err == nil || !strings.Contains(err.Error(), "member b1") {
		t.Errorf("joined with the address of b1: %v", err)
	}
}
