#include "tracked_memory.hpp"

#include "shingle/plan/print.hpp"

namespace shingle {

std::string text_of(const Rect& r) {
  return fmt::format("rows [{}, {}) columns [{}, {})", r.row, r.row + r.rows, r.col, r.col + r.cols);
}

TrackedMemory::TrackedMemory(const Plan& plan, const Schedule& schedule, const Order& order, Setting setting,
                             Budget& budget)
    : plan_(plan), schedule_(schedule), order_(order), setting_(setting), budget_(budget) {
  for (const Buffer& buffer : plan.buffers) {
    auto& by_rank = maps_.emplace_back();
    for (int r = 0; r < plan.world(); ++r) {
      auto& copies = by_rank.emplace_back();
      for (int c = 0; c < buffer.depth; ++c)
        copies.emplace_back(buffer.rows[r], buffer.cols, Cell{}, &budget);
    }
  }
}

std::string TrackedMemory::describe(std::int32_t segment, std::int64_t item) const {
  const Segment& s = schedule_.segments[segment];
  if (s.lane < 0)
    return setting_ == Setting::context
               ? fmt::format("the user of rank {}, or another call, between epochs", s.rank)
               : fmt::format("the user of rank {} between epochs", s.rank);
  std::string text = where(plan_, s.rank, s.lane, s.step);
  const Step& step = step_of(plan_, s);
  if (item >= 0 && std::holds_alternative<Gemm>(step)) {
    const Tile tile = std::get<Gemm>(step).grid.tile(item);
    text += fmt::format(", tile ({}, {})", tile.m, tile.n);
  } else if (item >= 0 && std::holds_alternative<Elementwise>(step)) {
    text += fmt::format(", item {}", item);
  }
  return text + fmt::format(" of epoch {}", s.epoch);
}

std::string TrackedMemory::describe(const Place& at, const Rect& rect) const {
  return fmt::format("{} on rank {}, {}", plan_.buffers[at.buffer].name, at.rank, text_of(rect));
}

void TrackedMemory::write(const Place& at, std::int32_t segment, std::int64_t item, const Content& content) {
  map(at).visit(at.rect, [&](const Rect& rect, Cell& cell) {
    ++accesses_;
    budget_.spend(Budget::compared, static_cast<std::int64_t>(cell.earlier.size()));
    const auto conflict = [&](const Touch& other) {
      return other.segment >= 0 && !(other.segment == segment && other.item == item) &&
             !order_.knows(segment, other.segment);
    };
    if (cell.writer.segment == segment && cell.writer.item == item)
      throw CheckFailure{"race",
                         fmt::format("{} stores {} twice", describe(segment, item), describe(at, rect))};
    if (conflict(cell.writer))
      throw CheckFailure{
          "race", fmt::format("{} and {} both write {} with no order between them", describe(segment, item),
                              describe(cell.writer.segment, cell.writer.item), describe(at, rect))};
    const auto check_reader = [&](const Touch& reader) {
      if (conflict(reader))
        throw CheckFailure{"race", fmt::format("{} writes {}, which {} reads with no order between them",
                                               describe(segment, item), describe(at, rect),
                                               describe(reader.segment, reader.item))};
    };
    for (const Touch& reader : cell.earlier) check_reader(reader);
    check_reader(cell.reader);
    cell.content = content;
    cell.writer = {segment, item};
    cell.reader = {};
    budget_.release(Budget::cells, cell.bytes_beside());
    cell.earlier.clear();
  });
}

void TrackedMemory::overwrite(const Place& at, std::int32_t segment) {
  write(at, segment, 0, Content{});
  map(at).replace_rows(at.rect.row, at.rect.rows, Cell{Content{}, {segment, 0}, {}, {}});
}

void TrackedMemory::hold(const Place& at, const Content& content) {
  map(at).visit(at.rect, [&](const Rect&, Cell& cell) { cell.content = content; });
}

}  // namespace shingle
