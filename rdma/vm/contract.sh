# Runs in the guest: the contract and fault tests over real verbs, then perftest and ours beside it.
export DOWNBEAT_RDMA_ADDR=10.77.0.1 DOWNBEAT_REQUIRE_RDMA=1
cat /sys/class/infiniband/rxe0/ports/1/state
rdma.test -test.v -test.timeout 240s -test.run "${RUN:-verbs|Verbs}" 2>&1 | grep -v '^=== '
rc=$?
exit $rc
