#include "call_graphs.hpp"

#include <algorithm>

#include "cuda/raii/memory.hpp"

namespace shingle::cuda {
namespace {

std::uint64_t hash_of(std::span<const CallMatrix> matrices) {
  std::uint64_t hash = 1;
  for (const CallMatrix& one : matrices) {
    hash ^= reinterpret_cast<std::uintptr_t>(one.memory.data) ^
            static_cast<std::uint64_t>(one.memory.row_stride) << 48;
    hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9;
  }
  return hash ^ hash >> 32;
}

std::vector<std::uint64_t> allocations_of(std::span<const CallMatrix> matrices) {
  std::vector<std::uint64_t> found;
  for (const CallMatrix& one : matrices) found.push_back(allocation_of(one.memory.data));
  return found;
}

}  // namespace

bool CallGraphs::Key::holds(const CallTag& tag, std::span<const CallMatrix> of, std::uint64_t hash_of) const {
  return hash == hash_of && op == tag.op && m == tag.m && std::ranges::equal(matrices, of);
}

bool CallGraphs::has_come_before(std::uint64_t hash) {
  if (std::ranges::find(recent_, hash) != recent_.end()) return true;
  recent_[came_++ % recent_.size()] = hash;
  return false;
}

bool CallGraphs::Held::launches() const {
  return !graph.copies() || allocations == allocations_of(key.matrices);
}

CallGraphs::Held CallGraphs::make(const Key& key, const Stream& stream, const Enqueue& enqueue,
                                  const Settle& settle) const {
  Held made{key, Graph::capture(stream.get(), enqueue, keeps_priorities_), allocations_of(key.matrices)};
  made.graph.upload(stream.get());
  settle(stream);
  return made;
}

const Graph& CallGraphs::get(const CallTag& tag, std::span<const CallMatrix> matrices, const Stream& stream,
                             bool changes, const Enqueue& enqueue, const Settle& settle) {
  const std::uint64_t hash = hash_of(matrices);
  const auto found =
      std::ranges::find_if(graphs_, [&](const Held& at) { return at.key.holds(tag, matrices, hash); });
  if (found != graphs_.end() && !changes) {
    if (!found->launches()) *found = make(found->key, stream, enqueue, settle);
    return found->graph;
  }
  const Key key{tag.op, tag.m, {matrices.begin(), matrices.end()}, hash};
  if (graphs_.empty()) return graphs_.emplace_back(make(key, stream, enqueue, settle)).graph;
  if (!changes && budget_ > 0 && has_come_before(hash)) {
    const Graph& made = graphs_.emplace_back(make(key, stream, enqueue, settle)).graph;
    --budget_;
    return made;
  }
  Held& shared = graphs_.front();
  if (shared.launches() && shared.graph.update(stream.get(), enqueue)) {
    shared.key = key;
    shared.allocations = allocations_of(matrices);
  } else {
    shared = make(key, stream, enqueue, settle);
  }
  return shared.graph;
}

}  // namespace shingle::cuda
