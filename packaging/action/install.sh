#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The step of the action that puts weft on the runner.
set -euo pipefail

# What inputs have in them must not be a command of the runner, which begins a line.
fail() {
  local text="cannot install weft: $1. fix: $2"
  text=${text//'%'/%25}
  text=${text//$'\r'/%0D}
  echo "::error::${text//$'\n'/%0A}"
  exit 1
}

to=$RUNNER_TEMP/weft/bin
mkdir -p "$to"
if [ -n "$WEFT_FILE" ] && [ -n "$WEFT_URL" ]; then
  fail "there is a file and a url" "give one of them"
elif [ -n "$WEFT_FILE" ]; then
  [ -f "$WEFT_FILE" ] || fail "there is no file $WEFT_FILE" "build or download it in an earlier step"
  cp -- "$WEFT_FILE" "$to/weft.new"
elif [ -n "$WEFT_URL" ]; then
  [ -n "$WEFT_SHA256" ] || fail "the url has no sha256" "give the SHA-256 of the program in sha256"
  curl --fail --silent --show-error --location --proto '=https,http' --retry 3 --output "$to/weft.new" \
    --url "$WEFT_URL" ||
    fail "the download failed" "try the url in a browser"
else
  fail "there is neither a file nor a url" "give one of them"
fi
if [ -n "$WEFT_SHA256" ]; then
  sum=$(sha256sum "$to/weft.new")
  [ "${sum%% *}" = "${WEFT_SHA256,,}" ] || {
    rm -f "$to/weft.new"
    fail "its SHA-256 is ${sum%% *}, not $WEFT_SHA256" "compare it with the release"
  }
fi
chmod 755 "$to/weft.new"
mv "$to/weft.new" "$to/weft"
"$to/weft" version || fail "it does not run here" "use a runner with x86-64 and Linux"
echo "$to" >>"$GITHUB_PATH"
