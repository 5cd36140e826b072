// SPDX-License-Identifier: Apache-2.0

package handshake

import "weft/internal/proto/mono"

// bucket is a token bucket: it admits rate events per second, and burst events at once.
type bucket struct {
	rate, burst float64
	tokens      float64
	filled      mono.Time
}

// newBucket returns a full bucket.
func newBucket(rate, burst float64) bucket { return bucket{rate: rate, burst: burst, tokens: burst} }

// take takes a token, and reports whether there was one.
func (b *bucket) take(now mono.Time) bool {
	if now > b.filled {
		b.tokens = min(b.tokens+now.Sub(b.filled).Seconds()*b.rate, b.burst)
		b.filled = now
	}
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
