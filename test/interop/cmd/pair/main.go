// SPDX-License-Identifier: Apache-2.0

// Command pair boots two machines on network cards of nodes and measures between them.
//
// In: seconds of the stream, and two times a node's directory, the namespace of QEMU and the name of a card. Out: one
// line, Gb/s of one TCP stream by iperf3, and the average of ping in µs, every 10 ms and as fast as it goes. bench/vesw
// calls it. The machines are QEMU's without KVM, and their processors a tenth of the host's: it is they that are
// measured, and that the way between them holds.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"weft/internal/control/api"
	"weft/internal/host/rundir"
	"weft/test/interop/guest"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pair:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 7 {
		return fmt.Errorf("usage: pair SECONDS DIR NAMESPACE CARD DIR NAMESPACE CARD")
	}
	seconds, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	image, err := guest.Build(ctx, guest.Debian12)
	if err != nil {
		return err
	}
	var guests [2]*guest.Guest
	var errs [2]error
	var wg sync.WaitGroup
	for i := range guests {
		a := args[1+3*i:]
		card, err := cardOf(ctx, a[0], a[2])
		if err != nil {
			return err
		}
		wg.Go(func() {
			guests[i], errs[i] = guest.Start(ctx, guest.Config{Image: image, NetNS: a[1], Card: guest.Card(card,
				"512M"), IP: addr(i) + "/24"})
		})
	}
	wg.Wait()
	for _, g := range guests {
		if g != nil {
			defer g.Close()
		}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	number := func(i int, script, pattern string) (v float64, err error) {
		out, err := guests[i].Run(script, 2*time.Minute, guests[1-i])
		if err != nil {
			return 0, fmt.Errorf("%s: %w: %s", script, err, out)
		}
		m := regexp.MustCompile(pattern).FindStringSubmatch(out)
		if m == nil {
			return 0, fmt.Errorf("%s: no result in %q", script, out)
		}
		return strconv.ParseFloat(m[1], 64)
	}
	reach := fmt.Sprintf("n=0; until ping -c 1 -W 1 %s >/dev/null; do n=$((n+1)); [ $n -lt 60 ] || exit 1; done; ",
		addr(1))
	const average = `= [0-9.]+/([0-9.]+)/`
	slow, err := number(0, reach+"ping -q -c 500 -i 0.01 "+addr(1), average)
	if err != nil {
		return err
	}
	fast, err := number(0, "ping -q -c 2000 -A "+addr(1), average)
	if err != nil {
		return err
	}
	if _, err := guests[1].Run("iperf3 -s -D; n=0; "+
		"until netstat -ltn | grep -q ':5201 '; do sleep 0.2; n=$((n+1)); [ $n -lt 100 ] || exit 1; done", time.Minute); err != nil {
		return err
	}
	gbps, err := number(0, fmt.Sprintf("iperf3 -f m -c %s -t %d", addr(1), seconds), `([0-9.]+) Mbits/sec +receiver`)
	if err != nil {
		return err
	}
	fmt.Printf("%.2f %.0f %.0f\n", gbps/1000, slow*1000, fast*1000)
	return nil
}

func addr(i int) string { return fmt.Sprintf("10.86.0.%d", i+1) }

// cardOf requests a card of a node.
func cardOf(ctx context.Context, dir, name string) (*api.VM, error) {
	c := api.NewClient(filepath.Join(dir, rundir.ControlSock), nil)
	defer c.Close()
	l, err := api.Get(ctx, c, api.ListVMs)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(l, func(v api.VM) bool { return v.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("%s has no card %s", dir, name)
	}
	return &l[i], nil
}
