// Times the kernels of a shared library, with every cache as the rest of a program would leave it.
//
//   runner LIBRARY THREADS COLD L2_BYTES < ORDERS
//
// An order is a line: NAME LIMIT_US TILES CLOSES SCRATCH_BYTES COUNT then COUNT pointers such as fn4096: fill (f, d, h, b:
// random normal floats; z: zeros), role (need, constant, give, work), bytes. Before every timed call
//
//   constants  are evicted to memory, if COLD is 1: the other weights of a network pass through the caches;
//   results    of the size of L2 or more are evicted too: their memory was used long ago;
//   code       and smaller results go as far as L3: a sweep over twice the L2 of every thread pushes them there;
//   needs      are written again, first to last, by all threads, as the kernel before would: so they lie in L2 where
//              they are small enough, the rest in L3 or memory, and the threads are awake.
//
// Kernels are visited in turn. One is done when its time is known: when a visit found nothing faster, when enough has
// been spent, or when it is slower than LIMIT_US, above which nobody asks (0: none). Writes, flushed line by line:
//
//   start NAME                      before every visit
//   time NAME US MEDIAN_US          when all visits are done; US is the lower quartile
//
// Kernels run one at a time, so all share the memory of their inputs, constants and results.
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "aligned.h"
#include "threads.cpp"

namespace {

typedef void (*entry_fn)(void** p, char* scratch, long begin, long end);
constexpr int visits = 6, least_visits = 2, visit_samples = 6, least_samples = 8;
constexpr double visit_us = 3000, enough_us = 120000;
constexpr double stable = 1.01;  // a visit found nothing faster

struct Pointer { char fill, role; size_t bytes; void* at; };
struct Kernel {
  std::string name;
  double limit_us;
  long tiles;
  int closes;
  size_t scratch;
  std::vector<Pointer> pointers;
  std::vector<void*> p;
  entry_fn entry;
  std::vector<double> us;
  double spent;
  bool done;
};

double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

// What reading the clock twice costs.
double clock_us() {
  double least = 1e9;
  for (int i = 0; i < 1000; i++) {
    double a = now_us(), b = now_us();
    least = std::min(least, b - a);
  }
  return least;
}

float normal() {  // Box and Muller, from a fixed sequence
  static uint64_t state = 88172645463325252ull;
  auto uniform = [] {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return ((state >> 11) + 1) * (1.0 / 9007199254740993.0);
  };
  return (float)(std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform()));
}

uint16_t half_bits(float x) {  // by truncation; |x| stays between 2^-14 and 65504
  uint32_t u;
  x = std::copysign(std::max(std::fabs(x), 1e-3f), x);
  memcpy(&u, &x, 4);
  return (uint16_t)((u >> 16 & 0x8000) | (((u >> 23 & 255) - 112) << 10) | (u >> 13 & 1023));
}

void fill(char* to, size_t bytes, char kind) {
  std::vector<float> values(65536);
  for (float& v : values) v = normal();
  size_t step = kind == 'f' ? 4 : kind == 'd' ? 8 : kind == 'h' || kind == 'b' ? 2 : 0;
  if (!step) return (void)memset(to, 0, bytes);
  for (size_t i = 0; i + step <= bytes; i += step) {
    float v = values[i / step % values.size()];
    uint32_t u;
    memcpy(&u, &v, 4);
    double d = v;
    uint16_t h = kind == 'h' ? half_bits(v) : (uint16_t)(u >> 16);
    if (step == 4) memcpy(to + i, &v, 4);
    if (step == 8) memcpy(to + i, &d, 8);
    if (step == 2) memcpy(to + i, &h, 2);
  }
}

void evict(const Pointer& p) {
#if defined(__x86_64__)
  for (size_t i = 0; i < p.bytes; i += 64) __builtin_ia32_clflush((char*)p.at + i);
#elif defined(__aarch64__)
  for (size_t i = 0; i < p.bytes; i += 64) asm volatile("dc civac, %0" ::"r"((char*)p.at + i) : "memory");
#endif
}

void fence() {
#if defined(__x86_64__)
  __builtin_ia32_mfence();
#elif defined(__aarch64__)
  asm volatile("dsb sy" ::: "memory");
#endif
}

struct Bench {
  fissile::pool* pool;
  int threads;
  bool cold;
  double overhead_us;
  size_t l2_bytes, sweep_bytes, scratch_bytes;  // of one thread
  char *sweep, *scratch;
};

struct Call { const Bench* bench; Kernel* k; };

void run_tiles(void* arg, int64_t begin, int64_t end, int thread) {
  Call* c = (Call*)arg;
  c->k->entry(c->k->p.data(), c->bench->scratch + thread * c->bench->scratch_bytes, begin, end);
}

void touch(char* at, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) *(volatile char*)(at + i) = *(volatile char*)(at + i);
}

// What the rest of the program did in one thread.
void leave(const Bench& b, const Kernel& k, int64_t thread) {
  touch(b.sweep + thread * b.sweep_bytes, b.sweep_bytes);
  for (const Pointer& p : k.pointers) {
    if (p.role != 'n') continue;
    size_t from = p.bytes * thread / b.threads, to = p.bytes * (thread + 1) / b.threads;
    touch((char*)p.at + from, to - from);
  }
}

// In a program the threads are awake, because the kernel before ended a moment ago. Each takes a tile and waits for the
// others, but not for long.
void gather(const Bench& b, const Kernel& k) {
  std::atomic<int> here{0};
  double start = now_us();
  fissile::pool_wake(b.pool);
  fissile::parallel(b.pool, b.threads, [&](int64_t begin, int64_t end, int) {
    here.fetch_add(1);
    while (here.load() < b.threads && now_us() - start < 500) {}
    for (int64_t tile = begin; tile < end; tile++) leave(b, k, tile);
  });
}

double sample(const Bench& b, Kernel& k) {
  Call c{&b, &k};
  for (const Pointer& p : k.pointers)
    if (p.role == 'c' ? b.cold : p.role == 'g' && p.bytes >= b.l2_bytes) evict(p);
  fence();
  gather(b, k);
  double start = now_us();
  fissile::parallel(b.pool, run_tiles, &c, k.tiles);
  if (k.closes) k.entry(k.p.data(), b.scratch, k.tiles, k.tiles + 1);
  return std::max(1e-3, now_us() - start - b.overhead_us);
}

double quantile(std::vector<double> us, double q) {
  std::sort(us.begin(), us.end());
  return us[(size_t)(q * (us.size() - 1))];
}

// Some samples more; done when they say nothing new.
void visit(const Bench& b, Kernel& k, int number) {
  double start = now_us(), known = k.us.empty() ? 1e18 : quantile(k.us, 0.25), least = 1e18;
  sample(b, k);  // pages, branch predictors, clock
  for (int i = 0; i < visit_samples; i++) {
    k.us.push_back(sample(b, k));
    least = std::min(least, k.us.back());
    if (now_us() - start > visit_us) break;
  }
  k.spent += now_us() - start;
  bool settled = number + 1 >= least_visits && k.us.size() >= least_samples && quantile(k.us, 0.25) * stable > known;
  k.done = settled || k.spent > enough_us || (k.limit_us > 0 && least > k.limit_us);
}

bool read(void* library, std::vector<Kernel>& kernels) {
  char name[256];
  double limit_us;
  long tiles;
  size_t scratch;
  int closes, count;
  while (scanf("%255s %lf %ld %d %zu %d", name, &limit_us, &tiles, &closes, &scratch, &count) == 6) {
    Kernel k{name, limit_us, tiles, closes, scratch, {}, {}, nullptr, {}, 0, false};
    for (int i = 0; i < count; i++) {
      Pointer p{};
      if (scanf(" %c%c%zu", &p.fill, &p.role, &p.bytes) != 3) return false;
      k.pointers.push_back(p);
    }
    k.entry = (entry_fn)dlsym(library, (k.name + "_entry").c_str());
    if (!k.entry) return false;
    kernels.push_back(k);
  }
  return true;
}

// Memory for every pointer: pools by fill and role, each as large as the most demanding kernel.
void place(std::vector<Kernel>& kernels) {
  std::map<std::pair<char, char>, size_t> need;
  auto pool_of = [](const Pointer& p) { return std::make_pair(p.role == 'g' ? 'z' : p.fill, p.role); };
  auto room = [](size_t bytes) { return (bytes + 191) / 64 * 64; };
  for (const Kernel& k : kernels) {
    std::map<std::pair<char, char>, size_t> used;
    for (const Pointer& p : k.pointers) used[pool_of(p)] += room(p.bytes);
    for (auto& [pool, bytes] : used) need[pool] = std::max(need[pool], bytes);
  }
  std::map<std::pair<char, char>, char*> at;
  for (auto& [pool, bytes] : need) {
    at[pool] = (char*)fissile::aligned_alloc64(bytes);
    if (!at[pool]) exit(3);
    fill(at[pool], bytes, pool.first);
  }
  for (Kernel& k : kernels) {
    std::map<std::pair<char, char>, size_t> used;
    for (Pointer& p : k.pointers) {
      p.at = at[pool_of(p)] + used[pool_of(p)];
      used[pool_of(p)] += room(p.bytes);
      k.p.push_back(p.at);
    }
  }
}

void pin() {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  CPU_ZERO(&one);
  for (int i = CPU_SETSIZE - 1; i >= 0; i--)  // the last one: interrupts tend to be served by the first
    if (CPU_ISSET(i, &all)) {
      CPU_SET(i, &one);
      break;
    }
  sched_setaffinity(0, sizeof one, &one);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  std::vector<Kernel> kernels;
  if (!library || !read(library, kernels)) {
    printf("cannot load %s: %s\n", argv[1], library ? "an order does not fit it" : dlerror());
    return 3;
  }
  int threads = std::max(1, atoi(argv[2]));
  if (threads == 1) pin();
  place(kernels);
  size_t l2 = atol(argv[4]);
  fissile::pool* pool = fissile::pool_create(threads);
  threads = fissile::pool_threads(pool);
  Bench b{pool, threads, atoi(argv[3]) != 0, clock_us(), l2, 2 * l2, 64, nullptr, nullptr};
  for (const Kernel& k : kernels) b.scratch_bytes = std::max(b.scratch_bytes, (k.scratch + 127) / 64 * 64);
  b.sweep = (char*)fissile::aligned_alloc64(b.sweep_bytes * threads);
  b.scratch = (char*)fissile::aligned_alloc64(b.scratch_bytes * threads);
  if (!b.sweep || !b.scratch) return 3;
  memset(b.sweep, 0, b.sweep_bytes * threads);
  memset(b.scratch, 0, b.scratch_bytes * threads);

  for (int number = 0; number < visits; number++) {
    for (Kernel& k : kernels) {
      if (k.done) continue;
      printf("start %s\n", k.name.c_str()), fflush(stdout);
      visit(b, k, number);
    }
  }
  for (Kernel& k : kernels)
    printf("time %s %.4f %.4f\n", k.name.c_str(), quantile(k.us, 0.25), quantile(k.us, 0.5));
  fissile::pool_destroy(b.pool);
  return 0;
}
