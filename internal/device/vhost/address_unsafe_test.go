// SPDX-License-Identifier: Apache-2.0

package vhost

import "unsafe"

// addressOf returns where b lies; it is only compared.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
