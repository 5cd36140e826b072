// SPDX-License-Identifier: Apache-2.0

package ether

import "testing"

func seeds(f *testing.F, add func(frame []byte)) {
	f.Helper()
	for _, s := range []string{tcpv4, udpv4, tagged, qinq, tcpv6, hopv6, fragv4, lastv4, fragv6, optsv4, icmp,
		routev6, arp} {
		add(unhex(f, s))
	}
}

func FuzzClassify(f *testing.F) {
	seeds(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, frame []byte) { sane(t, frame) })
}
