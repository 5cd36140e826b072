// SPDX-License-Identifier: Apache-2.0

// Package node builds a node from its configuration and runs it.
//
// What comes in: a checked Config, a context; what goes out: a running node
// and, at its end, an error. Called by cmd/weft. It owns every goroutine,
// every read of the clock and the order of shutdown; nothing below it does.
package node

import "weft/internal/config"

// Config is what a node is told; package config fills and checks it.
type Config = config.Config
