// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"weft/internal/proto/condtest"
)

// Soak: tests run their full matrices, which take long.
var Soak = condtest.Soak()

// OnlySoak leaves a test to the soak. REQUIRE_E2E does not change that: nothing is missing.
func OnlySoak(t testing.TB) {
	t.Helper()
	if !Soak {
		condtest.Foregoes(t, "only in a soak: WEFT_SOAK is not 1")
	}
}

// Main runs the tests of a package between Setup and its cleanup, and after the
// last of them atEnd unless it is nil. It returns the exit status.
func Main(m *testing.M, atEnd func() error) int {
	cleanup, err := Setup()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
	defer cleanup()
	code := m.Run()
	if atEnd == nil {
		return code
	}
	if err := atEnd(); err != nil {
		fmt.Fprintln(os.Stderr, "lab: after the tests:", err)
		code = 1
	}
	return code
}

// Lacks skips a test that needs what this machine has not; with REQUIRE_E2E=1
// that is a failure.
func Lacks(t testing.TB, err error) {
	t.Helper()
	condtest.Lacks(t, "%v", err)
}

var netns = sync.OnceValue(MayMakeNetNS)

// NeedNetNS skips a test, as Lacks does, where no namespaces can be made.
func NeedNetNS(t testing.TB) {
	t.Helper()
	if err := netns(); err != nil {
		Lacks(t, err)
	}
}
