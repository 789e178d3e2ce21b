/* A stand-in for NVIDIA's libnvidia-ml.so.1, for tests on machines without a GPU.
 *
 *     gcc -shared -fPIC -o libnvidia-ml.so.1 fake_nvml.c
 *     LD_LIBRARY_PATH=. FAKE_NVML_STATE=state.txt gpustat
 *
 * The state is a text file, read again at every call, so that a test can change it while somebody looks. Replace the
 * file, do not rewrite it. Each line is `key=value;key=value...`; empty lines and those that begin with # do not count.
 *
 *     driver=550.54.15;loaded=1;fail=nvmlInit:18        the driver; without this line it is loaded
 *     name=NVIDIA A100;mem_total=85899345920;util=97    a GPU; every key has a default
 *     name=NVIDIA A100;mig=1                            a GPU in MIG mode
 *     mig_of=1;uuid=MIG-1;gi=7;ci=0;slot=0              a MIG device of the second GPU, with keys like a GPU's
 *
 * Keys of a GPU: name uuid bus mem_total mem_used mem_reserved util mem_util temp power_mw procs graphics mps lost fail
 * mig numa xid, and more below. `procs=6512:1024,6513:-` lists processes with their bytes, `-` if those are not
 * available. `lost=1` makes every call fail with GPU_IS_LOST. `fail=nvmlDeviceGetMemoryInfo:999` makes that function
 * fail with that code, in all its versions, or in one: `fail=nvmlDeviceGetMemoryInfo_v2:13`.
 *
 * When `loaded` becomes 0, or the file vanishes, everybody must call nvmlInit again, as after a driver's reload.
 * Drivers 535.43 to 535.98 wrote larger structures than their own header said; so does this one, called so.
 */
#include "processes.h"

/* ---- the library itself ---- */

Result nvmlInit_v2(void) {
    Result result = load();
    int driver = driver_line();
    if (!result && driver >= 0) result = injected(driver, "nvmlInit");
    if (!result) initialized++;
    return result;
}
Result nvmlInit(void) { return nvmlInit_v2(); }
Result nvmlInitWithFlags(u32 flags) { (void)flags; return nvmlInit_v2(); }

Result nvmlShutdown(void) {
    if (!initialized) return UNINITIALIZED;
    initialized--;
    return SUCCESS;
}

const char *nvmlErrorString(Result result) {
    switch (result) {
        case SUCCESS: return "Success";
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        case INSUFFICIENT_SIZE: return "Insufficient Size";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case TIMEOUT: return "Timeout";
        case GPU_IS_LOST: return "GPU is lost";
        default: return "Unknown Error";
    }
}

Result nvmlSystemGetDriverVersion(char *out, u32 size) { ENTER_DRIVER(); driver_version(out, size); return SUCCESS; }

Result nvmlSystemGetNVMLVersion(char *out, u32 size) {
    ENTER_DRIVER();
    char version[64];
    driver_version(version, sizeof version);
    snprintf(out, size, "12.%s", version);
    return SUCCESS;
}

Result nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12040; return SUCCESS; }
Result nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

Result nvmlSystemGetProcessName(u32 pid, char *out, u32 size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/exe", pid);
    ssize_t length = readlink(path, out, size - 1);
    if (length < 0) return NOT_FOUND;
    out[length] = 0;
    return SUCCESS;
}

/* ---- finding GPUs ---- */

static void uuid_of(int line, char *out, size_t size) {
    char otherwise[64];
    const char *kind = is_mig_device(line) ? "MIG" : "GPU";
    snprintf(otherwise, sizeof otherwise, "%s-00000000-0000-0000-0000-%012d", kind, line);
    get(line, "uuid", out, size, otherwise);
}

static u32 bus_of(int line) { return (u32)number(line, "bus", 0x10 + gpu_index(line)); }

static void bus_id_of(int line, char *out, size_t size) { snprintf(out, size, "00000000:%02X:00.0", bus_of(line)); }

Result nvmlDeviceGetCount_v2(u32 *count) {
    ENTER_DRIVER();
    *count = gpu_index(line_count);
    return SUCCESS;
}
Result nvmlDeviceGetCount(u32 *count) { return nvmlDeviceGetCount_v2(count); }

Result nvmlDeviceGetHandleByIndex_v2(u32 index, void **handle) {
    ENTER_DRIVER();
    int line = gpu_line(index);
    if (line < 0) return INVALID_ARGUMENT;
    *handle = handle_of(line);
    return enter(*handle, __func__, &line);
}
Result nvmlDeviceGetHandleByIndex(u32 index, void **handle) { return nvmlDeviceGetHandleByIndex_v2(index, handle); }

Result nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    ENTER_DRIVER();
    char one[96];
    for (int line = 0; line < line_count; line++) {
        uuid_of(line, one, sizeof one);
        if (has(line, "driver") || strcmp(one, uuid)) continue;
        *handle = handle_of(line);
        return enter(*handle, __func__, &line);
    }
    return NOT_FOUND;
}

Result nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **handle) {
    ENTER_DRIVER();
    char one[32];
    for (int line = 0; line < line_count; line++) {
        bus_id_of(line, one, sizeof one);
        if (!is_gpu(line) || strcasecmp(one, bus_id)) continue;
        *handle = handle_of(line);
        return enter(*handle, __func__, &line);
    }
    return NOT_FOUND;
}

Result nvmlDeviceGetUUID(void *handle, char *out, u32 size) {
    ENTER(handle);
    uuid_of(line, out, size);
    return SUCCESS;
}

INDEX(nvmlDeviceGetIndex)
INDEX(nvmlDeviceGetMinorNumber)

typedef struct { char legacy[16]; u32 domain, bus, device, device_id, subsystem_id; char bus_id[32]; } PciInfo;

Result nvmlDeviceGetPciInfo_v3(void *handle, PciInfo *out) {
    ENTER(handle);
    memset(out, 0, sizeof *out);
    out->bus = bus_of(chip_of(line));
    out->device_id = 0x20b210de;
    bus_id_of(chip_of(line), out->bus_id, sizeof out->bus_id);
    snprintf(out->legacy, sizeof out->legacy, "%s", out->bus_id + 4);
    return SUCCESS;
}

Result nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, u32 *level) {
    ENTER(one);
    int second;
    Result result = enter(other, __func__, &second);
    if (result) return result;
    *level = number(line, "numa", 0) == number(second, "numa", 0) ? 20 : 50;
    return SUCCESS;
}

/* ---- MIG ---- */

Result nvmlDeviceGetMigMode(void *handle, u32 *current, u32 *pending) {
    ENTER(handle);
    GPU_ONLY();
    *current = *pending = (u32)number(line, "mig", 0);
    return SUCCESS;
}

Result nvmlDeviceGetMaxMigDeviceCount(void *handle, u32 *count) {
    ENTER(handle);
    *count = number(line, "mig", 0) ? 7 : 0;
    return SUCCESS;
}

/* MIG devices stand in slots, by default in the order of their lines; slots may be empty. */
Result nvmlDeviceGetMigDeviceHandleByIndex(void *handle, u32 index, void **mig) {
    ENTER(handle);
    u32 next = 0;
    for (int child = 0; child < line_count; child++) {
        if (!is_mig_device(child) || chip_of(child) != line) continue;
        if (number(child, "slot", next++) != index) continue;
        *mig = handle_of(child);
        return SUCCESS;
    }
    return NOT_FOUND;
}

Result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **chip) {
    ENTER(handle);
    *chip = handle_of(chip_of(line));
    return SUCCESS;
}

Result nvmlDeviceIsMigDeviceHandle(void *handle, u32 *out) {
    ENTER(handle);
    *out = is_mig_device(line);
    return SUCCESS;
}

ID(nvmlDeviceGetGpuInstanceId, "gi")
ID(nvmlDeviceGetComputeInstanceId, "ci")

typedef struct {
    u32 multiprocessors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    u64 memory_mb;
} Attributes;

Result nvmlDeviceGetAttributes_v2(void *handle, Attributes *out) {
    ENTER(handle);
    if (!is_mig_device(line)) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->gpu_slices = (u32)number(line, "gpu_slices", 1);
    out->compute_slices = (u32)number(line, "compute_slices", out->gpu_slices);
    out->memory_mb = number(line, "mem_total", DEFAULT_MEMORY) >> 20;
    return SUCCESS;
}

/* ---- what a GPU is and does ---- */

TEXT(nvmlDeviceGetName, "name", "NVIDIA A100-SXM4-80GB")
TEXT(nvmlDeviceGetSerial, "serial", "0000000000000")
TEXT(nvmlDeviceGetVbiosVersion, "vbios", "92.00.00.00.00")

typedef struct { u64 total, free, used; } Memory;
typedef struct { u32 version; u64 total, reserved, free, used; } MemoryV2;

Result nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *out) {
    ENTER(handle);
    out->total = number(line, "mem_total", DEFAULT_MEMORY);
    out->used = number(line, "mem_used", 0);
    out->reserved = number(line, "mem_reserved", 0);
    out->free = out->total - out->used - out->reserved;
    return SUCCESS;
}

/* As in a real driver, the first version takes what the driver keeps for itself as used. */
Result nvmlDeviceGetMemoryInfo(void *handle, Memory *out) {
    ENTER(handle);
    out->total = number(line, "mem_total", DEFAULT_MEMORY);
    out->used = number(line, "mem_used", 0) + number(line, "mem_reserved", 0);
    out->free = out->total - out->used;
    return SUCCESS;
}

Result nvmlDeviceGetBAR1MemoryInfo(void *handle, Memory *out) {
    ENTER(handle);
    *out = (Memory){137438953472ULL, 137438953472ULL, 0};
    return SUCCESS;
}

typedef struct { u32 gpu, memory; } Utilization;

Result nvmlDeviceGetUtilizationRates(void *handle, Utilization *out) {
    ENTER(handle);
    GPU_ONLY();
    *out = (Utilization){(u32)number(line, "util", 0), (u32)number(line, "mem_util", 0)};
    return SUCCESS;
}

typedef struct { u32 version, sensor; int temperature; } Temperature;

Result nvmlDeviceGetTemperatureV(void *handle, Temperature *out) {
    ENTER(handle);
    GPU_ONLY();
    out->temperature = (int)number(line, "temp", 35);
    return SUCCESS;
}

NUMBER(nvmlDeviceGetFanSpeed, "fan", 0)
NUMBER(nvmlDeviceGetPowerUsage, "power_mw", 60000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw", 400000)
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit_mw", 400000)
NUMBER(nvmlDeviceGetPersistenceMode, "persistence", 1)
NUMBER(nvmlDeviceGetPerformanceState, "pstate", 0)
NUMBER(nvmlDeviceGetComputeMode, "compute_mode", 0)
NUMBER(nvmlDeviceGetDisplayMode, "display", 0)
NUMBER(nvmlDeviceGetDisplayActive, "display", 0)
UNSUPPORTED(nvmlDeviceGetDriverModel)
UNSUPPORTED(nvmlDeviceGetDriverModel_v2)

LARGE_NUMBER(nvmlDeviceGetTotalEnergyConsumption, "energy_mj")
LARGE_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, "throttle")
LARGE_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle")

Result nvmlDeviceGetClockInfo(void *handle, u32 type, u32 *out) {
    ENTER(handle);
    GPU_ONLY();
    *out = type == 2 ? (u32)number(line, "mem_clock", 1593) : (u32)number(line, "clock", 1410);
    return SUCCESS;
}

NUMBER_BY_TYPE(nvmlDeviceGetMaxClockInfo, "max_clock", 1410)
NUMBER_BY_TYPE(nvmlDeviceGetTemperature, "temp", 35)
PERCENT(nvmlDeviceGetEncoderUtilization, "encoder_util")
PERCENT(nvmlDeviceGetDecoderUtilization, "decoder_util")

Result nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    ENTER(handle);
    *major = (int)number(line, "cc_major", 8);
    *minor = (int)number(line, "cc_minor", 0);
    return SUCCESS;
}

Result nvmlDeviceGetTotalEccErrors(void *handle, u32 type, u32 counter, u64 *out) {
    (void)counter;
    ENTER(handle);
    *out = number(line, type == 1 ? "ecc_dbe" : "ecc_sbe", 0);
    return SUCCESS;
}

/* ---- processes ---- */

PROCESSES(nvmlDeviceGetComputeRunningProcesses, "procs")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, "graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, "mps")

typedef struct { u32 pid; u64 time; u32 sm, memory, encoder, decoder; } Sample;

Result nvmlDeviceGetProcessUtilization(void *handle, Sample *out, u32 *count, u64 since) {
    ENTER(handle);
    Process processes[256];
    u32 found = 256;
    Result result = list_processes(line, "procs", &found, processes);
    if (result) return result;
    u32 room = out ? *count : 0;
    *count = found;
    if (found > room) return INSUFFICIENT_SIZE;
    for (u32 i = 0; i < found; i++)
        out[i] = (Sample){processes[i].pid, since + 1, (u32)(number(line, "util", 0) / found), 0, 0, 0};
    return SUCCESS;
}

/* ---- events: a new `xid=79` of a registered GPU is told once ---- */

typedef struct { u64 types[MAX_LINES], last[MAX_LINES]; } EventSet;
typedef struct { void *handle; u64 type, data; u32 gpu_instance, compute_instance; } Event;

#define XID_EVENT 8

Result nvmlEventSetCreate(EventSet **set) { *set = calloc(1, sizeof **set); return SUCCESS; }
Result nvmlEventSetFree(EventSet *set) { free(set); return SUCCESS; }

Result nvmlDeviceGetSupportedEventTypes(void *handle, u64 *types) {
    ENTER(handle);
    *types = XID_EVENT;
    return SUCCESS;
}

Result nvmlDeviceRegisterEvents(void *handle, u64 types, EventSet *set) {
    ENTER(handle);
    set->types[line] = types;
    set->last[line] = number(line, "xid", 0);
    return SUCCESS;
}

Result nvmlEventSetWait_v2(EventSet *set, Event *out, u32 milliseconds) {
    for (u32 waited = 0;; waited += 20) {
        ENTER_DRIVER();
        for (int line = 0; line < line_count; line++) {
            u64 xid = number(line, "xid", 0);
            if (!(set->types[line] & XID_EVENT) || xid == set->last[line]) continue;
            set->last[line] = xid;
            if (!xid) continue;
            *out = (Event){handle_of(line), XID_EVENT, xid, 0, 0};
            return SUCCESS;
        }
        if (waited >= milliseconds) return TIMEOUT;
        usleep(20000);
    }
}
