// Memory for the workspaces of one call, kept for the next call. A few blocks are kept at most; release_memory frees
// them. Calls from several threads at once get a block each.
#pragma once

#include <cstddef>
#include <memory>

namespace headway {

class Scratch {
 public:
  // 64-byte aligned memory, its contents undefined. Throws std::bad_alloc.
  explicit Scratch(std::size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  std::size_t size_;
};

void release_memory();

// Memory of 64-byte alignment, undefined. From 2 MiB on it begins at a huge page, and the system is asked for such pages:
// what is read front to back arrives faster, since the CPU's own fetching ahead ends at every page. Throws std::bad_alloc.
std::byte* allocate(std::size_t bytes);
void deallocate(std::byte* data, std::size_t bytes) noexcept;

}  // namespace headway
