# Runs in the guest: two hosts in one machine. rxe0 on v0 and rxe1 on v1 are the ends of a cable; the
# rules send what is for the other address through it, although both addresses are this machine's.
# Namespaces would not do: soft-RoCE of this kernel receives in the first one only.
ip=/sbin/ip
$ip addr flush dev v1
$ip addr add 10.77.0.2/24 dev v1
rdma link add rxe1 type rxe netdev v1
for d in all v0 v1; do
  echo 1 >/proc/sys/net/ipv4/conf/$d/accept_local
  echo 0 >/proc/sys/net/ipv4/conf/$d/rp_filter
done
$ip route add 10.77.0.2 dev v0 src 10.77.0.1 table 51
$ip route add 10.77.0.1 dev v1 src 10.77.0.2 table 52
$ip rule add pref 1 iif v0 lookup local
$ip rule add pref 2 iif v1 lookup local
$ip rule add pref 3 to 10.77.0.2 lookup 51
$ip rule add pref 4 to 10.77.0.1 lookup 52
$ip rule add pref 100 lookup local
$ip rule del pref 0
export DOWNBEAT_NETTEST=wire
. /nettest.sh
