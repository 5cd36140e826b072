// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"weft/internal/control/api"
)

// One way to print each kind of value, in every table.

// round shortens a duration to what a person reads.
func round(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}

// clock prints a time of day with its date, in the zone of the caller.
func clock(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05.000") }

// sizeText prints a number of octets in the largest binary unit that divides it, or with one decimal.
func sizeText(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i, f := 0, float64(n)
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + " " + units[i]
}

// rateText prints the rate of a link; rateHead is the heading of a column of such numbers.
func rateText(gbps float64) string { return fmt.Sprintf("%g Gbit/s", gbps) }

const rateHead = ">GBIT/S"

// lidText prints a unicast LID, nothing for none.
func lidText(lid uint16) string {
	if lid == 0 {
		return ""
	}
	return fmt.Sprint(lid)
}

// mlidText prints a multicast LID, nothing for none: a group of an Ethernet port has none.
func mlidText(lid uint16) string {
	if lid == 0 {
		return ""
	}
	return fmt.Sprintf("0x%04x", lid)
}

// numberText prints a number where 0 means that there is none.
func numberText[T int | uint32](n T) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// plural prints a count with its noun.
func plural(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "switch"):
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// whether prints "yes", or "no" with the reason. The fix of the reason is in a line of its own in weft status.
func whether(b bool, reason string) string {
	reason, _, _ = strings.Cut(reason, ". fix: ")
	if b || reason == "" {
		return yes(b)
	}
	return "no: " + reason
}

// notKept is what a command prints below something that is gone when the node starts again.
func notKept(w *screen, kept bool, why string) {
	if !kept {
		fields{w, 5}.line("note:", "this does not survive the node's end: %s", why)
	}
}

// gidText prints a GID in the short form of an IPv6 address (RFC 5952).
func gidText(gid string) string {
	a, err := netip.ParseAddr(gid)
	if err != nil {
		return gid
	}
	return a.String()
}

// veswStateText is the state of a port with its reason.
func veswStateText(v api.VESWInterface) string {
	switch {
	case v.Failed != "":
		return v.State + ": " + v.Failed
	case v.Reason != "":
		return v.State + ": " + v.Reason
	}
	return v.State
}
