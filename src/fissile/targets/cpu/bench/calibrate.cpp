// What this processor can do at best: prints one line for each constant.
//
//   calibrate THREADS
//
//   gflops X                 fused multiply-adds of whole vectors (2 flops a lane), all threads together
//   rate BYTES X             GB/s with a working set of BYTES in all: the better of reading and copying
//   launch X                 microseconds of an empty parallel call
//
// Every number is the best of many repetitions.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>

#include "aligned.h"
#include "threads.cpp"
#include "vec.h"

namespace {

using fissile::vf;
constexpr int VL = fissile::VL, accumulators = 14;

double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

struct Work {
  float* data;
  int64_t count;   // floats
  int64_t rounds;
  float sink[64 * 256];
};

void multiply_add(void* arg, int64_t begin, int64_t end, int thread) {
  Work* w = (Work*)arg;
  for (int64_t tile = begin; tile < end; tile++) {
    vf c[accumulators], a = fissile::splat(0.999f), b = fissile::splat(1e-3f);
    for (int j = 0; j < accumulators; j++) c[j] = fissile::splat((float)(tile + j));  // equal ones would be merged
    for (int64_t i = 0; i < w->rounds; i++) {
#pragma GCC unroll 14
      for (vf& v : c) v = fissile::fma(v, a, b);
    }
    vf sum = c[0];
    for (vf& v : c) sum += v;
    w->sink[thread * 64] = sum[0];
  }
}

// Every tile is a part of the data; each is read `rounds` times.
void read(void* arg, int64_t begin, int64_t end, int thread) {
  Work* w = (Work*)arg;
  for (int64_t tile = begin; tile < end; tile++)
    for (int64_t round = 0; round < w->rounds; round++) {
      const float* p = w->data + tile * w->count;
      vf s[8];
      for (vf& v : s) v = fissile::splat(0.0f);
      for (int64_t i = 0; i + 8 * VL <= w->count; i += 8 * VL)
        for (int j = 0; j < 8; j++) s[j] += fissile::load<vf>(p + i + j * VL);
      for (vf& v : s) w->sink[thread * 64] += v[0];
    }
}

void copy(void* arg, int64_t begin, int64_t end, int thread) {
  Work* w = (Work*)arg;
  for (int64_t tile = begin; tile < end; tile++)
    for (int64_t round = 0; round < w->rounds; round++) {
      float* p = w->data + tile * w->count;
      int64_t half = w->count / 2;
      for (int64_t i = 0; i + 4 * VL <= half; i += 4 * VL)
        for (int j = 0; j < 4; j++) fissile::store(p + half + i + j * VL, fissile::load<vf>(p + i + j * VL));
      w->sink[thread * 64] = p[half];
    }
}

void nothing(void*, int64_t, int64_t, int) {}

double best_us(fissile::pool* pool, fissile::tile_fn fn, Work& w, int64_t tiles, double budget_us) {
  double least = 1e18, stop = now_us() + budget_us;
  for (int i = 0; i < 3 || (i < 2000 && now_us() < stop); i++) {
    double start = now_us();
    fissile::parallel(pool, fn, &w, tiles);
    least = std::min(least, now_us() - start);
  }
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  int threads = argc > 1 ? std::max(1, std::min(256, atoi(argv[1]))) : 1;
  fissile::pool* pool = fissile::pool_create(threads);
  static Work w;

  w.rounds = 200000;  // one thread, times threads: others may be busy now, and a bound must not suffer from it
  double us = best_us(nullptr, multiply_add, w, 1, 300e3);
  printf("gflops %.3f\n", 2.0 * VL * accumulators * w.rounds * threads / us * 1e-3);

  const int64_t most = 256 << 20;
  w.data = (float*)fissile::aligned_alloc64(most);
  if (!w.data) return 1;
  memset(w.data, 0, most);
  for (int64_t bytes = 8 << 10; bytes <= most; bytes *= 2) {
    double best = 0;
    for (int parts = 1; parts <= threads; parts += std::max(1, threads - 1)) {
      w.count = bytes / parts / 4 / 128 * 128;
      if (!w.count) continue;
      w.rounds = std::max<int64_t>(1, (4 << 20) / bytes);
      double moved = 4.0 * w.count * parts * w.rounds;
      double least = std::min(best_us(pool, read, w, parts, 40e3), best_us(pool, copy, w, parts, 40e3));
      best = std::max(best, moved / least * 1e-3);
    }
    printf("rate %lld %.3f\n", (long long)bytes, best);
  }
  printf("launch %.4f\n", best_us(pool, nothing, w, threads, 50e3));
  fissile::pool_destroy(pool);
  return 0;
}
