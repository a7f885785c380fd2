# Tests of the data plane that need more than "go test": real verbs in a virtual machine, and hosts
# in network namespaces.
RDMA_CACHE ?= $(CURDIR)/.cache/rdma

.PHONY: test-rdma test-net

test-rdma: ## the data plane over real verbs, in a virtual machine with soft-RoCE
	@CACHE=$(RDMA_CACHE) GO=$(GO) rdma/vm/test.sh

test-net: ## hosts in network namespaces, with delay, loss, partition and killed peers (root)
	@DOWNBEAT_NETTEST=1 $(GO) test -count=1 -timeout 300s -v -run Net ./rdma/nettest
