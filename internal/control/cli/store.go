// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

func storeCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "store", Short: "show, back up and restore the store of the subnet manager",
		Args: cobra.ArbitraryArgs, RunE: group}
	entries := list(a, &cobra.Command{Use: "list [TREE]",
		Short: "list the keys of the store; -o json includes the values", Args: cobra.MaximumNArgs(1)},
		api.ListStoreEntries, optional, "no keys", storeColumns)
	cmd.AddCommand(view(a, &cobra.Command{Use: "status", Short: "show the state of the store"}, api.GetStore, nil,
		printStore), entries, storeBackup(a), storeRestore(a),
		view(a, &cobra.Command{Use: "defrag", Short: "write the file of this node's copy anew, without free space in it",
			Long: `Write the file of this node's copy of the store anew, without free space in it.
Calls of this node wait meanwhile; other nodes are not affected.`}, api.DefragStore, nil,
			func(w *screen, d api.StoreDefrag) {
				fmt.Fprintf(w, "%s, was %s\n", sizeText(uint64(d.After)), sizeText(uint64(d.Before)))
			}))
	return cmd
}

func storeBackup(a *app) *cobra.Command {
	return &cobra.Command{Use: "backup FILE", Short: "write the content of the store to a file",
		Long: `Write the content of the store to a new file that only its owner can read:
M_Keys and other secrets are in it. It works on every node. A node with a copy
of the store writes that copy, also without a majority of the voters.`,
		Example: "  weft store backup /var/backups/weft-store", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := get(cmd.Context(), a, api.BackupStore)
			if err != nil {
				return err
			}
			if err := writeNew(args[0], b.Content); err != nil {
				return &api.Error{Code: api.CodeInvalid, What: "cannot write the backup", Why: err.Error(),
					Fix: "weft store backup FILE with a name that is free"}
			}
			fmt.Fprintf(a.env.Out, "%s: %s, revision %d, %s\n", args[0], plural(b.Entries, "key"), b.Revision,
				sizeText(uint64(len(b.Content))))
			return nil
		}}
}

// writeNew writes a file that is not there yet, whole and on the disk, or not at all.
func writeNew(name string, b []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = os.Remove(name) // the first error counts
	}
	return err
}

func storeRestore(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{Use: "restore [FILE]", Short: "make this node the authority, from a backup or from its own copy",
		Long: `Make this node the only voter of a new store with the content of a backup, or of
its own copy of the store where no FILE is given. Other members follow by
themselves, and become voters again one after the other. Copies of the store
before are set aside, also on members that return later.

Use it when the majority of the voters is lost for good. What was changed after
the backup, or did not reach this node's copy, is lost. Give the command on one
node only. While the store has its majority it needs --force.`,
		Example: `  weft store restore
  weft store restore /var/backups/weft-store`, Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := api.StoreRestore{Force: force}
			if len(args) > 0 {
				b, err := os.ReadFile(args[0])
				if err != nil {
					return usage("weft store restore --help", "cannot restore the store: %v", err)
				}
				if r.Content = b; len(b) == 0 {
					return usage("weft store restore --help", "cannot restore the store: %s is empty", args[0])
				}
			}
			s, err := call(cmd.Context(), a, api.RestoreStore, r)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.env.Out, "this node has the store, generation %d; the other members follow\n", s.Generation)
			return nil
		}}
	cmd.Flags().BoolVar(&force, "force", false, "also while the store has its majority")
	return cmd
}

func printStore(w *screen, s api.Store) {
	line := fields{w, 9}.line
	storeLine(line, &s)
	if s.Role != "" {
		line("this node", "%s, generation %d of the store", s.Role, s.Generation)
	}
	for i, r := range s.Replicas {
		name := ""
		if i == 0 {
			name = "copies"
		}
		line(name, "%s  %s  %s", r.Member, r.Role, r.URL)
	}
	if s.SetAside != "" {
		line("set aside", "%s", s.SetAside)
	}
	if s.Version != "" {
		line("etcd", "%s, led by %s", s.Version, s.Leader)
	}
	if s.Dir != "" {
		line("dir", "%s", s.Dir)
	}
	if s.MaxBytes > 0 {
		line("size", "%s, %s of it in use, at most %s", sizeText(uint64(s.SizeBytes)), sizeText(uint64(s.UsedBytes)),
			sizeText(uint64(s.MaxBytes)))
	}
}
