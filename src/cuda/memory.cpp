#include "memory.hpp"

#include <fmt/format.h>

#include "cuda/raii/device_guard.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

constexpr std::int64_t alignment = 1024;  // of a buffer: more than any load or store asks for

std::int64_t padded(std::int64_t bytes) {
  return ceil_div(bytes, alignment) * alignment;
}

}  // namespace

Memory::Memory(const Plan& plan, const std::vector<LocalRank>& local) : plan_(plan) {
  for (const LocalRank& at : local) {
    const DeviceGuard guard(at.device());
    const int number = at.rank();
    Rank& rank = ranks_[number];
    rank.device = at.device();
    std::int64_t bytes = 0;
    for (const Buffer& buffer : plan.buffers)
      if (buffer.role == Role::internal) bytes += padded(buffer.bytes(number));
    rank.internal = DeviceMemory(static_cast<std::size_t>(bytes));
    char* next = rank.internal.get<char>();
    for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
      if (plan.buffers[b].role != Role::internal) continue;
      rank.buffers[static_cast<std::int32_t>(b)] = next;
      next += padded(plan.buffers[b].bytes(number));
    }
    std::size_t counts = 0;
    for (const Counter& counter : plan.counters) {
      rank.first_count.push_back(counts);
      counts += counter.growth[static_cast<std::size_t>(number)].size();
    }
    rank.counts = DeviceMemory(counts * sizeof(std::uint32_t));
    rank.counts.fill(0);
  }
}

const Memory::Rank& Memory::local(int rank) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end())
    throw Unsupported(
        fmt::format("the plan reaches into the memory of rank {}, which is not of this process", rank));
  return found->second;
}

void Memory::bind(int rank, Role role, void* memory) {
  const std::int32_t buffer = find_buffer(plan_, role);
  if (role == Role::internal || buffer < 0)
    throw InvalidArgument(fmt::format("the plan has no buffer '{}' to bind", name(role)), rank);
  const auto owner = ranks_.find(rank);
  if (owner == ranks_.end())
    throw InvalidArgument(fmt::format("bind: rank {} is not a rank of this process", rank), rank);
  char*& bound = owner->second.buffers[buffer];
  if (bound == memory && memory != nullptr) return;
  bound = static_cast<char*>(memory);
  ++version_;
}

char* Memory::buffer(std::int32_t buffer, int rank, int parity) const {
  const Rank& owner = local(rank);
  const Buffer& planned = plan_.buffers[static_cast<std::size_t>(buffer)];
  const auto found = owner.buffers.find(buffer);
  if (found == owner.buffers.end())
    throw InvalidArgument(fmt::format("matrix '{}' of rank {} is not bound", planned.name, rank), rank);
  return found->second + (planned.depth > 1 ? parity * (planned.bytes(rank) / planned.depth) : 0);
}

std::int64_t Memory::row_bytes(std::int32_t buffer) const {
  const Buffer& planned = plan_.buffers[static_cast<std::size_t>(buffer)];
  return planned.cols * static_cast<std::int64_t>(size_bytes(planned.dtype));
}

char* Memory::at(const Slice& slice, int parity) const {
  const auto element =
      static_cast<std::int64_t>(size_bytes(plan_.buffers[static_cast<std::size_t>(slice.buffer)].dtype));
  return buffer(slice.buffer, slice.rank, parity) + slice.row * row_bytes(slice.buffer) + slice.col * element;
}

std::uint32_t* Memory::counter(const CounterRef& ref) const {
  const Rank& owner = local(ref.rank);
  return owner.counts.get<std::uint32_t>() + owner.first_count[static_cast<std::size_t>(ref.counter)] +
         ref.entry;
}

std::uint32_t Memory::growth(const CounterRef& ref) const {
  return plan_.counters[static_cast<std::size_t>(ref.counter)]
      .growth[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.entry)];
}

std::string Memory::describe(const std::uint32_t* counter) const {
  for (const auto& [number, rank] : ranks_) {
    const auto* first = rank.counts.get<const std::uint32_t>();
    if (counter < first || counter >= first + rank.counts.bytes() / sizeof(std::uint32_t)) continue;
    const auto at = static_cast<std::size_t>(counter - first);
    std::size_t c = rank.first_count.size() - 1;
    while (rank.first_count[c] > at) --c;
    return fmt::format("counter '{}'[{}] of rank {}", plan_.counters[c].name, at - rank.first_count[c],
                       number);
  }
  return "the start of the run";
}

std::int64_t Memory::internal_bytes(int rank) const {
  const Rank& owner = local(rank);
  return static_cast<std::int64_t>(owner.internal.bytes() + owner.counts.bytes());
}

void Memory::poison() {
  for (auto& [number, rank] : ranks_) {
    const DeviceGuard guard(rank.device);
    rank.internal.fill(0xff);  // a NaN in every dtype
  }
}

}  // namespace shingle::cuda
