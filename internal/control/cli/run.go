// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/host/shimlib"
	"weft/internal/proto/problem"
)

// autoIdleExit ends a node that "weft run" started, after its last session.
const autoIdleExit = 10 * time.Minute

func runCommand(a *app) *cobra.Command {
	var device, arena string
	var replace, explain, mount bool
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG…]",
		Short: "run an unmodified verbs program on a node",
		Long: `Run an unmodified verbs program on a node.

Without --dir and WEFT_DIR, and when no node runs in the default directory, it
starts a node there in the background, which ends ten minutes after its last
session. That node takes its settings from the environment (weft up --help), as
in WEFT_WIRE_LOCAL=1 weft run. It uses UDP port 4791 for RoCEv2, or another port
where 4791 is taken: weft status shows which.

A program finds the devices in /sys and /dev by the library that is preloaded
into it. Static programs, and those of Go, read /sys by themselves: --mount
gives the program a /sys/class that has the devices beside all that the kernel
has there. As an ordinary user that takes a user namespace, in which sudo does
not work. A program without the library finds devices and their counters, and
cannot use verbs.`,
		Example: `  weft run -- ibv_devinfo
  weft run -- ib_write_bw
  weft run --explain -- ibv_rc_pingpong
  weft run --mount -- prometheus-node-exporter`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("weft run -- ibv_devinfo", "weft run needs a command")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch arena {
			case "off", "on", "only":
			default:
				return usage("weft run --arena=only -- "+args[0], "--arena must be on, only or off, not %q", arena)
			}
			explainFailures(explain)
			return a.exec(cmd.Context(), args, replace, device, arena, mount)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows the command's name is the command's
	f.StringVar(&device, "device", "", "offer only this device to the program")
	f.StringVar(&arena, "arena", "off", "allocate large buffers in memory that the node maps: off, on, or only (no other memory can be registered)")
	f.Lookup("arena").NoOptDefVal = "on"
	f.BoolVar(&explain, "explain", false, "print why verbs calls failed, also those that Weft does not have (else: the last one, if the program fails)")
	f.BoolVar(&mount, "mount", false, "show the devices in /sys/class as well, for programs that read it without libc")
	f.BoolVar(&replace, "replace", false, "replace libibverbs, for a program that loads it with dlopen, as NCCL does "+
		"(also done if none is installed)")
	return cmd
}

// exec replaces this process by the command, with the preload library, or the one that replaces libibverbs.
func (a *app) exec(ctx context.Context, args []string, replace bool, device, arena string, mount bool) error {
	what := "cannot run " + args[0]
	path, err := exec.LookPath(args[0])
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return &codeError{ExitNotFound, &api.Error{What: what, Why: "there is no such command",
			Fix: "install it, or give its path"}}
	case isDirectory(args[0]):
		return &codeError{ExitCannotExec, &api.Error{What: what, Why: "it is a directory",
			Fix: "weft run -- PROGRAM, with the path of a program"}}
	case err != nil && !errors.Is(err, exec.ErrDot):
		return &codeError{ExitCannotExec, &api.Error{What: what, Why: err.Error(), Fix: "make it executable"}}
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	name := shimlib.Preload
	if replace || !findsVerbs(ctx, "/", path, os.Getenv("LD_LIBRARY_PATH")) {
		name = shimlib.Replacement
	}
	shim, dir, err := a.prepare(ctx, what, exe, name, device)
	if err != nil {
		return err
	}
	if o := findObstacle(path, os.Geteuid(), os.Getegid()); o != nil {
		fix := o.fix
		if slices.Contains(containerTools, filepath.Base(path)) {
			fix = "mount " + dir + " and " + exe + " into the container, and weft run --dir " + dir + " inside it"
		}
		lacks := "will see no device"
		if mount {
			lacks = "finds the devices in /sys, but can use none"
		}
		fmt.Fprintf(a.env.Err, "weft: %s %s: %s. fix: %s\n", args[0], lacks, o.why, fix)
	}
	env := childEnv(os.Environ(), shim, dir, device, arena)
	return become(what, exe, dir, mount, path, args, env)
}

// prepare unpacks the library of a name, and starts a node if the caller named none and none runs. It returns the path of
// the library and the directory of the node, which has the device, if one is named.
func (a *app) prepare(ctx context.Context, what, exe, name, device string) (shim, dir string, err error) {
	if shim, err = a.library(name); err != nil {
		return "", "", cannot(what, err)
	}
	dir, named, err := a.nodeDir()
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", what, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*startTimeout)
	defer cancel()
	if err := a.needNode(ctx, what, exe, dir, named); err != nil {
		return "", "", err
	}
	return shim, dir, a.needDevice(ctx, what, dir, device)
}

// containerTools are programs with containers that do not see what is preloaded into the tool.
var containerTools = []string{"docker", "podman", "nerdctl", "ctr"}

// childEnv returns env with what the shim needs.
func childEnv(env []string, shim, dir, device, arena string) []string {
	preload := shim
	if old := oldPreload(env); slices.Contains(strings.FieldsFunc(old, isPreloadSep), shim) {
		preload = old // weft run within weft run
	} else if old != "" {
		preload = shim + ":" + old
	}
	env = withoutEnv(env, "LD_PRELOAD", config.EnvName("dir"), "WEFT_ARENA")
	env = append(env, "LD_PRELOAD="+preload, config.EnvName("dir")+"="+dir)
	if strings.HasSuffix(shim, "/"+shimlib.Replacement) {
		// By its soname the loader finds what is preloaded. A program that opens
		// libibverbs.so gets it by this directory.
		search := filepath.Dir(shim)
		for _, kv := range env {
			if old, ok := strings.CutPrefix(kv, "LD_LIBRARY_PATH="); ok && old != "" &&
				!slices.Contains(filepath.SplitList(old), search) {
				search += ":" + old
			} else if ok && old != "" {
				search = old
			}
		}
		env = append(withoutEnv(env, "LD_LIBRARY_PATH"), "LD_LIBRARY_PATH="+search)
	}
	switch arena {
	case "on":
		env = append(env, "WEFT_ARENA=1")
	case "only":
		env = append(env, "WEFT_ARENA=only")
	}
	if device != "" {
		env = append(withoutEnv(env, "WEFT_DEVICE"), "WEFT_DEVICE="+device)
	}
	return env
}

// oldPreload returns what env preloads already.
func oldPreload(env []string) (old string) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "LD_PRELOAD="); ok {
			old = v
		}
	}
	return old
}

// isPreloadSep reports whether the loader splits LD_PRELOAD at r.
func isPreloadSep(r rune) bool { return r == ':' || r == ' ' }

// library returns the path of a library of this weft, unpacked for the loader.
func (a *app) library(name string) (string, error) {
	u := shimlib.Unpacker{Libraries: a.env.Libraries, Places: shimlib.Places(os.Geteuid(), a.env.Getenv)}
	path, err := u.Unpack(name)
	if p := problem.Of("", err); p != nil {
		return "", &api.Error{Why: p.Why, Fix: p.Fix}
	}
	return path, nil
}

// isDirectory reports whether what a user wants to run is a directory.
func isDirectory(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir() && strings.ContainsRune(path, filepath.Separator)
}

// needNode returns when a ready node runs in dir, starting one if the caller
// named none.
func (a *app) needNode(ctx context.Context, what, exe, dir string, named bool) error {
	c := dial(dir)
	defer c.Close()
	for end := time.Now().Add(startTimeout); ; time.Sleep(pollInterval) {
		err := a.findNode(ctx, c, what, exe, dir, named)
		var ce *codeError
		if !errors.As(err, &ce) || ce.code != ExitOwned || time.Now().After(end) {
			return err
		}
		// Another "weft run" was faster, and its node will do; or a node that
		// has stopped listening has not ended yet.
	}
}

// findNode is one try of needNode. The code of its error is ExitOwned where another try may succeed.
func (a *app) findNode(ctx context.Context, c *api.Client, what, exe, dir string, named bool) error {
	if err := claim(ctx, c); err != nil {
		return cannot(what, err)
	}
	s, err := api.Get(ctx, c, api.GetStatus)
	var e *api.Error
	switch {
	case err == nil && s.Ready:
		if !named {
			a.reportIgnored(s)
		}
		return nil
	case errors.As(err, &e) && e.Code == api.CodeNoNode && named:
		return &api.Error{Code: api.CodeNoNode, What: what, Why: "no node runs in " + dir, Fix: "weft up --dir " + dir}
	case errors.As(err, &e) && e.Code == api.CodeNoNode:
		cmd := exec.CommandContext(ctx, exe, "up", "--detach", "--dir="+dir)
		cmd.Args[0] = "weft"
		idle := a.env.Getenv(config.EnvName("idle-exit"))
		if idle == "" {
			idle = autoIdleExit.String()
			cmd.Args = append(cmd.Args, "--idle-exit="+idle)
		}
		if a.env.Getenv(config.EnvName("roce-port")) == "" && a.env.Getenv("WEFT_CONFIG") == "" {
			cmd.Args = append(cmd.Args, "--roce-port=0") // 4791 may be another user's
		}
		cmd.Env = withoutEnv(os.Environ(), "LD_PRELOAD")
		var printed strings.Builder
		cmd.Stderr = &printed
		if err := cmd.Run(); err == nil {
			fmt.Fprintf(a.env.Err, "weft: started a node in %s; it ends %s after its last session\n", dir, idle)
			return nil
		} else {
			why, code := strings.TrimPrefix(strings.TrimSpace(printed.String()), "weft: "), ExitFailed
			if why == "" {
				why = err.Error()
			}
			if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == ExitOwned {
				code = ExitOwned
			}
			return &codeError{code, fmt.Errorf("%s: %s", what, why)}
		}
	case errors.As(err, &e) && e.Code == api.CodeNoAnswer:
		return cannot(what, e)
	case refused(err):
		return &api.Error{Code: api.CodeRefused, What: what, Why: fmt.Sprintf("the node in %s does not serve uid %d",
			dir, os.Geteuid()),
			Fix: fmt.Sprintf("start it with --allow-uid %d, or run a node of your own", os.Geteuid())}
	case errors.As(err, &e) && e.Code != api.CodeNotReady:
		return fmt.Errorf("%s: %w", what, err)
	}
	if _, err := await(ctx, c, startTimeout, isReady); err != nil {
		return &api.Error{Code: api.CodeNotReady, What: what, Why: "the node in " + dir + " is not ready",
			Fix: "weft status --dir " + dir}
	}
	return nil
}

// reportIgnored names the variables of the environment with settings of a node that s, which runs already, does not
// have.
func (a *app) reportIgnored(s api.Status) {
	has := map[string]string{"wire-local": strconv.FormatBool(s.WireLocal), "roce-port": strconv.Itoa(s.RoCEPort),
		"roce-allow": strings.Join(s.RoCEAllow, ",")}
	var ignored []string
	for i := range config.Settings {
		name := config.Settings[i].Name
		if name == "dir" || name == "device" {
			continue // they have a meaning for the program as well
		}
		env := config.EnvName(name)
		value := a.env.Getenv(env)
		if on, err := strconv.ParseBool(value); err == nil && name == "wire-local" {
			value = strconv.FormatBool(on)
		}
		if value != "" && value != has[name] {
			ignored = append(ignored, env)
		}
	}
	if a.env.Getenv("WEFT_CONFIG") != "" {
		ignored = append(ignored, "WEFT_CONFIG")
	}
	if len(ignored) > 0 {
		fmt.Fprintf(a.env.Err, "weft: ignored, as a node already runs in %s: %s. fix: weft down; then the same again\n",
			printable(s.Dir), strings.Join(ignored, ", "))
	}
}

// cannot is an error of the node with the name of what failed for the caller.
func cannot(what string, err error) error {
	var e *api.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return &api.Error{Code: e.Code, What: what, Why: e.Why, Fix: e.Fix}
}

// claim announces a program to the node, if one runs, and waits for the end of a node that ends because it is idle. It
// returns the error of the node of a drained host. Other errors appear again in the next request.
func claim(ctx context.Context, c *api.Client) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		var e *api.Error
		err := api.Do(ctx, c, api.AnnounceProgram, api.None{})
		switch {
		case errors.As(err, &e) && e.Code == api.CodeDrained:
			return err
		case e == nil || e.Code != api.CodeNotReady:
			return nil
		}
		select {
		case <-ctx.Done():
			return &api.Error{Code: api.CodeNotReady, Why: "the node that runs is ending, and does not end",
				Fix: "weft down"}
		case <-tick.C:
		}
	}
}

// needDevice checks that the node in dir has the device the caller named.
func (a *app) needDevice(ctx context.Context, what, dir, device string) error {
	if device == "" {
		return nil
	}
	c := dial(dir)
	defer c.Close()
	s, err := api.Get(ctx, c, api.GetStatus)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	var names []string
	for _, d := range s.Devices {
		names = append(names, d.Name)
	}
	if slices.Contains(names, device) {
		return nil
	}
	if len(names) == 0 {
		return &api.Error{What: what, Why: "the node has no device", Fix: "weft status --dir " + dir}
	}
	return &api.Error{What: what, Why: fmt.Sprintf("the node has no device %s, but %s", device,
		strings.Join(names, ", ")), Fix: "weft run --device " + names[0] + " -- PROGRAM"}
}
