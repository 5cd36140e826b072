// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// TestUsage: what this process takes is found again.
func TestUsage(t *testing.T) {
	before, err := UsageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 64<<20)
	var now Usage
	if err := Until("the process has used 100 ms more", limitQuick, func() (bool, error) {
		for i := range block {
			block[i]++
		}
		now, err = UsageOf(os.Getpid())
		return now.CPU >= before.CPU+100*time.Millisecond, err
	}); err != nil {
		t.Fatal(err)
	}
	runtime.KeepAlive(block)
	if now.RSS < before.RSS+32<<20 || now.PSS < before.PSS+32<<20 || now.Threads < 1 {
		t.Errorf("before and with 64 MiB more: %+v, %+v", before, now)
	}
}
