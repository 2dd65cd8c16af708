// What a test does to the disk and to the clock of one server, by LD_PRELOAD. tests/common/shim.rs builds it, has the
// layout of the control file, and says what each fault is.
//
// TAILBACK_SHIM names the control file, which test and server share. TAILBACK_SHIM_FILE names the database, if its
// operations are to be counted: writes, truncations, syncs and removals of the file, its log, its journal and its
// index, and syncs of its directory. The fault strikes at operation `at`; what strikes "from" there lasts until `fault`
// is 0.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
    NONE, KILL_BEFORE, KILL_AFTER, TORN, POWER, POWER_PARTLY, ERROR_ONCE, ERROR_FROM, FULL_FROM, QUOTA_FROM, READ_ERROR,
    STALL_FROM
};
enum { WRITE = 'w', TRUNCATE = 't', SYNC = 's', REMOVE = 'r' };
enum { DATABASE = 'd', LOG = 'l', JOURNAL = 'j', INDEX = 'i', DIRECTORY = 'p' };
enum { FILES = 4096, LOGGED = 8192, SECTOR = 512 };

// Mirrored in tests/common/shim.rs. Each field has eight bytes.
struct control {
    volatile uint64_t attached; // how many processes have loaded this
    volatile int64_t shift_ms;  // what is added to the time of day
    volatile uint64_t count;    // operations so far
    volatile uint64_t at;       // the operation at which the fault strikes, counted from 1
    volatile uint64_t fault;
    volatile uint64_t struck; // how often it has
    volatile uint64_t seed;   // what a partial power cut keeps
    volatile uint64_t unused;
    volatile uint8_t log[LOGGED][2]; // of each operation, modulo LOGGED: which, and on what
};

static struct control *control;
static char database[PATH_MAX], directory[PATH_MAX];
static size_t database_length;
static uint8_t files[FILES]; // by descriptor
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static long raw_open(const char *path, int flags, mode_t mode) {
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("TAILBACK_SHIM"), *file = getenv("TAILBACK_SHIM_FILE");
    if (!path) return;
    long fd = raw_open(path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) abort();
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
    syscall(SYS_close, fd);
    if (mapped == MAP_FAILED) abort();
    if (file && *file) {
        database_length = strlen(file);
        if (database_length + 16 > sizeof database) abort();
        memcpy(database, file, database_length + 1);
        memcpy(directory, file, database_length + 1);
        char *slash = strrchr(directory, '/');
        if (!slash) abort();
        *slash = 0;
    }
    control = mapped;
    __atomic_add_fetch(&control->attached, 1, __ATOMIC_SEQ_CST);
}

// --- the clock ---

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && control && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t shift = control->shift_ms, ns = time->tv_nsec + shift % 1000 * 1000000;
        time->tv_sec += shift / 1000 + (ns >= 1000000000) - (ns < 0);
        time->tv_nsec = ns + (ns < 0) * 1000000000 - (ns >= 1000000000) * 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

// --- what a power cut undoes ---

enum change { WRITTEN, TRUNCATED, CREATED, REMOVED };

struct record {
    struct record *earlier;
    enum change change;
    uint8_t file;
    bool lost; // a sync failed: the system takes it for saved, and no later sync saves it
    off_t offset, size_before, size_after;
    size_t old_length, new_length;
    uint8_t *old, *new;
};

// What was done since the file, or for names its directory, was synced last; the latest first.
static struct record *unsynced;

static const char *path_of(uint8_t file, char *into) {
    const char *end = file == LOG ? "-wal" : file == JOURNAL ? "-journal" : file == INDEX ? "-shm" : "";
    memcpy(into, database, database_length);
    strcpy(into + database_length, end);
    return into;
}

static uint8_t file_of(const char *path) {
    if (!control || !database_length) return 0;
    if (strcmp(path, directory) == 0) return DIRECTORY;
    if (strncmp(path, database, database_length)) return 0;
    const char *end = path + database_length;
    return *end == 0                      ? DATABASE
           : strcmp(end, "-wal") == 0     ? LOG
           : strcmp(end, "-journal") == 0 ? JOURNAL
           : strcmp(end, "-shm") == 0     ? INDEX
                                          : 0;
}

static struct record *record(enum change change, uint8_t file) {
    struct record *made = calloc(1, sizeof *made);
    if (!made) abort();
    *made = (struct record){.earlier = unsynced, .change = change, .file = file};
    return unsynced = made;
}

static uint8_t *read_part(long fd, off_t offset, size_t length, size_t *got) {
    uint8_t *bytes = malloc(length ? length : 1);
    if (!bytes) abort();
    long read = length ? syscall(SYS_pread64, fd, bytes, length, offset) : 0;
    *got = read > 0 ? (size_t)read : 0;
    return bytes;
}

static off_t size_of(long fd) {
    struct stat status;
    return fstat((int)fd, &status) ? 0 : status.st_size;
}

static bool is_saved_by_sync_of(uint8_t file, const struct record *this) {
    bool is_name = this->change == CREATED || this->change == REMOVED;
    return file == DIRECTORY ? is_name : !is_name && this->file == file;
}

static void drop(struct record **next) {
    struct record *this = *next;
    *next = this->earlier;
    free(this->old);
    free(this->new);
    free(this);
}

static void forget(uint8_t file) {
    for (struct record **next = &unsynced; *next;) {
        if (!(*next)->lost && is_saved_by_sync_of(file, *next)) drop(next);
        else next = &(*next)->earlier;
    }
}

// A sync failed.
static void lose(uint8_t file) {
    for (struct record *this = unsynced; this; this = this->earlier) {
        if (is_saved_by_sync_of(file, this)) this->lost = true;
    }
}

// What was lost is written once more.
static void overwrite(uint8_t file, off_t from, off_t to) {
    for (struct record **next = &unsynced; *next;) {
        const struct record *this = *next;
        off_t end = this->offset + (off_t)this->new_length;
        bool is_lost = this->lost && this->file == file && this->change == WRITTEN;
        if (is_lost && from <= this->offset && end <= to) drop(next);
        else next = &(*next)->earlier;
    }
}

static void undo(const struct record *this) {
    char path[PATH_MAX];
    path_of(this->file, path);
    if (this->change == CREATED) {
        syscall(SYS_unlinkat, AT_FDCWD, path, 0);
        return;
    }
    long fd = raw_open(path, O_RDWR | O_CLOEXEC | (this->change == REMOVED ? O_CREAT : 0), 0644);
    if (fd < 0) return;
    syscall(SYS_pwrite64, fd, this->old, this->old_length, this->offset);
    syscall(SYS_ftruncate, fd, this->size_before);
    syscall(SYS_close, fd);
}

static uint64_t coin(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state >> 33 & 1;
}

static void keep_some_of(const struct record *this, uint64_t *state) {
    if (this->change == CREATED) return;
    char path[PATH_MAX];
    path_of(this->file, path);
    if (this->change == REMOVED) {
        if (coin(state)) syscall(SYS_unlinkat, AT_FDCWD, path, 0);
        return;
    }
    long fd = raw_open(path, O_RDWR | O_CLOEXEC | O_CREAT, 0644);
    if (fd < 0) return;
    if (this->change == TRUNCATED && coin(state)) syscall(SYS_ftruncate, fd, this->size_after);
    for (size_t at = 0; this->change == WRITTEN && at < this->new_length;) {
        size_t left = this->new_length - at, sector = SECTOR - (size_t)(this->offset + at) % SECTOR;
        size_t length = left < sector ? left : sector;
        if (coin(state)) syscall(SYS_pwrite64, fd, this->new + at, length, this->offset + (off_t)at);
        at += length;
    }
    syscall(SYS_close, fd);
}

// Does again what the disk happened to have taken: some sectors, some truncations, some removals; the earliest first. A checkpoint has
// thousands of records, too many for a recursion on the stack of a thread.
static void keep_some(uint64_t *state) {
    size_t count = 0;
    for (const struct record *this = unsynced; this; this = this->earlier) count++;
    const struct record **all = malloc((count ? count : 1) * sizeof *all);
    if (!all) abort();
    size_t at = count;
    for (const struct record *this = unsynced; this; this = this->earlier) all[--at] = this;
    for (at = 0; at < count; at++) keep_some_of(all[at], state);
    free(all);
}

static void cut_power(bool partly) {
    // A partial one keeps the names of new files: what was synced in them is there.
    for (struct record *this = unsynced; this; this = this->earlier)
        if (!partly || this->change != CREATED) undo(this);
    uint64_t state = control->seed * 2654435761u + 88172645463325252u;
    if (partly) keep_some(&state);
}

// --- operations ---

static void die(void) {
    for (;;) syscall(SYS_kill, getpid(), SIGKILL);
}

static uint8_t file_at(int fd) {
    return control && fd >= 0 && fd < FILES ? files[fd] : 0;
}

// Counts an operation, and returns the fault that strikes it; the mutex is held.
static int begin(char operation, uint8_t file) {
    uint64_t number = control->count + 1;
    control->log[number % LOGGED][0] = (uint8_t)operation;
    control->log[number % LOGGED][1] = file;
    control->count = number;
    int fault = (int)control->fault;
    bool lasts = fault >= ERROR_FROM;
    if (!fault || fault == READ_ERROR || (lasts ? number < control->at : number != control->at)) return NONE;
    while (fault == STALL_FROM && control->fault == STALL_FROM) {
        control->struck++;
        usleep(2000);
    }
    if (fault == STALL_FROM) return NONE;
    if (fault == FULL_FROM || fault == QUOTA_FROM) return fault; // the caller knows whether it needs room
    control->struck++;
    if (fault == KILL_BEFORE) die();
    if (fault == POWER || fault == POWER_PARTLY) {
        cut_power(fault == POWER_PARTLY);
        die();
    }
    return fault;
}

static long fail(int with) {
    errno = with;
    return -1;
}

static long end(int fault, long result) {
    if (fault == KILL_AFTER || fault == TORN) die();
    return result;
}

static bool needs_room(int fault, int fd, off_t end) {
    bool strikes = fault == QUOTA_FROM || (fault == FULL_FROM && end > size_of(fd));
    if (strikes) control->struck++;
    return strikes;
}

static long write_at(int fd, uint8_t file, const void *bytes, size_t length, off_t offset) {
    int fault = begin(WRITE, file);
    if (fault == ERROR_ONCE || fault == ERROR_FROM) return fail(EIO);
    if (needs_room(fault, fd, offset + (off_t)length)) return fail(fault == QUOTA_FROM ? EDQUOT : ENOSPC);
    if (file != INDEX) {
        overwrite(file, offset, offset + (off_t)length);
        struct record *made = record(WRITTEN, file);
        made->offset = offset;
        made->size_before = size_of(fd);
        made->old = read_part(fd, offset, length, &made->old_length);
        made->new_length = length;
        made->new = malloc(length ? length : 1);
        if (!made->new) abort();
        memcpy(made->new, bytes, length);
    }
    return end(fault, syscall(SYS_pwrite64, fd, bytes, fault == TORN ? length / 2 : length, offset));
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    uint8_t file = file_at(fd);
    if (!file) return syscall(SYS_pwrite64, fd, bytes, length, offset);
    pthread_mutex_lock(&mutex);
    long result = write_at(fd, file, bytes, length, offset);
    pthread_mutex_unlock(&mutex);
    return result;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    return pwrite64(fd, bytes, length, offset);
}

ssize_t write(int fd, const void *bytes, size_t length) {
    if (!file_at(fd)) return syscall(SYS_write, fd, bytes, length);
    off_t offset = lseek(fd, 0, SEEK_CUR);
    ssize_t written = pwrite64(fd, bytes, length, offset);
    if (written > 0) lseek(fd, offset + written, SEEK_SET);
    return written;
}

ssize_t pread64(int fd, void *into, size_t length, off64_t offset) {
    uint8_t file = file_at(fd);
    if (file && file != INDEX && control->fault == READ_ERROR) {
        __atomic_add_fetch(&control->struck, 1, __ATOMIC_SEQ_CST);
        return fail(EIO);
    }
    return syscall(SYS_pread64, fd, into, length, offset);
}

ssize_t pread(int fd, void *into, size_t length, off_t offset) {
    return pread64(fd, into, length, offset);
}

static int synced(int fd, long call) {
    uint8_t file = file_at(fd);
    if (!file) return (int)syscall(call, fd);
    pthread_mutex_lock(&mutex);
    int fault = begin(SYNC, file);
    long result = -1;
    if (fault == ERROR_ONCE || fault == ERROR_FROM) {
        lose(file);
        errno = EIO;
    } else {
        if (fault == TORN) die(); // a sync that does not return: what it was to save is in the system's memory
        result = syscall(call, fd);
        forget(file);
        end(fault, result);
    }
    pthread_mutex_unlock(&mutex);
    return (int)result;
}

int fsync(int fd) {
    return synced(fd, SYS_fsync);
}

int fdatasync(int fd) {
    return synced(fd, SYS_fdatasync);
}

static long truncate_to(int fd, uint8_t file, off_t length) {
    int fault = begin(TRUNCATE, file);
    if (fault == ERROR_ONCE || fault == ERROR_FROM) return fail(EIO);
    if (needs_room(fault, fd, length)) return fail(fault == QUOTA_FROM ? EDQUOT : ENOSPC);
    if (file != INDEX) {
        struct record *made = record(TRUNCATED, file);
        made->size_before = size_of(fd);
        made->size_after = length;
        made->offset = length < made->size_before ? length : made->size_before;
        made->old = read_part(fd, made->offset, (size_t)(made->size_before - made->offset), &made->old_length);
    }
    if (fault == TORN) die();
    return end(fault, syscall(SYS_ftruncate, fd, length));
}

int ftruncate64(int fd, off64_t length) {
    uint8_t file = file_at(fd);
    if (!file) return (int)syscall(SYS_ftruncate, fd, length);
    pthread_mutex_lock(&mutex);
    long result = truncate_to(fd, file, length);
    pthread_mutex_unlock(&mutex);
    return (int)result;
}

int ftruncate(int fd, off_t length) {
    return ftruncate64(fd, length);
}

static long remove_file(const char *path, uint8_t file) {
    int fault = begin(REMOVE, file);
    if (fault == ERROR_ONCE || fault == ERROR_FROM) return fail(EIO);
    long fd = file == INDEX ? -1 : raw_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd >= 0) {
        struct record *made = record(REMOVED, file);
        made->size_before = size_of(fd);
        made->old = read_part(fd, 0, (size_t)made->size_before, &made->old_length);
        syscall(SYS_close, fd);
    }
    if (fault == TORN) die();
    return end(fault, syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int unlink(const char *path) {
    uint8_t file = file_of(path);
    if (!file || file == DIRECTORY) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    pthread_mutex_lock(&mutex);
    long result = remove_file(path, file);
    pthread_mutex_unlock(&mutex);
    return (int)result;
}

// --- which descriptor is which file ---

static int opened(const char *path, int flags, mode_t mode) {
    uint8_t file = file_of(path);
    if (!file) return (int)raw_open(path, flags, mode);
    pthread_mutex_lock(&mutex);
    bool is_new = (flags & O_CREAT) && syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0;
    int fd = (int)raw_open(path, flags, mode);
    if (fd >= 0 && fd < FILES) files[fd] = file;
    if (fd >= 0 && is_new && file != INDEX) record(CREATED, file);
    pthread_mutex_unlock(&mutex);
    return fd;
}

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return opened(path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return opened(path, flags, mode);
}

int close(int fd) {
    if (fd >= 0 && fd < FILES) files[fd] = 0;
    return (int)syscall(SYS_close, fd);
}
