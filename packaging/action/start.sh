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
      echo "::error::cannot start weft: ${name,,} is \"${!value}\". fix: use true or false"
      exit 1
      ;;
  esac
done

weft=$RUNNER_TEMP/weft/bin/weft
export WEFT_DIR=$RUNNER_TEMP/weft/node
"$weft" up --detach
{
  echo "device=weft0"
  echo "dir=$WEFT_DIR"
} >>"$GITHUB_OUTPUT"
echo "WEFT_DIR=$WEFT_DIR" >>"$GITHUB_ENV"
if [ "$WEFT_ACTION_PRELOAD" = true ]; then
  eval "$("$weft" env)"
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
fi
