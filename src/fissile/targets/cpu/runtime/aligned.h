// Memory aligned to 64 bytes: one cache line, and one vector of the widest kind.
#ifndef FISSILE_ALIGNED_H
#define FISSILE_ALIGNED_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace fissile {

// Rounded up to whole vectors, so that a vector that starts inside may be read whole; much memory
// to whole huge pages, where the system has them. Null when memory is out.
inline void* aligned_alloc64(size_t bytes) {
  const size_t huge = 2 << 20;
  const bool much = bytes >= huge / 8;
  const size_t unit = much ? huge : 64;
  if (bytes > SIZE_MAX - 64 - unit) return nullptr;
  const size_t size = (bytes + 64 + unit - 1) / unit * unit;
  void* p = nullptr;
  if (posix_memalign(&p, unit, size) != 0) return nullptr;
#if defined(__linux__)
  if (much) madvise(p, size, MADV_HUGEPAGE);
#endif
  return p;
}
inline void aligned_free64(void* p) { free(p); }

// float* data = AlignedBuffer(bytes).as<float>(), freed with the buffer
struct AlignedBuffer {
  void* data;
  explicit AlignedBuffer(size_t bytes) : data(aligned_alloc64(bytes)) {}
  ~AlignedBuffer() { aligned_free64(data); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  template <class T> T* as() const { return static_cast<T*>(data); }
};

}  // namespace fissile

#endif
