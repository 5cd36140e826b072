// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/host/rundir"
)

const (
	startTimeout = 15 * time.Second      // a node that takes longer hangs
	pollInterval = 20 * time.Millisecond // between two looks at a node's state
)

func (a *app) up() *cobra.Command {
	var file string
	var detach bool
	d := config.Default()
	cmd := &cobra.Command{
		Use:   "up",
		Short: "run a node in the foreground",
		Long: `Run a node in the foreground. It prints one line when programs can use it, and
ends on SIGTERM, SIGINT or "weft down".

Each setting is taken from its flag, else from its environment variable
(--roce-port: WEFT_ROCE_PORT), else from the YAML file of --config (key
roce-port), else from its default.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.loadConfig(cmd.Flags(), file)
			if err != nil {
				return err
			}
			if detach {
				return a.detach(cmd.Context(), cmd.Flags(), c)
			}
			return a.runNode(cmd.Context(), c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "config", "", "YAML file with settings (WEFT_CONFIG)")
	f.BoolVar(&detach, "detach", false, "start the node in the background, wait until it is ready; its log is node.log in its directory")
	f.String("device", d.Device, "name of the verbs device")
	f.Int("lanes", d.Lanes, "event loops; 0: one per two CPUs, at most 4")
	f.Int("roce-port", d.RoCEPort, "UDP port of RoCEv2")
	f.StringSlice("roce-interfaces", nil, "interfaces whose addresses are GIDs of the device, by name or shell pattern; "+
		"default: all but InfiniBand ones and those of a node's own fabric")
	f.Bool("wire-local", d.WireLocal, "send traffic within the node through the full packet path")
	f.String("icrc", d.ICRC, "how much of the ICRC of RoCEv2 packets over IPv4 is checked: full (takes CAP_NET_RAW), solve (16 of 32 bits where the peer's identifications cannot be foreseen), auto (full, where allowed)")
	f.Bool("real-time", d.RealTime, "run the lanes with real-time priority")
	f.Duration("spin", d.Spin, "how long a lane polls after its last work")
	f.Duration("idle-exit", d.IdleExit, "end so long after the last session; 0: never")
	f.IntSlice("allow-uid", nil, "users who may use the node besides root and its own")
	f.String("log-level", d.LogLevel, "debug, info, warn or error")
	f.Int("mcast-payloads", d.McastPayloads, "multicast packets held at a time to be copied, of 4 KiB each")
	f.Int("mcast-threshold", d.McastThreshold, "multicast packets whose members are to be found at a time, beyond which they are dropped; 0: as many as are held")
	f.Bool("fabric", d.Fabric, "take part in a subnet: a switch, InfiniBand ports, trunks")
	f.StringSlice("peer", nil, "a node to be joined to by a trunk: address, or address:port (may be repeated)")
	f.Int("trunk-port", d.TrunkPort, "UDP port of trunks")
	f.Int("switch-ports", d.SwitchPorts, "ports of the node's switch, for devices and trunks together")
	f.String("sm", d.SM, "who manages the subnet: auto (this node, if no better one does), external (such as opensm), off")
	f.Int("sm-priority", d.SMPriority, "priority in the election of the master manager, 0 to 15")
	f.String("m-key-file", d.MKeyFile, "file with the M_Key that guards ports against managers without it, as a number such as 0x1122334455667788")
	f.String("store", d.Store, "where the manager keeps its state: embedded (etcd in the node's directory), memory, the URLs of an etcd cluster, or auto: memory with --idle-exit, else embedded")
	f.Bool("ipoib", d.IPoIB, "have IP links of every InfiniBand device, one for each partition with a broadcast group; takes CAP_NET_ADMIN")
	f.StringSlice("ipoib-addr", nil, "IP address of a link of --ipoib: LINK=ADDRESS/LENGTH (may be repeated)")
	f.Int("ipoib-mtu", d.IPoIBMTU, "MTU of the broadcast groups that this node's manager makes, 2048 or 4096; that of IP links is 4 less")
	f.Int("ipoib-qkey", d.IPoIBQKey, "Q_Key of these groups; OpenSM's is 0x0b1b, which programs without privilege may use, too")
	f.Lookup("ipoib-qkey").DefValue = fmt.Sprintf("%#x", d.IPoIBQKey)
	f.String("ipoib-params", "", "file with parameters of IP links, NAME = VALUE lines")
	f.StringSlice("ipoib-set", nil, "parameter of IP links: NAME=VALUE, before the file's (may be repeated)")
	f.String("store-listen", d.StoreListen, "URL at which the embedded store serves other nodes")
	return cmd
}

// loadConfig merges flags, environment, file and defaults and checks the
// result.
func (a *app) loadConfig(flags *pflag.FlagSet, file string) (config.Config, error) {
	if file == "" {
		file = a.env.Getenv("WEFT_CONFIG")
	}
	given := map[string]any{}
	for _, key := range config.Keys {
		f := flags.Lookup(key)
		if !f.Changed {
			continue
		}
		if v, err := flags.GetIntSlice(key); err == nil {
			given[key] = v
		} else if v, err := flags.GetStringSlice(key); err == nil {
			given[key] = v
		} else if v, err := flags.GetInt(key); err == nil {
			given[key] = v
		} else if v, err := flags.GetBool(key); err == nil {
			given[key] = v
		} else {
			given[key] = f.Value.String() // strings and durations
		}
	}
	const what, fix = "wrong configuration", "weft up --help"
	c, err := config.Load(config.Sources{Flags: given, Getenv: a.env.Getenv, File: file})
	if err != nil {
		return c, usage(fix, "%s: %v", what, err)
	}
	if c.Dir == "" {
		c.Dir = a.env.DefaultDir
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return c, err
	}
	if err := c.Validate(); err != nil {
		return c, usage(fix, "%s: %v", what, err)
	}
	return c, nil
}

// runNode runs the node in this process.
func (a *app) runNode(ctx context.Context, c config.Config) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	level, err := c.Level()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(a.env.Err, &slog.HandlerOptions{Level: level}))
	err = a.env.Node(ctx, c, func() {
		fmt.Fprintf(a.env.Out, "weft: ready: device %s in %s, pid %d\n", c.Device, c.Dir, os.Getpid())
	}, log)
	var locked *rundir.LockedError
	var place *rundir.PlaceError
	var known *api.Error
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.As(err, &locked):
		return &codeError{ExitOwned, &api.Error{What: "cannot start a node", Why: locked.Error(),
			Fix: fmt.Sprintf("weft down --dir %s, or give this one another --dir", locked.Dir)}}
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &api.Error{What: "cannot run the node", Why: err.Error(), Fix: "free space there, or give it a --dir elsewhere"}
	case strings.Contains(err.Error(), ". fix: "):
		// What may not be done is not always the directory's doing: who failed says so.
	case errors.As(err, &place), errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		return &api.Error{What: "cannot run the node", Why: err.Error(), Fix: "give it a --dir that this user owns"}
	}
	return fmt.Errorf("cannot run the node: %w", err)
}

// detach starts "weft up" with the same flags in a session of its own and
// returns when that node is ready.
func (a *app) detach(ctx context.Context, flags *pflag.FlagSet, c config.Config) error {
	const what = "cannot start a node in the background"
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := rundir.Ensure(c.Dir, c.DirPerm(os.Geteuid())); err != nil {
		return &api.Error{What: what, Why: err.Error(), Fix: "give it a --dir that this user owns"}
	}
	logName := filepath.Join(c.Dir, rundir.LogFile)
	logFile, err := os.OpenFile(logName, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer logFile.Close()
	logStart, err := logFile.Seek(0, 2)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	cmd := exec.Command(exe, "up", "--dir="+c.Dir)
	cmd.Args[0] = "weft"
	flags.Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "detach", "dir":
		case "config":
			if abs, err := filepath.Abs(f.Value.String()); err == nil {
				cmd.Args = append(cmd.Args, "--config="+abs)
			}
		default:
			cmd.Args = append(cmd.Args, "--"+f.Name+"="+strings.Trim(f.Value.String(), "[]"))
		}
	})
	cmd.Env = withoutEnv(os.Environ(), "LD_PRELOAD", config.EnvName("dir")) // a node must not run on a node
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the node or with this process, which starts nothing after it
	client := dial(c.Dir)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		s, err := api.Get(ctx, client, api.GetStatus)
		if err == nil && s.Ready && s.PID == cmd.Process.Pid {
			fmt.Fprintf(a.env.Out, "weft: ready: device %s in %s, pid %d, log %s\n", c.Device, c.Dir, s.PID, logName)
			return nil
		}
		select {
		case err := <-ended:
			why := lastLine(logName, logStart)
			if why == "" {
				why = fmt.Sprintf("it ended before it was ready (%v)", err)
			}
			code := ExitFailed
			if cmd.ProcessState.ExitCode() > 0 {
				code = cmd.ProcessState.ExitCode()
			}
			return &codeError{code, errors.New(why)}
		case <-ctx.Done():
			return &codeError{ExitNotReady, &api.Error{What: what, Why: fmt.Sprintf("it is not ready after %v", startTimeout), Fix: "look into " + logName}}
		case <-tick.C:
		}
	}
}

// lastLine returns the last error line a node wrote from offset on.
func lastLine(name string, offset int64) string {
	b, err := os.ReadFile(name)
	if err != nil || int64(len(b)) < offset {
		return ""
	}
	for line := range strings.Lines(string(b[offset:])) {
		if why, ok := strings.CutPrefix(strings.TrimSpace(line), "weft: "); ok {
			return why
		}
	}
	return ""
}

// withoutEnv returns env without the named variables.
func withoutEnv(env []string, names ...string) []string {
	var out []string
next:
	for _, kv := range env {
		for _, n := range names {
			if strings.HasPrefix(kv, n+"=") {
				continue next
			}
		}
		out = append(out, kv)
	}
	return out
}
