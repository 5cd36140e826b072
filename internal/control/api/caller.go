// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net"
	"os/user"
	"strconv"

	"weft/internal/proto/ib"
)

// Caller is the user of a request.
type Caller struct {
	// Member and Node are the name and the GUID of the member with the node that a user's request reached. They are
	// what its certificate proves; empty and 0 where that is the node itself.
	Member string
	Node   ib.GUID
	UID    int    // of the user on the host of that node
	User   string // the name that the user has there, empty where it has none
}

type callerKey struct{}

// WithCaller returns a context for requests of a caller.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller of the request of a context; without one it is the process itself.
func CallerOf(ctx context.Context) Caller {
	if c, ok := ctx.Value(callerKey{}).(Caller); ok {
		return c
	}
	return Caller{UID: -1}
}

// ConfirmAll confirms that a change takes contact away, whatever that is.
const ConfirmAll = "all"

type confirmKey struct{}

// Confirm returns a context for requests that confirm a loss of contact: what is ConfirmAll, or LostContact.Digest of
// the loss that was shown. A change that takes anything else away is refused with CodeContact.
func Confirm(ctx context.Context, what string) context.Context {
	return context.WithValue(ctx, confirmKey{}, what)
}

// Confirmed returns what the request of a context confirms, empty where that is nothing.
func Confirmed(ctx context.Context) string {
	what, _ := ctx.Value(confirmKey{}).(string)
	return what
}

// LostContact is what a change would take away.
type LostContact struct {
	Pairs  int      `json:"pairs"`               // of ports that would not reach each other any more
	Lines  []string `json:"lines" order:"value"` // ports and what they lose, at most LostLines
	More   int      `json:"more"`                // lines that are left out
	Digest string   `json:"digest"`              // of all of it
}

// LostLines bounds LostContact.Lines.
const LostLines = 10

// headers of requests.
const (
	headerConfirm = "Weft-Confirm"
	headerUID     = "Weft-Caller-Uid"
	headerUser    = "Weft-Caller-User"
)

// maxCallerUser bounds the octets of a user's name.
const maxCallerUser = 64

// localCaller is the user at the other end of a Unix socket.
func localCaller(c net.Conn) Caller {
	if p, err := peerOf(c); err == nil {
		return Caller{UID: p.UID}
	}
	return Caller{UID: -1}
}

// named adds the name that the user has on this host.
func (c Caller) named() Caller {
	if c.User == "" && c.UID >= 0 {
		if u, err := user.LookupId(strconv.Itoa(c.UID)); err == nil && len(u.Username) <= maxCallerUser {
			c.User = u.Username
		}
	}
	return c
}
