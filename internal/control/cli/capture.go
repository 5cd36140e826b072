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

func captureCommand(a *app) *cobra.Command {
	var spec api.CaptureSpec
	var file, dev string
	var qps []uint
	cmd := &cobra.Command{
		Use:   "capture",
		Short: "write the packets of queue pairs to a capture file",
		Long: `Write the packets of queue pairs to a capture file (pcapng, for Wireshark),
until Ctrl-C or until --count or --duration ends the capture.

RoCEv2 packets are in the file as Ethernet frames, packets of InfiniBand
devices as InfiniBand (ERF). The capture includes traffic between queue pairs
of this node: while it runs, matching queue pairs use the packet path.
Packets that cannot be written fast enough are dropped, counted and reported at
the end; no program waits.

Management datagrams (--qp 0 --qp 1) are in the capture where the port of a
device sends them and where a port receives them: a datagram from a device of
this node to another is there twice. The sequence numbers of native ones are
those of the capture.

Packets that are dropped before they reach a queue pair, for example for their
ICRC, are not in the capture (weft stat --scope link counts them).`,
		Example: `  weft capture -w - | tshark -i -
  weft capture --dev weft0 --qp 17 -w rc.pcapng`,
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
	f.StringVar(&dev, "dev", "", "one device: NAME, or NAME/1 for its port")
	f.UintSliceVar(&qps, "qp", nil, "packets from or to this queue pair (may be repeated; weft res qp lists them)")
	f.Uint64Var(&spec.Count, "count", 0, "end after this number of packets")
	f.DurationVar(&spec.DurationNS, "duration", 0, "end after this time")
	f.IntVar(&spec.SnapLen, "snaplen", 0, "bytes of each packet to keep; 0: all")
	f.BoolVar(&spec.IPoIB, "ipoib", false, "packets of IP links only, as IP over InfiniBand")
	return cmd
}

// capturePath is what a capture changes.
const capturePath = "matching queue pairs of this node reach each other by the packet path"

func (a *app) captureTo(ctx context.Context, file string, spec api.CaptureSpec) (err error) {
	out := a.env.Out
	if f, ok := out.(*os.File); ok && file == "-" {
		if st, err := f.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
			return usage("weft capture -w FILE, or weft capture | tshark -i -", "a capture file is not for a terminal")
		}
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := a.client()
	if err != nil {
		return err
	}
	empty := func() {} // empties the file, once the capture runs
	if file != "-" {
		f, e := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600) // packets may have secrets of programs
		if e != nil {
			return noCaptureFile(e)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		out = io.Writer(f)
		empty = func() { f.Truncate(0) } // fails for a pipe or a device, which has nothing to empty
	}
	end, err := c.Capture(ctx, spec, func(now api.Capture) {
		empty()
		fmt.Fprintf(a.env.Err, "weft: capture %d runs: %s; %s\n", now.ID, printable(captureText(now.CaptureSpec)),
			capturePath)
	}, out)
	if errors.Is(err, syscall.EPIPE) {
		return nil // the reader has enough
	}
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return noCaptureFile(e)
	}
	if err != nil {
		dir, named, _ := a.nodeDir()
		return explain(err, dir, named)
	}
	fmt.Fprintf(a.env.Err, "weft: %s captured, %d dropped\n", plural(int(end.Packets), "packet"), end.Dropped)
	return nil
}

func noCaptureFile(err error) error {
	return &api.Error{Code: api.CodeInvalid, What: "cannot write the capture file", Why: err.Error(),
		Fix: "weft capture -w FILE with another one"}
}

// captureText describes a capture.
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
