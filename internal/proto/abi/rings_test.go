// SPDX-License-Identifier: Apache-2.0

package abi

import "testing"

func TestRingVectors(t *testing.T) {
	for _, v := range vectors(t, "queue-map") {
		r := Rings{v.N, v.M, v.L}
		got := [5]int{r.Control(), r.CQ(v.CQN), r.SQ(v.QPN), r.RQ(v.QPN), r.Total()}
		if want := [5]int{v.CtrlVQ, v.CQVQ, v.SQVQ, v.RQVQ, v.TotalVQs}; got != want {
			t.Errorf("%s: %v, want %v", v.ID, got, want)
		}
		seen := map[RingKind]int{}
		for i := range r.Total() {
			k, n := r.Kind(i)
			seen[k]++
			back := map[RingKind]int{RingEthRX: 2 * int(n), RingEthTX: 2*int(n) + 1, RingControl: r.Control(),
				RingCQ: r.CQ(n), RingSQ: r.SQ(n), RingRQ: r.RQ(n)}[k]
			if back != i {
				t.Errorf("%s: ring %d is kind %d number %d, which is ring %d", v.ID, i, k, n, back)
			}
		}
		if seen[RingCQ] != v.M || seen[RingSQ] != v.L || seen[RingRQ] != v.L || seen[RingEthRX] != v.N ||
			seen[RingControl] != 1 {
			t.Errorf("%s: %v", v.ID, seen)
		}
		for _, i := range []int{-1, r.Total()} {
			if k, _ := r.Kind(i); k != RingNone {
				t.Errorf("%s: ring %d is kind %d", v.ID, i, k)
			}
		}
	}
}

func TestCmdString(t *testing.T) {
	if s := CmdRegMRVA.String(); s != "REG_MR_VA" {
		t.Error(s)
	}
	if s := Cmd(63).String(); s != "Cmd(63)" {
		t.Error(s)
	}
}
