// SPDX-License-Identifier: Apache-2.0

package wire

import "testing"

// TestVCRCWithoutMultiplication is TestVCRCOfEveryLength as other processors
// compute it.
func TestVCRCWithoutMultiplication(t *testing.T) {
	was := clmul
	clmul = false
	defer func() { clmul = was }()
	TestVCRCOfEveryLength(t)
}
