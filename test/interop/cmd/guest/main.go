// SPDX-License-Identifier: Apache-2.0

// Command guest boots the soft-RoCE guest and runs one shell script in it.
// In: a script on standard input, files to take along. Out: what the script
// prints; its exit status. For trying something by hand against
// rdma_rxe, or the driver of cards with a RoCE half; it must never be needed by a test.
//
//	echo 'ibv_devinfo -v' | go run ./test/interop/cmd/guest [-file /in/guest=host/file]… [-netns NS -tap TAP]
//
// With -card the guest has a card of a running node; WEFT_DIR names the directory of the node. A card
// with a RoCE half needs the QEMU that has such cards, and -drivers virtio_roce has the guest load the driver, built from -sources:
//
//	weft vm add g0 --vesw lab --rdma
//	echo 'ibv_devinfo -v' | go run ./test/interop/cmd/guest -card g0 -drivers virtio_roce [-netns NS]
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"weft/internal/control/api"
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
	card := flag.String("card", "", "`name` of a card of the node, as weft vm lists it")
	drivers := flag.String("drivers", "rdma_rxe", "drivers that the guest loads, with commas: rdma_rxe, virtio_roce")
	sources := flag.String("sources", guest.Sources(), "`directory` with the module and the provider")
	console := flag.Bool("console", false, "print what the guest's kernel printed, at the end")
	flag.IntVar(&c.CPUs, "cpus", 1, "processors")
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
	c.Drivers = strings.FieldsFunc(*drivers, func(r rune) bool { return r == ',' })
	if c.Drivers == nil {
		c.Drivers = []string{}
	}
	if *card == "" {
		c.Image, err = guest.Build(ctx, guest.Kernel(*kernel))
	} else {
		err = withCard(ctx, &c, *card, guest.Kernel(*kernel), *sources)
	}
	if err != nil {
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
	if *console {
		fmt.Fprint(os.Stderr, g.Console())
	}
	return err
}

// withCard gives a guest a card of the node, and the image and the emulator that such a card needs.
func withCard(ctx context.Context, c *guest.Config, name string, k guest.Kernel, sources string) error {
	out, err := exec.CommandContext(ctx, "weft", "vm", "show", name, "-o", "json").Output()
	if err != nil {
		return fmt.Errorf("weft vm show %s: %w", name, err)
	}
	var v api.VM
	if err := json.Unmarshal(out, &v); err != nil {
		return fmt.Errorf("weft vm show %s: %w", name, err)
	}
	c.Card, c.Reboot = guest.Card(&v, strconv.Itoa(c.MemMB)+"M"), true
	if v.RDMA {
		if c.Emulator, err = guest.NewQEMU(ctx); err != nil {
			return err
		}
	}
	c.Image, err = guest.BuildRDMA(ctx, k, sources)
	return err
}
