# Runs in the guest: the contract and the fault tests over real verbs, and backends that read from each other.
export DOWNBEAT_RDMA_ADDR=10.77.0.1 DOWNBEAT_REQUIRE_RDMA=1
echo "device: $(rdma link show)"
{ rdma.test -test.v -test.timeout 400s -test.run "${RUN:-/verbs\$|^TestVerbs}"; echo $? >/tmp/rc; } 2>&1 | tee /tmp/log | grep -v '^=== '
rc=$(cat /tmp/rc)
backend.test -test.v -test.timeout 300s -test.run 'ABackendReadsWhatAnotherHolds/verbs$|HeldOutputsAreRead/verbs$' 2>&1 | tee -a /tmp/log | grep -v '^=== '
grep -q -- '--- PASS: TestABackendReadsWhatAnotherHolds/verbs' /tmp/log || rc=1
[ $rc = 0 ] && ! grep -qi -- '--- PASS: .*verbs' /tmp/log && echo "no verbs test ran" && rc=1
[ $rc = 0 ] && echo "test-rdma: ok, $(grep -c -- '--- PASS' /tmp/log) tests passed over soft-RoCE"
[ $rc = 0 ]
