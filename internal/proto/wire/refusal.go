// SPDX-License-Identifier: Apache-2.0

package wire

// Refusal is the reason for which bytes are not a valid packet. It is an index for the caller's
// counters: every refusal is counted, and the packet silently dropped (IBA volume 1, 9.6.1).
type Refusal uint8

// Refusals. OK is none.
const (
	OK               Refusal = iota
	Short                    // fewer bytes than the headers of the opcode and the ICRC need
	Unaligned                // headers, payload and padding are not a multiple of four
	TransportVersion         // BTH TVer is not 0
	BadOpcode                // reserved, vendor's, or of an unsupported service
	Congestion               // a congestion notification, which nothing here acts on
	BadPad                   // more padding than payload (16B: or than seven bytes)
	Surplus                  // payload behind an opcode that carries none
	BadICRC                  // invariant CRC, and that of a 16B packet
	BadVCRC                  // variant CRC of a native packet
	IPVersion                // neither IPv4 without options nor IPv6
	IPLength                 // IP or UDP length field and bytes do not agree
	IPChecksum               // IPv4 header checksum
	IPFragment               // fragments are not reassembled
	NotRoCE                  // not UDP, or to another port than 4791
	LinkVersion              // LRH LVer, GRH IPVer or the link type of a 16B packet is unknown
	LinkLength               // LRH PktLen, GRH PayLen or the length of a 16B header and bytes do not agree
	NotTransport             // LRH LNH or GRH NxtHdr names another payload than IBA transport
	NumRefusals      = iota
)

var refusalNames = [NumRefusals]string{"ok", "short", "unaligned", "transport_version", "bad_opcode", "congestion",
	"bad_pad", "surplus", "bad_icrc", "bad_vcrc", "ip_version", "ip_length", "ip_checksum", "ip_fragment", "not_roce",
	"link_version", "link_length", "not_transport"}

// String returns the counter name of r.
func (r Refusal) String() string {
	if int(r) < len(refusalNames) {
		return refusalNames[r]
	}
	return "unknown"
}
