// SPDX-License-Identifier: Apache-2.0

package wire

// Refusals counts packets by Refusal.
type Refusals [NumRefusals]uint64

// CounterName implements counters.Namer.
func (Refusals) CounterName(i int) string {
	if Refusal(i) == OK {
		return ""
	}
	return "drop_" + Refusal(i).String()
}
