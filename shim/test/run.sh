#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the stand-alone tests of the library's parts: plain, with the
# sanitizers, and under valgrind where it is installed. OUT keeps the binaries.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
shim=$(dirname "$here")
out=${OUT:-$(mktemp -d)}
[ -n "${OUT:-}" ] || trap 'rm -rf "$out"' EXIT
trap 'exit 1' TERM INT
cc=${CC:-gcc}
flags="-std=gnu11 -g -Wall -Wextra -Werror -pthread"

$cc $flags -O2 "$here/paths_test.c" "$shim/paths.c" -o "$out/paths_test"
"$out/paths_test"
$cc $flags -O2 "$here/arena_test.c" "$shim/arena.c" "$shim/arena_libc.c" -o "$out/arena_test"
"$out/arena_test"

# NULL paths are passed on purpose.
$cc $flags -O1 -fsanitize=address,undefined -fno-sanitize=nonnull-attribute \
	-fno-sanitize-recover=all "$here/paths_test.c" "$shim/paths.c" -o "$out/paths_test_asan"
"$out/paths_test_asan"
if command -v valgrind >/dev/null; then
	valgrind -q --suppressions="$here/valgrind.supp" --trace-children=yes --error-exitcode=9 "$out/paths_test"
fi

umad="$here/umad_test.c $shim/umad.c $shim/rdmacm.c $shim/paths.c $shim/util.c"
$cc $flags -O2 $umad -ldl -o "$out/umad_test"
"$out/umad_test"
for s in address,undefined thread; do
	$cc $flags -O1 -fsanitize=$s -fno-sanitize-recover=all $umad -ldl -o "$out/umad_test_$s"
	"$out/umad_test_$s"
done

rdmacm="$here/rdmacm_test.c $shim/rdmacm.c $shim/umad.c $shim/paths.c $shim/util.c"
$cc $flags -O2 $rdmacm -ldl -o "$out/rdmacm_test"
"$out/rdmacm_test"
for s in address,undefined thread; do
	$cc $flags -O1 -fsanitize=$s -fno-sanitize-recover=all $rdmacm -ldl -o "$out/rdmacm_test_$s"
	"$out/rdmacm_test_$s"
done

# The sanitizers have an allocator of their own, so this is the core alone.
for s in address,undefined thread; do
	$cc $flags -O1 -fsanitize=$s -fno-sanitize-recover=all -DCORE_ONLY \
		"$here/arena_test.c" "$shim/arena.c" -o "$out/arena_core_test"
	"$out/arena_core_test"
done

# Programs that know nothing of all this, with both parts preloaded.
$cc -std=gnu11 -O2 -fPIC -shared -fvisibility=hidden -Wall -Wextra -Werror -pthread \
	"$shim/paths.c" "$shim/arena.c" "$shim/arena_libc.c" -Wl,-z,now,-z,nodelete -o "$out/parts.so"
mkdir -p "$out/node/tree/dev/infiniband" "$out/node/tree/sys/class/infiniband/weft0"
: >"$out/node/tree/dev/infiniband/uverbs0"
echo 1.2.3 >"$out/node/tree/sys/class/infiniband/weft0/fw_ver"
smoke() {
	got=$(WEFT_DIR="$out/node" WEFT_ARENA="$1" LD_PRELOAD="$out/parts.so" "$2" -c "$3" 2>&1) || true
	[ "$got" = "$4" ] || { echo "smoke: WEFT_ARENA='$1' $2 -c '$3': got '$got', want '$4'" >&2; exit 1; }
}
for mode in "" 1 only; do
	smoke "$mode" sh 'ls /sys/class/infiniband /dev/infiniband | tr "\n" " "' \
		"/dev/infiniband: uverbs0  /sys/class/infiniband: weft0 "
	smoke "$mode" sh 'ls -l /dev/infiniband/uverbs0 | cut -c1; test -c /dev/infiniband/uverbs0 && echo y' "c
y"
	smoke "$mode" bash 'read x </sys/class/infiniband/weft0/fw_ver; echo $x; cat /sys/class/infiniband/weft0/fw_ver' "1.2.3
1.2.3"
	smoke "$mode" sh 'echo "int main(void){return 0;}" >'"$out"'/p.c && gcc -O2 -o '"$out"'/p '"$out"'/p.c && '"$out"'/p && echo y' y
	smoke "$mode" sh 'seq 200000 | sort -r | sort -n | tail -1' 200000
	command -v python3 >/dev/null || continue
	smoke "$mode" python3 'import os, stat
print(os.listdir("/sys/class/infiniband"), stat.S_ISCHR(os.stat("/dev/infiniband/uverbs0").st_mode),
      os.path.realpath("/sys/class/infiniband/weft0") != "", open("/sys/class/infiniband/weft0/fw_ver").read())' \
		"['weft0'] True True 1.2.3"
	smoke "$mode" python3 'import os, threading, subprocess
def work(seed):
    held = []
    for i in range(400):
        held.append(bytearray(b"%c" % (seed + i % 7)) * (1000 + (i * 7919 * seed) % 900000))
        if len(held) > 20:
            b = held.pop((i * seed) % 20); assert b.count(b[0]) == len(b)
ts = [threading.Thread(target=work, args=(s,)) for s in (65, 70, 75)]
[t.start() for t in ts]
big = bytearray(b"x" * (30 << 20))
for i in range(5):
    pid = os.fork()
    if pid == 0:
        ok = big.count(b"x") == len(big); big[:] = b"y" * len(big)
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0 and big.count(b"x") == len(big)
[t.join() for t in ts]
in_arena = "weft-arena" in open("/proc/self/maps").read()
print(subprocess.check_output(["echo", "done"]).decode().strip(), in_arena == bool(os.environ.get("WEFT_ARENA")))' \
		"done True"
done
echo "smoke: ok"

fake="$here/fake_node.c $here/fake_rings.c $here/fake_qp.c $here/fake_commands.c"

# The verbs, against a fake node: the library preloaded into an ordinary program,
# and its parts linked in with the sanitizers (without the interposed malloc).
verbs="$here/verbs_test.c $here/verbs_memory_test.c $here/verbs_end_test.c $fake"
$cc $flags -O1 $verbs -libverbs -o "$out/verbs_test"
$cc $flags -O2 -fPIC -fvisibility=hidden -shared "$shim"/*.c -Wl,-z,now,-z,nodelete,-z,defs -ldl -o "$out/verbs.so"
"$out/verbs_test" "$out/verbs.so"
"$out/verbs_test" "$out/verbs.so" closed
"$out/verbs_test" "$out/verbs.so" text

# Verbs of newer versions of libibverbs, and of one that does not exist yet.
$cc $flags -O1 -fPIC -shared -fvisibility=hidden "$here/later_libibverbs.c" -o "$out/liblater.so"
$cc $flags -O1 "$here/newer_test.c" $fake -L"$out" -llater -libverbs -ldl \
	-Wl,-rpath,"$out" -o "$out/newer_test"
"$out/newer_test" "$out/verbs.so"

# Why calls failed: nothing, the last at a bad end, or all.
$cc $flags -O1 "$here/explain_test.c" $fake -libverbs -o "$out/explain_test"
explains() { # WEFT_EXPLAIN, exit status, what is printed, and the third argument of explain_test, if any
	got=$(WEFT_EXPLAIN="$1" "$out/explain_test" "$out/verbs.so" "$2" ${4:-} 2>&1) && status=0 || status=$?
	[ "$status" = "$2" ] && [ "$got" = "$3" ] || {
		echo "explain: WEFT_EXPLAIN=$1: status $status, want $2; got '$got', want '$3'" >&2
		exit 1
	}
}
odp="weft: ibv_reg_mr of weft0 failed (Operation not supported): the device has no on-demand paging. \
fix: leave IBV_ACCESS_ON_DEMAND out"
depth="weft: ibv_create_qp of weft0 failed (Invalid argument): \
max_send_wr 1048576 is above the limit of the device, 1024. \
fix: ask for less; ibv_devinfo -v shows the limits"
port="weft: ibv_modify_qp of weft0 failed (Invalid argument): the address names port 7, the only one is 1. \
fix: set port_num to 1"
region="weft: ibv_reg_mr of weft0 failed (Bad address): not all of the 4096 bytes at 0x1000 are mapped in the program. \
fix: register memory that is allocated"
unsupported="failed (Operation not supported)"
raw="weft: ibv_create_qp of weft0 $unsupported: Weft has no raw Ethernet queue pairs (type 8). \
fix: use IBV_QPT_RC, IBV_QPT_UC or IBV_QPT_UD"
missing="weft: ibv_open_xrcd of weft0 $unsupported: Weft has no XRC. \
fix: use RC queue pairs, with a shared receive queue of each process
weft: ibv_alloc_dm of weft0 $unsupported: Weft has no device memory. \
fix: register memory of the program (ibv_reg_mr)
weft: ibv_alloc_null_mr of weft0 $unsupported: Weft has no null memory region. \
fix: register a buffer that nothing reads
weft: ibv_reg_dmabuf_mr of weft0 $unsupported: Weft reaches the memory of the program, and no dma-buf of a device. \
fix: copy to memory of the program, and register that (ibv_reg_mr)
weft: ibv_advise_mr of weft0 $unsupported: Weft has no on-demand paging, so that there is nothing to prefetch. \
fix: none needed: go on without
$raw
weft: ibv_modify_cq of weft0 $unsupported: Weft moderates no completion events. \
fix: none needed: go on without"
explains "" 1 ""
explains exit 0 "" missing
explains exit 1 "$raw" missing
explains 1 0 "$missing" missing
explains exit 0 "" killed
explains exit 1 "weft: the node has ended, or has closed the session of this program. \
fix: weft status, then start the program again" killed
explains exit 1 "$depth" limit
explains exit 1 "" probed
explains exit 0 ""
explains exit 1 "$region"
explains 1 0 "$missing
$odp
$depth
$port
$region"
echo "explain: ok"
parts=$(ls "$shim"/*.c | grep -v arena_libc)
$cc $flags -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -I"$shim" $verbs $parts \
	-libverbs -ldl -o "$out/verbs_asan"
"$out/verbs_asan" ""
"$out/verbs_asan" "" text

# The library in libibverbs' place: every symbol, and what it has beyond the others.
"$shim/replacement/generate.sh" map >"$out/replacement.map"
"$shim/replacement/generate.sh" stubs >"$out/replacement_stubs.c"
$cc $flags -O2 -fPIC -fvisibility=hidden -DWEFT_REPLACEMENT -shared "$shim"/*.c "$shim/replacement/helpers.c" "$out/replacement_stubs.c" \
	-Wl,-soname,libibverbs.so.1 -Wl,--version-script,"$out/replacement.map" -Wl,-z,now,-z,nodelete,-z,defs -ldl -o "$out/libibverbs.so.1"
"$shim/replacement/generate.sh" check "$out/libibverbs.so.1"
$cc $flags -O2 "$here/replacement_test.c" -ldl -o "$out/replacement_test"
"$out/replacement_test" "$out/libibverbs.so.1" "$("$shim/../scripts/libibverbs")" "$out"
