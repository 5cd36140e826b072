# SPDX-License-Identifier: Apache-2.0
#
# fabric.sh is sourced by the demo and the benchmark: nodes, namespaces and
# pairs of programs, and their end. The caller sets name to what its errors
# start with. WEFT_BIN names the directory of weft and its libraries, bin/ if
# it is not set; a relative one begins at the top of the source tree.

weft=$(realpath "${WEFT_BIN:-bin}/weft")
tmp=$(mktemp -d "${TMPDIR:-/tmp}/weft-$name.XXXXXX")
ns_a=weft-$name-$$-a ns_b=weft-$name-$$-b ns_c=weft-$name-$$-c
port=18515
dirs=() namespaces=() servers=() run_flags=()
lossy=no     # yes: packets are lost on purpose
device=weft0 # of the pairs; another is an InfiniBand device, for which no GID is named

cleanup() {
  local s d n
  for s in "${servers[@]}"; do kill "$s" 2>/dev/null || true; done
  for d in "${dirs[@]}"; do "$weft" down --dir "$d" >/dev/null 2>&1 || true; done
  for n in "${namespaces[@]}"; do ip netns del "$n" 2>/dev/null || true; done
  rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

fail() { # WHAT FILE…
  echo "$name: $1 failed. What it printed:" >&2
  tail -n 20 "${@:2}" >&2
  exit 1
}

# machine: one line on what the numbers were measured with.
machine() {
  echo "$(nproc) × $(awk -F': ' '/model name/ { print $2; exit }' /proc/cpuinfo), Linux $(uname -r)," \
    "load $(cut -d' ' -f1 /proc/loadavg), weft $("$weft" version | cut -d' ' -f2 | tr -d ,)"
}

# in_ns NAMESPACE COMMAND…: runs the command there, or here if it is "-".
in_ns() {
  local ns=$1; shift
  if [ "$ns" = - ]; then "$@"; else ip netns exec "$ns" "$@"; fi
}

# two_namespaces: $ns_a and $ns_b, joined by a veth of MTU 9000, 10.77.0.1 and
# 10.77.0.2, without any way to the host's network.
two_namespaces() {
  local n
  for n in "$ns_a" "$ns_b"; do ip netns add "$n"; namespaces+=("$n"); done
  ip -n "$ns_a" link add eth0 mtu 9000 type veth peer name eth0 mtu 9000 netns "$ns_b"
  ip -n "$ns_a" addr add 10.77.0.1/24 dev eth0
  ip -n "$ns_b" addr add 10.77.0.2/24 dev eth0
  for n in "$ns_a" "$ns_b"; do ip -n "$n" link set lo up; ip -n "$n" link set eth0 up; done
}

# third_namespace: $ns_c, joined by veths to both others: 10.78.0.1 is $ns_a's end
# and 10.79.0.1 $ns_b's, 10.78.0.2 and 10.79.0.2 are its own.
third_namespace() {
  local n
  ip netns add "$ns_c"; namespaces+=("$ns_c")
  ip -n "$ns_c" link set lo up
  for n in "$ns_a 78" "$ns_b 79"; do
    set -- $n
    ip -n "$1" link add eth1 mtu 9000 type veth peer name "eth$2" mtu 9000 netns "$ns_c"
    ip -n "$1" addr add "10.$2.0.1/24" dev eth1
    ip -n "$ns_c" addr add "10.$2.0.2/24" dev "eth$2"
    ip -n "$1" link set eth1 up
    ip -n "$ns_c" link set "eth$2" up
  done
}

# start NAMESPACE DIR [FLAG…]: a node, active when this returns. A node with peers is active when all of them run: see
# active. Nodes with peers share a key, unless a flag says what protects their trunks.
start() {
  local key=()
  dirs+=("$2")
  case " ${*:3} " in
    *' --trunk-security '*) ;;
    *' --peer '*)
      [ -e "$tmp/trunk-key" ] || od -An -tx1 -N32 /dev/urandom | tr -d ' \n' >"$tmp/trunk-key"
      key=(--trunk-key-file "$tmp/trunk-key")
      ;;
  esac
  in_ns "$1" "$weft" up --detach --dir "$2" "${key[@]}" "${@:3}" >"$tmp/up.log" 2>&1 || fail 'weft up' "$tmp/up.log"
  case " ${*:3} " in
    *' --peer '*) ;;
    *) active "$2" ;;
  esac
}

# active DIR…: waits until the ports and the trunks of these nodes are up.
active() {
  local d
  for d; do "$weft" wait --for=active --timeout 20s --dir "$d" >/dev/null; done
}

# gid DIR: the index of the first IPv4 entry of the GID table.
gid() { "$weft" dev --dir "$1" | awk '$3 ~ /^[0-9]+$/ && $4 ~ /^[0-9.]+$/ { print $3; exit }'; }

# once NS1 NS2 SERVER… --then CLIENT…: starts the server in NS1, waits until
# it listens on TCP $port, runs the client in NS2 and waits for both. What they
# printed is left in $tmp/server and $tmp/client, their status in $server_ended
# and $client_ended.
once() {
  local ns1=$1 ns2=$2 server=() pid; shift 2
  while [ "$1" != --then ]; do server+=("$1"); shift; done; shift
  in_ns "$ns1" timeout 60 "${server[@]}" >"$tmp/server" 2>&1 &
  pid=$!
  servers=("$pid")
  until in_ns "$ns1" ss -Hltn "sport = :$port" | grep -q .; do
    kill -0 "$pid" 2>/dev/null || fail "${server[*]}" "$tmp/server"
  done
  client_ended=0 server_ended=0
  in_ns "$ns2" timeout 60 "$@" >"$tmp/client" 2>&1 || client_ended=$?
  [ $client_ended = 0 ] || grep -q "$gave_up" "$tmp/client" ||
    fail "$*" "$tmp/client" "$tmp/server" # the server may wait forever
  wait "$pid" || server_ended=$?
  servers=()
}

# last_ack_lost: whether the only failure is the one that packet loss can always
# cause: one program ended after its last message, the acknowledgement of that
# message was lost and is not repeated, and the other gave up its last request.
gave_up='Failed status transport retry counter exceeded (12) for wr_id 2'
last_ack_lost() {
  case $lossy$client_ended$server_ended in
    yes10) only_gave_up "$tmp/client" ;;
    yes01) only_gave_up "$tmp/server" ;;
    *) false ;;
  esac
}
only_gave_up() { grep -q "$gave_up" "$1" && [ "$(grep -c 'Failed ' "$1")" = 1 ] && ! grep -q 'invalid data' "$1"; }

# both: once, which must end well; again, three times at most, where the wire
# loses packets ($lossy) and the last acknowledgement was among them.
both() {
  local try
  for try in 0 1 2 3; do
    once "$@"
    if [ $client_ended = 0 ] && [ $server_ended = 0 ]; then return; fi
    [ $try -lt 3 ] && last_ack_lost || break
    echo '  the last acknowledgement was lost: once more'
  done
  fail "$*" "$tmp/client" "$tmp/server"
}

# pair NS1 DIR1 NS2 DIR2 HOST PROGRAM…: a verbs program over Weft, server on the
# node of DIR1, client on that of DIR2, on $device. ${run_flags[@]} go to weft run.
pair() {
  local ns1=$1 dir1=$2 ns2=$3 dir2=$4 host=$5 gid_flag=-g gid1=() gid2=(); shift 5
  case $1 in ib_*) gid_flag=-x ;; esac
  if [ "$device" = weft0 ]; then gid1=($gid_flag "$(gid "$dir1")") gid2=($gid_flag "$(gid "$dir2")"); fi
  port=$((port + 1))
  both "$ns1" "$ns2" "$weft" run "${run_flags[@]}" --dir "$dir1" -- "$@" -d "$device" "${gid1[@]}" -p $port --then \
    "$weft" run "${run_flags[@]}" --dir "$dir2" -- "$@" -d "$device" "${gid2[@]}" -p $port "$host"
}

# measure PARSER PAIR-ARGUMENT…: runs the pair and leaves the number in $value.
# perftest times with the processor's counter, whose frequency it measures
# itself. On a busy machine it gives up and prints inf or 0: then once more.
measure() {
  local parser=$1 try; shift
  for try in 1 2 3; do
    pair "$@"
    value=$($parser)
    case $value in '' | inf | *nan | 0) value='?' ;; *) return ;; esac
  done
}

# The numbers in what perftest prints, with --report_gbits.
bandwidth() { awk '$1 ~ /^[0-9]+$/ && NF == 5 { printf "%.3g", $4 / 8 }' "$tmp/client"; } # GB/s
rate()      { awk '$1 ~ /^[0-9]+$/ && NF == 5 { printf "%.3g", $5 }' "$tmp/client"; }     # million/s
latency()   { awk '$1 ~ /^[0-9]+$/ && NF >= 9 { printf "%.3g", $5 }' "$tmp/client"; }     # µs, typical
