// SPDX-License-Identifier: Apache-2.0

package ether

import "golang.org/x/sys/cpu"

// sumYMM is sum from zero of p, with a length that is a multiple of 32 below 2^32, with 64-bit words
// cut in halves: they never carry.
//
//go:noescape
func sumYMM(p []byte) uint64

var vectors = cpu.X86.HasAVX2

// sumVectors adds as much of b to s as vectors take, and returns the rest.
func sumVectors(b []byte, s uint64) (uint64, []byte) {
	if !vectors {
		return s, b
	}
	n := len(b) &^ 31
	return add(s, sumYMM(b[:n])), b[n:]
}
