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

.PHONY: help run build test race fuzz bench lint sim models clean ort vet-tags nocgo

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

test: ort lint ## everything that needs no hardware
	$(GO) test $(PKGS)

race: ort ## the tests under the race detector, shuffled
	$(GO) test -race -shuffle=on $(PKGS)

# Until Go 1.27 a fuzz run can end as "context deadline exceeded" when its time is up (go.dev/issue/75804). That
# alone, without an input that failed, is run again.
FUZZTIME ?= 10s
fuzz: ## run every fuzz target for FUZZTIME (default 10s)
	@set -e -o pipefail; log=$$(mktemp); trap 'rm -f $$log' EXIT; for pkg in $$($(GO) list $(PKGS)); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg 2>/dev/null | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$f"; \
	    until $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg 2>&1 | tee $$log; do \
	      grep -qx ' *context deadline exceeded' $$log && ! grep -q 'Failing input' $$log || exit 1; done; done; done

lint: ## gofmt, vet, and the tree's own rules
	@bad=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$bad" || { echo "gofmt: $$bad"; exit 1; }
	$(GO) vet ./...
	$(GO) test ./internal/lint

vet-tags: ## what the optional hardware adds must compile everywhere
	$(GO) vet -tags cuda ./...
	@test -f /usr/include/infiniband/verbs.h || { echo "vet -tags rdma: skipped: no libibverbs-dev"; exit 0; }; \
	  set -x; $(GO) vet -tags rdma ./rdma/...

nocgo: ## the tree must build without a C compiler, and what is virtual elsewhere than on Linux
	CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/downbeat
	CGO_ENABLED=0 GOOS=darwin $(GO) build -o /dev/null ./cmd/downbeat

sim: ## SEEDS seeds of the simulator with faults, from SEED on
	$(GO) test ./core/sim -run Swarm -count=1 -v -timeout 60m -seeds=$(SEEDS) -seed=$(SEED)

bench: bin/downbeat ## the short form of every benchmark that needs no hardware
	bin/downbeat bench goodput --setting table4
	bin/downbeat bench dispatch
	bin/downbeat bench overhead
	bin/downbeat bench gateway
	bin/downbeat bench transfer

models: bin/downbeat ort ## train every model from scratch, by seed
	bin/downbeat models train

clean: ## remove what make made
	rm -rf bin out

-include rdma/rdma.mk cuda/cuda.mk
