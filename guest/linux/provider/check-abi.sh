#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# check-abi.sh DIR compares private_abi.h with the headers of a source tree of
# rdma-core, which need not be built: offsets, sizes and prototypes.
set -eu

if [ $# -ne 1 ] || [ ! -f "$1/libibverbs/driver.h" ]; then
	echo "check the private interface failed: no source tree of rdma-core. fix: $0 DIR" >&2
	exit 2
fi
tree=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc=${CC:-cc}

# The headers as a build of the tree arranges them.
mkdir "$work/include" "$work/include/kernel-abi"
ln -s "$tree/libibverbs" "$work/include/infiniband"
ln -s "$tree/kernel-headers/rdma" "$work/include/rdma"
ln -s "$tree/util" "$tree/ccan" "$work/include/"
: >"$work/include/config.h"
python3 "$tree/buildlib/make_abi_structs.py" "$tree/kernel-headers/rdma/ib_user_verbs.h" \
	"$work/include/kernel-abi/ib_user_verbs.h"
version=$(sed -n 's/^set(IBVERBS_PABI_VERSION "\([0-9]*\)")/\1/p' "$tree/CMakeLists.txt")
if [ "$version" != 34 ]; then
	echo "check the private interface failed: the tree has version $version, want 34" >&2
	exit 1
fi

# One line for each member that the provider relies on.
{
	cat <<'C'
#include <stddef.h>
#include <stdio.h>
#ifdef TREE
#include <infiniband/driver.h>
#else
#include "private_abi.h"
#endif
#define AT(type, member) printf(#type "." #member " %zu\n", offsetof(struct type, member))
#define SIZE(type) printf(#type " %zu\n", sizeof(struct type))
int main(void) {
	printf("%d %d %d\n", VERBS_MATCH_SENTINEL, VERBS_MATCH_MODALIAS, VERBS_QP_EX);
C
	for struct in verbs_context_ops verbs_device_ops; do
		sed -n "/^struct $struct {/,/^};/p" "$here/private_abi.h" |
			sed -n -e 's/.*(\*\([a-z_0-9]*\))(.*/\1/p;t' -e 's/^	.*[ *]\([a-z_0-9]*\);$/\1/p' |
			sed "s/.*/AT($struct, &);/"
		echo "SIZE($struct);"
	done
	for member in device ops refcount entry sysfs core_support; do echo "AT(verbs_device, $member);"; done
	for member in driver_data u vendor device kind; do echo "AT(verbs_match_ent, $member);"; done
	for member in ibv_mr mr_type access; do echo "AT(verbs_mr, $member);"; done
	for member in cq cq_ex; do echo "AT(verbs_cq, $member);"; done
	for struct in verbs_device verbs_match_ent verbs_mr verbs_cq ibv_alloc_mw ibv_alloc_pd ibv_create_cq \
		ibv_create_qp_ex ibv_create_srq ibv_get_context ibv_modify_qp ibv_modify_qp_ex ibv_modify_srq \
		ibv_query_port ibv_query_qp ibv_query_srq ibv_reg_mr; do
		echo "SIZE($struct);"
	done
	echo '}'
} >"$work/members.c"
$cc -w -DTREE -DIBVERBS_PABI_VERSION=34 -D_GNU_SOURCE -I"$work/include" -o "$work/of-tree" "$work/members.c"
$cc -I"$here" -o "$work/of-provider" "$work/members.c"
"$work/of-tree" >"$work/tree.txt"
"$work/of-provider" >"$work/provider.txt"
diff -u "$work/tree.txt" "$work/provider.txt"

# Two prototypes of one function must agree.
{
	echo '#include <infiniband/driver.h>'
	echo '#define VROCE_FUNCTIONS_ONLY'
	echo '#include "private_abi.h"'
} >"$work/functions.c"
$cc -DIBVERBS_PABI_VERSION=34 -D_GNU_SOURCE -I"$work/include" -I"$here" -fsyntax-only "$work/functions.c"
echo "private_abi.h agrees: $(wc -l <"$work/tree.txt") lines, $(grep -c '^[a-z].*(' "$here/private_abi.h") prototypes"
