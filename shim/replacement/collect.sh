#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes shim/replacement/symbols from a git repository of rdma-core: the dynamic
# symbols of libibverbs in every release since 25.0, and in the newest commit.
#
# usage: collect.sh REPOSITORY >symbols
set -eu

git() { command git -C "$repository" "$@"; }
repository=$1

cat <<'END'
# SPDX-License-Identifier: Apache-2.0
# Written by shim/replacement/collect.sh from rdma-core's history. Dynamic symbols
# of libibverbs, of all releases together:
#
#   public NODE NAME     a function of programs, once for each version that it has
#   private NUMBER NAME  between libibverbs, its providers and its tools, in the
#                        node IBVERBS_PRIVATE_NUMBER
END

releases=$(git tag --list 'v*' | sed -n 's/^v\([0-9]*\.[0-9]*\)$/\1/p' | sort -V |
	awk -F. '$1 >= 25 { print "v" $0 }')
echo "# rdma-core: $(echo "$releases" | head -1) to $(git show HEAD:CMakeLists.txt |
	sed -n 's/^set(PACKAGE_VERSION "\(.*\)")/v\1/p')"
for release in $releases HEAD; do
	number=$(git show "$release:CMakeLists.txt" | sed -n 's/^set(IBVERBS_PABI_VERSION "\([0-9]*\)").*/\1/p')
	[ -n "$number" ] || { echo "collect.sh: $release has no number of the private interface" >&2; exit 1; }
	git show "$release:libibverbs/libibverbs.map.in" | awk -v number="$number" '
	/^[A-Z].*\{/ { node = $1; next }
	/^\}/ { node = ""; next }
	node == "" || !/^[ \t]+_*[a-z][a-zA-Z0-9_@]*;/ { next }
	$1 == "ibv_query_device_ex;" { next } # listed for years, and always an inline function
	{ name = $1; sub(/;.*/, "", name); gsub(/@IBVERBS_PABI_VERSION@/, number, name) }
	node ~ /PRIVATE/ { print "private", number, name; next }
	{ print "public", node, name }'
done | sort -u | sort -k1,1r -k2,2V -k3,3
