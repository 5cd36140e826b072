// SPDX-License-Identifier: Apache-2.0

// Package doctor checks the host of a node, and reads the checks of a fabric from the state that nodes report.
//
// What comes in: a Host with the paths and functions by which the host is reached, and answers of the control
// interface; what goes out: findings. The command line calls it, with or without a running node. It changes nothing: a
// port that it binds to find out whether it is free, it releases at once.
package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/member/home"
	"weft/internal/proto/problem"
)

// Host is what the checks need of the host.
type Host struct {
	Dir   string    // of the node
	UID   int       // of the caller
	Now   time.Time // for certificates and the sanity of the clock
	Built time.Time // when this program was made; zero: not known
	// RoCEPort and TrunkPort are the UDP ports that a node would use; 0: any.
	RoCEPort, TrunkPort int
	// Bind reports why a UDP port cannot be used, nil if it is free.
	Bind func(port int) error
	// Free returns the free octets of the file system of a path.
	Free func(path string) (uint64, error)
	// Files is the limit of open files.
	Files func() (uint64, error)
	// Library unpacks the preload library and returns its path.
	Library func() (string, error)
}

// Free space of the file system of the store, in octets: below the first a node cannot keep its state, below the second
// that may happen soon.
const (
	leastSpace = 16 << 20
	fairSpace  = 128 << 20
)

// fairFiles is the number of open files that a node needs for some dozens of programs.
const fairFiles = 1024

// BindUDP is Host.Bind of a real host.
func BindUDP(port int) error {
	c, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
	if err != nil {
		return err
	}
	return c.Close()
}

// FreeSpace is Host.Free of a real host.
func FreeSpace(path string) (uint64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return 0, err
	}
	return s.Bavail * uint64(s.Bsize), nil
}

// OpenFiles is Host.Files of a real host.
func OpenFiles() (uint64, error) {
	var r syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r)
	return r.Cur, err
}

// list collects findings.
type list []api.Finding

func (l *list) add(level, check, fix, format string, args ...any) {
	*l = append(*l, api.Finding{Level: level, Check: check, What: fmt.Sprintf(format, args...), Fix: fix})
}

// Local checks the host. running reports that a node runs in the directory: its ports are in use then.
func (h *Host) Local(running bool) []api.Finding {
	var l list
	h.directory(&l)
	h.space(&l)
	if !running {
		h.ports(&l)
	}
	h.clock(&l)
	if n, err := h.Files(); err != nil {
		l.add(api.LevelWarn, "limits", "ulimit -n", "the limit of open files cannot be read: %v", err)
	} else if n < fairFiles {
		l.add(api.LevelWarn, "limits", fmt.Sprintf("ulimit -n %d", fairFiles),
			"%d open files are few: each program of a node needs some", n)
	} else {
		l.add(api.LevelOK, "limits", "", "%d open files; locked memory is not needed", n)
	}
	if lib, err := h.Library(); err != nil {
		p := problem.Of("", err)
		l.add(api.LevelFail, "library", p.Fix, "%s", p.Why)
	} else {
		l.add(api.LevelOK, "library", "", "%s", lib)
	}
	h.certificate(&l)
	return l
}

// existing returns path, or the nearest directory above it that exists.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

// directory checks which users may use the directory of the node.
func (h *Host) directory(l *list) {
	const check = "directory"
	at := existing(h.Dir)
	i, err := os.Stat(at)
	if err != nil {
		l.add(api.LevelFail, check, "another --dir", "%s: %v", h.Dir, err)
		return
	}
	st, _ := i.Sys().(*syscall.Stat_t)
	switch {
	case !i.IsDir():
		l.add(api.LevelFail, check, "another --dir", "%s is no directory", at)
	case at == h.Dir && st != nil && int(st.Uid) != h.UID && h.UID != 0:
		l.add(api.LevelFail, check, "another --dir, or run as that user", "%s belongs to uid %d, this is uid %d", at,
			st.Uid, h.UID)
	case at == h.Dir && i.Mode().Perm()&0o022 != 0:
		l.add(api.LevelFail, check, "chmod go-w "+at, "others may write to %s, and so take its sockets", at)
	case syscall.Access(at, 2 /* W_OK */) != nil:
		l.add(api.LevelFail, check, "another --dir", "uid %d may not write to %s", h.UID, at)
	case at != h.Dir:
		l.add(api.LevelOK, check, "", "%s, which a node makes when it starts", h.Dir)
	default:
		l.add(api.LevelOK, check, "", "%s", h.Dir)
	}
}

// space checks the space for the store and the log.
func (h *Host) space(l *list) {
	const check = "disk"
	at := existing(filepath.Join(h.Dir, "store"))
	free, err := h.Free(at)
	level, fix := api.LevelOK, ""
	switch {
	case err != nil:
		l.add(api.LevelWarn, check, "df "+at, "the free space of %s cannot be read: %v", at, err)
		return
	case free < leastSpace:
		level, fix = api.LevelFail, "make room: df "+at
	case free < fairSpace:
		level, fix = api.LevelWarn, "make room: df "+at
	}
	l.add(level, check, fix, "%d MiB are free for store and log in %s", free>>20, at)
}

// ports checks that a node could use its ports.
func (h *Host) ports(l *list) {
	const check = "ports"
	sound := true
	for _, p := range []struct {
		port       int
		what, flag string
	}{{h.RoCEPort, "RoCEv2", "--roce-port"}, {h.TrunkPort, "trunks", "--trunk-port"}} {
		if p.port == 0 {
			continue
		}
		if err := h.Bind(p.port); err != nil {
			sound = false
			fix := fmt.Sprintf("weft up %s PORT with another, or end what uses it: ss -ulpn sport = :%d", p.flag,
				p.port)
			l.add(api.LevelFail, check, fix, "UDP port %d of %s cannot be used: %s", p.port, p.what, last(err))
		}
	}
	if sound {
		l.add(api.LevelOK, check, "", "UDP ports %d and %d are free", h.RoCEPort, h.TrunkPort)
	}
}

// last is the innermost text of an error of the network.
func last(err error) string {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no.Error()
	}
	return err.Error()
}

// clock checks that the clock is not before the time at which this program was made.
func (h *Host) clock(l *list) {
	if !h.Built.IsZero() && h.Now.Before(h.Built.Add(-24*time.Hour)) {
		l.add(api.LevelFail, "clock", "set the clock: timedatectl", "it is %s, before this program was made (%s)",
			h.Now.Format(time.DateOnly), h.Built.Format(time.DateOnly))
		return
	}
	l.add(api.LevelOK, "clock", "", "%s", h.Now.UTC().Format("2006-01-02 15:04:05 UTC"))
}

// again is what a person does where a member has to join again: its record would refuse it.
func again(name string) string {
	return "weft member remove --force " + name + ", on a member that lists it; weft leave; weft join, with a new token"
}

// certificate checks the membership, if there is one.
func (h *Host) certificate(l *list) {
	const check = "membership"
	m, err := home.Open(h.Dir).Load()
	switch {
	case errors.Is(err, home.ErrNone), errors.Is(err, syscall.ENOTDIR):
		l.add(api.LevelOK, check, "", "none: this host is in no fabric")
		return
	case errors.Is(err, fs.ErrPermission):
		l.add(api.LevelWarn, check, "run as the node's user or as root", "uid %d may not read it", h.UID)
		return
	case err != nil:
		p := problem.Of("", err)
		l.add(api.LevelFail, check, cmp.Or(p.Fix, again("NAME")), "%s", problem.Text(p.What, p.Why, ""))
		return
	}
	begins, ends, err := validity(m.Certificate)
	switch {
	case err != nil:
		l.add(api.LevelFail, check, again(m.Name), "the certificate of %s: %v", m.Name, err)
	case h.Now.After(ends):
		l.add(api.LevelFail, check, again(m.Name)+"; the clock: date",
			"the certificate of %s ended at %s", m.Name, ends.UTC().Format(time.RFC3339))
	case h.Now.Before(begins):
		l.add(api.LevelFail, check, "set the clock: timedatectl",
			"the certificate of %s begins at %s, the clock is before that",
			m.Name, begins.UTC().Format(time.RFC3339))
	case h.Now.Add(ends.Sub(begins) / 10).After(ends):
		l.add(api.LevelWarn, check, "weft up: a running node renews it", "the certificate of %s ends at %s", m.Name,
			ends.UTC().Format(time.RFC3339))
	default:
		l.add(api.LevelOK, check, "", "%s of fabric %s, certificate until %s", m.Name, m.Fabric,
			ends.UTC().Format(time.RFC3339))
	}
}
