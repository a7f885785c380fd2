# Tests of the data plane that need more than "go test": real verbs in virtual machines, and hosts in
# network namespaces.
RDMA_CACHE ?= $(CURDIR)/.cache/rdma

.PHONY: test-rdma test-rdma-hosts test-net nettest-models

test-rdma: nettest-models ## the data plane and the whole system over real verbs, in a virtual machine with soft-RoCE
	@CACHE=$(RDMA_CACHE) GO=$(GO) rdma/vm/test.sh

test-rdma-hosts: nettest-models ## the same between two virtual machines
	@CACHE=$(RDMA_CACHE) GO=$(GO) rdma/vm/test.sh hosts

test-net: bin/downbeat nettest-models ## hosts in network namespaces: bad networks, partitions, kills, crowds (root)
	@DOWNBEAT_NETTEST=1 DOWNBEAT_BIN=$(CURDIR)/bin/downbeat $(GO) test -count=1 $(TESTTIME) -v -run Net ./rdma/nettest

nettest-models:
	@$(MAKE) --no-print-directory ort || echo "no ONNX Runtime: the three processes run an emulated model"
