/* The processes of a GPU, in the two shapes that drivers have written them. */
#include "state.h"


typedef struct { u32 pid; u64 memory; u32 gpu_instance, compute_instance; } Process;
typedef struct { Process process; u64 protected_memory; } LargeProcess;

static u32 append_processes(int line, const char *key, Process *out, u32 count, u32 room) {
    char list[LINE_SIZE], *rest = NULL;
    get(line, key, list, sizeof list, "");
    for (char *one = strtok_r(list, ",", &rest); one; one = strtok_r(NULL, ",", &rest), count++) {
        if (count >= room) continue;
        const char *memory = strchr(one, ':');
        int known = memory && memory[1] != '-';
        out[count].pid = (u32)atoi(one);
        out[count].memory = known ? strtoull(memory + 1, NULL, 0) : ~0ULL;
        out[count].gpu_instance = is_mig_device(line) ? (u32)number(line, "gi", 0) : ~0U;
        out[count].compute_instance = is_mig_device(line) ? (u32)number(line, "ci", 0) : ~0U;
    }
    return count;
}

/* A MIG device has its own processes; a GPU in MIG mode has those of all of its MIG devices. */
static Result list_processes(int line, const char *key, u32 *count, Process *out) {
    u32 room = out ? *count : 0, found = append_processes(line, key, out, 0, room);
    for (int child = 0; child < line_count; child++)
        if (is_mig_device(child) && chip_of(child) == line) found = append_processes(child, key, out, found, room);
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

static Result list_large_processes(int line, const char *key, u32 *count, LargeProcess *out) {
    Process plain[256];
    u32 room = *count < 256 ? *count : 256;
    Result result = list_processes(line, key, &room, out ? plain : NULL);
    for (u32 i = 0; !result && i < room; i++) out[i] = (LargeProcess){plain[i], 0};
    *count = room;
    return result;
}

static int writes_large_processes(void) {
    char version[64];
    driver_version(version, sizeof version);
    return !strncmp(version, "535.", 4) && atoi(version + 4) < 104;
}

#define PROCESSES(function, key) \
    Result function##_v2(void *handle, u32 *count, Process *out) { \
        ENTER(handle); \
        return list_processes(line, key, count, out); \
    } \
    Result function##_v3(void *handle, u32 *count, void *out) { \
        ENTER(handle); \
        if (writes_large_processes()) return list_large_processes(line, key, count, out); \
        return list_processes(line, key, count, out); \
    }
