#include "scratch.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headway {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMaxBlocks = 8;
constexpr std::size_t kMaxBytesPerBlock = std::size_t{64} << 20;  // larger blocks are not kept

struct Block {
  std::byte* data;
  std::size_t size;
};

struct Pool {
  std::mutex mutex;
  std::vector<Block> blocks;
};

// Never destroyed: a call may still run while the process ends. After a fork the child starts an empty pool, since
// the lock may have been held by a thread that the child does not have.
Pool* pool = [] {
#if defined(__unix__) || defined(__APPLE__)
  pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
#endif
  return new Pool;
}();

std::align_val_t alignment_of(std::size_t bytes) { return std::align_val_t{bytes >= kHugePage ? kHugePage : 64}; }

void free_block(const Block& block) { deallocate(block.data, block.size); }

}  // namespace

std::byte* allocate(std::size_t bytes) {
  auto* data = static_cast<std::byte*>(::operator new(bytes, alignment_of(bytes)));
#if defined(__linux__)
  // Whole huge pages only. A system without them refuses, which changes nothing.
  if (bytes >= kHugePage) madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  return data;
}

void deallocate(std::byte* data, std::size_t bytes) noexcept { ::operator delete(data, alignment_of(bytes)); }

Scratch::Scratch(std::size_t bytes) : data_(nullptr), size_(std::max<std::size_t>(bytes, 64)) {
  {
    const std::lock_guard lock(pool->mutex);
    auto& blocks = pool->blocks;
    const auto fit = std::find_if(blocks.begin(), blocks.end(), [&](const Block& b) { return b.size >= bytes; });
    if (fit != blocks.end()) {
      data_ = fit->data;
      size_ = fit->size;
      blocks.erase(fit);
    }
  }
  if (data_ == nullptr) data_ = allocate(size_);
}

Scratch::~Scratch() {
  const Block block{data_, size_};
  if (size_ <= kMaxBytesPerBlock) {
    const std::lock_guard lock(pool->mutex);
    auto& blocks = pool->blocks;
    if (blocks.size() < kMaxBlocks) {
      blocks.reserve(kMaxBlocks);
      blocks.push_back(block);
      return;
    }
    // Full: the smallest block goes, so that the pool comes to hold blocks that fit every call.
    const auto smallest = std::min_element(blocks.begin(), blocks.end(),
                                           [](const Block& a, const Block& b) { return a.size < b.size; });
    if (smallest->size < size_) {
      free_block(*smallest);
      *smallest = block;
      return;
    }
  }
  free_block(block);
}

void release_memory() {
  const std::lock_guard lock(pool->mutex);
  for (const auto& block : pool->blocks) free_block(block);
  pool->blocks.clear();
}

}  // namespace headway
