//go:build rdma && linux && cgo

package rdma

/*
#include "verbs.h"
*/
import "C"

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/Mellanox/rdmamap"
	"golang.org/x/sys/unix"
)

func checkVerbs(rc C.int, op string) error {
	if rc == 0 {
		return nil
	}
	return &verbsError{op, unix.Errno(rc)}
}

// checkMemory is check for a call that locks need bytes of memory: it names the limit in its way.
func checkMemory(rc C.int, op string, need int) error {
	err := checkVerbs(rc, op)
	if unix.Errno(rc) != unix.ENOMEM {
		return err
	}

	var lim unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim)
	if lim.Cur == unix.RLIM_INFINITY {
		return err
	}
	return fmt.Errorf("%w: %d bytes more must be locked in memory, and RLIMIT_MEMLOCK allows %d in all; "+
		"raise it (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock of docker) or grant CAP_IPC_LOCK", err, need, lim.Cur)
}

func loadVerbs() error {
	if C.db_abi() != C.DB_VERBS_ABI {
		return fmt.Errorf("%w: verbs.c and verbs.h differ", ErrNotSupported)
	}
	if e := C.db_load(); e != nil {
		return fmt.Errorf("%w: %s", ErrNotSupported, C.GoString(e))
	}
	return nil
}

// verbsPlace is a port of a device that belongs to a network interface.
type verbsPlace struct {
	device    string
	port, gid int
}

// placeFor finds the RDMA device behind the network interface that has address ip.
func placeFor(ip net.IP) (verbsPlace, error) {
	netdev, err := interfaceOf(ip)
	if err != nil {
		return verbsPlace{}, err
	}

	device, err := rdmamap.GetRdmaDeviceForNetdevice(netdev)
	if err != nil {
		device, err = deviceByGID(netdev) // soft-RoCE is not tied to its interface in sysfs otherwise
	}
	if err != nil {
		return verbsPlace{}, fmt.Errorf("%w: network interface %s (%s) has no RDMA device", ErrNotSupported, netdev, ip)
	}

	port, gid, err := chooseGID(device, netdev, ip)
	return verbsPlace{device, port, gid}, err
}

func interfaceOf(ip net.IP) (string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return "", err
	}

	for _, i := range all {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && (n.IP.Equal(ip) || ip.IsUnspecified() && !n.IP.IsLoopback() && rdmamap.IsRDmaDeviceForNetdevice(i.Name)) {
				return i.Name, nil
			}
		}
	}
	return "", fmt.Errorf("%w: no network interface with an RDMA device has address %s", ErrNotSupported, ip)
}

const sysfs = "/sys/class/infiniband"

func readSys(parts ...string) string {
	b, _ := os.ReadFile(filepath.Join(append([]string{sysfs}, parts...)...))
	return strings.TrimSpace(string(b))
}

func deviceByGID(netdev string) (string, error) {
	for _, device := range rdmamap.GetRdmaDeviceList() {
		ports, _ := os.ReadDir(filepath.Join(sysfs, device, "ports"))
		for _, p := range ports {
			if readSys(device, "ports", p.Name(), "gid_attrs", "ndevs", "0") == netdev {
				return device, nil
			}
		}
	}
	return "", ErrNotSupported
}

// chooseGID prefers RoCE v2 with the address itself, then any RoCE v2 of the interface; InfiniBand
// has GID 0 of its port.
func chooseGID(device, netdev string, ip net.IP) (port, gid int, err error) {
	ports, _ := os.ReadDir(filepath.Join(sysfs, device, "ports"))
	best := -1
	for _, p := range ports {
		n, err := strconv.Atoi(p.Name())
		if err != nil || !strings.HasPrefix(readSys(device, "ports", p.Name(), "state"), "4") { // 4: ACTIVE
			continue
		}
		if readSys(device, "ports", p.Name(), "link_layer") == "InfiniBand" {
			return n, 0, nil
		}

		gids, _ := os.ReadDir(filepath.Join(sysfs, device, "ports", p.Name(), "gids"))
		for _, g := range gids {
			i, err := strconv.Atoi(g.Name())
			if err != nil || readSys(device, "ports", p.Name(), "gid_attrs", "types", g.Name()) != "RoCE v2" {
				continue
			}
			if dev := readSys(device, "ports", p.Name(), "gid_attrs", "ndevs", g.Name()); dev != netdev {
				continue
			}

			// The GID of the address itself is best; without one, the first of the interface serves.
			if a := net.ParseIP(readSys(device, "ports", p.Name(), "gids", g.Name())); a.Equal(ip) {
				return n, i, nil
			}
			if best < 0 {
				best, port = i, n
			}
		}
	}

	if best < 0 {
		return 0, 0, fmt.Errorf("%w: device %s has no active port with a RoCE v2 GID for %s", ErrNotSupported, device, netdev)
	}
	return port, best, nil
}

func verbsAvailable() Availability {
	var a Availability
	if err := loadVerbs(); err != nil {
		a.Reason = err.Error()
		return a
	}

	devices := rdmamap.GetRdmaDeviceList()
	if len(devices) == 0 {
		a.Reason = "no RDMA device in " + sysfs
		return a
	}
	a.OK, a.Reason = true, "devices "+strings.Join(devices, ", ")
	return a
}
