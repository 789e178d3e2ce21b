/* The state file of fake_nvml.c, which says what is in it; and the macros that open every function. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

typedef int Result;
typedef unsigned int u32;
typedef unsigned long long u64;

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15,
};

#define MAX_LINES 64
#define LINE_SIZE 4096
#define DEFAULT_MEMORY 85899345920ULL

static int initialized;
static int line_count;
static char lines[MAX_LINES][LINE_SIZE];

/* ---- the state file ---- */

static const char *get(int line, const char *key, char *into, size_t size, const char *otherwise) {
    char text[LINE_SIZE + 1], wanted[64];
    snprintf(text, sizeof text, ";%s", lines[line]);
    snprintf(wanted, sizeof wanted, ";%s=", key);
    const char *found = strstr(text, wanted);
    if (!found) {
        snprintf(into, size, "%s", otherwise);
        return into;
    }
    found += strlen(wanted);
    snprintf(into, size, "%.*s", (int)strcspn(found, ";"), found);
    return into;
}

static int has(int line, const char *key) {
    char value[LINE_SIZE];
    return get(line, key, value, sizeof value, "")[0] != 0;
}

static u64 number(int line, const char *key, u64 otherwise) {
    char value[64], fallback[32];
    snprintf(fallback, sizeof fallback, "%llu", otherwise);
    return strtoull(get(line, key, value, sizeof value, fallback), NULL, 0);
}

static int driver_line(void) {
    for (int line = 0; line < line_count; line++)
        if (has(line, "driver")) return line;
    return -1;
}

static void driver_version(char *out, size_t size) {
    int driver = driver_line();
    if (driver < 0) snprintf(out, size, "550.54.15");
    else get(driver, "driver", out, size, "");
}

/* Read the file. While the driver is not loaded, nobody is initialized. */
static Result load(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    line_count = 0;
    while (file && line_count < MAX_LINES && fgets(lines[line_count], LINE_SIZE, file)) {
        char *line = lines[line_count];
        line[strcspn(line, "\n")] = 0;
        if (line[0] != '#' && strchr(line, '=')) line_count++;
    }
    int driver = driver_line();
    if (file) fclose(file);
    if (file && (driver < 0 || number(driver, "loaded", 1))) return SUCCESS;
    initialized = 0;
    return DRIVER_NOT_LOADED;
}

/* The code that this line wants this function to fail with. */
static Result injected(int line, const char *function) {
    char failures[1024], *rest = NULL, base[128];
    snprintf(base, sizeof base, "%s", function);
    char *version = strstr(base, "_v");
    if (version) *version = 0;
    get(line, "fail", failures, sizeof failures, "");
    for (char *one = strtok_r(failures, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        char *code = strchr(one, ':');
        if (!code) continue;
        *code++ = 0;
        if (!strcmp(one, function) || !strcmp(one, base)) return atoi(code);
    }
    return SUCCESS;
}

/* ---- GPUs and MIG devices: a handle is the number of a line, plus one ---- */

static int is_mig_device(int line) { return has(line, "mig_of"); }
static int is_gpu(int line) { return !is_mig_device(line) && !has(line, "driver"); }
static void *handle_of(int line) { return (void *)(size_t)(line + 1); }

static int gpu_line(u32 index) {
    for (int line = 0; line < line_count; line++)
        if (is_gpu(line) && index-- == 0) return line;
    return -1;
}

static u32 gpu_index(int line) {
    u32 index = 0;
    while (line-- > 0) index += is_gpu(line);
    return index;
}

/* The GPU that a MIG device is part of; a GPU itself otherwise. */
static int chip_of(int line) { return is_mig_device(line) ? gpu_line((u32)number(line, "mig_of", 0)) : line; }

static Result enter_driver(const char *function) {
    Result result = load();
    if (!initialized) return UNINITIALIZED;
    if (result) return result;
    int driver = driver_line();
    return driver < 0 ? SUCCESS : injected(driver, function);
}

static Result enter(void *handle, const char *function, int *line) {
    Result result = enter_driver(function);
    if (result) return result;
    *line = (int)(size_t)handle - 1;
    if (*line < 0 || *line >= line_count || has(*line, "driver")) return INVALID_ARGUMENT;
    int chip = chip_of(*line);
    if (chip < 0) return INVALID_ARGUMENT;
    if (number(chip, "lost", 0) || number(*line, "lost", 0)) return GPU_IS_LOST;
    return injected(*line, function);
}

/* ---- how functions begin, and functions that are all alike ---- */

#define OR_RETURN(call) do { Result result_ = (call); if (result_) return result_; } while (0)
#define ENTER_DRIVER() OR_RETURN(enter_driver(__func__))
#define ENTER(handle) int line; OR_RETURN(enter(handle, __func__, &line))
#define GPU_ONLY() OR_RETURN(is_mig_device(line) ? NOT_SUPPORTED : SUCCESS)

#define GIVE(value) ENTER(handle); *out = value; return SUCCESS
#define GIVE_OF_GPU(value) ENTER(handle); GPU_ONLY(); *out = value; return SUCCESS

#define INDEX(function) Result function(void *handle, u32 *out) { GIVE(gpu_index(line)); }
#define ID(function, key) Result function(void *handle, u32 *out) { GIVE((u32)number(line, key, 0)); }
#define LARGE_NUMBER(function, key) Result function(void *handle, u64 *out) { GIVE(number(line, key, 0)); }
#define NUMBER(function, key, otherwise) \
    Result function(void *handle, u32 *out) { GIVE_OF_GPU((u32)number(line, key, otherwise)); }
#define NUMBER_BY_TYPE(function, key, otherwise) \
    Result function(void *handle, u32 type, u32 *out) { (void)type; GIVE_OF_GPU((u32)number(line, key, otherwise)); }
#define PERCENT(function, key) \
    Result function(void *handle, u32 *out, u32 *period) { *period = 1000000; GIVE_OF_GPU((u32)number(line, key, 0)); }
#define TEXT(function, key, otherwise) \
    Result function(void *handle, char *out, u32 size) { \
        ENTER(handle); \
        get(line, key, out, size, otherwise); \
        return SUCCESS; \
    }
#define UNSUPPORTED(function) \
    Result function(void *handle, u32 *a, u32 *b) { (void)handle, (void)a, (void)b; return NOT_SUPPORTED; }
