#!/usr/bin/env bash
# Checks and measures on a GPU machine: the device contract, every operator and model against ONNX Runtime's
# CPU results, compute-sanitizer where there is one, then the benchmarks. Needs the bundle beside it
# and a driver; no Go, no network. Usage: gpu-check.sh [RESULTS]; results go to RESULTS/<gpu>/.
set -euo pipefail
cd "$(dirname "$0")"
export DOWNBEAT_REQUIRE_GPU=1 ORT_LIB=$PWD/libonnxruntime.so.1
results=${1:-$PWD/results}
name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | tr '[:upper:] ' '[:lower:]-' | sed 's/^nvidia-//; s/^geforce-//')
results=$results/${name:?nvidia-smi names no GPU}
mkdir -p "$results"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,mig.mode.current --format=csv | tee "$results/gpu.csv"

echo "== device contract"
./cuda.test -test.run 'Contract|Inventory' -test.count 1

echo "== operators and models against ONNX Runtime"
models=()
test -d models && models=(-models models)
./downbeat bench gpu -check -seed "$RANDOM" "${models[@]}" -o json > "$results/check.json" || { ./downbeat bench gpu -check "${models[@]}"; exit 1; }

if command -v compute-sanitizer > /dev/null; then
	echo "== compute-sanitizer"
	for tool in memcheck racecheck synccheck; do
		compute-sanitizer --tool $tool --error-exitcode 1 ./downbeat bench gpu -check -small > "$results/sanitizer-$tool.txt"
	done
else
	echo "== compute-sanitizer: not installed, left out" | tee "$results/sanitizer.txt"
fi

echo "== benchmarks"
./downbeat bench gpu -o json > "$results/bench.json"
./downbeat bench gpu -rounds 20
echo "results in $results"
