// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"testing"

	"go.uber.org/goleak"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memorySite opens clients of one memory store.
type memorySite struct{ first *store.Memory }

func (s memorySite) Open(testing.TB) store.Store      { return s.first.Open() }
func (s memorySite) Kill(_ testing.TB, c store.Store) { c.(*store.Memory).Kill() }
func newMemorySite(testing.TB) storetest.Site         { return memorySite{store.NewMemory()} }

func TestMemory(t *testing.T) { storetest.Run(t, newMemorySite) }
