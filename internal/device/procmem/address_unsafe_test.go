// SPDX-License-Identifier: Apache-2.0

package procmem

import "unsafe"

// textAddress returns the address of this program's text, which every process
// of this binary has mapped there.
func textAddress() uint64 {
	f := textAddress
	// Safe: a func value is a pointer to a record that begins with the address of the code; both
	// are only read.
	return uint64(**(**uintptr)(unsafe.Pointer(&f)))
}
