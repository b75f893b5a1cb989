#include "table_memory.hpp"

#include <algorithm>

#include "cuda/raii/check.hpp"

namespace shingle::cuda {
namespace {

constexpr std::size_t blocks_of_slab = 64;
constexpr std::size_t table_alignment = 256;

}  // namespace

TableBlocks::Block TableBlocks::take(std::size_t bytes) {
  auto best = free_.end();
  for (auto at = free_.begin(); at != free_.end(); ++at)
    if (at->bytes >= bytes && (best == free_.end() || at->bytes < best->bytes)) best = at;
  if (best == free_.end()) {
    const std::size_t each = std::max(bytes, block_bytes), blocks = each > block_bytes ? 1 : blocks_of_slab;
    char* const slab = slabs_.emplace_back(blocks * each).get<char>();
    for (std::size_t i = blocks; i-- > 0;) free_.push_back({slab + i * each, each});
    best = free_.end() - 1;
  }
  const Block block = *best;
  free_.erase(best);
  return block;
}

std::vector<char> TableBlocks::take_staging() {
  std::vector<char> staging;
  if (!staging_.empty()) {
    staging = std::move(staging_.back());
    staging_.pop_back();
  }
  staging.reserve(block_bytes);
  return staging;
}

void TableBlocks::give_staging(std::vector<char> staging) {
  staging.clear();
  staging_.push_back(std::move(staging));
}

TableMemory::~TableMemory() {
  for (const auto* const blocks : {&blocks_, &reserved_})
    for (const Block& block : *blocks)
      if (block.owned.bytes() == 0) pool_->give(block.memory);
}

TableMemory::Block TableMemory::new_block(std::size_t bytes) {
  Block block;
  if (pool_ != nullptr) {
    block.memory = pool_->take(bytes);
  } else {
    block.owned = DeviceMemory(bytes);
    block.memory = {block.owned.get<char>(), bytes};
  }
  bytes_ += static_cast<std::int64_t>(block.memory.bytes);
  return block;
}

char* TableMemory::reserve(std::size_t bytes) {
  reserved_.push_back(new_block(bytes));
  return reserved_.back().memory.data;
}

const void* TableMemory::put(const void* values, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (blocks_.empty() || blocks_.back().tables.size() + bytes > blocks_.back().memory.bytes) {
    blocks_.push_back(new_block(std::max(bytes, TableBlocks::block_bytes)));
    if (pool_ != nullptr) blocks_.back().tables = pool_->take_staging();
  }
  Block& block = blocks_.back();
  char* const to = block.memory.data + block.tables.size();
  const auto* const first = static_cast<const char*>(values);
  block.tables.insert(block.tables.end(), first, first + bytes);
  block.tables.resize(std::min(
      (block.tables.size() + table_alignment - 1) / table_alignment * table_alignment, block.memory.bytes));
  return to;
}

void TableMemory::commit(const Stream& stream, const std::function<void(const Stream&)>& settle) {
  for (Block& block : blocks_)
    if (!block.tables.empty())
      check(cudaMemcpyAsync(block.memory.data, block.tables.data(), block.tables.size(),
                            cudaMemcpyHostToDevice, stream.get()),
            "cudaMemcpyAsync");
  settle(stream);
  for (Block& block : blocks_) {
    if (pool_ != nullptr) pool_->give_staging(std::move(block.tables));
    block.tables = {};
  }
}

}  // namespace shingle::cuda
