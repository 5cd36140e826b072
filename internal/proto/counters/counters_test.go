// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
)

type reasons [3]uint64

func (reasons) CounterName(i int) string { return []string{"", "drop_length", "drop_key"}[i] }

type inner struct{ Packets, Bytes uint64 }

type sample struct {
	inner      // not exported: left out
	RNRNakSent uint64
	GSO        uint32
	Overflow   uint64 `counter:"rcvbuf_overflow"`
	Hidden     []byte `counter:"-"`
	private    uint64
	Sent       atomic.Uint64
	Drops      reasons
	Rx         inner `counter:",rx_"`
	Queue      inner
}

func TestEach(t *testing.T) {
	c := &sample{RNRNakSent: 1, GSO: 2, Overflow: 3, private: 9, Drops: reasons{9, 5, 6}, Rx: inner{7, 8},
		Queue: inner{9, 10}}
	c.Sent.Store(4)
	var got []string
	Each("p_", c, func(name string, v uint64) { got = append(got, fmt.Sprint(name, "=", v)) })
	want := []string{"p_rnr_nak_sent=1", "p_gso=2", "p_rcvbuf_overflow=3", "p_sent=4", "p_drop_length=5",
		"p_drop_key=6",
		"p_rx_packets=7", "p_rx_bytes=8", "p_queue_packets=9", "p_queue_bytes=10"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

type Embedded struct{ Packets uint64 }

func TestEachOfEmbedded(t *testing.T) {
	var got []string
	Each("", &struct {
		Embedded
		Calls uint64
	}{}, func(name string, v uint64) { got = append(got, name) })
	if want := []string{"packets", "calls"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestEachRefusesWhatIsNoCounter(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a string was listed, or left out without a word")
		}
	}()
	Each("", &struct{ Name string }{}, func(string, uint64) {})
}

func TestSnake(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "A": "a", "AB": "ab", "aB": "a_b", "Loops": "loops", "RNRNakSent": "rnr_nak_sent", "SentGSO": "sent_gso",
		"RxCRCErrors": "rx_crc_errors", "DropNoQP": "drop_no_qp", "DropPKey": "drop_p_key", "RNRRetryExceeded": "rnr_retry_exceeded",
		"BadMACs": "bad_macs", "DropIDs": "drop_ids", "OrphanedQPs": "orphaned_qps", "QPsLost": "qps_lost",
	} {
		if got := Snake(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}
