// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

func (a *app) capture() *cobra.Command {
	var spec api.CaptureSpec
	var file, dev string
	var qps []uint
	cmd := &cobra.Command{
		Use:   "capture",
		Short: "write the packets of queue pairs to a capture file",
		Long: `Write the packets of queue pairs to a capture file (pcapng), which Wireshark decodes,
until Ctrl-C or what --count or --duration say.

  weft capture -w - | tshark -i -
  weft capture --dev weft0 --qp 17 -w rc.pcapng -- and read it with wireshark rc.pcapng

RoCEv2 is in the file as Ethernet, what InfiniBand devices send as InfiniBand
(ERF). Traffic between queue pairs of this node is captured, too: while the
capture runs, the packet path is what the matching queue pairs take. Packets that cannot be
written fast enough are dropped, counted, and told at the end; no program waits.
Management datagrams (--qp 0 --qp 1), the node's own among them, are there where the
port of a device sends them and where one receives them: from a device of this node to
another twice. Of native ones the sequence numbers are the capture's.
Frames are what the queue pairs sent or got: a packet that was refused before, for
its ICRC say, is not there (weft stat --scope link).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if device, port, ok := strings.Cut(dev, "/"); ok {
				if port != "1" {
					return usage("weft dev", "device %s has no port %q, only port 1", device, port)
				}
				dev = device
			}
			spec.Device = dev
			for _, q := range qps {
				spec.QPs = append(spec.QPs, uint32(min(q, 1<<32-1)))
			}
			if err := spec.Validate(); err != nil {
				return usage("weft capture --help", "cannot capture: %v", err)
			}
			return a.captureTo(cmd.Context(), file, spec)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "write", "w", "-", "the file; -: standard output")
	f.StringVar(&dev, "dev", "", "only this device: NAME, or NAME/1 for its port")
	f.UintSliceVar(&qps, "qp", nil, "only packets from or to this queue pair (may be repeated; weft res qp lists them)")
	f.Uint64Var(&spec.Count, "count", 0, "end after so many packets")
	f.DurationVar(&spec.DurationNS, "duration", 0, "end after so long")
	f.IntVar(&spec.SnapLen, "snaplen", 0, "keep so many bytes of each packet; 0: all")
	f.BoolVar(&spec.IPoIB, "ipoib", false, "only what IP links send and receive, as IP over InfiniBand")
	return cmd
}

// capturePath says what a capture changes.
const capturePath = "matching queue pairs of this node reach each other by the packet path"

func (a *app) captureTo(ctx context.Context, file string, spec api.CaptureSpec) error {
	out := a.env.Out
	if f, ok := out.(*os.File); ok && file == "-" {
		if st, err := f.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
			return usage("weft capture -w FILE, or weft capture | tshark -i -", "a capture file is not for a terminal")
		}
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return a.query(ctx, func(ctx context.Context, c *api.Client) (err error) {
		empty := func() {} // what the file had before; not unless there is a capture
		if file != "-" {
			f, e := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600) // it may hold what programs keep secret
			if e != nil {
				return noCaptureFile(e)
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			out = io.Writer(f)
			empty = func() { f.Truncate(0) } // fails where there is nothing to empty: a pipe, a device
		}
		end, err := c.Capture(ctx, spec, func(now api.Capture) {
			empty()
			fmt.Fprintf(a.env.Err, "weft: capture %d runs: %s; %s\n", now.ID, printable(captureText(now.CaptureSpec)), capturePath)
		}, out)
		if errors.Is(err, syscall.EPIPE) {
			return nil // who read it has enough
		}
		if e := (*fs.PathError)(nil); errors.As(err, &e) {
			return noCaptureFile(e)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(a.env.Err, "weft: %s captured, %d dropped\n", plural(int(end.Packets), "packet"), end.Dropped)
		return nil
	})
}

func noCaptureFile(err error) error {
	return &api.Error{Code: api.CodeInvalid, What: "cannot write the capture file", Why: err.Error(), Fix: "weft capture -w FILE with another one"}
}

// captureText says in words what is captured.
func captureText(s api.CaptureSpec) string {
	text := "all devices"
	if s.Device != "" {
		text = s.Device
	}
	if s.IPoIB {
		text += ", IP links"
	}
	for i, q := range s.QPs {
		sep := ", qp "
		if i > 0 {
			sep = ", "
		}
		text += sep + strconv.Itoa(int(q))
	}
	return text
}
