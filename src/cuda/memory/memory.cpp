#include "memory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "arena.hpp"
#include "backend/remote.hpp"
#include "cuda/peer/access.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/runtime/world.hpp"
#include "plan/accesses.hpp"
#include "plan/adders.hpp"
#include "plan/arena_layout.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

constexpr std::int64_t alignment = 1024;  // bytes, of a buffer: more than any load or store requires

/// Stands for the address of a matrix that comes with each call. Aligned like memory, never null, and farther
/// from the others than any matrix is long.
std::uintptr_t symbolic_base(Role role) {
  return (static_cast<std::uintptr_t>(role) + 1) << 48;
}
static_assert(static_cast<int>(Role::internal) + 1 == Shifts::roles);

std::int64_t padded(std::int64_t bytes) {
  return ceil_div(bytes, alignment) * alignment;
}

/// True if a buffer has memory of its own.
bool is_allocated(const Buffer& buffer) {
  return buffer.role == Role::internal && !buffer.flagged;
}

}  // namespace

Memory::Memory(const Plan& plan, CudaWorld& world) : plan_(plan), world_(world) {
  const bool maps = static_cast<int>(world.local().size()) < world.size() && !remote_access(plan).empty();
  for (const LocalRank& at : world.local()) allocate(at, maps);
  if (world.size() > 1) reached_ = remote_user_buffers(plan);
  if (has_flagged(plan)) flagged_ = std::make_unique<FlaggedMemory>(world, most_flagged_bytes);
  if (!maps) return;
  world.in_step([&] { map_internal(); });
}

Memory::Memory(std::shared_ptr<const Plan> of, CudaWorld& world, const ArenaMemory& arena)
    : own_plan_(std::move(of)), plan_(*own_plan_), world_(world), arena_(&arena) {
  const Plan& plan = plan_;
  const ArenaLayout layout = arena_layout(plan);
  if (layout.bytes > arena.bytes())
    throw InvalidArgument(fmt::format("the plan needs an arena of {} bytes on each rank; this one has {}",
                                      layout.bytes, arena.bytes()));
  if (world.size() > 1) reached_ = remote_user_buffers(plan);
  if (!reached_.empty() && arena.heap() == nullptr)
    throw Unsupported("CUDA: ranks access each other's matrices, but the context has no registered memory");
  for (int number = 0; number < world.size(); ++number) {
    const ArenaMemory::Place* const place = arena.place(number);
    if (place == nullptr) continue;
    Rank& rank = ranks_[number];
    for (std::size_t b = 0; b < plan.buffers.size(); ++b)
      if (layout.offset_bytes[b] >= 0)
        rank.buffers[static_cast<std::int32_t>(b)] = place->staging + layout.offset_bytes[b];
    for (const LocalRank& local : world.local()) rank.local = rank.local || local.rank() == number;
    if (rank.local) rank.device = world.local(number).device();
    for (std::size_t b = 0; rank.local && b < plan.buffers.size(); ++b)
      if (plan.buffers[b].role != Role::internal)
        rank.buffers[static_cast<std::int32_t>(b)] =
            reinterpret_cast<char*>(symbolic_base(plan.buffers[b].role));
    for (const std::int32_t buffer : reached_) rank.buffers[buffer] = arena.heap()->at(number);
    rank.first = place->counts;
    rank.begins = place->begins;
    count_entries(number);
    if (rank.first_count.back() > ArenaMemory::most_counts)
      throw Unsupported(fmt::format("CUDA: the plan has {} counts on rank {}; an arena has {}",
                                    rank.first_count.back(), number, ArenaMemory::most_counts));
  }
}

std::int64_t Memory::shift(int rank, std::int32_t buffer, const void* matrix) const {
  const auto base = reinterpret_cast<std::uintptr_t>(at_hand(rank).buffers.at(buffer));
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(matrix) - base);
}

/// Numbers the entries of a rank's counters. In an arena, begins are counted elsewhere.
void Memory::count_entries(int number) {
  Rank& rank = ranks_[number];
  rank.first_count = {0};
  for (const Counter& counter : plan_.counters)
    rank.first_count.push_back(
        rank.first_count.back() +
        (by_call() && counter.of_begins ? 0 : counter.growth[static_cast<std::size_t>(number)].size()));
}

Memory::~Memory() {
  if (!mapped_) return;
  bound_mappings_ = {};
  internal_mappings_ = {};
  std::vector<DeviceMemory> own;
  for (auto& [number, rank] : ranks_) {
    own.push_back(std::move(rank.internal));
    own.push_back(std::move(rank.counts));
    for (auto& [buffer, copy] : rank.copies) own.push_back(std::move(copy));
  }
  world_.retired().add(number_, std::move(own));
}

/// Allocates internal buffers and counters of a rank. `shared`: other processes map them.
void Memory::allocate(const LocalRank& at, bool shared) {
  const DeviceGuard guard(at.device());
  const int number = at.rank();
  Rank& rank = ranks_[number];
  rank.local = true;
  rank.device = at.device();
  std::int64_t bytes = 0;
  for (const Buffer& buffer : plan_.buffers)
    if (is_allocated(buffer)) bytes += padded(buffer.bytes(number));
  std::size_t counts = 0;
  for (const Counter& counter : plan_.counters)
    counts += counter.growth[static_cast<std::size_t>(number)].size();
  const auto whole = [&](std::size_t wanted) { return shared ? whole_shared_units(wanted) : wanted; };
  rank.internal = DeviceMemory(whole(static_cast<std::size_t>(bytes)));
  rank.counts = DeviceMemory(whole(counts * sizeof(std::uint32_t)));
  rank.counts.fill(0);
  place(number, rank.internal.get<char>(), rank.counts.get<char>());
}

/// Sets the addresses of a rank's internal buffers and counters, starting at these two.
void Memory::place(int number, char* internal, char* counts) {
  Rank& rank = ranks_[number];
  for (std::size_t b = 0; b < plan_.buffers.size(); ++b) {
    if (!is_allocated(plan_.buffers[b])) continue;
    rank.buffers[static_cast<std::int32_t>(b)] = internal;
    internal += padded(plan_.buffers[b].bytes(number));
  }
  rank.first = reinterpret_cast<std::uint32_t*>(counts);
  count_entries(number);
}

void Memory::map_internal() {
  const LocalRank& own = world_.local().front();
  const DeviceGuard guard(own.device());
  const Rank& rank = ranks_.at(own.rank());
  number_ = world_.retired().number();
  const auto all = internal_mappings_.exchange(
      world_.processes(), own.rank(), {rank.internal.get(), rank.counts.get()}, world_.options().timeout_us);
  for (int other = 0; other < world_.size(); ++other)
    if (other != own.rank())
      place(other, all[static_cast<std::size_t>(other)][0], all[static_cast<std::size_t>(other)][1]);
  mapped_ = true;
}

void Memory::map_bound(const std::function<void()>& finish, bool replayed, double timeout_us) {
  if (!mapped_ || reached_.empty()) return;
  if (world_.all_max({exchanged_ == version_ ? 0.0 : 1.0}, timeout_us)[0] == 0) return;
  finish();
  const LocalRank& own = world_.local().front();
  const DeviceGuard guard(own.device());
  std::vector<void*> bound;
  for (const std::int32_t buffer : reached_) {
    const auto found = ranks_.at(own.rank()).buffers.find(buffer);
    bound.push_back(found == ranks_.at(own.rank()).buffers.end() ? nullptr : found->second);
  }
  world_.in_step([&] {
    Mappings next;
    const auto all = next.exchange(world_.processes(), own.rank(), bound, timeout_us);
    bound_mappings_.replace(std::move(next), replayed);
    for (int other = 0; other < world_.size(); ++other)
      for (std::size_t i = 0; i < reached_.size() && other != own.rank(); ++i)
        ranks_.at(other).buffers[reached_[i]] = all[static_cast<std::size_t>(other)][i];
  });
  exchanged_ = ++version_;
}

const Memory::Rank& Memory::at_hand(int rank) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end())
    throw Unsupported(
        fmt::format("the plan accesses the memory of rank {}, which is not in this process", rank));
  return found->second;
}

void Memory::bind(int rank, Role role, const MatrixMemory& memory) {
  const std::int32_t buffer = find_buffer(plan_, role);
  if (role == Role::internal || buffer < 0)
    throw InvalidArgument(fmt::format("the plan has no buffer '{}' to bind", name(role)), rank);
  const auto owner = ranks_.find(rank);
  if (owner == ranks_.end() || !owner->second.local)
    throw InvalidArgument(fmt::format("bind: rank {} is not a rank of this process", rank), rank);
  Rank& own = owner->second;
  const Bound now{memory, allocation_of(memory.data)};
  if (const auto before = own.bound.find(buffer);
      before != own.bound.end() && before->second == now && memory.data != nullptr)
    return;
  const Buffer& planned = plan_.buffers[static_cast<std::size_t>(buffer)];
  if (memory.row_stride != 0 && memory.row_stride < planned.cols)
    throw InvalidArgument(fmt::format("matrix '{}' of rank {}: row_stride = {} is less than its {} columns",
                                      name(role), rank, memory.row_stride, planned.cols),
                          rank);
  const bool dense = memory.row_stride == 0 || memory.row_stride == planned.cols;
  char* used = static_cast<char*>(memory.data);
  if (memory.data != nullptr && (!dense || (std::ranges::find(reached_, buffer) != reached_.end() &&
                                            !shared_with_peers(memory.data)))) {
    DeviceMemory& copy = own.copies[buffer];
    const auto bytes = static_cast<std::size_t>(planned.bytes(rank));
    const DeviceGuard guard(own.device);
    if (copy.bytes() < bytes) copy = DeviceMemory(whole_shared_units(bytes));
    used = copy.get<char>();
  }
  own.buffers[buffer] = used;
  own.bound[buffer] = now;
  ++version_;
}

Memory::Staged Memory::staged(int rank) const {
  Staged staged;
  const Rank& own = at_hand(rank);
  for (const auto& [buffer, bound] : own.bound) {
    const MatrixMemory& user = bound.memory;
    char* const used = own.buffers.at(buffer);
    const Buffer& planned = plan_.buffers[static_cast<std::size_t>(buffer)];
    if (used == user.data || planned.bytes(rank) == 0) continue;
    const std::size_t element = size_bytes(planned.dtype);
    const std::size_t row = static_cast<std::size_t>(planned.cols) * element;
    const std::size_t pitch =
        user.row_stride == 0 ? row : static_cast<std::size_t>(user.row_stride) * element;
    const auto rows = static_cast<std::size_t>(planned.rows[static_cast<std::size_t>(rank)]);
    if (is_input(planned.role))
      staged.inputs.push_back({used, row, user.data, pitch, row, rows});
    else
      staged.outputs.push_back({user.data, pitch, used, row, row, rows});
  }
  return staged;
}

Outputs Memory::written(int rank) const {
  Outputs outputs;
  const Rank& own = at_hand(rank);
  for (const auto& [buffer, user] : own.bound)
    if (const Buffer& planned = plan_.buffers[static_cast<std::size_t>(buffer)]; !is_input(planned.role))
      outputs.add(own.buffers.at(buffer), static_cast<std::size_t>(planned.bytes(rank)));
  return outputs;
}

Address Memory::buffer(std::int32_t buffer, int rank, int parity) const {
  const Rank& owner = at_hand(rank);
  const Buffer& planned = plan_.buffers[static_cast<std::size_t>(buffer)];
  const auto found = owner.buffers.find(buffer);
  if (found == owner.buffers.end())
    throw InvalidArgument(fmt::format("matrix '{}' of rank {} is not bound", planned.name, rank), rank);
  return {found->second + (planned.depth > 1 ? parity * (planned.bytes(rank) / planned.depth) : 0),
          static_cast<std::uint8_t>(planned.role)};
}

std::int64_t Memory::row_bytes(std::int32_t buffer) const {
  const Buffer& planned = plan_.buffers[static_cast<std::size_t>(buffer)];
  return planned.cols * static_cast<std::int64_t>(size_bytes(planned.dtype));
}

Address Memory::at(const Slice& slice, int parity) const {
  const auto element =
      static_cast<std::int64_t>(size_bytes(plan_.buffers[static_cast<std::size_t>(slice.buffer)].dtype));
  return buffer(slice.buffer, slice.rank, parity) + slice.row * row_bytes(slice.buffer) + slice.col * element;
}

const FlaggedMemory& Memory::flagged() const {
  const FlaggedMemory* const found = arena_ != nullptr ? arena_->flagged() : flagged_.get();
  if (found == nullptr) throw Unsupported("CUDA: these ranks have no flagged memory in common");
  return *found;
}

std::uint32_t* Memory::counter(const CounterRef& ref) const {
  const Rank& owner = at_hand(ref.rank);
  if (counts_begins(ref)) return owner.begins + ref.entry;
  return owner.first + owner.first_count[static_cast<std::size_t>(ref.counter)] + ref.entry;
}

bool Memory::counts_begins(const CounterRef& ref) const {
  return by_call() && plan_.counters[static_cast<std::size_t>(ref.counter)].of_begins;
}

std::uint32_t Memory::growth(const CounterRef& ref) const {
  if (by_call() && !counts_begins(ref)) return 0;
  return plan_.counters[static_cast<std::size_t>(ref.counter)]
      .growth[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.entry)];
}

std::string Memory::describe(const std::uint32_t* counter) const {
  if (flagged_ != nullptr)
    if (const int peer = flagged_->awaited(counter); peer >= 0) return fmt::format("rows of rank {}", peer);
  for (const auto& [number, rank] : ranks_) {
    if (rank.begins != nullptr && counter >= rank.begins && counter < rank.begins + world_.size())
      return fmt::format("rank {} to begin the call", counter - rank.begins);
    if (counter < rank.first || counter >= rank.first + rank.first_count.back()) continue;
    const auto at = static_cast<std::size_t>(counter - rank.first);
    std::size_t c = rank.first_count.size() - 2;
    while (rank.first_count[c] > at) --c;
    const CounterRef ref{static_cast<std::int32_t>(c), number,
                         static_cast<std::int32_t>(at - rank.first_count[c])};
    const std::vector<int> adders = ranks_that_add(plan_, ref);
    return fmt::format("counter '{}'[{}] of rank {}, to which rank{} {} add{}", plan_.counters[c].name,
                       ref.entry, number, adders.size() == 1 ? "" : "s", fmt::join(adders, ", "),
                       adders.size() == 1 ? "s" : "");
  }
  return {};
}

std::int64_t Memory::internal_bytes(int rank) const {
  const Rank& owner = at_hand(rank);
  auto bytes = static_cast<std::int64_t>(owner.internal.bytes() + owner.counts.bytes());
  for (const auto& [buffer, copy] : owner.copies) bytes += static_cast<std::int64_t>(copy.bytes());
  return bytes;
}

void Memory::poison() {
  for (auto& [number, rank] : ranks_) {
    if (!rank.local) continue;
    const DeviceGuard guard(rank.device);
    rank.internal.fill(0xff);                                  // a NaN in every dtype
    for (auto& [buffer, copy] : rank.copies) copy.fill(0xff);  // each epoch copies the inputs again
  }
}

}  // namespace shingle::cuda
