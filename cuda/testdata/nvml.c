// A management library for tests: two GPUs, of which the second is split into two instances. Functions of newer
// libraries (v3 process lists) are missing on purpose: they must be looked up before they are called.
#include <string.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
typedef struct { int index, part; } device;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned gpu, memory; } utilization;

static device all[] = {{0, -1}, {1, -1}, {1, 0}, {1, 1}};

int nvmlInit_v2(void) { return OK; }
int nvmlInit(void) { return OK; }
int nvmlInitWithFlags(unsigned f) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int rc) { return "error of the test library"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return OK; }
int nvmlDeviceGetCount(unsigned *n) { *n = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device **d) {
	if (i > 1) return INVALID_ARGUMENT;
	*d = &all[i];
	return OK;
}
int nvmlDeviceGetHandleByIndex(unsigned i, device **d) { return nvmlDeviceGetHandleByIndex_v2(i, d); }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "999.1", n); return OK; }
int nvmlDeviceGetName(device *d, char *s, unsigned n) { strncpy(s, d->part < 0 ? "Test GPU" : "Test GPU MIG 1g.8gb", n); return OK; }
int nvmlDeviceGetUUID(device *d, char *s, unsigned n) {
	strncpy(s, d->part < 0 ? "GPU-0" : d->part == 0 ? "MIG-a" : "MIG-b", n);
	return OK;
}
int nvmlDeviceGetMemoryInfo(device *d, memory *m) {
	m->total = (d->part < 0 ? 16ull : 8ull) << 30;
	m->free = m->total / 4;
	m->used = m->total - m->free;
	return OK;
}
int nvmlDeviceGetUtilizationRates(device *d, utilization *u) { u->gpu = 37; u->memory = 5; return OK; }
int nvmlDeviceGetClockInfo(device *d, int clock, unsigned *mhz) { *mhz = 1410; return OK; }
int nvmlDeviceGetPowerUsage(device *d, unsigned *mw) { *mw = 61500; return d->index == 0 ? OK : NOT_SUPPORTED; }
int nvmlDeviceGetTotalEnergyConsumption(device *d, unsigned long long *mj) { *mj = 7200500; return OK; }
int nvmlDeviceGetMigMode(device *d, unsigned *now, unsigned *next) { *now = *next = d->index == 1; return OK; }
int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *n) { *n = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned i, device **out) {
	if (i != 1 && i != 4) return NOT_FOUND;
	*out = &all[i == 1 ? 2 : 3];
	return OK;
}
int nvmlDeviceGetComputeMode(device *d, int *mode) { *mode = d->index == 0 ? 3 : 0; return OK; }
