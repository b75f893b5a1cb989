// Content that copies, messages and collectives move, and the results of reductions.
#include "check.hpp"

#include <fmt/format.h>

#include <array>

#include "shingle/plan/print.hpp"

namespace shingle {

void MemoryCheck::copy(const Slice& from, const Touch& reader, const Slice& to, const Touch& writer) {
  const Place source = place(from, schedule_.segments[reader.segment].epoch);
  const Place target = place(to, schedule_.segments[writer.segment].epoch);
  std::vector<std::pair<Rect, Content>> parts;
  memory_.read(source, reader.segment, reader.item,
               [&](const Rect& cell, const Content& c) { parts.emplace_back(cell, c); });
  const auto bytes = static_cast<std::int64_t>(parts.size() * sizeof parts[0]);
  budget_.keep(Budget::cells, bytes);
  const std::int64_t down = to.row - from.row, right = to.col - from.col;
  for (auto [cell, c] : parts) {
    cell.row += down;
    cell.col += right;
    if (c.of != Content::Of::nothing) c.row -= down, c.col -= right;
    Place at = target;
    at.rect = cell;
    memory_.write(at, writer.segment, writer.item, c);
  }
  budget_.release(Budget::cells, bytes);
}

void MemoryCheck::swap(const Swap& step, const Segment& s, std::int32_t index) {
  std::vector<std::pair<Rect, Content>> a, b;
  memory_.read(place(step.a, s.epoch), index, 0,
               [&](const Rect& cell, const Content& c) { a.emplace_back(cell, c); });
  memory_.read(place(step.b, s.epoch), index, 0,
               [&](const Rect& cell, const Content& c) { b.emplace_back(cell, c); });
  const auto store = [&](const std::vector<std::pair<Rect, Content>>& parts, const Slice& from,
                         const Slice& to) {
    const std::int64_t down = to.row - from.row, right = to.col - from.col;
    for (auto [cell, c] : parts) {
      if (c.of != Content::Of::nothing) c.row -= down, c.col -= right;
      memory_.write(piece_place(to, cell.row + down, cell.rows, cell.col + right, cell.cols, s.epoch), index,
                    0, c);
    }
  };
  store(a, step.a, step.b);
  store(b, step.b, step.a);
}

void MemoryCheck::message(const Event& event) {
  const Segment &sender = schedule_.segments[event.segments[0]],
                &receiver = schedule_.segments[event.segments[1]];
  const auto& send = std::get<Exchange>(step_of(sender)).sends[event.send];
  const auto& receive = std::get<Exchange>(step_of(receiver)).receives[event.receive];
  const DType sent = plan_.buffers[send.slice.buffer].dtype,
              expected = plan_.buffers[receive.slice.buffer].dtype;
  if (send.slice.rows != receive.slice.rows || send.slice.cols != receive.slice.cols || sent != expected)
    throw CheckFailure{"collectives", fmt::format("{} sends {}x{} {} to rank {}, which expects {}x{} {}",
                                                  where(plan_, sender.rank, sender.lane, sender.step),
                                                  send.slice.rows, send.slice.cols, name(sent), receiver.rank,
                                                  receive.slice.rows, receive.slice.cols, name(expected))};
  // Messages of an exchange are in flight together and unordered: each counts as an item.
  const auto sends = static_cast<std::int64_t>(std::get<Exchange>(step_of(receiver)).sends.size());
  copy(send.slice, {event.segments[0], event.send}, receive.slice,
       {event.segments[1], sends + event.receive});
}

void MemoryCheck::collective(const std::vector<std::int32_t>& segments) {
  const auto of = [&](std::size_t i) -> const Collective& {
    return std::get<Collective>(step_of(schedule_.segments[segments[i]]));
  };
  const std::size_t world = segments.size();
  const CollectiveKind kind = of(0).kind;
  // Parts that each participant sends. All are read before any is written, because in-place operation is
  // allowed.
  struct Part {
    Rect cell;  // relative to the send slice
    Content content;
  };
  std::vector<std::vector<Part>> sent(world);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < world; ++i) {
    const Segment& s = schedule_.segments[segments[i]];
    const Slice& slice = of(i).send;
    memory_.read(place(slice, s.epoch), segments[i], 0, [&](Rect cell, Content c) {
      cell.row -= slice.row;
      cell.col -= slice.col;
      c.row += slice.row;
      c.col += slice.col;
      sent[i].push_back({cell, c});
    });
    bytes += static_cast<std::int64_t>(sent[i].size() * sizeof(Part));
    budget_.keep(Budget::cells, static_cast<std::int64_t>(sent[i].size() * sizeof(Part)));
  }
  // Stores a cell of a send slice at row `at` of the receive slice of participant i.
  const auto deliver = [&](std::size_t i, std::int64_t at, const Rect& cell, Content c) {
    const Segment& s = schedule_.segments[segments[i]];
    const Slice& slice = of(i).recv;
    const std::int64_t row = slice.row + at;
    c.row += cell.row - row;
    c.col -= slice.col;
    if (c.of == Content::Of::nothing) c = Content{};
    memory_.write(piece_place(slice, row, cell.rows, slice.col + cell.col, cell.cols, s.epoch), segments[i],
                  0, c);
  };
  const auto deliver_rows = [&](std::size_t i, const std::vector<Part>& parts, std::int64_t first,
                                std::int64_t rows, std::int64_t at) {
    budget_.spend(Budget::compared, static_cast<std::int64_t>(parts.size()));
    for (const Part& part : parts) {
      const std::int64_t from = larger(part.cell.row, first),
                         to = smaller(part.cell.row + part.cell.rows, first + rows);
      if (from < to)
        deliver(i, at + from - first, {from, to - from, part.cell.col, part.cell.cols}, part.content);
    }
  };

  if (kind == CollectiveKind::allgather) {
    for (std::size_t i = 0; i < world; ++i)
      for (std::size_t j = 0; j < world; ++j)
        deliver_rows(i, sent[j], 0, of(j).send.rows, static_cast<std::int64_t>(j) * of(j).send.rows);
    budget_.release(Budget::cells, bytes);
    return;
  }
  if (kind == CollectiveKind::alltoall) {
    for (std::size_t i = 0; i < world; ++i) {
      std::int64_t at = 0;
      for (std::size_t j = 0; j < world; ++j) {
        std::int64_t first = 0;
        for (std::size_t d = 0; d < i; ++d) first += of(j).send_rows[d];
        deliver_rows(i, sent[j], first, of(i).recv_rows[j], at);
        at += of(i).recv_rows[j];
      }
    }
    budget_.release(Budget::cells, bytes);
    return;
  }
  // Reductions sum equal places of all ranks.
  RegionMap<Content> sum(of(0).send.rows, of(0).send.cols, Content{}, &budget_);
  for (std::size_t i = 0; i < world; ++i)
    for (const Part& part : sent[i])
      sum.visit(part.cell, [&](const Rect& cell, Content& total) {
        const Content& c = part.content;
        const bool undefined = c.of == Content::Of::nothing || (i > 0 && total.of == Content::Of::nothing);
        if (i == 0 || undefined) {
          total = undefined ? Content{} : c;  // padding may hold any value if nothing uses it
          total.value = undefined ? 0 : values_.told(0, c.value);
        } else if (!addable(total, c)) {
          const Segment& s = schedule_.segments[segments[i]];
          fail_content(s, fmt::format("sums {} ({}, row {}, column {}) with {}, row {}, column {}",
                                      text_of(cell), text_of(c), cell.row + c.row, cell.col + c.col,
                                      text_of(total), cell.row + total.row, cell.col + total.col));
        } else {
          total.ranks |= c.ranks;
          total.value = values_.told(total.value, c.value);
        }
      });
  const Segment& caller = schedule_.segments[segments[0]];
  const std::array<std::int32_t, 3> call{caller.rank, caller.lane, caller.step};
  for (std::size_t i = 0; i < world; ++i) {
    const bool scatter = kind == CollectiveKind::reducescatter;
    const std::int64_t rows = of(i).recv.rows, first = scatter ? static_cast<std::int64_t>(i) * rows : 0;
    sum.visit({first, rows, 0, of(i).send.cols}, [&](const Rect& cell, Content c) {
      if (c.value != 0) c.value = values_.library(c.value, call, dtype_of(of(i).recv));
      deliver(i, cell.row - first, cell, c);
    });
  }
  budget_.release(Budget::cells, bytes);
}

}  // namespace shingle
