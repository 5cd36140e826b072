// SPDX-License-Identifier: Apache-2.0

package etcd

// Kill ends the client as the death of its process would: its leases are not
// revoked, only no longer renewed.
func (c *Client) Kill() { _ = c.end(false) }

// WithMaxSize bounds a server more than usual.
func (c ServerConfig) WithMaxSize(n int64) ServerConfig { c.maxSize = n; return c }
