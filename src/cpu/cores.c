/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads a context has if nobody says: what the environment, the affinity mask and the control
 * groups of the process allow. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"
#include "threads.h"

enum { MOST = 4096, PATH_BYTES = 4096 + 64 };

int eg_cores_of_omp(const char *num_threads) {
    if (num_threads == NULL) return 0;
    char *end;
    const long threads = strtol(num_threads, &end, 10);
    end += strspn(end, " \t");
    if (end == num_threads || (*end != '\0' && *end != ',') || threads < 1) return 0;
    return threads < MOST ? (int)threads : MOST;
}

int eg_cores_of_quota(const char *cpu_max) {
    char *end;
    const long long quota = strtoll(cpu_max, &end, 10);
    if (end == cpu_max || quota <= 0) return 0; /* "max"; -1 in the first version of control groups */
    const long long period = strtoll(end, NULL, 10);
    if (period <= 0) return 0;
    const long long cores = quota / period + (quota % period != 0);
    return cores < MOST ? (int)cores : MOST;
}

/* The start of a small file, as a string; "" if it cannot be read. */
static void read_text(const char *folder, const char *name, char *text, size_t capacity) {
    char path[PATH_BYTES];
    text[0] = '\0';
    const int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof path) return;
    FILE *file = fopen(path, "re");
    if (file == NULL) return;
    text[fread(text, 1, capacity - 1, file)] = '\0';
    fclose(file);
}

/* Of one group: cpu.max, or quota and period of the first version. */
static int cores_of_group(const char *folder) {
    char text[64], quota[32], period[32];
    read_text(folder, "cpu.max", text, sizeof text);
    if (text[0] != '\0') return eg_cores_of_quota(text);
    read_text(folder, "cpu.cfs_quota_us", quota, sizeof quota);
    read_text(folder, "cpu.cfs_period_us", period, sizeof period);
    snprintf(text, sizeof text, "%s %s", quota, period);
    return eg_cores_of_quota(text);
}

static bool is_of_cpu(const char *controllers, size_t length) {
    if (length == 0) return true; /* the second version: "0::/path" */
    for (const char *at = controllers; at < controllers + length; at += strcspn(at, ",:") + 1) {
        if (strcspn(at, ",:") == 3 && strncmp(at, "cpu", 3) == 0) return true;
    }
    return false;
}

static int less(int limit, int other) { return limit == 0 || (other > 0 && other < limit) ? other : limit; }

/* From the group at `path` below `root` up to the root. */
static int cores_of_path(const char *root, const char *path, size_t length) {
    char folder[PATH_BYTES];
    const int written = snprintf(folder, sizeof folder, "%s%.*s", root, (int)length, path);
    if (written < 0 || (size_t)written >= sizeof folder) return 0;
    int limit = 0;
    for (;;) {
        limit = less(limit, cores_of_group(folder));
        char *slash = strrchr(folder, '/');
        if (slash == NULL || slash < folder + strlen(root)) return limit;
        *slash = '\0';
    }
}

int eg_cores_of_groups(const char *groups, const char *root) {
    int limit = 0;
    for (const char *line = groups; *line != '\0'; line += strcspn(line, "\n"), line += *line == '\n') {
        const size_t length = strcspn(line, "\n");
        const char *controllers = memchr(line, ':', length);
        const char *path = controllers != NULL ? strchr(++controllers, ':') : NULL;
        if (path == NULL || path >= line + length) continue;
        const size_t named = (size_t)(path - controllers);
        if (!is_of_cpu(controllers, named)) continue;
        char hierarchy[PATH_BYTES];
        snprintf(hierarchy, sizeof hierarchy, "%s%s", root, named > 0 ? "/cpu" : "");
        path++;
        limit = less(limit, cores_of_path(hierarchy, path, (size_t)(line + length - path)));
    }
    return limit;
}

int eg_cores_available(void) {
    char groups[PATH_BYTES];
    const int processors = eg_pool_processors();
    read_text("/proc/self", "cgroup", groups, sizeof groups);
    const int limit = less(processors, eg_cores_of_groups(groups, "/sys/fs/cgroup"));
    return limit < 1 ? 1 : limit;
}

int eg_cores_default(void) {
    const int asked = eg_cores_of_omp(getenv("OMP_NUM_THREADS"));
    return asked > 0 ? asked : eg_cores_available();
}
