// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"weft/internal/host/rundir"
)

// maxAnswer bounds an answer: the resources of a full node are some 10 MiB.
const maxAnswer = 256 << 20

// answerTime is how long a call waits: a node answers in milliseconds, one that
// takes longer is stopped or hangs.
const answerTime = 10 * time.Second

// Client talks to the node behind one control socket. Methods may be called
// from several goroutines and return after answerTime at the latest, whatever
// their context says. Every error is an *Error.
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
			var d net.Dialer
			conn, err := d.DialContext(ctx, "unix", path)
			if err != nil {
				return nil, err
			}
			u := conn.(*net.UnixConn)
			if p, err := rundir.PeerOf(u); err == nil {
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

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status returns the node's status.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	err = c.do(ctx, "cannot read the status", "GET", "/status", nil, &s)
	return s, err
}

// Devices returns the node's devices.
func (c *Client) Devices(ctx context.Context) (d []Device, err error) {
	err = c.do(ctx, "cannot list devices", "GET", "/devices", nil, &d)
	return d, err
}

// Resources returns the objects of all sessions.
func (c *Client) Resources(ctx context.Context) (r Resources, err error) {
	err = c.do(ctx, "cannot list resources", "GET", "/resources", nil, &r)
	return r, err
}

// Counters returns every counter of the node.
func (c *Client) Counters(ctx context.Context) (n []Counter, err error) {
	err = c.do(ctx, "cannot read counters", "GET", "/counters", nil, &n)
	return n, err
}

// Groups returns the multicast groups that the node takes part in.
func (c *Client) Groups(ctx context.Context) (g []Group, err error) {
	err = c.do(ctx, "cannot list multicast groups", "GET", "/groups", nil, &g)
	return g, err
}

// Faults returns the active faults.
func (c *Client) Faults(ctx context.Context) (f []Fault, err error) {
	err = c.do(ctx, "cannot list faults", "GET", "/faults", nil, &f)
	return f, err
}

// AddFault activates a fault.
func (c *Client) AddFault(ctx context.Context, spec FaultSpec) (f Fault, err error) {
	err = c.do(ctx, "cannot add the fault", "POST", "/faults", spec, &f)
	return f, err
}

// DelFault ends a fault.
func (c *Client) DelFault(ctx context.Context, id int) error {
	return c.do(ctx, "cannot delete the fault", "DELETE", "/faults/"+strconv.Itoa(id), nil, nil)
}

// Use tells the node that a program is about to connect, so that it does not
// end for lack of programs meanwhile. CodeNotReady: it ends already.
func (c *Client) Use(ctx context.Context) error {
	return c.do(ctx, "cannot use the node", "POST", "/use", nil, nil)
}

// Functions returns the devices as functions of the adapter.
func (c *Client) Functions(ctx context.Context) (f []Function, err error) {
	err = c.do(ctx, "cannot list devices", "GET", "/functions", nil, &f)
	return f, err
}

// AddFunction adds a virtual function.
func (c *Client) AddFunction(ctx context.Context, n NewFunction) (f Function, err error) {
	err = c.do(ctx, "cannot add the device", "POST", "/functions", n, &f)
	return f, err
}

// SetFunction changes a function.
func (c *Client) SetFunction(ctx context.Context, name string, ch FunctionChange) (f Function, err error) {
	err = c.do(ctx, "cannot change the device", "PATCH", "/functions/"+url.PathEscape(name), ch, &f)
	return f, err
}

// DelFunction deletes a virtual function; its sessions end.
func (c *Client) DelFunction(ctx context.Context, name string) error {
	return c.do(ctx, "cannot delete the device", "DELETE", "/functions/"+url.PathEscape(name), nil, nil)
}

// Shutdown asks the node to end; it returns before the node has.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.do(ctx, "cannot stop the node", "POST", "/shutdown", nil, nil)
}

// do performs one request. Unknown fields of an answer are ignored: a newer
// node may say more.
func (c *Client) do(ctx context.Context, what, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return asError(what, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://weft/"+Version+path, body)
	if err != nil {
		return asError(what, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.failed(what, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return c.failed(what, err)
	}
	if resp.StatusCode != http.StatusOK {
		return c.refused(what, resp.Status, b)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return asError(what, fmt.Errorf("the node's answer is not valid: %w", err))
	}
	return nil
}

// refused is the error that a node answered with.
func (c *Client) refused(what, status string, answer []byte) error {
	e := &Error{}
	if json.Unmarshal(answer, e) != nil || e.Code == "" {
		e = &Error{Code: CodeInternal, Why: fmt.Sprintf("the socket answered %s, not as a node does", status)}
	}
	if e.What == "" {
		e.What = what
	}
	return e
}

// failed sorts what a request ended with: only a socket that is missing or that
// nobody listens on means that there is no node.
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
	default:
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		e.Why = err.Error()
	}
	return e
}
