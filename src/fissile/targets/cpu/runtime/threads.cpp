// The body of threads.h: compiled once per artifact. POSIX threads, and the standard atomics only.
#include "threads.h"

#include <pthread.h>

#include <atomic>
#include <new>

namespace fissile {

namespace {
constexpr int spins = 300;  // some microseconds: about what a wake-up costs
thread_local bool inside = false;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
}  // namespace

struct pool {
  int threads = 1;
  pthread_t* handles = nullptr;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t start = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
  // `round` is written under the mutex and read without it by spinning threads; it publishes fn,
  // arg and tiles.
  alignas(64) std::atomic<uint64_t> round{0};
  tile_fn fn = nullptr;
  void* arg = nullptr;
  int64_t tiles = 0;
  bool stop = false;
  alignas(64) std::atomic<int> running{0};

  void run(int thread) {
    int64_t begin = tiles * thread / threads, end = tiles * (thread + 1) / threads;
    if (begin < end) fn(arg, begin, end, thread);
  }

  void work(int thread) {
    inside = true;
    for (uint64_t seen = 0;;) {
      for (int i = 0; i < spins && round.load(std::memory_order_acquire) == seen; i++) pause();
      if (round.load(std::memory_order_acquire) == seen) {
        pthread_mutex_lock(&mutex);
        while (round.load(std::memory_order_relaxed) == seen) pthread_cond_wait(&start, &mutex);
        pthread_mutex_unlock(&mutex);
      }
      seen = round.load(std::memory_order_acquire);
      if (stop) return;
      run(thread);
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        pthread_mutex_lock(&mutex);  // without the lock the caller could miss the signal between
                                     // its test and its wait
        pthread_cond_signal(&done);
        pthread_mutex_unlock(&mutex);
      }
    }
  }

  void begin_round() {
    pthread_mutex_lock(&mutex);
    round.fetch_add(1, std::memory_order_release);
    pthread_cond_broadcast(&start);
    pthread_mutex_unlock(&mutex);
  }
};

namespace {
struct Start {
  pool* p;
  int thread;
};
void* thread_main(void* arg) {
  Start s = *static_cast<Start*>(arg);
  delete static_cast<Start*>(arg);
  s.p->work(s.thread);
  return nullptr;
}
}  // namespace

pool* pool_create(int threads) {
  pool* p = new (std::nothrow) pool;
  if (!p || threads <= 1) return p;
  p->handles = new (std::nothrow) pthread_t[threads];
  if (!p->handles) return p;
  for (int i = 1; i < threads; i++) {
    Start* s = new (std::nothrow) Start{p, i};
    if (!s || pthread_create(&p->handles[i], nullptr, thread_main, s) !=
                  0) {  // fewer threads, same results
      delete s;
      break;
    }
    p->threads = i + 1;
  }
  return p;
}

void pool_destroy(pool* p) {
  if (!p) return;
  if (p->threads > 1) {
    p->stop = true;
    p->begin_round();
    for (int i = 1; i < p->threads; i++) pthread_join(p->handles[i], nullptr);
  }
  delete[] p->handles;
  delete p;
}

int pool_threads(const pool* p) { return p ? p->threads : 1; }

void parallel(pool* p, tile_fn fn, void* arg, int64_t tiles) {
  if (tiles <= 0) return;
  if (!p || p->threads == 1 || tiles == 1 || inside) return fn(arg, 0, tiles, 0);
  p->fn = fn, p->arg = arg, p->tiles = tiles;
  p->running.store(p->threads - 1, std::memory_order_relaxed);
  p->begin_round();
  inside = true;
  p->run(0);
  inside = false;
  for (int i = 0; i < spins && p->running.load(std::memory_order_acquire); i++) pause();
  if (p->running.load(std::memory_order_acquire)) {
    pthread_mutex_lock(&p->mutex);
    while (p->running.load(std::memory_order_acquire)) pthread_cond_wait(&p->done, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
  }
}

}  // namespace fissile
