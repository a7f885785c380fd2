#!/bin/bash
# boot.sh KERNELDIR OUT LIMIT SCRIPT FILE...: boots a virtual machine whose init ends by running
# SCRIPT with soft-RoCE up (device rxe0 on v0, 10.77.0.1), with FILEs and the libraries they need in
# /bin; PATH:PLACE goes to PLACE, directories too. The console goes to stdout and OUT/console. Exit
# code: the script's; 124: LIMIT s passed; 125: the machine's kernel gave up: it did not reach init within
# BOOT s (90 unless told), or an emulated processor was stuck for 40 s, which is a panic.
#
# HOSTS=2 boots two machines joined by a cable: rxe0 on eth0, 10.77.0.1 and 10.77.0.2; the script
# finds its machine's number in $HOST. The end of the first is the end; OUT/console2 is the other's.
# WORDS are further ones for the kernel's command line.
#
# TCG, not KVM: nested KVM hangs on hosts of this kind. One machine has two processors, as soft-RoCE
# needs one to itself when a process polls.
set -euo pipefail
kernel=$1 out=$2 limit=$3 script=$4
shift 4
version=$(ls "$kernel/lib/modules")
root=$(mktemp -d)
other=
watch=
trap 'kill $other $watch 2>/dev/null || true; rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,sbin,proc,sys,dev,tmp,etc,run,var,lib64,lib,modules,usr/lib/x86_64-linux-gnu,etc/libibverbs.d} "$out"
ln -s /run "$root/var/run"

add() { # a file, to where it is wanted, and the libraries that it needs
  mkdir -p "$(dirname "$root$2")" && cp -rL "$1" "$root$2"
  ldd "$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r lib; do
    mkdir -p "$root$(dirname "$lib")" && cp -Ln "$lib" "$root$lib"
  done || true
}
add "$(command -v busybox)" /bin/busybox
add "$(command -v ip)" /sbin/ip # in busybox's shell "ip" is an applet
for f in rdma tc ib_read_lat ib_read_bw; do add "$(command -v $f)" /bin/$f; done
for f in "$@"; do
  case $f in
  *:*) add "${f%%:*}" "${f#*:}" ;;
  *) add "$f" "/bin/$(basename "$f")" ;;
  esac
done
providers=/usr/lib/x86_64-linux-gnu/libibverbs
mkdir -p "$root$providers"
cp -L "$providers"/librxe*.so "$root$providers/"
add /usr/lib/x86_64-linux-gnu/libibverbs.so.1 /usr/lib/x86_64-linux-gnu/libibverbs.so.1
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
cp "$script" "$root/script"
printf 'root:x:0:0:root:/:/bin/sh\n' >"$root/etc/passwd"

# The order matters: without the crc32 modules soft-RoCE fails to add a device.
modules="crc32-pclmul crc32_generic udp_tunnel ip6_udp_tunnel ib_core ib_uverbs rdma_rxe configfs ib_cm iw_cm rdma_cm rdma_ucm sch_netem"
case ${HOSTS:-1} in
1) modules+=" veth" ;;
*) modules+=" virtio_net virtio_pci" ;;
esac
n=0
seen=" "
for m in $modules; do
  while read -r _ path _; do
    [[ $seen == *" $path "* ]] && continue
    seen+="$path "
    n=$((n + 1))
    cp "$path" "$root/modules/$(printf %03d $n)-$(basename "$path")"
  done < <(modprobe -d "$kernel" -S "$version" --show-depends "$m" | grep ^insmod)
done

cat >"$root/init" <<'INIT'
#!/bin/busybox sh
echo "guest-up"
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts && mount -t tmpfs shm /dev/shm
for m in /modules/*; do insmod $m || echo "insmod $m failed"; done
mkdir -p /dev/infiniband
ulimit -l unlimited
export HOST=$(sed -n 's/.*host=\([12]\).*/\1/p' /proc/cmdline)
/sbin/ip link set lo up
if [ -n "$HOST" ]; then
  dev=eth0
  /sbin/ip addr add 10.77.0.$HOST/24 dev eth0
  /sbin/ip link set eth0 up mtu 4200
else
  dev=v0
  /sbin/ip link add v0 type veth peer name v1
  /sbin/ip addr add 10.77.0.1/24 dev v0
  /sbin/ip addr add 10.77.1.1/24 dev v1
  /sbin/ip link set v0 up mtu 4200
  /sbin/ip link set v1 up mtu 4200
fi
rdma link add rxe0 type rxe netdev $dev || echo "no rxe0"
i=0
while [ $i -lt 50 ] && ! grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state; do i=$((i + 1)); sleep 0.1; done
sh /script
echo "guest-exit: $?"
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) >"$out/initramfs" # to unpack it takes longer than to read it

machine() { # NUMBER, WORDS OF THE KERNEL'S, FURTHER ARGUMENTS...
  local number=$1 words=$2
  shift 2
  exec timeout -k 5 "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -nographic -no-reboot -pidfile "$root/pid$number" "$@" \
    -kernel "$kernel"/boot/vmlinuz-* -initrd "$out/initramfs" -append "console=ttyS0 quiet panic=-1 softlockup_panic=1 watchdog_thresh=20 rcupdate.rcu_cpu_stall_timeout=40 sysctl.kernel.panic_on_rcu_stall=1 mitigations=off $words ${WORDS:-}" </dev/null 2>&1
}
cable() { # FROM TO: datagrams over Unix sockets; a stream of them would delay acknowledgements
  echo -netdev "dgram,id=n0,local.type=unix,local.path=$root/cable$1,remote.type=unix,remote.path=$root/cable$2" \
    -device "virtio-net-pci,netdev=n0,romfile=,mac=52:54:00:77:00:0$1"
}
started() { # every console of OUT shows that its kernel has reached init
  for ((i = 1; i <= ${HOSTS:-1}; i++)); do grep -q guest-up "$out/console${i#1}" 2>/dev/null || return; done
}
# A kernel can lose its timer before it is able to panic, and then waits for ever.
watch_boot() {
  for ((s = 0; s < ${BOOT:-90}; s++)); do
    ! started || return
    sleep 1
  done
  echo "boot.sh: the kernel did not reach init within ${BOOT:-90} s" >&2
  kill $(cat "$root"/pid*)
}
rm -f "$out"/console*
set +e
watch_boot &
watch=$!
if [ "${HOSTS:-1}" = 1 ]; then
  (machine 1 "" -smp 2 -m 1536 -nic none) | sed -u 's|\r||g' | tee "$out/console"
else
  (machine 2 host=2 -smp 1 -m 1024 $(cable 2 1)) >"$out/console2" &
  other=$!
  (machine 1 host=1 -smp 1 -m 1024 $(cable 1 2)) | sed -u 's|\r||g' | tee "$out/console"
fi
rc=${PIPESTATUS[0]}
[ "$rc" = 0 ] || exit 124
code=$(sed -n 's/^guest-exit: //p' "$out/console" | tail -1)
exit "${code:-125}"
