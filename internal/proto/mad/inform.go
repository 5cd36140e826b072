// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// Wildcards of an InformInfo.
const (
	InformAllLIDs      ib.LID     = 0xffff
	InformAllTypes     NoticeType = 0xffff
	InformAllTraps     TrapNumber = 0xffff
	InformAllProducers Producer   = 0xffffff
)

// Covers reports whether the subscription covers a notice from issuer.
func (f *InformInfo) Covers(n *Notice, issuer ib.GID) bool {
	switch {
	case (f.IsGeneric != 0) != n.Generic,
		f.Type != InformAllTypes && f.Type != n.Type,
		f.TrapNumber != InformAllTraps && f.TrapNumber != n.TrapNumber,
		f.Producer != InformAllProducers && f.Producer != n.Producer:
		return false
	case !f.GID.IsZero():
		return f.GID == issuer
	case f.LIDBegin == InformAllLIDs:
		return true
	}
	return n.IssuerLID >= f.LIDBegin && n.IssuerLID <= max(f.LIDBegin, f.LIDEnd)
}
