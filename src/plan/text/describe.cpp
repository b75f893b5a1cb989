// One line of text for each step.
#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "describe.hpp"
#include "shingle/plan/print.hpp"

namespace shingle {
namespace {

using text::list;
using text::ranges;

/// Number of elements above which the middle of a list is left out.
constexpr std::size_t max_listed = 12;

std::string table_entry(const auto& table, std::int32_t index, const char* what) {
  if (index < 0 || static_cast<std::size_t>(index) >= table.size()) return fmt::format("{} {}?", what, index);
  return table[static_cast<std::size_t>(index)].name;
}

/// Loops of a nest, outermost first, with rotations: "4x8 n16+2".
std::string loops_text(const TileGrid& grid) {
  std::string text;
  for (int i = 0; i < grid.loop_count; ++i) {
    const Loop& loop = grid.loops[i];
    text += fmt::format("{}{}{}", i == 0 ? "" : " ", loop.axis == Axis::m ? 'm' : 'n', loop.extent);
    if (loop.rotation != 0 || loop.descending)
      text += fmt::format("{}{}", loop.descending ? '-' : '+', loop.rotation);
  }
  return text;
}

class Describer {
 public:
  Describer(const Plan& plan, int own) : plan_(plan), own_(own) {}

  std::string operator()(const Gemm& g) {
    std::string text =
        fmt::format("gemm {}x{}x{}{}: {} * {}", g.grid.rows, g.grid.cols, g.transpose_a ? g.a.rows : g.a.cols,
                    tiles(g.grid, placements_of(g), g.gates, g.notify), operand(g.a, g.transpose_a, g.a_rows),
                    operand(g.b, g.transpose_b));
    if (!g.groups.empty()) text += fmt::format(", {} groups of rows", g.groups.size());
    if (g.live.buffer >= 0) text += fmt::format(", as many as {} counts", slice(g.live));
    if (g.stands_for != ComputationKind::product) text += fmt::format(", for {}", name(g.stands_for));
    const bool sums = !g.sums.from.empty();
    if (!sums) text += epilogue(g.epilogue);
    text += " -> " + placement(g.out);
    if (sums) {
      text += "; own rows";
      for (const Placement& from : g.sums.from) text += " + " + placement(from);
      text += epilogue(g.epilogue);
      for (const Placement& to : g.sums.to)
        text += (&to == g.sums.to.data() ? " -> " : " and ") + placement(to);
    }
    return text + hooks(g.gates, g.notify) + workers(g.resources);
  }

  std::string operator()(const Elementwise& e) {
    std::vector<const Placement*> placements{&e.to};
    for (const Placement& from : e.from) placements.push_back(&from);
    std::string text = fmt::format("{} {}x{}{}", name(Step(e)), e.grid.rows, e.grid.cols,
                                   tiles(e.grid, placements, e.gates, e.notify));
    if (e.first != 0 || e.count >= 0) text += fmt::format(", items {}:{}", e.first, last_item(e));
    for (std::size_t i = 0; i < e.from.size(); ++i) text += (i == 0 ? ": " : " + ") + placement(e.from[i]);
    if (e.factors != Slice{}) text += fmt::format(", weighed by {}", slice(e.factors));
    text += epilogue(e.epilogue);
    if (e.norm.residual)
      text += fmt::format(", + {} (kept in {})", slice(e.residual.slice), slice(e.sum.slice));
    if (e.norm.enabled) text += fmt::format(", rmsnorm {}", e.norm.epsilon);
    if (e.queue >= 0) text += fmt::format(", shared as queue {}", e.queue);
    return text + " -> " + placement(e.to) + hooks(e.gates, e.notify) + workers(e.resources);
  }

  std::string operator()(const Attend& a) {
    return fmt::format("attend {}x{}{}: {} (tokens {}:{}) over {}, {}{} -> ", a.grid.rows, a.grid.cols,
                       tiles(a.grid, {&a.out}, a.gates, a.notify), slice(a.q), a.first_token,
                       a.first_token + a.grid.rows, slice(a.keys), slice(a.values),
                       a.lse.buffer < 0
                           ? ""
                           : fmt::format(" (tokens {}:{})", a.first_key, a.first_key + a.keys.rows)) +
           placement(a.out) + lse(a.lse) + hooks(a.gates, a.notify) + workers(a.resources);
  }

  std::string operator()(const Merge& m) {
    std::string text =
        fmt::format("merge {}x{}{}", m.grid.rows, m.grid.cols, tiles(m.grid, {&m.to}, m.gates, m.notify));
    for (std::size_t i = 0; i < m.parts.size(); ++i)
      text +=
          fmt::format("{}{} by {}{}", i == 0 ? ": " : " + ", slice(m.parts[i].value), slice(m.parts[i].lse),
                      m.parts[i].row == 0 ? "" : fmt::format(" from row {}", m.parts[i].row));
    return text + " -> " + placement(m.to) + lse(m.lse) + hooks(m.gates, m.notify) + workers(m.resources);
  }

  std::string operator()(const AttendBackward& a) {
    return fmt::format(
               "attend-backward {}x{}{}: {}, {}, {}, {} (tokens {}:{}) over {}, {} (tokens {}:{}) -> "
               "{}, {}, {}",
               a.grid.rows, a.grid.cols, tiles(a.grid, {}, a.gates, a.notify), slice(a.q), slice(a.grad),
               slice(a.attended), slice(a.lse), a.first_token, a.first_token + a.grid.rows, slice(a.keys),
               slice(a.values), a.first_key, a.first_key + a.keys.rows, slice(a.q_grad), slice(a.keys_grad),
               slice(a.values_grad)) +
           hooks(a.gates, a.notify) + workers(a.resources);
  }

  std::string operator()(const AssignSlots& r) {
    return fmt::format("assign slots {} -> {}, {}, counts {}, {}", slice(r.ids), slice(r.row_of),
                       slice(r.slot_of), slice(r.counts), slice(r.dropped)) +
           workers(r.resources);
  }

  std::string operator()(const MergeSlots& m) {
    std::string text = fmt::format("merge slots {} by counts {} ->", slice(m.slot_of), slice(m.counts));
    for (const Slice* made : outputs_of(m))
      text += fmt::format("{} {}", text.back() == '>' ? "" : ",", slice(*made));
    return text + workers(m.resources);
  }

  std::string operator()(const Await& a) {
    return fmt::format("await {} >= {}", counter(a.counter), a.target);
  }
  std::string operator()(const Notify& n) {
    const bool set = n.counter.counter >= 0 &&
                     static_cast<std::size_t>(n.counter.counter) < plan_.counters.size() &&
                     plan_.counters[static_cast<std::size_t>(n.counter.counter)].kind == CounterKind::set;
    return fmt::format("notify {} {} {}", counter(n.counter), set ? "=" : "+", n.value);
  }
  std::string operator()(const Fill& f) { return "fill " + slice(f.slice) + " with zeros"; }

  std::string operator()(const Collective& c) {
    const std::string text = fmt::format("{} {}", name(c.kind), slice(c.send));
    std::string counts;
    if (!c.send_rows.empty()) counts = fmt::format(", sends {}", list(c.send_rows));
    if (!c.recv_rows.empty()) counts += fmt::format(", receives {} rows by rank", list(c.recv_rows));
    return text + (c.send == c.recv ? " in place" : " -> " + slice(c.recv)) + counts + over(c.communicator) +
           (c.config == CollectiveConfig{} ? "" : " with " + shingle::describe(c.config)) +
           workers(c.resources);
  }

  std::string operator()(const Exchange& e) {
    std::string text = "exchange";
    for (const auto& m : e.sends) text += fmt::format(" {} to rank {},", slice(m.slice), m.peer);
    for (const auto& m : e.receives) text += fmt::format(" {} from rank {},", slice(m.slice), m.peer);
    if (text.back() == ',') text.pop_back();
    return text + over(e.communicator) + workers(e.resources);
  }

  std::string operator()(const Copy& c) { return fmt::format("copy {} -> {}", slice(c.from), slice(c.to)); }
  std::string operator()(const Broadcast& b) {
    return fmt::format("broadcast {} -> {} and {}", slice(b.from), slice(b.to[0]), slice(b.to[1]));
  }
  std::string operator()(const Swap& s) { return fmt::format("swap {} <-> {}", slice(s.a), slice(s.b)); }

 private:
  std::string at_rank(std::int32_t rank) const { return rank == own_ ? "" : fmt::format("@{}", rank); }

  /// A slice as "staging[512:1024, 0:256]@3"; a whole buffer by name only.
  std::string slice(const Slice& s) const {
    std::string text = table_entry(plan_.buffers, s.buffer, "buffer");
    if (s.buffer < 0 || static_cast<std::size_t>(s.buffer) >= plan_.buffers.size()) return text;
    const Buffer& b = plan_.buffers[static_cast<std::size_t>(s.buffer)];
    const bool all_cols = s.col == 0 && s.cols == b.cols;
    const bool all_rows = s.row == 0 && s.rank >= 0 && static_cast<std::size_t>(s.rank) < b.rows.size() &&
                          s.rows == b.rows[static_cast<std::size_t>(s.rank)];
    if (!all_rows || !all_cols) {
      text += fmt::format("[{}:{}", s.row, s.row + s.rows);
      text += all_cols ? "]" : fmt::format(", {}:{}]", s.col, s.col + s.cols);
    }
    return text + at_rank(s.rank);
  }

  static std::vector<const Placement*> placements_of(const Gemm& g) {
    std::vector<const Placement*> placements{&g.out};
    for (const std::vector<Placement>* sums : {&g.sums.from, &g.sums.to})
      for (const Placement& at : *sums) placements.push_back(&at);
    return placements;
  }

  std::string lse(const Slice& s) const { return s.buffer < 0 ? "" : ", log-sum-exp " + slice(s); }

  std::string counter(const CounterRef& c) const {
    return fmt::format("{}[{}]{}", table_entry(plan_.counters, c.counter, "counter"), c.entry,
                       at_rank(c.rank));
  }
  std::string over(std::int32_t communicator) const {
    return " over " + table_entry(plan_.communicators, communicator, "communicator");
  }

  /// Selection of virtual rows: " rows 128:256", " rows dealt in blocks of 32 to 8 ranks". Empty if it is the
  /// identity.
  static std::string rows_text(const RowMap& map) {
    const std::string shards =
        fmt::format("{} shards{}", map.world, map.without < 0 ? "" : fmt::format(" without {}", map.without));
    if (map.pitch > 0)
      return fmt::format(" (rows {}:{} of {}, padded to {})", map.base, map.base + map.len, shards,
                         map.pitch);
    if (map.world > 1 || map.without >= 0)
      return fmt::format(" (rows {}:{} of {}, {} at a time)", map.base, map.base + map.len, shards,
                         smaller(map.block, map.len));
    return map.base == 0 ? ""
                         : fmt::format(" (rows {}:{})", map.base, smaller(map.base + map.len, map.limit));
  }

  std::string operand(const Slice& s, bool transposed, const RowMap& rows = {}) const {
    return slice(s) + (transposed ? "^T" : "") + rows_text(rows);
  }

  std::string placement(const Placement& p) const {
    std::string at = slice(p.slice);
    if (const auto ranks = replicas(p); !ranks.empty()) at += "@" + ranges({ranks.begin(), ranks.end()});
    if (const auto* picked = std::get_if<placement::Indexed>(&p.form))
      return fmt::format("{} by {}", at, slice(picked->index));
    return std::visit([&](const auto& form) { return placed(at, form); }, p.form);
  }
  static std::string placed(const std::string& at, const placement::Matrix& p) {
    return at + rows_text(p.rows);
  }
  static std::string placed(const std::string& at, const placement::Slots&) { return "slots of " + at; }
  static std::string placed(const std::string& at, const placement::Subtiles& p) {
    return fmt::format("slots of {} by {} parts", at, p.parts);
  }
  static std::string placed(const std::string& at, const placement::Pools& p) {
    if (p.dest < 0) return "pools of " + at;
    return fmt::format("pools of {} (from rank {} for rank {})", at, p.source, p.dest);
  }
  static std::string placed(const std::string& at, const placement::Routed& p) {
    if (p.dest < 0) return fmt::format("{} of every row's destination", at);
    return fmt::format("{} (rows from rank {} for rank {})", at, p.source, p.dest);
  }
  static std::string placed(const std::string& at, const placement::Returned&) {
    return at + ", each row on its source";
  }
  static std::string placed(const std::string& at, const placement::Indexed&) { return at + " by an index"; }
  static std::string placed(const std::string& at, const placement::Owners&) {
    return fmt::format("{} of every row's owner", at);
  }

  std::string epilogue(const Epilogue& e) const {
    std::string text = e.bias ? " + bias" : "";
    if (e.activation != Activation::none) text += fmt::format(", {}", name(e.activation));
    if (e.scale != 1) text += fmt::format(", times {}", e.scale);
    return text;
  }

  std::string workers(const Resources& r) const {
    if (r.least <= 1 && r.most == 0) return "";
    if (r.most == 0) return fmt::format(", {}+ workers", r.least);
    if (r.least == r.most) return fmt::format(", {} worker{}", r.most, r.most == 1 ? "" : "s");
    return fmt::format(", {}-{} workers", r.least, r.most);
  }

  /// Tiles, and the only mention of the sizes of groups: ", 64 tiles of 256x512 (m4 n16) in groups g of 8,
  /// 16, 40".
  std::string tiles(const TileGrid& grid, const std::vector<const Placement*>& placements,
                    const std::vector<TileGate>& gates, const std::vector<TileNotify>& notifies) {
    for (const Placement* p : placements)
      std::visit(
          [&](const auto& form) {
            if constexpr (requires { form.ends; }) add_groups(form.ends);
          },
          p->form);
    for (const TileGate& gate : gates) add_groups(gate.ends);
    for (const TileNotify& notify : notifies) add_groups(notify.ends);
    if (grid.tiles() == 0) return ", no tiles";
    const std::int64_t count = grid.tiles(), phantom = grid.positions() - count;
    std::string text =
        count == 1 ? ", 1 tile" : fmt::format(", {} tiles of {}x{}", count, grid.tile_rows, grid.tile_cols);
    if (grid.loop_count > 1) text += fmt::format(" ({})", loops_text(grid));
    if (phantom > 0) text += fmt::format(", {} phantom", phantom);
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      std::vector<std::int64_t> sizes;
      for (std::size_t g = 0; g < groups_[i]->size(); ++g)
        sizes.push_back((*groups_[i])[g] - (g == 0 ? 0 : (*groups_[i])[g - 1]));
      text += fmt::format("{} groups {} of {}", i == 0 ? " in" : " and", letter(i), list(sizes));
    }
    return text;
  }
  static char letter(std::size_t i) {
    return static_cast<char>('g' + smaller(static_cast<std::int64_t>(i), 19));
  }
  void add_groups(const std::vector<std::int64_t>& ends) {
    const auto same = [&](const auto* known) { return *known == ends; };
    if (ends.size() > 1 && std::none_of(groups_.begin(), groups_.end(), same)) groups_.push_back(&ends);
  }
  /// "[g]", or "[0]" if there is one group. Entries that differ from the groups' numbers are listed.
  std::string entry(const std::vector<std::int64_t>& ends, const std::vector<std::int32_t>& entries) const {
    if (!entries.empty()) return fmt::format("[{}]", list({entries.begin(), entries.end()}));
    for (std::size_t i = 0; i < groups_.size(); ++i)
      if (*groups_[i] == ends) return fmt::format("[{}]", letter(i));
    return "[0]";
  }

  std::string hooks(const std::vector<TileGate>& gates, const std::vector<TileNotify>& notifies) const {
    std::string text;
    for (const TileGate& gate : gates)
      text += fmt::format(", {} {}{} >= {}", gate.of_parts ? "parts await" : "awaits",
                          table_entry(plan_.counters, gate.counter, "counter"),
                          entry(gate.ends, gate.entries), list({gate.targets.begin(), gate.targets.end()}));
    for (const TileNotify& notify : notifies) {
      text += fmt::format(", notifies {}{}", table_entry(plan_.counters, notify.counter, "counter"),
                          entry(notify.ends, notify.entries));
      if (!notify.owners.empty())
        text += "@" + list({notify.owners.begin(), notify.owners.end()});
      else if (notify.ranks != std::vector<std::int32_t>{own_})
        text += "@" + ranges({notify.ranks.begin(), notify.ranks.end()});
    }
    return text;
  }

  const Plan& plan_;
  int own_;
  std::vector<const std::vector<std::int64_t>*> groups_;
};

}  // namespace

namespace text {

std::string list(const std::vector<std::int64_t>& values) {
  std::string text;
  std::size_t listed = 0;
  for (std::size_t i = 0; i < values.size();) {
    std::size_t run = 1;
    while (i + run < values.size() && values[i + run] == values[i]) ++run;
    if (run == values.size() && run > 1) return fmt::format("{} each", values[0]);
    if (listed++ == max_listed) return text + fmt::format(", ... ({} in all)", values.size());
    text += fmt::format("{}{}", i == 0 ? "" : ", ", values[i]);
    if (run > 2) text += fmt::format(" ({} times)", run);
    i += run > 2 ? run : 1;
  }
  return text;
}

std::string ranges(const std::vector<std::int64_t>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t run = 1;
    while (i + run < ranks.size() && ranks[i + run] == ranks[i] + static_cast<std::int64_t>(run)) ++run;
    text += fmt::format("{}{}", i == 0 ? "" : ",", ranks[i]);
    if (run > 1) text += fmt::format("-{}", ranks[i + run - 1]);
    i += run;
  }
  return text;
}

std::string step_line(const Plan& plan, const Step& step, int own) {
  return std::visit(Describer(plan, own), step);
}

}  // namespace text

std::string describe(const Plan& plan, const Step& step) {
  return text::step_line(plan, step, plan.world() == 1 ? 0 : -1);
}

std::string where(const Plan& plan, int rank, int lane, int step) {
  const Lane& l = plan.ranks[static_cast<std::size_t>(rank)].lanes[static_cast<std::size_t>(lane)];
  return fmt::format("rank {}, lane {}, step {} ({})", rank, l.name.empty() ? name(l.kind) : l.name, step,
                     name(l.steps[static_cast<std::size_t>(step)]));
}

}  // namespace shingle
