#!/usr/bin/env bash
# Checks and measures on a GPU machine, in parts that do not stop each other: the device contract, memory of another
# process, every operator, network and model in every precision against ONNX Runtime's CPU results, every way to do a
# product, the tools of compute-sanitizer where they are, then the benchmarks beside PyTorch, the profiles, and what 2, 4
# and 8 lanes of the GPU serve. Needs the
# bundle beside it and a driver; no Go, no network. Usage: gpu-check.sh [RESULTS]; results go to RESULTS/<gpu>/, with a
# summary of the parts. The exit status is how many failed.
#   PARTS="contract check"  runs these parts only      LIMIT=N  seconds for one part at most (default by part)
#   SMALL=1                 small sizes: to try it     LIBRARIES=…  folders of cuBLASLt and cuDNN
set -uo pipefail
cd "$(dirname "$0")"
export DOWNBEAT_REQUIRE_GPU=1 ORT_LIB=${ORT_LIB:-$PWD/libonnxruntime.so.1}
python=${PYTHON:-python3}
results=${1:-$PWD/results}
name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | head -n 1 | tr '[:upper:] ' '[:lower:]-' | sed 's/^nvidia-//; s/^geforce-//')
results=$results/${name:-${GPU_NAME:?nvidia-smi names no GPU; set GPU_NAME}}
mkdir -p "$results"
rm -f "$results"/{summary.txt,bench.jsonl,layers.jsonl}

# The libraries that PyTorch brings lie in folders of their own. cuDNN opens its parts and cuBLASLt by name.
: "${LIBRARIES:=$($python -c 'import glob, os, site
print(":".join(d for p in site.getsitepackages() + [site.getusersitepackages()] for d in sorted(glob.glob(p + "/nvidia/*/lib"))))' 2> /dev/null)}"
export LD_LIBRARY_PATH=$LIBRARIES${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} DOWNBEAT_LIBRARIES=$LIBRARIES

if [ -n "${SMALL:-}" ]; then
	layered=trial match='Conv 3|MatMul|Softmax axis -1|LayerN' few=(-batches 1,2 -rounds 2 -graphs trial -precisions fp16 -tune=false) flow=(-graphs trial,resnet50-bytes -batches 2 -rounds 3 -tune=false -precisions fp32) options='tensor_64x64|cublasLt' profiled=vehicle-s lanes=1,2 rounds=10
else
	layered=resnet50,bert-base match='' few=(-batches 1,2,4,8,16,32,64 -rounds 200) flow=(-graphs resnet50-bytes -batches 32 -rounds 60 -precisions fp16) options=. profiled= lanes=1,2,4,8 rounds=100
fi
failed=0

# part NAME SECONDS COMMAND…: runs a command, keeps what it prints, and goes on whatever happens.
part() {
	local part=$1 limit=${LIMIT:-$2} start=$SECONDS rc
	shift 2
	[[ -n "${PARTS:-}" && " $PARTS " != *" $part "* ]] && return
	echo "== $part"
	timeout -k 10 "$limit" "$@" > "$results/$part.txt" 2>&1
	rc=$?
	case $rc in
	0) word=passed ;;
	124 | 137) word="not finished in $limit s" failed=$((failed + 1)) ;;
	*) word="FAILED ($rc)" failed=$((failed + 1)) ;;
	esac
	tail -n 15 "$results/$part.txt"
	printf '%-22s %-24s %4d s\n' "$part" "$word" $((SECONDS - start)) | tee -a "$results/summary.txt"
}

check() { ./downbeat bench gpu -check -seed "$RANDOM" "$@"; }
# Kernels of the libraries are not ours to check. A process of its own for each tool; few cases, the first of their kind.
sanitize() {
	compute-sanitizer --tool "$1" --error-exitcode 1 ./downbeat bench gpu -check -small -tune=false -libraries none \
		-match "${SANITIZE:-^(Conv 8 to 70|Conv deep|Conv of images|MatMul \[40|MatMul with bias|Softmax axis|LayerNorm|ReduceMean|Gather|GlobalAv|bert)}" -precisions "${2:-fp32,fp16}"
}
bench() { ./downbeat bench gpu -lines "$results/bench.jsonl" -o table "$@"; }
export -f check sanitize bench
export results layered

{ nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,mig.mode.current --format=csv
  $python -c 'import torch; print("torch", torch.__version__, "cudnn", torch.backends.cudnn.version())'; } 2>&1 | tee "$results/gpu.csv"

part contract 60 ./cuda.test -test.run '^TestContract|^TestInventory$' -test.count 1
part regions 60 ./regions.test -test.count 1
part executor 60 ./layered.test -test.run '^Test(Trainer|Lane)?Contract$|^TestALaneTrains$' -test.count 1
part check-plain 100 bash -c 'check -small -tune=false -libraries none -match "$0"' "$match"
part check-options 100 ./gpu.test -test.run "EveryOption/($options)" -test.count 1
part check 120 bash -c 'check ${SMALL:+-small} $([ -d models ] && echo "-models models") -match "$0"' "$match"
part bench-resnet50 150 bash -c 'bench -graphs resnet50 "$@"' - "${few[@]}"
part bench-bert 120 bash -c 'bench -graphs bert-base "$@"' - "${few[@]}"
part bench-layers 60 bash -c 'bench -batches "${SMALL:-1,64}" -rounds 20 -precisions fp32,fp16 -graphs "$layered" -layers -python "" -lines "$results/layers.jsonl"'
part bench-pipeline 60 bash -c 'bench -python "" "$@"' - "${flow[@]}"
[ -d models ] && part profile 60 ./downbeat profile -gpu -models models -rounds "$rounds" -dry-run $profiled
[ -d models ] && part lanes 180 ./downbeat profile -gpu -models models -rounds "$rounds" -dry-run -lanes "$lanes" ${profiled:-vehicle-s vehicle-l detector-l activity-l}
if command -v compute-sanitizer > /dev/null; then
	part sanitizer-memcheck 90 bash -c 'sanitize memcheck'
	part sanitizer-racecheck 60 bash -c 'sanitize racecheck fp16'
	part sanitizer-synccheck 60 bash -c 'sanitize synccheck fp16'
else
	echo "sanitizer              left out: no compute-sanitizer" | tee -a "$results/summary.txt"
fi
nvidia-smi --query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv >> "$results/gpu.csv" 2> /dev/null
echo "== $failed parts failed; results in $results, ${SECONDS} s in all"
cat "$results/summary.txt"
exit "$failed"
