/*
 * Preloaded into a process with a database: logs each call that changes a file of the folder POWER_FOLDER to the file
 * POWER_LOG, in order, and makes the POWER_FAIL_AT-th of them fail with POWER_ERRNO.
 *
 * A record: kind (1 byte: w, s, t, u), length of the name (2), name, offset (8), length (4), data. Little-endian.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int calls = 0;

/* Returns the name of a file in the folder, or NULL if the file is not logged. */
static const char *watched(const char *path) {
  const char *folder = getenv("POWER_FOLDER");
  size_t length;
  if (!folder || !path) return NULL;
  length = strlen(folder);
  if (strncmp(path, folder, length) != 0 || path[length] != '/') return NULL;
  path += length + 1;
  /* Shared memory, which is rebuilt after a crash, and locks. */
  if (strstr(path, "-shm") || strstr(path, ".lock")) return NULL;
  return path;
}

static const char *watched_fd(int fd, char *path, size_t size) {
  char link[64];
  ssize_t length;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  length = readlink(link, path, size - 1);
  if (length < 0) return NULL;
  path[length] = 0;
  return watched(path);
}

static void log_call(char kind, const char *name, uint64_t offset, uint32_t length, const void *data) {
  const char *log = getenv("POWER_LOG");
  uint16_t name_length = (uint16_t)strlen(name);
  uint32_t data_length = data ? length : 0;
  struct iovec parts[6] = {
    { &kind, 1 }, { &name_length, 2 }, { (void *)name, name_length },
    { &offset, 8 }, { &length, 4 }, { (void *)(data ? data : ""), data_length },
  };
  int fd = log ? open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (fd < 0) return;
  if (writev(fd, parts, 6) < 0) abort();
  close(fd);
}

/* Returns whether this call fails; the caller holds the lock. The file of acknowledged turns is not part of the database. */
static int fails(const char *name) {
  const char *at = getenv("POWER_FAIL_AT");
  const char *number = getenv("POWER_ERRNO");
  const char *folder = getenv("POWER_FOLDER");
  /* Each folder is another run. */
  static char last[4096];
  if (strncmp(last, folder, sizeof last - 1) != 0) {
    strncpy(last, folder, sizeof last - 1);
    calls = 0;
  }
  if (strcmp(name, "acknowledged") == 0) return 0;
  calls += 1;
  if (!at || atoi(at) != calls) return 0;
  errno = number ? atoi(number) : EIO;
  return 1;
}

#define REAL(result, name, types) \
  static result(*real) types = NULL; \
  if (!real) real = (result(*) types)dlsym(RTLD_NEXT, #name)

#define PWRITE(name, offset_type) \
  ssize_t name(int fd, const void *data, size_t length, offset_type offset) { \
    char path[4096]; \
    const char *file = watched_fd(fd, path, sizeof path); \
    ssize_t written; \
    REAL(ssize_t, name, (int, const void *, size_t, offset_type)); \
    if (!file) return real(fd, data, length, offset); \
    pthread_mutex_lock(&lock); \
    if (fails(file)) written = -1; \
    else { \
      written = real(fd, data, length, offset); \
      if (written > 0) log_call('w', file, (uint64_t)offset, (uint32_t)written, data); \
    } \
    pthread_mutex_unlock(&lock); \
    return written; \
  }

#define SYNC(name) \
  int name(int fd) { \
    char path[4096]; \
    const char *file = watched_fd(fd, path, sizeof path); \
    int result; \
    REAL(int, name, (int)); \
    if (!file) return real(fd); \
    pthread_mutex_lock(&lock); \
    if (fails(file)) result = -1; \
    else { \
      result = real(fd); \
      if (result == 0) log_call('s', file, 0, 0, NULL); \
    } \
    pthread_mutex_unlock(&lock); \
    return result; \
  }

#define TRUNCATE(name, offset_type) \
  int name(int fd, offset_type size) { \
    char path[4096]; \
    const char *file = watched_fd(fd, path, sizeof path); \
    int result; \
    REAL(int, name, (int, offset_type)); \
    if (!file) return real(fd, size); \
    pthread_mutex_lock(&lock); \
    if (fails(file)) result = -1; \
    else { \
      result = real(fd, size); \
      if (result == 0) log_call('t', file, (uint64_t)size, 0, NULL); \
    } \
    pthread_mutex_unlock(&lock); \
    return result; \
  }

PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
SYNC(fsync)
SYNC(fdatasync)
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

int unlink(const char *path) {
  const char *file = watched(path);
  int result;
  REAL(int, unlink, (const char *));
  if (!file) return real(path);
  pthread_mutex_lock(&lock);
  result = real(path);
  if (result == 0) log_call('u', file, 0, 0, NULL);
  pthread_mutex_unlock(&lock);
  return result;
}
