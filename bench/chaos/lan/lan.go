//go:build linux

// Package lan is a small network of hosts on one machine: a network namespace per host, and a switch in this process
// between them. The switch sees every packet, so it can delay, lose, slow and cut each direction between two hosts,
// even if the kernel has no netem. It needs root and TUN devices.
package lan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hostsMax is the largest host number: the last byte of an address.
const hostsMax = 254

// Network is the switch. Its methods may be called concurrently.
type Network struct {
	id      string  // of this process's namespaces
	subnet  [3]byte // of all addresses
	hosts   [hostsMax + 1]atomic.Pointer[port]
	ways    [hostsMax + 1][hostsMax + 1]atomic.Pointer[way]
	seed    uint64
	running sync.WaitGroup
}

// port is the switch's end of a host's device.
type port struct {
	file *os.File
	ns   string // empty: this process's own namespace
}

// Open creates a network in which this process is host 1. seed determines the lost packets.
func Open(seed uint64) (*Network, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces need root")
	}

	removeLeft()
	pid := os.Getpid()

	// Subnet and namespaces contain the process id, so that two runs on one machine do not collide.
	n := &Network{id: fmt.Sprintf("dbchaos%d", pid), subnet: [3]byte{10, byte(100 + pid/256%100), byte(pid)}, seed: seed}
	if err := n.addHost(1, ""); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// removeLeft removes namespaces of killed runs.
func removeLeft() {
	all, _ := filepath.Glob("/var/run/netns/dbchaos*")
	// A namespace outlives its process. Remove it only if that process is gone: another run may be using it.
	for _, path := range all {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), "dbchaos"), "-")
		if _, err := os.Stat("/proc/" + pid); os.IsNotExist(err) {
			_ = runIP("netns", "del", filepath.Base(path))
		}
	}
}

func runIP(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// Address returns the address of host i.
func (n *Network) Address(i int) string {
	return netip.AddrFrom4([4]byte{n.subnet[0], n.subnet[1], n.subnet[2], byte(i)}).String()
}

// Command returns the command line that runs args on host i.
func (n *Network) Command(i int, args ...string) []string {
	if i == 1 {
		return args
	}
	return append([]string{"ip", "netns", "exec", n.namespace(i)}, args...)
}

func (n *Network) namespace(i int) string { return fmt.Sprintf("%s-%d", n.id, i) }

// Add adds host i, 2 to 254, to the network.
func (n *Network) Add(i int) error {
	if err := runIP("netns", "add", n.namespace(i)); err != nil {
		return err
	}
	return n.addHost(i, n.namespace(i))
}

// Remove removes host i as a power cut does: no peer is notified.
func (n *Network) Remove(i int) error {
	p := n.hosts[i].Swap(nil)
	if p == nil {
		return nil
	}
	err := p.file.Close()
	if p.ns != "" {
		err = errors.Join(err, runIP("netns", "del", p.ns))
	}
	return err
}

func (n *Network) addHost(i int, ns string) error {
	name := fmt.Sprintf("dbc%d-%d", os.Getpid()%100000, i)
	file, err := OpenTUN(name)
	if err != nil {
		return err
	}

	// Move the device into its namespace before it gets an address, because moving removes addresses.
	device, in := name, []string{}
	if ns != "" {
		device, in = "eth0", []string{"-n", ns}
		err = runIP("link", "set", name, "netns", ns, "name", device)
	}
	// A queue of 10,000 packets: losses should come only from the switch's harm, not from the device.
	for _, args := range [][]string{{"addr", "add", n.Address(i) + "/24", "dev", device}, {"link", "set", device, "up", "txqueuelen", "10000"}, {"link", "set", "lo", "up"}} {
		if err == nil {
			err = runIP(append(in[:len(in):len(in)], args...)...)
		}
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}

	p := &port{file: file, ns: ns}
	n.hosts[i].Store(p)
	n.running.Go(func() { n.forward(i, p) })
	return nil
}

// OpenTUN creates a layer-3 device in the calling thread's namespace. The device disappears when the file is closed.
func OpenTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("no TUN devices: %w", err)
	}

	// The kernel's struct ifreq: 16 bytes of name, then a union of 24 bytes that begins with the flags.
	var request struct {
		name  [unix.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	request.flags = unix.IFF_TUN | unix.IFF_NO_PI

	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&request))); errno != 0 {
		unix.Close(fd)
		return nil, fmt.Errorf("TUNSETIFF %s: %w", name, errno)
	}
	return os.NewFile(uintptr(fd), name), nil // the descriptor can be polled only once it is a device
}

// Close removes all hosts.
func (n *Network) Close() error {
	var err error
	// Slot 0 is unused: the last byte of an address is never 0 here.
	for i := range n.hosts {
		if i > 0 {
			err = errors.Join(err, n.Remove(i))
		}
	}

	// Close the ways after the hosts, when no port feeds them any more.
	for from := range n.ways {
		for to := range n.ways[from] {
			if w := n.ways[from][to].Swap(nil); w != nil {
				w.closeWay()
			}
		}
	}
	n.running.Wait()
	return err
}

// forward forwards the packets of host i until it is removed.
func (n *Network) forward(i int, p *port) {
	buf := make([]byte, 64<<10)
	for {
		size, err := p.file.Read(buf)
		if err != nil {
			return
		}
		to, ok := n.target(buf[:size])
		if !ok {
			continue // multicast, IPv6, or another network
		}

		// Most ways have no harm: their packets pass without a copy or a lock.
		if w := n.ways[i][to].Load(); w != nil {
			w.takePacket(buf[:size])
		} else {
			n.deliverPacket(to, buf[:size])
		}
	}
}

// target returns the destination host of an IPv4 packet.
func (n *Network) target(packet []byte) (int, bool) {
	if len(packet) < 20 || packet[0]>>4 != 4 || [3]byte(packet[16:19]) != n.subnet {
		return 0, false
	}
	return int(packet[19]), packet[19] > 0 && packet[19] <= hostsMax
}

func (n *Network) deliverPacket(to int, packet []byte) {
	if p := n.hosts[to].Load(); p != nil {
		_, _ = p.file.Write(packet) // a host that is being removed takes nothing
	}
}

// newRandom returns the generator of one way.
func (n *Network) newRandom(from, to int) *rand.Rand {
	return rand.New(rand.NewPCG(n.seed, uint64(from)<<8|uint64(to)))
}
