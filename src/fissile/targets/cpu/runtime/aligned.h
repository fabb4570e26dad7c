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

// Rounded up to whole vectors, so that a vector that starts inside may be read whole. Much memory
// lies in huge pages, where the system has them. Null when memory is out.
inline void* aligned_alloc64(size_t bytes) {
  const size_t huge = 2 << 20, size = (bytes + 127) / 64 * 64;
  void* p = nullptr;
  if (posix_memalign(&p, size < huge ? 64 : huge, size) != 0) return nullptr;
#if defined(__linux__)
  if (size >= huge) madvise(p, size, MADV_HUGEPAGE);
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
