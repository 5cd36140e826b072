// SPDX-License-Identifier: Apache-2.0

package mad

import "bytes"

// TableRecordLen is the length of a record of a block of a table, except for SLtoVL.
const TableRecordLen = 8 + TableLen

// LeaseForever is the ServiceLease without an end.
const LeaseForever = 0xffffffff

// ServiceName returns Name without its padding.
func (r *ServiceRecord) ServiceName() string {
	text, _, _ := bytes.Cut(r.Name[:], []byte{0})
	return string(text)
}
