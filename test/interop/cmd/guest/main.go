// SPDX-License-Identifier: Apache-2.0

// Command guest boots the soft-RoCE guest and runs one shell script in it.
// In: a script on standard input, files to take along. Out: what the script
// prints; its exit status. For people who want to try something against
// rdma_rxe; it must never be needed by a test.
//
//	echo 'ibv_devinfo -v' | go run ./test/interop/cmd/guest [-file /in/guest=host/file]… [-netns NS -tap TAP]
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"weft/test/interop/guest"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c := guest.Config{Files: map[string]string{}}
	flag.StringVar(&c.NetNS, "netns", "", "network namespace of the TAP")
	flag.StringVar(&c.Tap, "tap", "", "TAP for the guest's eth0")
	flag.StringVar(&c.IP, "ip", "10.99.0.2/24", "address of eth0")
	flag.StringVar(&c.IP6, "ip6", "fd99::2/64", "IPv6 address of eth0")
	flag.IntVar(&c.MTU, "mtu", 0, "MTU of eth0")
	flag.IntVar(&c.MemMB, "mem", 768, "memory in MiB")
	kernel := flag.String("kernel", string(guest.Debian12),
		"Debian's `package` of the kernel, as "+string(guest.Debian13))
	limit := flag.Duration("limit", 5*time.Minute, "longest time for the script")
	flag.Func("file", "`guest-path=host-file` to take along; may be repeated", func(s string) error {
		to, from, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("want guest-path=host-file")
		}
		c.Files[to] = from
		return nil
	})
	flag.Parse()
	script, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if c.Image, err = guest.Build(ctx, guest.Kernel(*kernel)); err != nil {
		return err
	}
	start := time.Now()
	g, err := guest.Start(ctx, c)
	if err != nil {
		return err
	}
	defer g.Close()
	fmt.Fprintf(os.Stderr, "guest: up after %.1f s\n", time.Since(start).Seconds())
	out, err := g.Run(string(script), *limit)
	fmt.Print(out)
	return err
}
