#!/bin/bash
# make test-rdma: builds the tests with the tag rdma, boots the virtual machine, runs them there.
# RUN chooses tests; BENCH=1 measures beside perftest afterwards. The console is kept in CACHE.
set -euo pipefail
cd "$(dirname "$0")/../.."
CACHE=${CACHE:-$PWD/.cache/rdma} GO=${GO:-go}
mkdir -p "$CACHE"
kernel=$(CACHE=$CACHE rdma/vm/prepare.sh) || { rc=$?; [ $rc = 3 ] && exit 0 || exit $rc; }
"$GO" test -c -tags rdma -o "$CACHE/rdma.test" ./rdma
files=("$CACHE/rdma.test")
{
  echo "export RUN='${RUN:-/verbs\$|^TestVerbs}'"
  cat rdma/vm/contract.sh
} >"$CACHE/script.sh"
if [ -n "${BENCH:-}" ]; then
  "$GO" build -tags rdma -o "$CACHE/downbeat" ./cmd/downbeat
  files+=("$CACHE/downbeat")
  cp rdma/vm/bench.sh "$CACHE/script.sh"
fi
rdma/vm/boot.sh "$kernel" "$CACHE/out" "${LIMIT:-400}" "$CACHE/script.sh" "${files[@]}"
