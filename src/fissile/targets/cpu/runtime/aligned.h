// Memory aligned to 64 bytes: one cache line, and one vector of the widest kind.
#ifndef FISSILE_ALIGNED_H
#define FISSILE_ALIGNED_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

namespace fissile {

// Rounded up to whole vectors, so that a vector that starts inside may be read whole. Null when
// memory is out.
inline void* aligned_alloc64(size_t bytes) {
  void* p = nullptr;
  return posix_memalign(&p, 64, (bytes + 127) / 64 * 64) == 0 ? p : nullptr;
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
