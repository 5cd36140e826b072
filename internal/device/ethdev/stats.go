// SPDX-License-Identifier: Apache-2.0

package ethdev

// Stats count what a port carried and refused. Tx is from the guest, Rx to it.
// They belong to the lane.
type Stats struct {
	TxFrames, TxBytes, TxShort, TxLong, TxWritable, TxNoQueue uint64

	RxFrames, RxBytes, RxNoGuest, RxNoQueue, RxNoBuffer, RxTooLong, RxOffload, RxFiltered uint64

	Kicks, Calls, BrokenRings, Commands, CommandErrors, Announced uint64
}

// Each calls f with the name and the value of every counter.
func (s *Stats) Each(f func(name string, v uint64)) {
	f("tx_frames", s.TxFrames)
	f("tx_bytes", s.TxBytes)
	f("tx_short", s.TxShort)
	f("tx_long", s.TxLong)
	f("rx_frames", s.RxFrames)
	f("rx_bytes", s.RxBytes)
	f("rx_no_guest", s.RxNoGuest)
	f("rx_no_queue", s.RxNoQueue)
	f("rx_no_buffer", s.RxNoBuffer)
	f("rx_too_long", s.RxTooLong)
	f("rx_offload", s.RxOffload)
	f("rx_filtered", s.RxFiltered)
	f("calls", s.Calls)
	f("broken_rings", s.BrokenRings)
	f("commands", s.Commands)
	f("command_errors", s.CommandErrors)
	f("announced", s.Announced)
}
