// A thread pool. Thread p of P owns tiles [p * T / P, (p + 1) * T / P) and takes them in chunks from
// the front; who has finished takes chunks of the others. So kernels that follow each other find
// their tiles in the same cache, and a thread that the system has set aside delays its chunk only.
//
// Invariant: every tile runs once, and tiles write disjoint results that depend on nothing but the
// tile, so results are equal for any number of threads and any order. Nobody waits for a thread
// that has not begun: one that wakes up late finds the work done. Waiting threads block; they spin
// only for microseconds, because spinning pools collapse on shared machines.
#ifndef FISSILE_THREADS_H
#define FISSILE_THREADS_H

#include <stdint.h>

namespace fissile {

struct pool;
typedef void (*tile_fn)(void* arg, int64_t begin, int64_t end, int thread);

pool* pool_create(int threads);  // the caller counts as thread 0; one or less starts none
void pool_destroy(pool*);        // null is fine, as everywhere: a null pool runs in the caller
int pool_threads(const pool*);

// Wakes threads that sleep, so that they are there when the first tiles come.
void pool_wake(pool*);

// Returns when all tiles are done. One call at a time per pool; calls from inside tiles run in the
// calling thread.
void parallel(pool*, tile_fn, void* arg, int64_t tiles);

// parallel(pool, tiles, [&](int64_t begin, int64_t end, int thread) { ... })
template <class F> inline void parallel(pool* p, int64_t tiles, const F& f) {
  parallel(
      p,
      [](void* arg, int64_t begin, int64_t end, int thread) {
        (*static_cast<const F*>(arg))(begin, end, thread);
      },
      const_cast<F*>(&f), tiles);
}

}  // namespace fissile

#endif
