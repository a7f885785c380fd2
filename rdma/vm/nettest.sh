# Runs in the guest: the tests between hosts (rdma/nettest) over real verbs.
export PATH=/sbin:/bin DOWNBEAT_BIN=/bin/downbeat DOWNBEAT_NETTEST_TOKEN=/tmp/token ORT_LIB=/lib/libonnxruntime.so.1
echo nettest-nettest-nettest >/tmp/token
[ -e $ORT_LIB ] && export DOWNBEAT_NETTEST_MODELS=/models
if [ "$HOST" = 2 ]; then
  DOWNBEAT_NETTEST_AGENT=10.77.0.2:7001 nettest.test
  exit 1
fi
{ nettest.test -test.v -test.timeout ${SPAN:-400}s -test.run "${NETRUN:-^TestNet}"; echo $? >/tmp/rc; } 2>&1 | tee /tmp/log | grep -v '^=== '
rc=$(cat /tmp/rc)
[ $rc = 0 ] && [ -z "${NETRUN:-}" ] && ! grep -q 'READ requests on the wire' /tmp/log && echo "no READ was seen" && rc=1
[ $rc = 0 ] && echo "$(grep -c '^--- PASS' /tmp/log) tests between hosts passed over soft-RoCE ($DOWNBEAT_NETTEST)"
[ $rc = 0 ]
