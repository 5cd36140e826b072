// SPDX-License-Identifier: Apache-2.0

package sysclass

import (
	"encoding/binary"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// entryCode is a program of one thread that makes the system calls of a table, and then executes a path with its own
// arguments and environment. If a call fails it prints a message and exits with 126. It begins with the stack that
// execve makes: the number of the arguments, their addresses, 0, the addresses of the environment.
var entryCode = []byte{
	0x48, 0x8d, 0x1d, 0x79, 0, 0, 0, // 00     lea rbx, [rip+0x79]   the table
	0x48, 0x8b, 0x03, //          07 next: mov rax, [rbx]
	0x48, 0x85, 0xc0, //          0a       test rax, rax
	0x78, 0x39, //                0d       js exec
	0x48, 0x8b, 0x7b, 0x08, //    0f       mov rdi, [rbx+8]
	0x48, 0x8b, 0x73, 0x10, //    13       mov rsi, [rbx+16]
	0x0f, 0x05, //                17       syscall
	0x48, 0x83, 0xc3, 0x18, //    19       add rbx, 24
	0x48, 0x85, 0xc0, //          1d       test rax, rax
	0x79, 0xe5, //                20       jns next
	0xbf, 2, 0, 0, 0, //          22 fail: mov edi, 2            standard error
	0x48, 0x8b, 0x35, 0x42, 0, 0, 0, // 27     mov rsi, [rip+0x42]   the message
	0x48, 0x8b, 0x15, 0x43, 0, 0, 0, // 2e     mov rdx, [rip+0x43]   its length
	0xb8, 1, 0, 0, 0, //          35       mov eax, 1            write
	0x0f, 0x05, //                3a       syscall
	0xbf, 0x7e, 0, 0, 0, //       3c       mov edi, 126
	0xb8, 0x3c, 0, 0, 0, //       41       mov eax, 60           exit
	0x0f, 0x05, //                46       syscall
	0x48, 0x8b, 0x3d, 0x19, 0, 0, 0, // 48 exec: mov rdi, [rip+0x19] the path
	0x48, 0x8d, 0x74, 0x24, 0x08, // 4f        lea rsi, [rsp+8]      the arguments
	0x48, 0x8b, 0x14, 0x24, //    54       mov rdx, [rsp]
	0x48, 0x8d, 0x54, 0xd4, 0x10, // 58        lea rdx, [rsp+rdx*8+16]
	0xb8, 0x3b, 0, 0, 0, //       5d       mov eax, 59           execve
	0x0f, 0x05, //                62       syscall
	0xeb, 0xbc, //                64       jmp fail
	0x66, 0x90, //                66       nop
	// 68: the addresses of the path and of the message, the length of the message, and the table.
}

// Where the image is in memory, and sizes of its headers (System V ABI, chapter 4 and 5).
const (
	entryAddr   = 0x400000
	fileHeader  = 64
	progHeader  = 56
	entryStart  = fileHeader + progHeader
	machineAMD  = 62
	typeExec    = 2
	loadable    = 1
	readExecute = 4 | 1
)

// entry returns an executable file in the ELF format that enters two namespaces by their descriptors, changes to a
// directory, closes the descriptors and executes path.
func entry(user, mnt int, dir, path string) ([]byte, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("weft run --mount as an ordinary user needs x86-64, not %s", runtime.GOARCH)
	}
	message := "weft: cannot run " + path + ": its namespace was made, and cannot be entered, or the program not be " +
		"executed there. fix: weft run -- PROGRAM, without --mount\n"
	calls := [][3]uint64{
		{unix.SYS_SETNS, uint64(user), unix.CLONE_NEWUSER},
		{unix.SYS_SETNS, uint64(mnt), unix.CLONE_NEWNS},
		{unix.SYS_CHDIR, 0, 0}, // its address follows
		{unix.SYS_CLOSE, uint64(user), 0},
		{unix.SYS_CLOSE, uint64(mnt), 0},
	}
	words := 3 + 3*len(calls) + 1
	text := uint64(entryAddr + entryStart + len(entryCode) + 8*words)
	calls[2][1] = text
	pathAddr := text + uint64(len(dir)) + 1
	messageAddr := pathAddr + uint64(len(path)) + 1

	le := binary.LittleEndian
	b := append(make([]byte, 0, 4096), 0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = le.AppendUint16(b, typeExec)
	b = le.AppendUint16(b, machineAMD)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, entryAddr+entryStart)
	b = le.AppendUint64(b, fileHeader) // the only program header
	b = le.AppendUint64(b, 0)          // no sections
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{fileHeader, progHeader, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	size := messageAddr + uint64(len(message)) - entryAddr
	b = le.AppendUint32(b, loadable)
	b = le.AppendUint32(b, readExecute)
	for _, v := range []uint64{0, entryAddr, entryAddr, size, size, 4096} {
		b = le.AppendUint64(b, v)
	}
	b = append(b, entryCode...)
	b = le.AppendUint64(b, pathAddr)
	b = le.AppendUint64(b, messageAddr)
	b = le.AppendUint64(b, uint64(len(message)))
	for _, c := range calls {
		for _, v := range c {
			b = le.AppendUint64(b, v)
		}
	}
	b = le.AppendUint64(b, ^uint64(0)) // the end of the table
	b = append(append(b, dir...), 0)
	b = append(append(b, path...), 0)
	return append(b, message...), nil
}
