# Makes the file `disk`: what a PC boots from, with Debian's kernel (unpacked in `kernel/`). A FAT
# partition holds syslinux, the kernel and a RAM disk with the modules of the disk; the ext4 beside it
# is the root, whose only program is busybox.
set -ex
boot_start=2048 boot_sectors=98304 root_start=100352 disk_mib=256

mkdir -p ram/bin ram/modules root/bin root/sbin root/proc root/dev root/stamps
cp /bin/busybox ram/bin/
cp /bin/busybox root/bin/
cp kernel/lib/modules/*/kernel/drivers/virtio/virtio*.ko ram/modules/
cp kernel/lib/modules/*/kernel/drivers/block/virtio_blk.ko ram/modules/

cat > ram/init <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /dev /proc /mnt
mount -t devtmpfs dev /dev
mount -t proc proc /proc
# in no order: a module goes in once those that it needs are there
for again in 1 2 3; do
    for module in /modules/*.ko; do insmod $module 2>/dev/null; done
done
tries=0
while ! test -e /dev/vda2 && test $tries -lt 600; do sleep 0.1; tries=$((tries + 1)); done
mount -t ext4 /dev/vda2 /mnt || { echo "guest: no root"; sleep 1; reboot -f; }
exec switch_root /mnt /sbin/init
INIT

# Each stamp is a file of 500 lines; it is told on the console after it was synced. The next start
# reads all of them.
cat > root/sbin/init <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
n=0
while test -e /stamps/$((n + 1)); do
    n=$((n + 1))
    test "$(grep -c "^stamp $n\$" /stamps/$n)" = 500 || echo "guest: stamp $n is damaged"
done
echo "guest: up with $n stamps"
while true; do
    n=$((n + 1))
    i=0
    while test $i -lt 500; do echo "stamp $n"; i=$((i + 1)); done > /unnamed
    mv /unnamed /stamps/$n
    sync
    echo "guest: stamp $n"
done
INIT
chmod +x ram/init root/sbin/init
(cd ram; find . | busybox cpio -o -H newc | gzip) > initrd.gz

truncate -s ${disk_mib}M disk
printf '%s,%s,6,*\n%s,,83\n' $boot_start $boot_sectors $root_start | sfdisk -q disk
truncate -s $((boot_sectors * 512)) boot
mkfs.vfat boot
cat > syslinux.cfg <<'CONFIG'
DEFAULT trefoil
PROMPT 0
LABEL trefoil
    KERNEL vmlinuz
    INITRD initrd.gz
    APPEND console=ttyS0 quiet panic=-1 rdinit=/init
CONFIG
mcopy -i boot kernel/boot/vmlinuz-* ::vmlinuz
mcopy -i boot initrd.gz syslinux.cfg ::
syslinux --install boot
dd if=boot of=disk bs=512 seek=$boot_start conv=notrunc status=none
dd if=/usr/lib/syslinux/mbr/mbr.bin of=disk bs=440 count=1 conv=notrunc status=none
mke2fs -q -F -t ext4 -d root -E offset=$((root_start * 512)) disk \
    $(((disk_mib * 2048 - root_start) / 2))k
