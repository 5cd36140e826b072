// SPDX-License-Identifier: Apache-2.0

package node

import (
	"reflect"
	"testing"

	"weft/internal/device/rdmadev"
	"weft/internal/node/lane"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/transport"
)

// TestFields: every field of every struct of counters gets one name of its own.
func TestFields(t *testing.T) {
	for _, v := range []any{&hca.LaneStats{}, &lane.Stats{}, &rdmadev.Stats{}, &transport.Counters{}} {
		want := 0
		typ := reflect.TypeOf(v).Elem()
		for i := range typ.NumField() {
			switch f := typ.Field(i).Type; f.Kind() {
			case reflect.Uint64:
				want++
			default:
				t.Errorf("%v.%s is of kind %v, which nobody shows", typ, typ.Field(i).Name, f.Kind())
			}
		}
		seen := map[string]bool{}
		fields(func(scope, instance, name string, _ uint64) {
			if scope != "s" || instance != "i" || seen[name] {
				t.Errorf("%v: %s %s %s", typ, scope, instance, name)
			}
			seen[name] = true
		}, "s", "i", v)
		if len(seen) != want {
			t.Errorf("%v: %d names, want %d", typ, len(seen), want)
		}
	}
}
