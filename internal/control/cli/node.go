// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
	"weft/internal/device/unixsock"
	"weft/internal/host/rundir"
)

func downCommand(a *app) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "down",
		Short: "end the node and wait until it has ended",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, named, err := a.nodeDir()
			if err != nil {
				return err
			}
			last, err := stop(cmd.Context(), dir, timeout)
			var e *api.Error
			switch {
			case errors.As(err, &e) && e.Code == api.CodeNoNode:
				return &api.Error{Code: e.Code, What: "there is nothing to end", Why: "no node runs in " + dir}
			case err != nil:
				return explain(err, dir, named)
			}
			fmt.Fprintf(a.env.Out, "weft: ended the node in %s, pid %d\n", dir, last.PID)
			programs := slices.DeleteFunc(last.Sessions, func(s api.Session) bool { return s.PID == last.PID })
			if len(programs) > 0 {
				fmt.Fprintf(a.env.Out, "weft: it had sessions of programs: %s\n", printable(sessionList(programs)))
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 15*time.Second, "time to wait for its end")
	return cmd
}

// stop ends the node in dir and waits for its process. It returns the last status of the node, of one that was not
// ready the process identifier alone.
func stop(ctx context.Context, dir string, timeout time.Duration) (last api.Status, err error) {
	var peer unixsock.Peer // as the kernel names it in this pid namespace
	c := api.NewClient(filepath.Join(dir, rundir.ControlSock), func(u *net.UnixConn) (err error) {
		peer, err = unixsock.PeerOf(u)
		return err
	})
	defer c.Close()
	if last, err = api.Get(ctx, c, api.GetStatus); err != nil {
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.CodeNotReady {
			return last, err
		}
	}
	proc, err := rundir.OpenProcess(peer.PID) // before it ends, so that it cannot be another
	if err != nil {
		return last, fmt.Errorf("cannot stop the node: %w", err)
	}
	defer proc.Close()
	if err := api.Do(ctx, c, api.Shutdown, api.None{}); err != nil {
		return last, err
	}
	ended, err := rundir.WaitProcess(proc, int(timeout.Milliseconds()))
	if err != nil {
		return last, fmt.Errorf("cannot stop the node: %w", err)
	}
	if !ended {
		return last, &api.Error{Code: api.CodeNoAnswer, What: "the node has not ended yet",
			Why: fmt.Sprintf("process %d is still ending after %v", peer.PID, timeout),
			Fix: fmt.Sprintf("wait for it: weft down --timeout %v", 4*max(timeout, 15*time.Second))}
	}
	last.PID = peer.PID
	return last, nil
}

// disabled names the devices with ports that are down on purpose.
func disabled(s api.Status) (names []string) {
	for _, d := range s.Devices {
		if !d.Enabled {
			names = append(names, d.Name)
		}
	}
	return names
}

// refused reports whether the node refuses this user.
func refused(err error) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Code == api.CodeRefused
}

var errNotYet = errors.New("it is starting")

// await polls the node until is(status) holds. It returns the last status, and the reason where that was not enough.
func await(ctx context.Context, c *api.Client, timeout time.Duration, is func(api.Status) bool) (last api.Status,
	why error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		s, err := api.Get(ctx, c, api.GetStatus)
		switch {
		case err == nil && is(s):
			return s, nil
		case err == nil:
			last, why = s, errNotYet
		case refused(err):
			return s, err
		case ctx.Err() == nil || why == nil:
			last, why = s, err
		}
		select {
		case <-ctx.Done():
			return last, why
		case <-tick.C:
		}
	}
}
