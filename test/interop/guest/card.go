// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"regexp"
	"strings"

	"weft/internal/control/api"
)

var vectors = regexp.MustCompile(`,vectors=\d+`)

// Card is what weft vm show prints for a machine with so much memory; for QEMU 7.2, as that has it without KVM.
func Card(v *api.VM, memory string) []string {
	words := strings.Fields(strings.Join(v.QEMU(memory), " "))
	if v.RDMA {
		return words
	}
	last := &words[len(words)-1]
	*last = vectors.ReplaceAllString(*last, "") + ",vectors=0"
	return words
}
