// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/host/rundir"
	"weft/internal/proto/problem"
)

const (
	startTimeout = 15 * time.Second      // a node that takes longer hangs
	pollInterval = 20 * time.Millisecond // between two reads of the state of a node
)

func upCommand(a *app) *cobra.Command {
	var file string
	var detach bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "run a node in the foreground",
		Long: `Run a node in the foreground. It prints one line when programs can use it, and
ends on SIGTERM, SIGINT or "weft down".

Each setting is taken from its flag, else from its environment variable
(--roce-port: WEFT_ROCE_PORT), else from the YAML file of --config (key
roce-port), else from its default. docs/configuration.md describes all settings.`,
		Example: `  weft up --detach
  weft up --peer 10.0.0.2 --peer 10.0.0.3      a trunk to each of two other nodes`,
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
	f.BoolVar(&detach, "detach", false, "start the node in the background and wait until it is ready; its log is node.log in its directory")
	config.AddFlags(f, "dir") // which is the root's
	return cmd
}

// loadConfig merges flags, environment, file and defaults and checks the
// result.
func (a *app) loadConfig(flags *pflag.FlagSet, file string) (config.Config, error) {
	if file == "" {
		file = a.env.Getenv("WEFT_CONFIG")
	}
	const what, fix = "wrong configuration", "weft up --help"
	c, err := config.Load(config.Sources{Flags: flags, Getenv: a.env.Getenv, File: file})
	switch {
	case errors.Is(err, os.ErrNotExist):
		return c, usage("make the file, or weft up without --config", "%s: %v", what, err)
	case err != nil:
		return c, usage(fix, "%s: %v", what, err)
	}
	if a.dir != "" {
		c.Dir = a.dir
	}
	if c.Dir == "" {
		c.Dir = a.env.DefaultDir
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return c, err
	}
	if err := c.Validate(); err != nil {
		fix := fix
		if strings.HasPrefix(err.Error(), "dir is too long") {
			fix = "weft up " + shorterDir(a.env.DefaultDir)
		}
		return c, usage(fix, "%s: %v", what, err)
	}
	for _, p := range c.Peers {
		if at, err := c.PeerAddr(p); err == nil && int(at.Port()) == c.TrunkPort && isOwn(at.Addr()) {
			return c, usage("weft up --peer ADDRESS, with that of another host",
				"%s: peer %s is an address of this host", what, p)
		}
	}
	return c, nil
}

// isOwn reports whether an interface of this host has an address.
func isOwn(a netip.Addr) bool {
	addrs, _ := net.InterfaceAddrs()
	for _, x := range addrs {
		if p, err := netip.ParsePrefix(x.String()); err == nil && p.Addr() == a.WithZone("").Unmap() {
			return true
		}
	}
	return false
}

// reportFD is the environment variable with the descriptor to which a node in the background reports why it did not
// start: its log may be on a full disk.
const reportFD = "WEFT_REPORT_FD"

// report writes the line of an error to the descriptor of reportFD, if there is one.
func (a *app) report(line string) {
	if fd, err := strconv.Atoi(a.env.Getenv(reportFD)); err == nil && fd > 2 {
		f := os.NewFile(uintptr(fd), "report")
		fmt.Fprintln(f, line)
		f.Close()
	}
}

// runNode runs the node in this process.
func (a *app) runNode(ctx context.Context, c config.Config) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	level, err := c.Level()
	if err != nil {
		return err
	}
	if fd, err := strconv.Atoi(a.env.Getenv(reportFD)); err == nil && fd > 2 {
		syscall.CloseOnExec(fd)
	}
	c.ChoosePort()
	log := slog.New(slog.NewTextHandler(a.env.Err, &slog.HandlerOptions{Level: level}))
	notify := func(states ...string) {
		if err := a.notify(states...); err != nil {
			log.Warn(err.Error())
		}
	}
	ending := sync.OnceFunc(func() { notify("STOPPING=1") })
	defer context.AfterFunc(ctx, ending)()
	err = a.env.Node(ctx, c, func() {
		fmt.Fprintf(a.env.Out, "weft: ready: device %s in %s, pid %d\n", c.Device, c.Dir, os.Getpid())
		notify("READY=1", fmt.Sprintf("STATUS=device %s in %s", c.Device, c.Dir))
	}, log)
	ending()
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
		return &api.Error{What: "cannot run the node", Why: err.Error(),
			Fix: "free space there, or give it a --dir elsewhere"}
	case errors.Is(err, syscall.ENOTDIR):
		return &api.Error{What: "cannot run the node", Why: err.Error(), Fix: "give it a --dir below a directory"}
	case problem.Of("", err).Fix != "":
		// The error has a fix: the directory need not be the reason.
	case os.Geteuid() != 0 && !errors.As(err, &place) && errors.Is(err, os.ErrPermission) &&
		min(c.RoCEPort, c.TrunkPort) < 1024:
		name, port := "roce-port", config.RoCEPort
		if c.RoCEPort >= 1024 {
			name, port = "trunk-port", config.TrunkPort
		}
		return &api.Error{What: "cannot run the node", Why: err.Error() + " (ports below 1024 need a privilege)",
			Fix: fmt.Sprintf("weft up --%s %d", name, port)}
	case errors.As(err, &place), errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		return &api.Error{What: "cannot run the node", Why: err.Error(), Fix: "give it a --dir that this user owns"}
	}
	return fmt.Errorf("cannot run the node: %w", err)
}

// detach starts "weft up" with the settings in flags, and no other flag of its
// command, in a session of its own, and returns when that node is ready.
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
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return &api.Error{What: what, Why: err.Error(), Fix: "free space there, or give it a --dir elsewhere"}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer logFile.Close()
	reasonR, reasonW, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer reasonR.Close()
	defer reasonW.Close()
	cmd := exec.Command(exe, "up", "--dir="+c.Dir)
	cmd.Args[0] = "weft"
	cmd.Args = append(cmd.Args, upArguments(flags)...)
	cmd.Env = withoutEnv(os.Environ(), "LD_PRELOAD", config.EnvName("dir"), reportFD, notifySocket) // a node must not run on a node
	cmd.Env = append(cmd.Env, reportFD+"=3")
	cmd.ExtraFiles = []*os.File{reasonW} // descriptor 3
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	reasonW.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the node or with this process
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
			reasonR.SetReadDeadline(time.Now().Add(time.Second))
			reason, _ := io.ReadAll(io.LimitReader(reasonR, maxReason))
			why := strings.TrimSpace(string(reason))
			if why == "" {
				why = fmt.Sprintf("%s: it ended before it was ready (%v). fix: read %s", what, err, logName)
			}
			code := ExitFailed
			if cmd.ProcessState.ExitCode() > 0 {
				code = cmd.ProcessState.ExitCode()
			}
			return &codeError{code, errors.New(why)}
		case <-ctx.Done():
			return &codeError{ExitNotReady, &api.Error{What: what, Why: fmt.Sprintf("it is not ready after %v",
				startTimeout), Fix: "read " + logName}}
		case <-tick.C:
		}
	}
}

// upArguments are the arguments that pass the settings in flags to "weft up": not its directory, nor the other flags of
// the command, among which may be a token.
func upArguments(flags *pflag.FlagSet) (list []string) {
	flags.Visit(func(f *pflag.Flag) {
		switch isSetting := slices.ContainsFunc(config.Settings, func(s config.Setting) bool { return s.Name == f.Name }); {
		case f.Name == "dir":
		case isSetting:
			list = append(list, flagArgument(f))
		case f.Name == "config":
			if abs, err := filepath.Abs(f.Value.String()); err == nil {
				list = append(list, "--config="+abs)
			}
		}
	})
	return list
}

// flagArgument is the argument by which another command gets the value of f. pflag prints a list in brackets, which it
// does not read; brackets of a value, as in eth[0-9] and [fd00::2]:4792, stay.
func flagArgument(f *pflag.Flag) string {
	text := f.Value.String()
	if _, ok := f.Value.(pflag.SliceValue); ok {
		text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	}
	return "--" + f.Name + "=" + text
}

// maxReason bounds the line with which a node reports why it did not start.
const maxReason = 16 << 10

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
