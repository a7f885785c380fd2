# Downbeat. "make help" lists the targets.
SHELL := /bin/bash
.DELETE_ON_ERROR:

GO      ?= go
ORT     := 1.27.0
ORT_LIB ?= $(CURDIR)/.cache/ort/$(ORT)/libonnxruntime.so.1
export ORT_LIB

VERSION := $(shell git describe --always --dirty 2>/dev/null || echo devel)
PKGS    ?= ./...
# What the binary can use besides: GPUs need nothing to build, verbs their headers.
TAGS    ?= cuda$(if $(wildcard /usr/include/infiniband/verbs.h),$(comma)rdma)
comma   := ,
SEEDS   ?= 10000
SEED    ?= 1

.PHONY: release staticcheck help run build test conformance race fuzz fuzz-long chaos bench lint sim models clean ort highs vet-tags nocgo chart chart-manifest apiserver

help: ## list the targets
	@grep -hE '^[a-z][a-zA-Z-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

run: bin/downbeat ort ## serve the models, send load, print the result; the page stays up in a terminal
	@bin/downbeat demo $(ARGS)

build: bin/downbeat ## build bin/downbeat

bin/downbeat: FORCE
	@$(GO) build -tags '$(TAGS)' -ldflags '-X main.version=$(VERSION)' -o $@ ./cmd/downbeat
FORCE:

ort: ## fetch ONNX Runtime and check its digest, unless ORT_LIB names one
	@deploy/ort/fetch.sh

highs: ## fetch the solver that plans are compared with, and check its digest
	@deploy/highs/fetch.sh

# A release is named by its tag. Static binaries use no C: they run schedulers, gateways, clients, tools and emulated GPUs
# anywhere, but have neither ONNX Runtime nor verbs, which need "make build" on the host.
RELEASE := out/release/downbeat-$(VERSION)
release: ## static binaries for linux amd64 and arm64 with checksums, in out/release, named by the tag
	rm -rf out/release && mkdir -p out/release
	@set -e; for arch in amd64 arm64; do \
	  echo "$(RELEASE)-linux-$$arch"; \
	  CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(RELEASE)-linux-$$arch ./cmd/downbeat; done
	cd out/release && sha256sum downbeat-* > SHA256SUMS && sha256sum -c SHA256SUMS

# Go's own limit of ten minutes a package is not enough where other work has most of the processors.
TESTTIME := -timeout 40m

test: ort lint ## everything that needs no hardware
	$(GO) test $(TESTTIME) $(PKGS)

conformance: ort ## the protocol's pages and Triton's extensions, point by point, also over real models
	$(GO) test -count=1 -v -run 'Conformance|EveryField|TritonNames|FeaturesAreShown' ./frontend/gateway ./cmd/downbeat ./core/repo ./internal/lint

race: ort ## the tests under the race detector, shuffled
	$(GO) test -race -shuffle=on $(TESTTIME) $(PKGS)

# Until Go 1.27 a fuzz run can end as "context deadline exceeded" when its time is up (go.dev/issue/75804). That
# alone, without an input that failed, is run again.
FUZZTIME ?= 10s
fuzz: ## run every fuzz target for FUZZTIME (default 10s)
	@set -e -o pipefail; log=$$(mktemp); trap 'rm -f $$log' EXIT; for pkg in $$($(GO) list $(PKGS)); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg 2>/dev/null | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$f"; \
	    until $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg 2>&1 | tee $$log; do \
	      grep -qx ' *context deadline exceeded' $$log && ! grep -q 'Failing input' $$log || exit 1; done; done; done

MINUTES ?= 30
fuzz-long: ## fuzz TARGETS (core/wire:FuzzFrames ...) for MINUTES each, and print their rows of bench/results/fuzz
	nice -n 15 bench/results/fuzz/run.sh $(MINUTES) $(TARGETS)

lint: ## gofmt, vet, and the tree's own rules
	@bad=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$bad" || { echo "gofmt: $$bad"; exit 1; }
	$(GO) vet ./...
	$(GO) test ./internal/lint

chart: ## the Helm chart against Helm's own code, its queries against Prometheus's parser (fetches both)
	cd deploy/kubernetes/check && $(GO) test -count=1 ./...

apiserver: ## build a real kube-apiserver, for the tests that speak to one (6 minutes of one core)
	@deploy/kubernetes/apiserver/build.sh

chart-manifest: ## write deploy/kubernetes/downbeat.yaml anew: what the chart makes of its own values
	cd deploy/kubernetes/check && $(GO) test -count=1 -run Manifest . -update

# What staticcheck would say of names and comments is the lint's business.
STATIC = $(GO) tool staticcheck -checks 'SA*,S1*'
staticcheck: ## mistakes, by staticcheck, under every build tag
	$(STATIC) ./...
	$(STATIC) -tags cuda ./backend/... ./cuda/...
	@test -f /usr/include/infiniband/verbs.h || { echo "staticcheck -tags rdma: skipped: no libibverbs-dev"; exit 0; }; \
	  set -x; $(STATIC) -tags rdma ./rdma/...

vet-tags: ## what the optional hardware adds must compile everywhere
	$(GO) vet -tags cuda ./...
	@test -f /usr/include/infiniband/verbs.h || { echo "vet -tags rdma: skipped: no libibverbs-dev"; exit 0; }; \
	  set -x; $(GO) vet -tags rdma ./rdma/...

nocgo: ## the tree must build without a C compiler, and what is virtual elsewhere than on Linux
	CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/downbeat
	CGO_ENABLED=0 $(GO) vet ./...
	CGO_ENABLED=0 GOOS=darwin $(GO) build -o /dev/null ./cmd/downbeat
	CGO_ENABLED=0 GOOS=darwin $(GO) vet ./cmd/downbeat

# Seeds are independent: "make sim SWARM='TestSwarm$$' SEED=2000000 SEEDS=250000", and beside it another one from 2250000 on.
SWARM ?= Swarm
sim: ## SEEDS seeds of the simulator with faults, from SEED on; what fails is listed at the end
	GOGC=200 GOMAXPROCS=1 $(GO) test ./core/swarm -run '$(SWARM)' -count=1 -v -timeout 0 -seeds=$(SEEDS) -seed=$(SEED)

chaos: bin/downbeat ## kill, stop, starve and cut off parts of a deployment for a minute, and count every request (root for all of it)
	bin/downbeat chaos -short $(ARGS)

bench: bin/downbeat ## the short form of every benchmark that needs no hardware
	bin/downbeat bench goodput -setting table4
	bin/downbeat bench dispatch
	bin/downbeat bench overhead
	bin/downbeat bench gateway
	bin/downbeat bench transfer

models: bin/downbeat ort ## train every model from scratch, by seed
	bin/downbeat models train

clean: ## remove what make made
	rm -rf bin out

-include rdma/rdma.mk cuda/cuda.mk
