// SPDX-License-Identifier: Apache-2.0

//go:build race

package rdmadev_test

const raceEnabled = true
