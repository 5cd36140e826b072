// SPDX-License-Identifier: Apache-2.0

package umad

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// Numbers of requests (ioctl) on a file, and the lengths of their arguments.
const (
	ioctlRegister   = 1
	ioctlUnregister = 2
	ioctlEnablePKey = 3
	ioctlRegister2  = 4

	registerLen   = 28
	unregisterLen = 4
	register2Len  = 40
)

// MaxArgument is the length of the longest argument of a request.
const MaxArgument = register2Len

// userRMPP is the flag of a registration by a program that does RMPP itself. There is no other flag.
const userRMPP = 1

// Control executes an ioctl of a program on its file. arg is the argument, which it changes as the kernel does, also
// if the ioctl fails.
func (f *File) Control(number uint32, arg []byte) Errno {
	if f.port == nil {
		return EIO
	}
	switch number {
	case ioctlRegister:
		if len(arg) != registerLen {
			return EINVAL
		}
		qpn := ib.QPN(arg[20])
		r := Registration{QPN: qpn, Class: mad.Class(arg[21]), Version: arg[22],
			OUI:         uint32(arg[23])<<16 | uint32(arg[24])<<8 | uint32(arg[25]),
			RMPPVersion: arg[26], Methods: [2]uint64{le.Uint64(arg[4:]), le.Uint64(arg[12:])}}
		id, err := f.Register(r)
		if err == OK {
			le.PutUint32(arg, id)
		}
		return err
	case ioctlRegister2:
		if len(arg) != register2Len {
			return EINVAL
		}
		r := Registration{QPN: ib.QPN(le.Uint32(arg[4:])), Class: mad.Class(arg[8]), Version: arg[9],
			OUI:         le.Uint32(arg[32:]),
			RMPPVersion: arg[36], Methods: [2]uint64{le.Uint64(arg[16:]), le.Uint64(arg[24:])}}
		flags := le.Uint32(arg[12:])
		if flags&^userRMPP != 0 {
			le.PutUint32(arg[12:], userRMPP) // the supported flags
			return EINVAL
		}
		r.UserRMPP = flags&userRMPP != 0
		used := f.used
		id, err := f.Register(r)
		if err == OK {
			if !used {
				f.pkeys = true // programs that use this ioctl use the longer header
			}
			le.PutUint32(arg, id)
		}
		return err
	case ioctlUnregister:
		if len(arg) != unregisterLen {
			return EINVAL
		}
		return f.Unregister(le.Uint32(arg))
	case ioctlEnablePKey:
		if len(arg) != 0 {
			return EINVAL
		}
		return f.EnablePKeys()
	}
	return ENOTTY
}
