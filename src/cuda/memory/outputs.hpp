// What calls write. No CUDA here, so that tests run anywhere.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace shingle::cuda {

/// Addresses [begin, end).
struct AddressRange {
  std::uintptr_t begin = 0, end = 0;

  AddressRange() = default;
  AddressRange(const void* first, std::size_t bytes)
      : begin(reinterpret_cast<std::uintptr_t>(first)), end(begin + bytes) {}
  bool empty() const { return begin == end; }
  /// Without a branch, for loops over many ranges.
  bool meets(const AddressRange& other) const {
    return (static_cast<unsigned>(begin < other.end) & static_cast<unsigned>(other.begin < end)) != 0;
  }
  /// Extends this range to the least one that has both.
  void cover(const AddressRange& other) {
    if (other.empty()) return;
    begin = empty() ? other.begin : std::min(begin, other.begin);
    end = std::max(end, other.end);
  }
};

/// What one call writes: no operator has more than three outputs.
class Outputs {
 public:
  void add(const void* first, std::size_t bytes) {
    const AddressRange added(first, bytes);
    auto place = std::find_if(ranges_.begin(), ranges_.end(), [](const auto& one) { return one.empty(); });
    if (place == ranges_.end()) --place;
    place->cover(added);
  }
  bool meet(const AddressRange& asked) const {
    unsigned found = 0;
    for (const AddressRange& one : ranges_) found |= static_cast<unsigned>(one.meets(asked));
    return found != 0;
  }
  /// The least range that has all outputs.
  AddressRange hull() const {
    AddressRange all;
    for (const AddressRange& one : ranges_) all.cover(one);
    return all;
  }

 private:
  std::array<AddressRange, 3> ranges_{};  // the last ones may be empty
};

/// Outputs of the last calls of a queue.
class LastOutputs {
 public:
  explicit LastOutputs(std::size_t calls) : calls_(calls) {}

  /// Notes the next call, and forgets the oldest if there are more than `calls`.
  void add(const Outputs& outputs) {
    if (next_ == calls_.size()) {
      next_ = 0;
      former_ = std::exchange(latest_, {});
    }
    calls_[next_++] = outputs;
    latest_.cover(outputs.hull());
  }
  bool meet(const AddressRange& asked) const {
    if (!latest_.meets(asked) && !former_.meets(asked)) return false;
    unsigned found = 0;
    for (const Outputs& one : calls_) found |= static_cast<unsigned>(one.meet(asked));
    return found != 0;
  }

 private:
  std::vector<Outputs> calls_;
  std::size_t next_ = 0;
  // Hulls of the calls before `next_` and of the others. Weights are rarely in between: most questions end
  // here.
  AddressRange latest_, former_;
};

}  // namespace shingle::cuda
