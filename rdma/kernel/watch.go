package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Watch is a set of loaded programs. Its methods may be called from one goroutine at a time.
type Watch struct {
	objects delayObjects
	links   []link.Link
	mounted string // a cgroup2 mount of this watch, or ""
}

// Delay holds percentiles of the observations since Open; at most 12.5 % too high.
type Delay struct {
	Count uint64        `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
	P999  time.Duration `json:"p999_ns"`
}

// Report is the kernel's observations since Open.
type Report struct {
	RTT         Delay  `json:"rtt"`         // raw samples of watched connections, 1 µs steps
	Wait        Delay  `json:"wait"`        // of watched threads, from ready to running
	Retransmits uint64 `json:"retransmits"` // of watched connections
}

// ErrNotPermitted means that the programs cannot be loaded here, most likely because the process is not root.
var ErrNotPermitted = errors.New("kernel: not permitted")

// Open watches the TCP connections that begin from now on with one of ports at either end, and all threads of
// processes. The caller must Close.
func Open(ports []uint16, processes []int) (*Watch, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: eBPF needs root", ErrNotPermitted)
	}

	// Kernels before 5.11 count the memory of BPF maps against the limit on locked memory.
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("%w: memlock: %w", ErrNotPermitted, err)
	}
	w := &Watch{}
	if err := loadDelayObjects(&w.objects, nil); err != nil {
		return nil, fmt.Errorf("%w: load: %w", ErrNotPermitted, err)
	}

	if err := w.fillMaps(ports, processes); err != nil {
		w.Close()
		return nil, err
	}

	// Set ports and processes before the first event can come.
	if err := w.attach(); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (w *Watch) fillMaps(ports []uint16, processes []int) error {
	for _, p := range ports {
		if err := w.objects.Ports.Put(uint32(p), uint8(1)); err != nil {
			return fmt.Errorf("watch port %d: %w", p, err)
		}
	}

	for _, p := range processes {
		if err := w.objects.Processes.Put(uint32(p), uint8(1)); err != nil {
			return fmt.Errorf("watch process %d: %w", p, err)
		}
	}
	return nil
}

func (w *Watch) attach() error {
	group, err := w.cgroup()
	if err != nil {
		return err
	}

	l, err := link.AttachCgroup(link.CgroupOptions{Path: group, Attach: ebpf.AttachCGroupSockOps, Program: w.objects.TcpDelay})
	if err != nil {
		return fmt.Errorf("%w: attach to cgroup %s: %w", ErrNotPermitted, group, err)
	}
	w.links = append(w.links, l)

	// A thread's wait begins when it is woken or created, and ends when it gets the processor.
	for name, program := range map[string]*ebpf.Program{"sched_wakeup": w.objects.ThreadWoken,
		"sched_wakeup_new": w.objects.ThreadNew, "sched_switch": w.objects.ThreadSwitched} {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: program})
		if err != nil {
			return fmt.Errorf("%w: attach to %s: %w", ErrNotPermitted, name, err)
		}
		w.links = append(w.links, l)
	}
	return nil
}

// cgroup returns the root of cgroup v2, and mounts it privately if there is no mount.
func (w *Watch) cgroup() (string, error) {
	f, err := os.Open("/proc/mounts")
	if err != nil {
		return "", err
	}
	defer f.Close()

	for lines := bufio.NewScanner(f); lines.Scan(); {
		if v := strings.Fields(lines.Text()); len(v) > 2 && v[2] == "cgroup2" {
			return v[1], nil
		}
	}

	// Without a mount, as in a minimal system, create one that ends with the watch.
	dir, err := os.MkdirTemp("", "downbeat-cgroup-")
	if err != nil {
		return "", err
	}
	if err := unix.Mount("none", dir, "cgroup2", 0, ""); err != nil {
		os.Remove(dir)
		return "", fmt.Errorf("%w: no cgroup v2, and it cannot be mounted: %w", ErrNotPermitted, err)
	}

	w.mounted = dir
	return dir, nil
}

// Read returns the counts since Open.
func (w *Watch) Read() (Report, error) {
	var r Report
	rtts, err := sums(w.objects.Rtts)
	if err != nil {
		return r, err
	}
	waits, err := sums(w.objects.Waits)
	if err != nil {
		return r, err
	}
	counters, err := sums(w.objects.Counters)
	if err != nil {
		return r, err
	}

	r.RTT, r.Wait, r.Retransmits = percentiles(rtts), percentiles(waits), counters[0]
	return r, nil
}

// sums adds up a per-processor array.
func sums(m *ebpf.Map) ([]uint64, error) {
	out := make([]uint64, m.MaxEntries())
	for i := range out {
		var per []uint64
		if err := m.Lookup(uint32(i), &per); err != nil {
			return nil, fmt.Errorf("read counts: %w", err)
		}
		// Each processor counts in its own cell, without a lock.
		for _, v := range per {
			out[i] += v
		}
	}
	return out, nil
}

// percentiles reads a histogram of 8 steps per power of two (bucket in delay.bpf.c).
func percentiles(counts []uint64) Delay {
	var d Delay
	for _, c := range counts {
		d.Count += c
	}

	var seen uint64
	for b, c := range counts {
		if c == 0 {
			continue
		}
		seen += c

		// As in delay.go: below 16 a bucket is one value, above it the eighth of a power of two.
		bound := time.Duration(b)
		if b >= 16 {
			bound = time.Duration((uint64(b&7|8)+1)<<(b>>3-1) - 1)
		}

		if d.P50 == 0 && seen*2 >= d.Count {
			d.P50 = bound
		}
		if d.P99 == 0 && seen*100 >= d.Count*99 {
			d.P99 = bound
		}
		if d.P999 == 0 && seen*1000 >= d.Count*999 {
			d.P999 = bound
		}
	}
	return d
}

// Close detaches the programs.
func (w *Watch) Close() error {
	var errs []error
	for _, l := range w.links {
		errs = append(errs, l.Close())
	}

	errs = append(errs, w.objects.Close())
	if w.mounted != "" {
		errs = append(errs, unix.Unmount(w.mounted, unix.MNT_DETACH), os.Remove(w.mounted))
	}
	return errors.Join(errs...)
}

// Verdict names in one sentence the cause of the tail, if it is among these observations.
func (r Report) Verdict() string {
	const long = time.Millisecond
	switch {
	case r.RTT.Count == 0 && r.Wait.Count == 0:
		return "nothing was seen: no watched connection began and no watched thread ran"
	case r.Retransmits > 0 && r.RTT.P999 >= r.Wait.P999:
		return fmt.Sprintf("the network loses packets: %d retransmissions", r.Retransmits)
	case r.Wait.P999 >= long && r.Wait.P999 >= r.RTT.P999:
		return fmt.Sprintf("the processors are short: 1 in 1,000 times a ready thread waits %v or more", r.Wait.P999)
	case r.RTT.P999 >= long:
		return fmt.Sprintf("the network is slow or its ends are: 1 in 1,000 round trips takes %v or more", r.RTT.P999)
	}
	return "neither the network nor the processors make a tail of 1 ms"
}
