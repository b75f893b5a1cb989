// Memory that tracks its content and the accesses to it. An access throws if another one may run at the same
// time.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "content.hpp"
#include "region_map.hpp"
#include "verify/order/order.hpp"
#include "verify/progress/schedule.hpp"

namespace shingle {

struct CheckFailure {
  std::string rule;
  std::string text;
};

/// An access that may still be in flight. Grids have at most 2^31 positions, so every item fits 32 bits.
struct Touch {
  std::int32_t segment = -1;
  std::int32_t item = -1;  ///< -1: several items of the segment

  Touch() = default;
  Touch(std::int64_t of, std::int64_t at)
      : segment(static_cast<std::int32_t>(of)), item(static_cast<std::int32_t>(at)) {}
};

/// A rectangle of a buffer on a rank, in the copy that an epoch uses. Rows and columns count from the
/// buffer's corner.
struct Place {
  std::int32_t buffer;
  std::int32_t rank;
  std::int32_t copy;
  Rect rect;
};

std::string text_of(const Rect& r);

/// What a read is for. Parts may be complete only when their own gate opens (TileGate::of_parts).
enum class Input : bool { any, parts };

class TrackedMemory {
 public:
  TrackedMemory(const Plan& plan, const Schedule& schedule, const Order& order, Setting setting,
                Budget& budget);

  /// Calls visit(Rect, const Content&) for the cells of a rectangle. The reader is an item of a segment (-1:
  /// any of its items). Throws CheckFailure if a write may run at the same time.
  template <class Visit>
  void read(const Place& at, std::int32_t segment, std::int64_t item, Visit&& visit,
            Input input = Input::any);
  /// Throws CheckFailure if a read or write may run at the same time.
  void write(const Place& at, std::int32_t segment, std::int64_t item, const Content& content);
  /// Overwrites whole rows with unknown content, and joins their cells.
  void overwrite(const Place& at, std::int32_t segment);
  /// Sets the content of what the last writer wrote.
  void hold(const Place& at, const Content& content);

  /// Charged for every access; it throws if the plan is too large to prove.
  Budget& budget() const { return budget_; }
  std::int64_t accesses() const { return accesses_; }

  std::string describe(std::int32_t segment, std::int64_t item) const;
  std::string describe(const Place& at, const Rect& rect) const;

 private:
  struct Cell {
    Content content;
    Touch writer;
    Touch reader;                ///< the last reader since the write; most cells have no other
    std::vector<Touch> earlier;  ///< readers before `reader`

    std::int64_t bytes_beside() const { return static_cast<std::int64_t>(earlier.size() * sizeof(Touch)); }
  };

  RegionMap<Cell>& map(const Place& at) { return maps_[at.buffer][at.rank][at.copy]; }

  const Plan& plan_;
  const Schedule& schedule_;
  const Order& order_;
  const Setting setting_;
  std::vector<std::vector<std::vector<RegionMap<Cell>>>> maps_;  // [buffer][rank][copy]
  Budget& budget_;
  std::int64_t accesses_ = 0;
};

template <class Visit>
void TrackedMemory::read(const Place& at, std::int32_t segment, std::int64_t item, Visit&& visit,
                         Input input) {
  const auto knows = [&](std::int32_t writer) {
    return input == Input::parts ? order_.knows(segment, writer)
                                 : order_.knows_without_parts(segment, writer);
  };
  map(at).visit(at.rect, [&](const Rect& rect, Cell& cell) {
    ++accesses_;
    const Touch& writer = cell.writer;
    const bool own = writer.segment == segment && writer.item == item;
    if (writer.segment >= 0 && !own && !knows(writer.segment))
      throw CheckFailure{"race", fmt::format("{} reads {}, which {} writes with no order between them",
                                             describe(segment, item), describe(at, rect),
                                             describe(writer.segment, writer.item))};
    if (cell.reader.segment == segment) {
      if (cell.reader.item != item) cell.reader.item = -1;
    } else {
      if (cell.reader.segment >= 0) {
        budget_.keep(Budget::cells, sizeof(Touch));
        cell.earlier.push_back(cell.reader);
      }
      cell.reader = {segment, item};
    }
    visit(rect, static_cast<const Content&>(cell.content));
  });
}

}  // namespace shingle
