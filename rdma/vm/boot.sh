#!/bin/bash
# boot.sh KERNELDIR OUT LIMIT SCRIPT FILE...: boots a virtual machine whose init ends by running
# SCRIPT with soft-RoCE up (device rxe0 on v0, 10.77.0.1), with FILEs and the libraries they need in
# /bin. The console goes to stdout and OUT/console. Exit code: the script's; 124: LIMIT s passed.
#
# TCG, not KVM: nested KVM hangs on hosts of this kind. Two processors, as soft-RoCE needs one to
# itself when a process polls.
set -euo pipefail
kernel=$1 out=$2 limit=$3 script=$4
shift 4
version=$(ls "$kernel/lib/modules")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,proc,sys,dev,tmp,etc,run,lib64,lib,modules,usr/lib/x86_64-linux-gnu,etc/libibverbs.d} "$out"

add() { # a file and the libraries it needs
  cp -L "$1" "$root/bin/$(basename "$1")"
  ldd "$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r lib; do
    mkdir -p "$root$(dirname "$lib")" && cp -Ln "$lib" "$root$lib"
  done || true
}
cp "$(command -v busybox)" "$root/bin/busybox"
mkdir -p "$root/sbin" && cp -L "$(command -v ip)" "$root/sbin/ip"
for f in "$(command -v ip)" "$(command -v rdma)" "$(command -v tc)" "$(command -v ib_read_lat)" "$(command -v ib_read_bw)" "$@"; do add "$f"; done
rm "$root/bin/ip" # in busybox's shell "ip" is an applet; the real one is /sbin/ip
providers=/usr/lib/x86_64-linux-gnu/libibverbs
mkdir -p "$root$providers"
cp -L "$providers"/librxe*.so "$root$providers/"
cp -L /usr/lib/x86_64-linux-gnu/libibverbs.so.1 "$root/usr/lib/x86_64-linux-gnu/"
add /usr/lib/x86_64-linux-gnu/libibverbs.so.1
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
cp "$script" "$root/script"
printf 'root:x:0:0:root:/:/bin/sh\n' >"$root/etc/passwd"

# The order matters: without the crc32 modules soft-RoCE fails to add a device.
n=0
seen=" "
for m in crc32-pclmul crc32_generic udp_tunnel ip6_udp_tunnel ib_core ib_uverbs rdma_rxe configfs ib_cm iw_cm rdma_cm rdma_ucm veth sch_netem; do
  while read -r _ path _; do
    [[ $seen == *" $path "* ]] && continue
    seen+="$path "
    n=$((n + 1))
    cp "$path" "$root/modules/$(printf %03d $n)-$(basename "$path")"
  done < <(modprobe -d "$kernel" -S "$version" --show-depends "$m" | grep ^insmod)
done

cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts && mount -t tmpfs shm /dev/shm
for m in /modules/*; do insmod $m || echo "insmod $m failed"; done
mkdir -p /dev/infiniband
ulimit -l unlimited
/sbin/ip link set lo up
/sbin/ip link add v0 type veth peer name v1
/sbin/ip addr add 10.77.0.1/24 dev v0
/sbin/ip addr add 10.77.1.1/24 dev v1
/sbin/ip link set v0 up mtu 4200
/sbin/ip link set v1 up mtu 4200
rdma link add rxe0 type rxe netdev v0 || echo "no rxe0"
i=0
while [ $i -lt 50 ] && ! grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state; do i=$((i + 1)); sleep 0.1; done
sh /script
echo "guest-exit: $?"
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$out/initramfs.gz"

set +e
timeout -k 5 "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1536 -nographic -no-reboot \
  -kernel "$kernel"/boot/vmlinuz-* -initrd "$out/initramfs.gz" -append "console=ttyS0 quiet panic=-1 mitigations=off" \
  </dev/null 2>&1 | tr -d '\r' | tee "$out/console"
rc=${PIPESTATUS[0]}
[ "$rc" = 0 ] || exit 124
code=$(sed -n 's/^guest-exit: //p' "$out/console" | tail -1)
exit "${code:-125}"
