// Times the kernels of a shared library.
//
//   runner LIBRARY THREADS COLD < ORDERS
//
// An order is a line: NAME TILES SCRATCH_BYTES COUNT then COUNT pointers such as fn4096: fill (f, d, h, b: random
// normal floats; z: zeros), role (need, constant, give), bytes. Kernels are visited in turn; a visit is one untimed call,
// then timed calls, each after the constants have been evicted from cache if COLD is 1. Writes, flushed line by line:
//
//   start NAME                      before every visit
//   time NAME LEAST_US MEDIAN_US    when all visits are done
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
constexpr int visits = 5, most_samples = 8;
constexpr double visit_us = 2000, enough_us = 150000;

struct Pointer { char fill, role; size_t bytes; void* at; };
struct Kernel {
  std::string name;
  long tiles;
  size_t scratch;
  std::vector<Pointer> pointers;
  std::vector<void*> p;
  entry_fn entry;
  std::vector<double> us;
  double spent;
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

struct Call { Kernel* k; char* scratch; size_t scratch_step; };

void run_tiles(void* arg, int64_t begin, int64_t end, int thread) {
  Call* c = (Call*)arg;
  c->k->entry(c->k->p.data(), c->scratch + thread * c->scratch_step, begin, end);
}

// In a program the threads are awake, because the kernel before ended a moment ago. Each takes a tile and waits for the
// others, but not for long.
void gather(fissile::pool* pool) {
  int threads = fissile::pool_threads(pool);
  if (threads == 1) return;
  std::atomic<int> here{0};
  double start = now_us();
  fissile::pool_wake(pool);
  fissile::parallel(pool, threads, [&](int64_t, int64_t, int) {
    here.fetch_add(1);
    while (here.load() < threads && now_us() - start < 500) {}
  });
}

double sample(fissile::pool* pool, Call& c, bool cold, double overhead) {
  if (cold) {
    for (const Pointer& p : c.k->pointers)
      if (p.role == 'c') evict(p);
    fence();
  }
  gather(pool);
  double start = now_us();
  fissile::parallel(pool, run_tiles, &c, c.k->tiles);
  return std::max(1e-3, now_us() - start - overhead);
}

bool read(void* library, std::vector<Kernel>& kernels) {
  char name[256];
  long tiles;
  size_t scratch;
  int count;
  while (scanf("%255s %ld %zu %d", name, &tiles, &scratch, &count) == 4) {
    Kernel k{name, tiles, scratch, {}, {}, nullptr, {}, 0};
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
  if (argc != 4) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  std::vector<Kernel> kernels;
  if (!library || !read(library, kernels)) {
    printf("cannot load %s: %s\n", argv[1], library ? "an order does not fit it" : dlerror());
    return 3;
  }
  int threads = atoi(argv[2]);
  bool cold = atoi(argv[3]) != 0;
  if (threads <= 1) pin();
  place(kernels);
  size_t scratch_step = 64;
  for (const Kernel& k : kernels) scratch_step = std::max(scratch_step, (k.scratch + 127) / 64 * 64);
  char* scratch = (char*)fissile::aligned_alloc64(scratch_step * std::max(1, threads));
  if (!scratch) return 3;
  memset(scratch, 0, scratch_step * std::max(1, threads));
  fissile::pool* pool = fissile::pool_create(threads);
  double overhead = clock_us();

  for (int visit = 0; visit < visits; visit++) {
    for (Kernel& k : kernels) {
      printf("start %s\n", k.name.c_str()), fflush(stdout);
      if (visit > 1 && k.spent > enough_us) continue;
      Call c{&k, scratch, scratch_step};
      double warm = sample(pool, c, false, overhead);
      int samples = std::max(1, std::min(most_samples, (int)(visit_us / warm)));
      for (int i = 0; i < samples; i++) k.us.push_back(sample(pool, c, cold, overhead));
      k.spent += warm * (samples + 1);
    }
  }
  for (Kernel& k : kernels) {
    std::sort(k.us.begin(), k.us.end());
    printf("time %s %.4f %.4f\n", k.name.c_str(), k.us[0], k.us[k.us.size() / 2]);
  }
  fissile::pool_destroy(pool);
  return 0;
}
