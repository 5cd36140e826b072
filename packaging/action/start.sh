#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The step of the action that starts a node for the later steps.
set -euo pipefail

for name in PRELOAD CAPTURE; do
  value=WEFT_ACTION_$name
  case ${!value} in
    true | false) ;;
    *)
      echo "::error::cannot start weft: the input ${name,,} is neither true nor false. fix: use one of them"
      exit 1
      ;;
  esac
done

weft=$RUNNER_TEMP/weft/bin/weft
export WEFT_DIR=$RUNNER_TEMP/weft/node
"$weft" up --detach 2>"$RUNNER_TEMP/weft/error" || {
  echo "::error::$(head -1 "$RUNNER_TEMP/weft/error")"
  exit 1
}
{
  echo "device=weft0"
  echo "dir=$WEFT_DIR"
} >>"$GITHUB_OUTPUT"
echo "WEFT_DIR=$WEFT_DIR" >>"$GITHUB_ENV"
if [ "$WEFT_ACTION_PRELOAD" = true ]; then
  env=$("$weft" env)
  eval "$env"
  echo "LD_PRELOAD=$LD_PRELOAD" >>"$GITHUB_ENV"
  unset LD_PRELOAD
fi
if [ "$WEFT_ACTION_CAPTURE" = true ]; then
  here=$(dirname "$0")
  mkdir -p "$RUNNER_TEMP/weft/packets"
  # It lives as long as the node, or until the action collect ends it.
  setsid "$here/capture.sh" "$weft" "$RUNNER_TEMP/weft/packets" </dev/null >/dev/null \
    2>"$RUNNER_TEMP/weft/capture.log" &
  echo $! >"$RUNNER_TEMP/weft/capture.pid"
  # The file begins when the node sends packets to it: the next step may run a program at once.
  for ((n = 0; n < 100; n++)); do
    [ ! -s "$RUNNER_TEMP/weft/packets/0.pcapng" ] || break
    sleep 0.1
  done
fi
