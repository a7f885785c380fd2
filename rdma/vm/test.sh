#!/bin/bash
# test.sh [hosts]: builds the tests with the tag rdma, boots a virtual machine, and runs there the
# contract and then the tests between hosts (make test-rdma). hosts: the tests between hosts alone, with
# two machines (make test-rdma-hosts). RUN and NETRUN choose tests, "none" leaves a part out; BENCH=1
# measures beside perftest instead (OPS, SIZES, ROUNDS and EACH say what). The consoles are kept in CACHE.
set -euo pipefail
cd "$(dirname "$0")/../.."
CACHE=${CACHE:-$PWD/.cache/rdma} GO=${GO:-go} ORT_LIB=${ORT_LIB:-$PWD/.cache/ort/1.27.0/libonnxruntime.so.1}
mkdir -p "$CACHE"
kernel=$(CACHE=$CACHE rdma/vm/prepare.sh) || { rc=$?; [ $rc = 3 ] && exit 0 || exit $rc; }
what=${1:-one}
script=$CACHE/script-$what.sh
"$GO" build -tags rdma -ldflags '-s -w' -o "$CACHE/downbeat" ./cmd/downbeat
files=("$CACHE/downbeat")
{
  printf 'export FORMAT=%q ROUNDS=%q EACH=%q OPS=%q SIZES=%q\n' "${FORMAT:-table}" "${ROUNDS:-4}" "${EACH:-30}" "${OPS:-}" "${SIZES:-}"
  printf 'RUN=%q\nNETRUN=%q\nSPAN=%q\n' "${RUN:-}" "${NETRUN:-}" "${SPAN:-}"
} >"$script"
if [ -n "${BENCH:-}" ]; then
  export WORDS="tsc=reliable clocksource=tsc" # perftest reads the cycle counter; other clocks cost a system call
  cat rdma/vm/bench.sh >>"$script"
else
  "$GO" test -c -tags rdma -o "$CACHE/nettest.test" ./rdma/nettest
  files+=("$CACHE/nettest.test" rdma/vm/nettest.sh:/nettest.sh)
  if [ -f "$ORT_LIB" ]; then
    rm -rf "$CACHE/models" && mkdir -p "$CACHE/models" && cp -r models/vehicle-s "$CACHE/models/"
    # The processors are emulated: fewer batch sizes to measure at each start, and a budget that they can meet.
    sed -i 's/^max_batch_size: .*/max_batch_size: 4/; s/\("slo_ms" value { string_value: \)"[0-9]*"/\1"5000"/' "$CACHE/models/vehicle-s/config.pbtxt"
    files+=("$ORT_LIB:/lib/libonnxruntime.so.1" "$CACHE/models:/models")
  else
    echo "no ONNX Runtime at $ORT_LIB: the model is emulated" >&2
    files+=(rdma/nettest/testdata/models:/testdata/models)
  fi
fi
case $what${BENCH:-} in
hosts) echo 'export DOWNBEAT_NETTEST=hosts; cd /; . /nettest.sh' >>"$script" ;;
one)
  "$GO" test -c -tags rdma -o "$CACHE/rdma.test" ./rdma
  "$GO" test -c -o "$CACHE/kernel.test" ./rdma/kernel
  "$GO" test -c -tags rdma -o "$CACHE/backend.test" ./backend
  files+=("$CACHE/rdma.test" "$CACHE/backend.test" "$CACHE/kernel.test" rdma/vm/contract.sh:/contract.sh rdma/vm/wire.sh:/wire.sh)
  cat >>"$script" <<'END'
cd /
failed=0
if [ "$RUN" != none ]; then
  DOWNBEAT_REQUIRE_KERNEL=1 kernel.test -test.timeout 100s || failed=1
  (. /contract.sh) || failed=1
fi
if [ "$NETRUN" != none ]; then (. /wire.sh) || failed=1; fi
[ $failed = 0 ]
END
  ;;
esac
[ "$what" != hosts ] || export HOSTS=2
began=$SECONDS
for try in 1 2 3; do
  rdma/vm/boot.sh "$kernel" "$CACHE/out-$what" "${LIMIT:-700}" "$script" "${files[@]}" && rc=0 || rc=$?
  [ $rc = 125 ] || break # under emulation the guest's kernel locks up now and then, whatever runs in it
  echo "test-rdma: $what: the virtual machine's kernel gave up (try $try of 3)" >&2
done
echo "test-rdma: $what: exit code $rc after $((SECONDS - began)) s"
[ $rc != 124 ] || echo "test-rdma: $what: not done within ${LIMIT:-700} s" >&2
exit $rc
