// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package transport

// invariants makes every entry point check the queue pair when it leaves.
const invariants = true
