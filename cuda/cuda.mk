# The GPU runtime: device code, tests through a driver on the processor, and the check on a GPU machine.
NVCC      ?= nvcc
NVCCFLAGS ?= -std=c++17 -O3
HOSTGPU   := $(CURDIR)/out/hostgpu
GPU       := $(CURDIR)/out/gpu

.PHONY: ptx ptx-check test-hostgpu test-gorgonia gpu-bundle gpu-check

PTX := cuda/kernels/ptx

ptx: ## compile csrc/*.cu to the committed PTX (needs nvcc; NVCC, NVCCFLAGS)
	$(NVCC) $(NVCCFLAGS) -arch=compute_70 -ptx -o $(PTX)/kernels.ptx csrc/kernels.cu
	$(NVCC) $(NVCCFLAGS) -arch=compute_70 -DREAL_F16 -ptx -o $(PTX)/kernels_f16.ptx csrc/kernels.cu
	$(NVCC) $(NVCCFLAGS) -arch=compute_70 -DREAL_BF16 -ptx -o $(PTX)/kernels_bf16.ptx csrc/kernels.cu
	$(NVCC) $(NVCCFLAGS) -arch=compute_80 -ptx -o $(PTX)/tensor.ptx csrc/tensor.cu

ptx-check: ## assemble the PTX for every architecture from sm_70 to sm_90 that it is for (needs ptxas)
	@for a in 70 75 80 86 89 90; do for f in $(PTX)/*.ptx; do \
	  test $$a -lt $$(sed -n 's/^\.target sm_//p' $$f) || ptxas -arch=sm_$$a -o /dev/null $$f || exit 1; done; echo "sm_$$a ok"; done

HOSTSRC := $(wildcard csrc/hostgpu.* csrc/*.cu csrc/kernels.h csrc/real.h csrc/tensor.h)

$(HOSTGPU)/libcuda.so.1: $(HOSTSRC)
	@mkdir -p $(HOSTGPU)
	g++ -std=c++17 -O2 -Wall -Wno-unknown-pragmas -Wno-unused-function -shared -fPIC -Wl,-soname,libcuda.so.1 -o $@ csrc/hostgpu.cpp
	ln -sf libcuda.so.1 $(HOSTGPU)/libcuda.so

# The libraries that products and convolutions may use, in a folder of their own: tests run with and without.
$(HOSTGPU)/libraries/libcublasLt.so.12: csrc/hostlibs.cpp csrc/hostgpu.h
	@mkdir -p $(HOSTGPU)/libraries
	g++ -std=c++17 -O2 -Wall -shared -fPIC -o $@ csrc/hostlibs.cpp -ldl
	cp $@ $(HOSTGPU)/libraries/libcudnn.so.9

test-hostgpu: ort $(HOSTGPU)/libcuda.so.1 $(HOSTGPU)/libraries/libcublasLt.so.12 test-gorgonia ## the real driver's code and the kernels, on the processor, against ONNX Runtime
	LD_LIBRARY_PATH=$(HOSTGPU) DOWNBEAT_REQUIRE_GPU=1 $(GO) test -tags cuda -count=1 $(TESTTIME) ./cuda ./cuda/executor ./cuda/regions
	LD_LIBRARY_PATH=$(HOSTGPU) DOWNBEAT_REQUIRE_GPU=1 $(GO) test -tags cuda -count=1 $(TESTTIME) -run 'CUDA|Device' ./frontend/gateway ./cmd/downbeat
	LD_LIBRARY_PATH=$(HOSTGPU) DOWNBEAT_REQUIRE_GPU=1 $(GO) test -tags cuda -count=1 $(TESTTIME) -run 'Contract|Lane' ./backend/layered
	LD_LIBRARY_PATH=$(HOSTGPU) DOWNBEAT_REQUIRE_GPU=1 $(GO) test -tags cuda -count=1 $(TESTTIME) -run AModelLearnsWhileItServes .
	LD_LIBRARY_PATH=$(HOSTGPU) DOWNBEAT_REQUIRE_GPU=1 DOWNBEAT_LANES=2 $(GO) test -tags cuda -count=1 $(TESTTIME) -run AModelLearnsWhileItServes .
	LD_LIBRARY_PATH=$(HOSTGPU) DOWNBEAT_LIBRARIES=$(HOSTGPU)/libraries DOWNBEAT_REQUIRE_GPU=1 \
	  $(GO) test -tags cuda -count=1 $(TESTTIME) -run 'Operators|Encoder|EveryOption|Training' ./bench/gpu

# gorgonia.org/cu beside our driver (decision 0061): it needs cuda.h of CUDA 11 or 12 when it is compiled, here from
# CUDA_HEADERS, and libcuda.so when it is linked, here the host driver, which has only what is called.
CUDA_HEADERS ?= $(firstword $(patsubst %/cuda.h,%,$(shell grep -lsE '^.define CUDA_VERSION 1[12]' /usr/include/cuda.h /usr/local/cuda/include/cuda.h /opt/cuda/include/cuda.h)))
GORGONIA = LD_LIBRARY_PATH=$(HOSTGPU) CGO_CFLAGS='-O2 -I$(CUDA_HEADERS)' CGO_LDFLAGS='-L$(HOSTGPU) -Wl,--unresolved-symbols=ignore-all'

test-gorgonia: $(HOSTGPU)/libcuda.so.1 ## gorgonia.org/cu and our driver on one device, and what a launch costs in each (needs CUDA_HEADERS)
	@if test -f '$(CUDA_HEADERS)/cuda.h'; then set -x; $(GORGONIA) $(GO) test -tags 'cuda gorgonia' -count=1 -bench . -benchtime 300ms ./cuda/crosscheck; \
	  else echo "test-gorgonia: left out: no cuda.h of CUDA 11 or 12; name its folder with CUDA_HEADERS="; fi

gpu-bundle: ort ## binaries for a GPU machine that has neither Go nor a network: out/gpu.tar.gz
	@rm -rf $(GPU) && mkdir -p $(GPU)
	$(GO) build -tags cuda -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(GPU)/downbeat ./cmd/downbeat
	$(GO) test -c -tags cuda -trimpath -ldflags '-s -w' -o $(GPU)/cuda.test ./cuda
	$(GO) test -c -tags cuda -trimpath -ldflags '-s -w' -o $(GPU)/gpu.test ./bench/gpu
	$(GO) test -c -tags cuda -trimpath -ldflags '-s -w' -o $(GPU)/regions.test ./cuda/regions
	$(GO) test -c -tags cuda -trimpath -ldflags '-s -w' -o $(GPU)/layered.test ./backend/layered
	@cp $(ORT_LIB) cuda/gpu-check.sh $(GPU)/
	@for f in $$(git ls-files models | grep -v '\.go$$' | grep -v testdata); do install -D $$f $(GPU)/$$f; done
	@tar -C $(dir $(GPU)) -czf $(GPU).tar.gz gpu
	@size=$$(stat -c %s $(GPU).tar.gz); echo "out/gpu.tar.gz: $$((size >> 20)) MiB"; test $$size -lt 60000000

gpu-check: ## on a GPU machine, from the bundle: check every operator and model, then measure
	@test -x $(GPU)/downbeat || { test -f $(GPU).tar.gz && tar -C $(dir $(GPU)) -xzf $(GPU).tar.gz; } || \
	  { echo "gpu-check: no out/gpu.tar.gz; make it with: make gpu-bundle (on a machine with Go)"; exit 1; }
	@cd $(GPU) && ./gpu-check.sh $(CURDIR)/bench/results
