//go:build cuda && linux && cgo

package cuda

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// listGPUs must not call any other function of nvml before Init has succeeded: without the library every other call,
// even Shutdown, ends the process. It looks up functions that older drivers lack first, for the same reason.
func listGPUs() ([]GPU, error) {
	switch rc := nvml.Init(); rc {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, fmt.Errorf("inventory: no libnvidia-ml or no driver on this host: %w", ErrNotSupported)
	default:
		return nil, fmt.Errorf("inventory: nvml code %d", rc) // nvml.ErrorString would also be a call
	}
	defer nvml.Shutdown()

	n, rc := nvml.DeviceGetCount()
	if rc != nvml.SUCCESS {
		return nil, fmt.Errorf("inventory: count: %s", nvml.ErrorString(rc))
	}

	driver, _ := nvml.SystemGetDriverVersion()

	var all []GPU
	for i := range n {
		d, rc := nvml.DeviceGetHandleByIndex(i)
		if rc != nvml.SUCCESS {
			return nil, fmt.Errorf("inventory: GPU %d: %s", i, nvml.ErrorString(rc))
		}
		all = append(all, describeGPU(i, driver, d))
	}
	return all, nil
}

// describeGPU reads all properties; those that a GPU or a driver does not have stay zero.
func describeGPU(i int, driver string, d nvml.Device) GPU {
	g := GPU{Index: i, Driver: driver}
	g.Name, _ = d.GetName()
	g.UUID, _ = d.GetUUID()

	if m, rc := d.GetMemoryInfo(); rc == nvml.SUCCESS {
		g.MemoryBytes, g.MemoryFree = int64(m.Total), int64(m.Free)
	}
	if u, rc := d.GetUtilizationRates(); rc == nvml.SUCCESS {
		g.Utilization = int(u.Gpu)
	}
	if mhz, rc := d.GetClockInfo(nvml.CLOCK_SM); rc == nvml.SUCCESS {
		g.ClockMHz = int(mhz)
	}

	readPower(d, &g)

	// Older drivers lack some calls, and calling a missing function ends the process.
	if hasSymbol("nvmlDeviceGetMigMode") {
		mode, _, rc := d.GetMigMode()
		if g.MIG = rc == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE; g.MIG {
			g.Instances = listInstances(d)
		}
	}
	if hasSymbol("nvmlDeviceGetComputeMode") {
		mode, rc := d.GetComputeMode()
		g.Exclusive = rc == nvml.SUCCESS && mode != nvml.COMPUTEMODE_DEFAULT
	}

	g.MPSDaemon = mpsDaemon()
	if hasSymbol("nvmlDeviceGetMPSComputeRunningProcesses_v3") {
		if p, rc := d.GetMPSComputeRunningProcesses(); rc == nvml.SUCCESS {
			g.MPS = len(p)
		}
	}

	if hasSymbol("nvmlDeviceGetComputeRunningProcesses_v3") {
		if all, rc := d.GetComputeRunningProcesses(); rc == nvml.SUCCESS {
			g.Processes = len(slices.DeleteFunc(all, func(p nvml.ProcessInfo) bool { return int(p.Pid) == os.Getpid() }))
		}
	}
	return g
}

// readPower reads power and energy, which the library reports in thousandths.
func readPower(d nvml.Device, g *GPU) {
	if hasSymbol("nvmlDeviceGetPowerUsage") {
		if mW, rc := d.GetPowerUsage(); rc == nvml.SUCCESS {
			g.Watts = float64(mW) / 1e3
		}
	}
	if hasSymbol("nvmlDeviceGetEnforcedPowerLimit") {
		if mW, rc := d.GetEnforcedPowerLimit(); rc == nvml.SUCCESS {
			g.WattsMost = float64(mW) / 1e3
		}
	}
	if hasSymbol("nvmlDeviceGetTotalEnergyConsumption") {
		if mJ, rc := d.GetTotalEnergyConsumption(); rc == nvml.SUCCESS {
			g.Joules = float64(mJ) / 1e3
		}
	}
}

// listInstances lists the instances of a GPU in MIG mode.
func listInstances(d nvml.Device) (all []Instance) {
	if !hasSymbol("nvmlDeviceGetMaxMigDeviceCount") || !hasSymbol("nvmlDeviceGetMigDeviceHandleByIndex") {
		return nil
	}

	n, rc := d.GetMaxMigDeviceCount()
	if rc != nvml.SUCCESS {
		return nil
	}

	for i := range min(n, 64) {
		part, rc := d.GetMigDeviceHandleByIndex(i)
		if rc != nvml.SUCCESS {
			continue // positions without an instance
		}

		x := Instance{}
		x.Name, _ = part.GetName()
		x.UUID, _ = part.GetUUID()

		if m, rc := part.GetMemoryInfo(); rc == nvml.SUCCESS {
			x.MemoryBytes = int64(m.Total)
		}
		all = append(all, x)
	}
	return all
}

// mpsDaemon reports whether the control pipe of the multi-process service exists.
func mpsDaemon() bool {
	dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if dir == "" {
		// The default folder of the control daemon's pipe.
		dir = "/tmp/nvidia-mps"
	}

	_, err := os.Stat(filepath.Join(dir, "control"))
	return err == nil
}

func hasSymbol(symbol string) bool { return nvml.Extensions().LookupSymbol(symbol) == nil }
