#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The step of the action collect. What cannot be had is named in the files; the step does not fail for it.
set -euo pipefail

all=$RUNNER_TEMP/weft
weft=$all/bin/weft
to=$all/collected
mkdir -p "$to"
if pid=$(cat "$all/capture.pid" 2>/dev/null); then
  kill -TERM "$pid" 2>/dev/null || true
  for ((n = 0; n < 100; n++)); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  rm -f "$all/capture.pid"
fi
cp "$all"/packets/*.pcapng "$all/capture.log" "$to" 2>/dev/null || true
cp "$all/node/node.log" "$to" 2>/dev/null || true
for command in "version -v" status doctor res stat "trunk"; do
  # shellcheck disable=SC2086 # words of a command
  LD_PRELOAD='' "$weft" $command >"$to/${command%% *}.txt" 2>&1 || true
done
ls -l "$to"
echo "dir=$to" >>"$GITHUB_OUTPUT"
