// SPDX-License-Identifier: Apache-2.0

package userland

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"weft/test/lab"
)

// user is a program of Debian 12 that uses verbs or rdma_cm.
type user struct {
	pkg    string
	server string // empty: the program starts its processes itself
	client string // PORT stands for a port
	env    string
	want   string // matches what the client prints
	stays  bool   // the server does not end by itself
}

// overUCX is the environment with which MPI uses a device of Weft alone.
const overUCX = "UCX_TLS=self,rc_v UCX_NET_DEVICES=weft0:1"

var users = []user{
	{pkg: "fio", server: fioServer, client: fioClient + " --verb=write", want: `WRITE: bw=.* io=16.0MiB`},
	{pkg: "fio", server: fioServer, client: fioClient + " --verb=read", want: `WRITE: bw=.* io=16.0MiB`},
	{pkg: "dapl2-utils", server: "dtest -P cma", client: "dtest -P cma -h " + wired, want: "Test Complete. PASSED"},
	{pkg: "dapl2-utils", server: "dtest -P ucm", client: "dtest -P ucm -h " + wired, want: "Test Complete. PASSED"},
	{pkg: "dapl2-utils", server: "dtestx -P cma", client: "dtestx -P cma -h " + wired, want: "atomic test PASSED"},
	{pkg: "dapl2-utils", server: "dapltest -T S -D cma", client: "dapltest -T T -s " + wired +
		" -D cma -d -i 100 -t 2 -w 2 client SR 1024 1 server SR 1024 1", want: "Total WQE .* WQE/Sec", stays: true},
	{pkg: "netpipe-mpich2", client: "mpiexec.mpich -n 2 NPmpich2 -u 64 -p 0", env: overUCX, want: "64 bytes .* usec"},
	{pkg: "netpipe-openmpi", client: "mpirun.openmpi --oversubscribe --mca pml ucx -np 2 NPopenmpi -u 64 -p 0",
		env: overUCX, want: "64 bytes .* usec"},
	{pkg: "hpcc", client: "sh ./hpcc.sh", env: overUCX, want: "Success=1"},
	{pkg: "tgt", client: "sh ./iser.sh", want: "iser: ok"},
	{pkg: "ibacm", server: "ibacm -P -A acm_addr -O acm_opts", client: "ib_acme -f n -s alpha -d beta -v -c",
		want: "SA verification: success", stays: true},
}

// fio's SEND is not among the rows: it requests no retry when the receiver is not ready, and sends before the server
// has posted a receive, if the server gets no processor.
const (
	fioServer = "fio --name=server --ioengine=rdma --port=PORT --bs=64k --size=16m --rw=read --iodepth=16"
	fioClient = "fio --name=client --ioengine=rdma --hostname=" + wired +
		" --port=PORT --bs=64k --size=16m --rw=write --iodepth=1 --iodepth_batch_complete=1"
)

// files are what the programs read from the home of the user.
var files = map[string]string{
	"dat.conf": `cma u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "eth0 0" ""
ucm u2.0 nonthreadsafe default libdaploucm.so.2 dapl.2.0 "weft_ib0 1" ""
`,
	"acm_addr": "alpha weft_ib0 1 default\nbeta weft_ib0 1 default\n",
	"acm_opts": "log_file /tmp/acm.log\nlock_file /tmp/acm.pid\nserver_mode unix\n" +
		"provider_lib_path /usr/lib/x86_64-linux-gnu/ibacm\n",
	// tgt has the file disk as a target of iSER, and the tests of libiscsi read and write it.
	"iser.sh": `export TGT_IPC_SOCKET=/tmp/tgt
dd if=/dev/urandom of=disk bs=1M count=16 2>/dev/null
tgtd -f -C 1 >/tmp/tgtd.out 2>&1 &
adm() { tgtadm -C 1 --lld iser --mode "$@"; }
for try in $(seq 100); do
	adm target --op new --tid 1 -T iqn.2026-11.weft:disk 2>/dev/null && break
	sleep 0.1
done
adm logicalunit --op new --tid 1 --lun 1 -b $PWD/disk
adm target --op bind --tid 1 -I ALL
adm target --op bind --tid 1 -Q iqn.2026-11.weft:user
set -e
url=iser://10.79.0.1:3260/iqn.2026-11.weft:disk/1
iscsi-inq -i iqn.2026-11.weft:user $url
for test in Read10.Simple Write10.Simple CompareAndWrite; do
	iscsi-test-cu -i iqn.2026-11.weft:user -d -t ALL.$test $url
done
kill -9 $!
echo "iser: ok"
`,
	"hpcc.sh": `cd /tmp
sed 's/^1000 .*Ns/100 Ns/; s/^[0-9]* *NBs/80 NBs/' /usr/share/doc/hpcc/examples/_hpccinf.txt >hpccinf.txt
mpirun.openmpi --oversubscribe --mca pml ucx --mca osc ucx -np 4 hpcc && cat hpccoutf.txt
`,
}

// TestUsers runs programs of Debian that no other test names.
func TestUsers(t *testing.T) {
	t.Parallel()
	lab.OnlySoak(t)
	h := openWired(t, "bookworm", "dapl2-utils", "fio", "hpcc", "ibacm", "libiscsi-bin", "mpich",
		"netpipe-mpich2", "netpipe-openmpi", "tgt")
	for name, text := range files {
		h.put(t, name, []byte(text))
	}
	// ibacm has its socket in /run.
	if err := os.Chmod(filepath.Join("/proc", strconv.Itoa(h.pid), "root", h.dir, "run"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, u := range users {
		t.Run(u.client, func(t *testing.T) {
			h.need(t, u.pkg)
			u.run(t, h)
		})
	}
}

// run runs a program in a host.
func (u user) run(t *testing.T, h *host) {
	t.Helper()
	port := strconv.Itoa(lab.Port())
	command := func(line string) lab.Cmd {
		env := append(strings.Fields(u.env), "DAT_OVERRIDE="+home+"/dat.conf")
		args := []string{"sh", "-c", "cd " + home + "; exec " + weft + ` run -- "$@"`, "sh"}
		return h.command(env, append(args, strings.Fields(strings.ReplaceAll(line, "PORT", port))...)...)
	}
	want := regexp.MustCompile(u.want)
	if u.server == "" {
		if out, err := lab.Run(command(u.client), limit); err != nil || !want.MatchString(out) {
			t.Errorf("%v\n%s", err, lab.Tail(out, 40))
		}
		return
	}
	server, err := lab.Start(command(u.server))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	out := ""
	// The client tries again until the server listens.
	if err := lab.Until("the client succeeds", limit, func() (bool, error) {
		out, err = lab.RunBeside(server, command(u.client), limit)
		return err == nil && want.MatchString(out), nil
	}, server); err != nil {
		t.Fatalf("%v\n%s\n-- server --\n%s", err, lab.Tail(out, 30), lab.Tail(server.Output(), 30))
	}
	if !u.stays {
		if err := server.Wait(limit); err != nil {
			t.Errorf("%v\n%s", err, lab.Tail(server.Output(), 30))
		}
	}
}
