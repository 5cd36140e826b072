// SPDX-License-Identifier: Apache-2.0

package condtest

import (
	"testing"
	"testing/synctest"
	"time"
)

// ended is how a test ended that a recorder ran.
type ended struct {
	testing.TB
	skipped, failed bool
}

func (e *ended) Helper()               {}
func (e *ended) Skipf(string, ...any)  { e.skipped = true; panic(e) }
func (e *ended) Fatalf(string, ...any) { e.failed = true; panic(e) }

func run(t *testing.T, f func(testing.TB)) (e *ended) {
	e = &ended{TB: t}
	defer func() {
		if r := recover(); r != nil && r != any(e) {
			panic(r)
		}
	}()
	f(e)
	return e
}

func TestSkips(t *testing.T) {
	for _, required := range []bool{false, true} {
		t.Setenv("REQUIRE_E2E", map[bool]string{true: "1"}[required])
		if e := run(t, func(t testing.TB) { Lacks(t, "a reason") }); e.skipped == required || e.failed != required {
			t.Errorf("with REQUIRE_E2E %v: %+v", required, e)
		}
		if e := run(t, func(t testing.TB) { Foregoes(t, "a reason") }); !e.skipped || e.failed {
			t.Errorf("with REQUIRE_E2E %v: %+v", required, e)
		}
	}
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		e := run(t, func(t testing.TB) {
			Until(t, "the time", func() bool { return time.Since(begin) > Patience-time.Second })
		})
		if e.failed || time.Since(begin) > Patience {
			t.Errorf("%+v after %v", e, time.Since(begin))
		}
		if e := run(t, func(t testing.TB) { Until(t, "the end", func() bool { return false }) }); !e.failed {
			t.Errorf("%+v", e)
		}
	})
}
