// SPDX-License-Identifier: Apache-2.0

// Package mono holds monotonic time as a value.
//
// What comes in: nothing; what goes out: Time, a number of nanoseconds since
// an arbitrary start. Every protocol core takes the current Time as an
// argument, so a timeout test is arithmetic. Only package node reads a clock.
package mono

import "time"

// Time is a monotonic instant in nanoseconds. The zero Time means "none": no
// deadline, never. A running clock therefore starts above zero.
type Time int64

// Add returns t moved by d.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns the duration t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// IsZero reports whether t is the "none" instant.
func (t Time) IsZero() bool { return t == 0 }

// Due reports whether the deadline t exists and is not after now.
func (t Time) Due(now Time) bool { return t != 0 && t <= now }

// Min returns the earlier of two deadlines, where the zero Time is no
// deadline at all.
func Min(a, b Time) Time {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}
