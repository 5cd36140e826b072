// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/host/shimlib"
)

// variable is one of the environment.
type variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// environment is what programs need to run on a node, as weft env -o json prints it.
type environment struct {
	Dir       string     `json:"dir"`
	Library   string     `json:"library"`
	Variables []variable `json:"variables"`
}

// trustVariable names a user, beside root and its own, whose node a program trusts.
const trustVariable = "WEFT_TRUST_UID"

func envCommand(a *app) *cobra.Command {
	var device string
	var replace, sudo, ssh, mpirun, unset bool
	cmd := &cobra.Command{
		Use:   "env",
		Short: "print the environment in which verbs programs run on a node",
		Long: `Print the environment in which verbs programs run on a node: what weft run sets.

To a terminal it prints how to use it, else lines for eval in a shell. It starts
a node as weft run does. A node that weft run or weft env started ends ten
minutes after its last session; weft up --detach starts one that stays.

sudo, ssh and mpirun drop the environment of the shell, or some of it: --sudo,
--ssh and --mpirun print what to put into their command. The paths are those of
this host; for ssh and mpirun the other hosts need a node and a weft of their
own at the same paths, or weft run before the program.`,
		Example: `  eval "$(weft env)"
  sudo $(weft env --sudo) ibv_devinfo
  mpirun $(weft env --mpirun) -n 2 PROGRAM
  eval "$(weft env --unset)"`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&device, "device", "", "offer only this device to programs")
	f.BoolVar(&replace, "replace", false, "replace libibverbs, as weft run --replace does")
	f.BoolVar(&sudo, "sudo", false, "print a command prefix for sudo")
	f.BoolVar(&ssh, "ssh", false, "print a command prefix for the shell of another host")
	f.BoolVar(&mpirun, "mpirun", false, "print options for mpirun of Open MPI")
	f.BoolVar(&unset, "unset", false, "print lines for eval that undo those of weft env")
	return a.show(cmd, func(cmd *cobra.Command, _ []string, print printer) error {
		if len(slices.DeleteFunc([]bool{sudo, ssh, mpirun, unset}, func(on bool) bool { return !on })) > 1 {
			return usage("weft env --sudo", "weft env takes one of --sudo, --ssh, --mpirun and --unset")
		}
		if unset {
			fmt.Fprint(a.env.Out, undo(os.Environ()))
			return nil
		}
		name := shimlib.Preload
		if replace {
			name = shimlib.Replacement
		}
		e, err := a.environment(cmd.Context(), name, device)
		if err != nil {
			return err
		}
		switch {
		case sudo:
			if e, err = forRoot(e); err != nil {
				return err
			}
			return a.printWords(e, "env", "")
		case mpirun:
			return a.printWords(e, "", "-x ")
		case ssh:
			words := []string{"env"}
			for _, v := range e.Variables {
				words = append(words, shellQuote(v.Name+"="+v.Value))
			}
			fmt.Fprintln(a.env.Out, strings.Join(words, " "))
			return nil
		}
		return print(e, func(w *screen) { printEnvironment(w, e, a.env.OutTerminal.Width > 0) })
	})
}

// environment returns what a program needs that runs on the node that the caller means. It starts one if none was named
// and none runs.
func (a *app) environment(ctx context.Context, name, device string) (e environment, err error) {
	const what = "cannot print the environment"
	exe, err := os.Executable()
	if err != nil {
		return e, fmt.Errorf("%s: %w", what, err)
	}
	if e.Library, e.Dir, err = a.prepare(ctx, what, exe, name, device); err != nil {
		return e, err
	}
	old := os.Environ()
	for _, kv := range childEnv(old, e.Library, e.Dir, device, "off") {
		k, v, _ := strings.Cut(kv, "=")
		if !slices.Contains(old, kv) || k == "LD_PRELOAD" || k == config.EnvName("dir") {
			e.Variables = append(e.Variables, variable{k, v})
		}
	}
	return e, nil
}

// forRoot returns e for programs of root: root trusts no node of another user by itself.
func forRoot(e environment) (environment, error) {
	uid, err := uidOf(e.Dir)
	if err == nil && uid != 0 {
		e.Variables = append(e.Variables, variable{trustVariable, fmt.Sprint(uid)})
	}
	return e, err
}

// printWords prints the variables as words of a command: a shell splits them at spaces, so that no value may have one.
func (a *app) printWords(e environment, first, before string) error {
	var words []string
	if first != "" {
		words = append(words, first)
	}
	for _, v := range e.Variables {
		if strings.ContainsAny(v.Value, " \t\n*?[") {
			return &api.Error{What: "cannot print words of a command",
				Why: fmt.Sprintf("a shell would split the value of %s, %q", v.Name, v.Value),
				Fix: "weft run -- PROGRAM"}
		}
		words = append(words, before+v.Name+"="+v.Value)
	}
	fmt.Fprintln(a.env.Out, strings.Join(words, " "))
	return nil
}

// printEnvironment prints lines for eval or, if people read them, the variables and how to use weft env.
func printEnvironment(w *screen, e environment, people bool) {
	if !people {
		for _, v := range e.Variables {
			fmt.Fprintf(w, "export %s=%s\n", v.Name, shellQuote(v.Value))
		}
		return
	}
	for _, row := range [][2]string{
		{"this shell", `eval "$(weft env)"`},
		{"undo", `eval "$(weft env --unset)"`},
		{"sudo", "sudo $(weft env --sudo) PROGRAM"},
		{"ssh", `ssh HOST "$(weft env --ssh) PROGRAM", or ssh HOST weft run -- PROGRAM`},
		{"mpirun", "mpirun $(weft env --mpirun) -n 2 PROGRAM"},
	} {
		fmt.Fprintf(w, "%-10s  %s\n", row[0], row[1])
	}
	fmt.Fprintln(w)
	for _, v := range e.Variables {
		fmt.Fprintf(w, "%s=%s\n", v.Name, shellQuote(v.Value))
	}
}

// undo returns lines for eval that take out of env what weft env put there.
func undo(env []string) string {
	var b strings.Builder
	set := func(name string, values []string) {
		if len(values) == 0 {
			fmt.Fprintf(&b, "unset %s\n", name)
		} else {
			fmt.Fprintf(&b, "export %s=%s\n", name, shellQuote(strings.Join(values, ":")))
		}
	}
	if old := oldPreload(env); old != "" {
		set("LD_PRELOAD", slices.DeleteFunc(strings.FieldsFunc(old, isPreloadSep), isLibrary))
	}
	for _, kv := range env {
		old, ok := strings.CutPrefix(kv, "LD_LIBRARY_PATH=")
		if dirs := filepath.SplitList(old); ok && slices.ContainsFunc(dirs, isLibraryDir) {
			set("LD_LIBRARY_PATH", slices.DeleteFunc(dirs, isLibraryDir))
		}
	}
	for _, name := range []string{config.EnvName("dir"), "WEFT_DEVICE", "WEFT_ARENA", trustVariable} {
		if slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") }) {
			set(name, nil)
		}
	}
	return b.String()
}

// isLibrary reports whether a preloaded library is one of Weft's, of any version.
func isLibrary(path string) bool {
	base := filepath.Base(path)
	return base == shimlib.Preload || base == shimlib.Replacement && isLibraryDir(filepath.Dir(path))
}

// isLibraryDir reports whether a directory is one into which libraries were unpacked: its name is the start of a hash.
func isLibraryDir(dir string) bool {
	b, err := hex.DecodeString(filepath.Base(dir))
	return err == nil && len(b) == 16
}

// shellQuote returns text as one word of a POSIX shell.
func shellQuote(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_@%+=:,./-", r)
	}
	if text != "" && !strings.ContainsFunc(text, func(r rune) bool { return !plain(r) }) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
