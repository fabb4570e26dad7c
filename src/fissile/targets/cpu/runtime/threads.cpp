// The body of threads.h: compiled once per artifact. POSIX threads, the standard atomics, and on
// Linux the processors that threads may run on.
#include "threads.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <atomic>
#include <new>

namespace fissile {

namespace {
constexpr int spins = 2000;  // tens of microseconds: the gap between two kernels of one run
constexpr int64_t chunks = 8;  // parts of a thread's tiles: a late thread delays one of them
thread_local bool inside = false;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class F> bool comes_soon(const F& f) {
  for (int i = 0; i < spins; i++, pause())
    if (f()) return true;
  return f();
}
}  // namespace

struct alignas(64) Share {
  std::atomic<int64_t> next{0};
  int64_t end = 0, chunk = 1;
};

struct pool {
  int threads = 1;
  pthread_t* handles = nullptr;
  Share* shares = nullptr;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t start = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
  // Odd while a call of `parallel` is open. It publishes fn, arg and shares: a thread reads them
  // only after it has entered `active` and then still seen the call open, and they change only
  // after the call was closed and `active` was seen empty. All of this is sequentially consistent.
  alignas(64) std::atomic<uint64_t> round{0};
  std::atomic<uint64_t> wakes{0};
  std::atomic<bool> stop{false};
  tile_fn fn = nullptr;
  void* arg = nullptr;
  alignas(64) std::atomic<int> active{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> waited{false};

#if defined(__linux__)
  cpu_set_t usable;
  int caller_cpu = -1;
#endif

  bool is_open(uint64_t seen) const {
    uint64_t r = round.load();
    return (r & 1) && r != seen;
  }

  void take(int owner, int thread) {
    Share& s = shares[owner];
    while (s.next.load(std::memory_order_relaxed) < s.end) {
      int64_t begin = s.next.fetch_add(s.chunk);
      if (begin < s.end) fn(arg, begin, begin + s.chunk < s.end ? begin + s.chunk : s.end, thread);
    }
  }

  void run(int thread) {
    for (int i = 0; i < threads; i++) take((thread + i) % threads, thread);
  }

  void sleep(uint64_t seen, uint64_t woken) {
    pthread_mutex_lock(&mutex);
    sleepers.fetch_add(1);
    while (!is_open(seen) && wakes.load() == woken && !stop.load())
      pthread_cond_wait(&start, &mutex);
    sleepers.fetch_sub(1);
    pthread_mutex_unlock(&mutex);
  }

  void work(int thread) {
    inside = true;
    for (uint64_t seen = 0; !stop.load();) {
      uint64_t woken = wakes.load();
      if (!comes_soon([&] { return is_open(seen) || stop.load(); })) sleep(seen, woken);
      active.fetch_add(1);
      uint64_t r = round.load();
      if ((r & 1) && r != seen) {
        seen = r;
        run(thread);
      }
      if (active.fetch_sub(1) == 1 && waited.load()) {
        pthread_mutex_lock(&mutex);  // without the lock the caller could miss the signal between
                                     // its test and its wait
        pthread_cond_signal(&done);
        pthread_mutex_unlock(&mutex);
      }
    }
  }

  // Threads stay off the processor that the caller runs on: woken beside it, where others are busy
  // too, they would wait until the caller is done. One system call, when the caller has moved.
  void make_way() {
#if defined(__linux__)
    int cpu = sched_getcpu();
    if (cpu == caller_cpu || cpu < 0 || cpu >= CPU_SETSIZE) return;
    caller_cpu = cpu;
    int count = CPU_COUNT(&usable);
    if (count < threads || count > 2 * threads) return;  // else there is room for all anyway
    cpu_set_t others = usable;
    CPU_CLR(cpu, &others);
    for (int i = 1; i < threads; i++) pthread_setaffinity_np(handles[i], sizeof others, &others);
#endif
  }

  void rouse() {
    if (!sleepers.load()) return;
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&start);
    pthread_mutex_unlock(&mutex);
  }

  void share_out(int64_t tiles) {
    for (int i = 0; i < threads; i++) {
      int64_t begin = tiles * i / threads, end = tiles * (i + 1) / threads;
      int64_t chunk = (end - begin) / chunks;
      shares[i].next.store(begin, std::memory_order_relaxed);
      shares[i].end = end, shares[i].chunk = chunk > 1 ? chunk : 1;
    }
  }

  void wait_for_others() {
    auto finished = [&] { return active.load() == 0; };
    if (comes_soon(finished)) return;
    pthread_mutex_lock(&mutex);
    waited.store(true);
    while (!finished()) pthread_cond_wait(&done, &mutex);
    waited.store(false);
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
  p->shares = new (std::nothrow) Share[threads];
  if (!p->handles || !p->shares) return p;
  int started = 1;
  for (int i = 1; i < threads; i++) {
    Start* s = new (std::nothrow) Start{p, i};
    if (!s || pthread_create(&p->handles[i], nullptr, thread_main, s) !=
                  0) {  // fewer threads, same results
      delete s;
      break;
    }
    started = i + 1;
  }
#if defined(__linux__)
  if (sched_getaffinity(0, sizeof p->usable, &p->usable) != 0) CPU_ZERO(&p->usable);
#endif
  p->threads = started;  // they see it with the first open round
  return p;
}

void pool_destroy(pool* p) {
  if (!p) return;
  if (p->threads > 1) {
    p->stop.store(true);
    p->rouse();
    for (int i = 1; i < p->threads; i++) pthread_join(p->handles[i], nullptr);
  }
  delete[] p->handles;
  delete[] p->shares;
  delete p;
}

int pool_threads(const pool* p) { return p ? p->threads : 1; }

void pool_wake(pool* p) {
  if (!p || p->threads == 1) return;
  p->make_way();
  p->wakes.fetch_add(1);
  p->rouse();
}

void parallel(pool* p, tile_fn fn, void* arg, int64_t tiles) {
  if (tiles <= 0) return;
  if (!p || p->threads == 1 || tiles == 1 || inside) return fn(arg, 0, tiles, 0);
  p->fn = fn, p->arg = arg;
  p->share_out(tiles);
  p->round.fetch_add(1);
  p->rouse();
  inside = true;
  p->run(0);
  inside = false;
  p->round.fetch_add(1);
  p->wait_for_others();
}

}  // namespace fissile
