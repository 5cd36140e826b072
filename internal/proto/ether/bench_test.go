// SPDX-License-Identifier: Apache-2.0

package ether

import (
	"strconv"
	"testing"
)

// stream is a segment of 45 frames of an MTU of 1500, and those frames.
func stream(t testing.TB) (frame []byte, off Offload, in Info, cut [][]byte) {
	frame, off = segmentOf(tcpSpec{flags: tcpACK, options: 3, payload: 45 * 1448, df: true}, 1448)
	in = Classify(frame)
	cut, why := split(t, frame, off, &in, 1500)
	if why != OK {
		t.Fatal(why)
	}
	return frame, off, in, cut
}

func TestNothingIsAllocated(t *testing.T) {
	frame, off, in, cut := stream(t)
	out := make([]byte, 2048)
	j := NewJoiner(64, false, 1)
	var s Splitter
	for what, f := range map[string]func(){
		"classify": func() { in = Classify(frame); in.Hash(frame, 1) },
		"check":    func() { o := off; o.Check(frame, &in) },
		"split": func() {
			n, _ := s.Start(frame, off, &in, 1500)
			for range n {
				s.Next(out)
			}
		},
		"join": func() { j.Join(cut, everything) },
		"pass": func() { j.Join(cut, 0) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

func BenchmarkChecksum(b *testing.B) {
	for _, n := range []int{40, 256, 512, 1448, 4096, 9000, 65000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			buf := make([]byte, n)
			b.SetBytes(int64(len(buf)))
			b.ReportAllocs()
			for b.Loop() {
				Checksum(buf)
			}
		})
	}
}

func BenchmarkClassifyHash(b *testing.B) {
	frame, _, _, _ := stream(b)
	b.ReportAllocs()
	for b.Loop() {
		in := Classify(frame)
		in.Hash(frame, 1)
	}
}

func BenchmarkSplit(b *testing.B) {
	frame, off, in, _ := stream(b)
	out := make([]byte, 64*2048)
	var s Splitter
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	for b.Loop() {
		n, _ := s.Start(frame, off, &in, 1500)
		for i := range n {
			s.Next(out[i*2048:])
		}
	}
}

func BenchmarkJoin(b *testing.B) {
	frame, _, _, cut := stream(b)
	j := NewJoiner(64, false, 1)
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	for b.Loop() {
		j.Join(cut, everything)
	}
}

// BenchmarkJoinAppend is Join for a receiver that needs each frame in one piece.
func BenchmarkJoinAppend(b *testing.B) {
	frame, _, _, cut := stream(b)
	j := NewJoiner(64, false, 1)
	buf := make([]byte, 0, MaxFrame)
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	for b.Loop() {
		for _, f := range j.Join(cut, everything) {
			f.Append(buf)
		}
	}
}
