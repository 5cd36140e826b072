// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package wire

func foldICRC(reg uint32, _ []byte) (uint32, bool) { return reg, false }

func foldVCRC(reg uint16, _ []byte) (uint16, bool) { return reg, false }
