"""The fixed parts of the emitted files. `@KEY@` stands for what `emit` fills in."""

HEADER = """\
@HEAD@#ifndef FISSILE_@PREFIX@_H
#define FISSILE_@PREFIX@_H

#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

#ifndef FISSILE_TENSOR
#define FISSILE_TENSOR
/* dtype: f32, i64, ...; dense and row-major */
typedef struct fissile_tensor {
  const char* name;
  const char* dtype;
  int rank;
  const int64_t* shape;
  int64_t size_bytes;
} fissile_tensor;
#endif

typedef struct @PREFIX@ @PREFIX@;

/* Maps the weights file, which must stay as it is, and starts threads (0: one per processor;
   at most @THREADS@). NULL on failure. */
@PREFIX@* @PREFIX@_create(const char* weights_path, int threads);
/* Why the last call of this thread failed; never NULL. */
const char* @PREFIX@_error(void);
void @PREFIX@_destroy(@PREFIX@*);
int @PREFIX@_threads(const @PREFIX@*);

int @PREFIX@_input_count(void);
int @PREFIX@_output_count(void);
const fissile_tensor* @PREFIX@_inputs(void);
const fissile_tensor* @PREFIX@_outputs(void);

/* One pointer for every input and output, which must not overlap. Returns 0. One call at a time
   for a model; several models may run at once. */
int @PREFIX@_run(@PREFIX@*, const void* const* inputs, void* const* outputs);
/* The same, and the microseconds that every step took. */
int @PREFIX@_step_count(void);
int @PREFIX@_profile(@PREFIX@*, const void* const* inputs, void* const* outputs, double* us);

#if defined(__cplusplus)
}
#endif

#endif
"""

MODEL = """\
@HEAD@
#include "model.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/aligned.h"
#include "runtime/pack.h"
#include "runtime/threads.h"
@INCLUDES@
// ---------------------------------------------------------------- kernels

@KERNELS@
// ---------------------------------------------------------------- model

struct @PREFIX@ {
  fissile::pool* threads;
  char* arena;          // @ARENA@ B
  char* scratch;        // @SCRATCH@ B for each thread
  const char* weights;  // @WEIGHTS@ B, mapped
  char* opened;         // @OPENED@ B: weights that were packed when the model was opened
  double* us;           // null, or where the time of every step goes
};

namespace {

typedef void (*kernel_fn)(void** p, char* scratch, long begin, long end);
constexpr size_t arena_bytes = @ARENA@, scratch_bytes = @SCRATCH@, weights_bytes = @WEIGHTS@;
constexpr size_t opened_bytes = @OPENED@;
constexpr int most_threads = @THREADS@;
thread_local char message[512] = "";

double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

struct Launch {
  kernel_fn kernel;
  void** pointers;
  char* scratch;
};

void run_tiles(void* arg, int64_t begin, int64_t end, int thread) {
  Launch* a = (Launch*)arg;
  a->kernel(a->pointers, a->scratch + thread * scratch_bytes, begin, end);
}

void launch_all(@PREFIX@* m, int step, kernel_fn kernel, long tiles, void** pointers, bool closes) {
  double start = m->us ? now_us() : 0;
  Launch a = {kernel, pointers, m->scratch};
  fissile::parallel(m->threads, run_tiles, &a, tiles);
  if (closes) kernel(pointers, m->scratch, tiles, tiles + 1);
  if (m->us) m->us[step] = now_us() - start;
}

template <int N>
inline void launch(@PREFIX@* m, int step, kernel_fn kernel, long tiles, const void* const (&p)[N]) {
  launch_all(m, step, kernel, tiles, (void**)p, false);
}

// The kernel has something to do when all tiles are done.
template <int N>
inline void launch_and_close(
    @PREFIX@* m, int step, kernel_fn kernel, long tiles, const void* const (&p)[N]) {
  launch_all(m, step, kernel, tiles, (void**)p, true);
}

inline void copy(@PREFIX@* m, int step, void* to, const void* from, size_t bytes) {
  double start = m->us ? now_us() : 0;
  memcpy(to, from, bytes);
  if (m->us) m->us[step] = now_us() - start;
}

@PARTS@void run(@PREFIX@* m, const void* const* input, void* const* output) {
  fissile::pool_wake(m->threads);
@CALLS@  (void)m, (void)input, (void)output;
}

// The weights file, read-only; null with a message where it does not fit.
const char* map_weights(const char* path) {
  if (weights_bytes == 0) return "";
  int file = open(path, O_RDONLY);
  struct stat info;
  if (file < 0 || fstat(file, &info) != 0 || (size_t)info.st_size < weights_bytes) {
    const char* fault = file < 0 ? "cannot open" : "not the weights of this model";
    snprintf(message, sizeof message, "%s: %s", path, fault);
    if (file >= 0) close(file);
    return nullptr;
  }
  void* data = mmap(nullptr, weights_bytes, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (data != MAP_FAILED) return (const char*)data;
  snprintf(message, sizeof message, "%s: cannot map", path);
  return nullptr;
}

// What kernels want in another form than the file has it in.
void pack(@PREFIX@* m) {
  const char* const weights = m->weights;
  char* const opened = m->opened;
  (void)weights, (void)opened;
@PACKS@}

@INPUTS@@OUTPUTS@
}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API @PREFIX@* @PREFIX@_create(const char* weights_path, int threads) {
  if (threads < 0 || threads > most_threads) {
    snprintf(message, sizeof message, "%d threads: not between 0 and %d", threads, most_threads);
    return nullptr;
  }
  const char* weights = map_weights(weights_path);
  if (!weights) return nullptr;
  if (threads == 0) threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
  if (threads > most_threads) threads = most_threads;
  fissile::pool* pool = fissile::pool_create(threads);
  int got = fissile::pool_threads(pool);
  @PREFIX@* m = new @PREFIX@{pool, nullptr, nullptr, weights, nullptr, nullptr};
  m->arena = (char*)fissile::aligned_alloc64(arena_bytes);
  m->scratch = (char*)fissile::aligned_alloc64(scratch_bytes * got);
  m->opened = (char*)fissile::aligned_alloc64(opened_bytes);
  if (m->arena && m->scratch && m->opened) {
    pack(m);
    return m;
  }
  const size_t bytes = arena_bytes + scratch_bytes * got + opened_bytes;
  snprintf(message, sizeof message, "out of memory: %zu B", bytes);
  @PREFIX@_destroy(m);
  return nullptr;
}

API void @PREFIX@_destroy(@PREFIX@* m) {
  if (!m) return;
  fissile::pool_destroy(m->threads);
  fissile::aligned_free64(m->arena);
  fissile::aligned_free64(m->scratch);
  fissile::aligned_free64(m->opened);
  if (weights_bytes) munmap((void*)m->weights, weights_bytes);
  delete m;
}

API const char* @PREFIX@_error(void) { return message; }
API int @PREFIX@_threads(const @PREFIX@* m) { return fissile::pool_threads(m->threads); }
API int @PREFIX@_input_count(void) { return @INPUT_COUNT@; }
API int @PREFIX@_output_count(void) { return @OUTPUT_COUNT@; }
API const fissile_tensor* @PREFIX@_inputs(void) { return inputs_table; }
API const fissile_tensor* @PREFIX@_outputs(void) { return outputs_table; }
API int @PREFIX@_step_count(void) { return @STEPS@; }

API int @PREFIX@_run(@PREFIX@* m, const void* const* inputs, void* const* outputs) {
  run(m, inputs, outputs);
  return 0;
}

API int @PREFIX@_profile(@PREFIX@* m, const void* const* inputs, void* const* outputs, double* us) {
  m->us = us;
  run(m, inputs, outputs);
  m->us = nullptr;
  return 0;
}
"""
