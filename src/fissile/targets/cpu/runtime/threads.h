// A thread pool with static partition: thread p of P runs tiles [p * T / P, (p + 1) * T / P).
//
// Invariant: which thread runs a tile depends on T and P alone, and tiles write disjoint results,
// so results are equal for any number of threads. Waiting threads block; they spin only for
// microseconds, because spinning pools collapse on shared machines.
#ifndef FISSILE_THREADS_H
#define FISSILE_THREADS_H

#include <stdint.h>

namespace fissile {

struct pool;
typedef void (*tile_fn)(void* arg, int64_t begin, int64_t end, int thread);

pool* pool_create(int threads);  // the caller counts as thread 0; one or less starts none
void pool_destroy(pool*);        // null is fine, as everywhere: a null pool runs in the caller
int pool_threads(const pool*);

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
