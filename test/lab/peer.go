// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"time"
)

// Peer is what a test or a program waits for: a program, a node's process, or a machine.
type Peer interface {
	Done() <-chan struct{} // closed at its end
	Output() string        // what it has printed
}

// PeerPatience is how long a program may go on once its peer has ended. A program without its peer can wait for ever;
// after a good end of the peer it has little left to do, even on a busy machine.
const PeerPatience = 30 * time.Second

// ErrPeerEnded is what Wait wraps when a program did not end after its peer had.
var ErrPeerEnded = fmt.Errorf("%w after its peer had ended", ErrTimeout)

// Ended returns an error with what it printed if one of the peers has ended.
func Ended(peers ...Peer) error {
	for _, x := range peers {
		select {
		case <-x.Done():
			what := "a peer"
			if p, ok := x.(*Proc); ok {
				what = fmt.Sprintf("%s (%v)", p.name, p.err)
			}
			return fmt.Errorf("%s has ended; it printed:\n%s", what, Tail(x.Output(), 30))
		default:
		}
	}
	return nil
}

// Until repeats a check until it is true or returns an error, at most for limit, and returns at once when one of the
// peers, which make it true, has ended.
func Until(what string, limit time.Duration, check func() (bool, error), peers ...Peer) error {
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		ended := Ended(peers...) // before the check, which sees what a peer did last
		if ok, err := check(); ok || err != nil {
			return err
		}
		if ended != nil {
			return fmt.Errorf("waited in vain: %s: %w", what, ended)
		}
		if time.Now().After(end) {
			return fmt.Errorf("waited in vain: %s: not within %v", what, limit)
		}
	}
}
