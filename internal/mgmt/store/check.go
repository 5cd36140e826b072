// SPDX-License-Identifier: Apache-2.0

package store

import (
	"strings"
	"time"
)

// CheckKey returns the error of a key, as ErrInvalid. A key is a path of segments of letters, digits
// and - _ . : @ + = joined by slashes; no segment is empty, "." or "..".
func CheckKey(key string) error {
	what := "cannot use the key " + shown(key)
	switch {
	case key == "":
		return invalid(what, "it is empty")
	case len(key) > MaxKey:
		return invalid(what, "it has %d bytes, at most %d fit", len(key), MaxKey)
	}
	for seg := range strings.SplitSeq(key, "/") {
		switch seg {
		case "":
			return invalid(what, "it begins or ends with a slash, or has two in a row")
		case ".", "..":
			return invalid(what, "%q is no name", seg)
		}
		for _, c := range []byte(seg) {
			if !inKey(c) {
				return invalid(what, "%q may not stand in it, only letters, digits and -_.:@+=", string(rune(c)))
			}
		}
	}
	return nil
}

func inKey(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-_.:@+=", c) >= 0
}

// shown quotes a key for a message, and bounds it.
func shown(key string) string {
	if len(key) > 64 {
		return strings.ToValidUTF8(key[:64], "?") + "..."
	}
	return strings.ToValidUTF8(key, "?")
}

// CheckTree is CheckKey for what List and Watch take: "" is all of the store.
func CheckTree(tree string) error {
	if tree == "" {
		return nil
	}
	return CheckKey(tree)
}

// Below reports whether a key is below a tree.
func Below(tree, key string) bool {
	return tree == "" || len(key) > len(tree) && key[len(tree)] == '/' && key[:len(tree)] == tree
}

// CheckTxn returns the error of a transaction, as ErrInvalid.
func CheckTxn(t Txn) error {
	const what = "cannot do the transaction"
	if len(t.Do) > MaxTxn || len(t.If) > MaxTxn {
		return invalid(what, "it has %d operations and %d conditions, at most %d each fit", len(t.Do), len(t.If),
			MaxTxn)
	}
	if t.Fence != (Fence{}) {
		if err := CheckKey(t.Fence.Key); err != nil {
			return err
		}
		if t.Fence.Created <= 0 {
			return invalid(what, "the fence of %s has no revision", t.Fence.Key)
		}
	}
	for _, c := range t.If {
		if err := CheckKey(c.Key); err != nil {
			return err
		}
		if c.Test > IsAt || c.Test == IsAt && c.Rev <= 0 {
			return invalid(what, "the condition on %s compares nothing", c.Key)
		}
	}
	total := 0
	seen := make(map[string]bool, len(t.Do))
	for _, op := range t.Do {
		if err := CheckKey(op.Key); err != nil {
			return err
		}
		if seen[op.Key] {
			return invalid(what, "%s is in it twice", op.Key)
		}
		seen[op.Key] = true
		if op.Delete && (op.Value != nil || op.Lease != 0) {
			return invalid(what, "the deletion of %s has a value or a lease", op.Key)
		}
		if len(op.Value) > MaxValue {
			return invalid(what, "the value of %s has %d bytes, at most %d fit", op.Key, len(op.Value), MaxValue)
		}
		total += len(op.Key) + len(op.Value)
	}
	if total > MaxBytes {
		return invalid(what, "its keys and values have %d bytes, at most %d fit", total, MaxBytes)
	}
	return nil
}

// WholeTTL rounds a time to live up to whole seconds, or returns an error if it is out of range.
func WholeTTL(ttl time.Duration) (time.Duration, error) {
	if ttl <= 0 || ttl > MaxTTL {
		return 0, invalid("cannot take a lease", "it must live between 1s and %v, not %v", MaxTTL, ttl)
	}
	return (ttl + time.Second - 1).Truncate(time.Second), nil
}
