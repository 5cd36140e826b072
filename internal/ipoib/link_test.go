// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTwoLinksTalk(t *testing.T) {
	s, a, b := two(t)
	a.send(ipA, ipB, "one", "two")
	s.run(time.Second)
	b.send(ipB, ipA, "three")
	s.run(time.Second)
	if d := cmp.Diff([]string{"one", "two"}, b.texts()); d != "" {
		t.Errorf("B got, -want +got:\n%s", d)
	}
	if d := cmp.Diff([]string{"three"}, a.texts()); d != "" {
		t.Errorf("A got, -want +got:\n%s", d)
	}
	for _, n := range s.nodes {
		n.l.Stop(s.now)
	}
	s.run(10 * time.Second)
	for _, n := range s.nodes {
		n.gone()
	}
}
