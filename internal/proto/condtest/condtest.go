// SPDX-License-Identifier: Apache-2.0

// Package condtest has the conditions of tests: what a machine must have for them, and what they wait for.
//
// What comes in: the reason for which a test cannot run, or a condition. What goes out: the end of the test, or the
// return when the condition holds. Tests of all storeys call it, and packages that only tests import; the product never
// does. test/arch proves that nothing else skips a test.
package condtest

import (
	"os"
	"testing"
	"time"
)

// Lacks skips a test for which the machine lacks something that it can be given: a privilege, a program, a part of the
// kernel. With REQUIRE_E2E=1 the test fails.
func Lacks(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("REQUIRE_E2E") == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// NeedRoot skips a test, as Lacks does, unless root runs it. The reason completes "needs root ".
func NeedRoot(t testing.TB, reason string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lacks(t, "needs root %s", reason)
	}
}

// Foregoes skips a test that this run does not need, or for which no machine can be prepared: it is one of the soak, or
// the processor has no such instructions. REQUIRE_E2E does not change that.
func Foregoes(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Skipf(format, args...)
}

// Soak reports whether this run is a soak: tests run their full matrices, which take long.
func Soak() bool { return os.Getenv("WEFT_SOAK") == "1" }

// Patience bounds each wait of Until, also on a machine that does much else.
const Patience = time.Minute

// Until returns when ok reports true, and ends the test after Patience. what completes "waited in vain: "; state
// returns what the failure prints beside it. All functions run on the goroutine of the caller. The time between two
// calls of ok grows from 1 ms to 20 ms, so that long waits leave the processor to what they wait for.
func Until(t testing.TB, what string, ok func() bool, state ...func() any) {
	t.Helper()
	for begin := time.Now(); !ok(); {
		waited := time.Since(begin)
		if waited > Patience {
			for _, f := range state {
				t.Logf("%+v", f())
			}
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(min(time.Millisecond+waited/8, 20*time.Millisecond))
	}
}
