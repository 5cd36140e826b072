// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"weft/internal/device/unixsock"
	"weft/internal/host/rundir"
)

// maxAnswer bounds an answer: the resources of a full node are some 10 MiB.
const maxAnswer = 256 << 20

// answerTime is how long a call waits: a node answers in milliseconds, one that
// takes longer is stopped or hangs.
const answerTime = 10 * time.Second

// Client talks to the node behind one control socket. Methods may be called
// from several goroutines and return after answerTime at the latest, whatever
// their context is. Every error is an *Error.
type Client struct {
	http    http.Client
	timeout time.Duration
	peer    atomic.Int64 // process id of the node that took the last connection
}

// NewClient returns a client of the socket at path. It connects on use.
// dialed, if not nil, sees each new connection before it is used.
func NewClient(path string, dialed func(*net.UnixConn) error) *Client {
	c := &Client{timeout: answerTime}
	c.http.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dial(ctx, path)
			if err != nil {
				return nil, err
			}
			u := conn.(*net.UnixConn)
			if p, err := unixsock.PeerOf(u); err == nil {
				c.peer.Store(int64(p.PID)) // for people only
			}
			if dialed != nil {
				if err := dialed(u); err != nil {
					u.Close()
					return nil, err
				}
			}
			return u, nil
		},
	}
	return c
}

// dialPause is the time between attempts to connect to a socket with a full backlog.
const dialPause = 2 * time.Millisecond

// dial connects to a socket. It waits as long as the backlog of the socket is full: many connect at once.
func dial(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "unix", path)
		if !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(dialPause):
		}
	}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// do performs one request and returns the answer. Unknown fields of an answer are ignored: a newer node may have more.
func (c *Client) do(ctx context.Context, what, method, path string, body io.Reader) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://weft/"+Version+path, body)
	if err != nil {
		return nil, asError(what, err)
	}
	if what := Confirmed(ctx); what != "" {
		req.Header.Set(headerConfirm, what)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.failed(what, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, c.failed(what, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, refusal(what, resp.Status, b)
	}
	return b, nil
}

// refusal is the error that a node answered with.
func refusal(what, status string, answer []byte) error {
	e := &Error{}
	if json.Unmarshal(answer, e) != nil || e.Code == "" {
		e = &Error{Code: CodeInternal, Why: fmt.Sprintf("the socket answered %s, not as a node does", status)}
	}
	if e.What == "" {
		e.What, e.Why = what, strings.TrimPrefix(e.Why, what+": ") // the store reports what failed, as well
	}
	return e
}

// failed sorts what a request ended with: only a socket that is missing or that
// has no listener means that there is no node.
func (c *Client) failed(what string, err error) *Error {
	e := &Error{Code: CodeInternal, What: what, err: err}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		e.Code, e.Why = CodeNoNode, "no node runs there"
	case errors.Is(err, fs.ErrPermission):
		e.Code, e.Why = CodeRefused, "this user may not connect to the node"
		e.Fix = "run the command as the node's user or as root"
	case errors.Is(err, context.DeadlineExceeded):
		e.Code, e.Why = CodeNoAnswer, "the node does not answer"
		if pid := int(c.peer.Load()); pid > 0 {
			e.Why = fmt.Sprintf("the node, process %d, does not answer", pid)
			e.Fix = fmt.Sprintf("read its log; kill -9 %d ends it", pid)
			if rundir.Stopped(pid) {
				e.Why = fmt.Sprintf("the node, process %d, is stopped", pid)
				e.Fix = fmt.Sprintf("kill -CONT %d", pid)
			}
		}
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF):
		e.Code, e.Why = CodeNoAnswer, "the node ended before it answered"
		e.Fix = "read its log; weft up starts it again"
	default:
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		e.Why = err.Error()
	}
	return e
}
