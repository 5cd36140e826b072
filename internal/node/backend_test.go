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

func TestSnake(t *testing.T) {
	for in, want := range map[string]string{
		"":                 "",
		"Sent":             "sent",
		"SentPackets":      "sent_packets",
		"RNRNakSent":       "rnr_nak_sent",
		"CQOverrun":        "cq_overrun",
		"DropNoQP":         "drop_no_qp",
		"DropPKey":         "drop_p_key",
		"RcvdGRO":          "rcvd_gro",
		"CtrlNoRoom":       "ctrl_no_room",
		"RemoteAccessErr":  "remote_access_err",
		"RNRRetryExceeded": "rnr_retry_exceeded",
		"A":                "a",
		"AB":               "ab",
		"aB":               "a_b",
	} {
		if got := snake(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

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
