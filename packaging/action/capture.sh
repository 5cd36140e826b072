#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# capture.sh WEFT DIRECTORY: keeps the last packets in two files in turn, of 100000 packets and at most 40 MB each,
# until it is terminated or the node ends.
set -euo pipefail
weft=$1 dir=$2

child=
stop() {
  # The capture writes what it has to its file.
  [ -z "$child" ] || { kill -INT "$child" 2>/dev/null || true; wait "$child" || true; }
  exit 0
}
trap stop TERM
for ((n = 0; ; n++)); do
  "$weft" capture --snaplen 256 --count 100000 --write "$dir/$((n % 2)).pcapng" &
  child=$!
  wait "$child"
done
