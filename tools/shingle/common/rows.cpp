#include "shingle/common/rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace shingle::cli {
namespace {

Line first_cells(const Row& row) {
  const RowHead head = head_of(row.named.work);
  std::string size = head.multiplies ? fmt::format("{}×{}×{}", head.m, head.n, head.k)
                                     : fmt::format("{}×{}", head.m, head.n);
  if (head.inner > 0) size += fmt::format(" ({})", head.inner);
  return {row.named.name.empty() ? std::string(head.op) : fmt::format("{} {}", row.named.name, head.op),
          std::move(size), row.mechanism};
}

/// "-" where nothing takes time, as communication of one rank does.
std::string if_finite(double value, std::string text) {
  return std::isfinite(value) ? std::move(text) : "-";
}

/// `time` is measured or predicted: both types have the same fields.
template <class Time>
void add_ratios(const Time& time, Line& line) {
  line.push_back(if_finite(time.speedup(), fmt::format("{:.2f}x", time.speedup())));
  line.push_back(fraction(time.overlap_efficiency()));
}

/// `us`: time of the plan.
template <class Time>
void add_times(const Time& time, double us, Line& line) {
  line.push_back(format_us(time.sequential_us));
  line.push_back(format_us(us));
  add_ratios(time, line);
}

constexpr int least_rounds_of_a_spread = 3;

Line line_of(const Row& row) {
  Line line = first_cells(row);
  if (!row.ran()) {
    line.resize(10, "-");
    return line;
  }
  const Measurement& time = *row.time;
  line.push_back(format_us(time.sequential_us));
  line.push_back(format_us(time.overlapped_us));
  line.push_back(time.rounds >= least_rounds_of_a_spread ? fmt::format("{:.1f}%", 100 * time.spread) : "-");
  add_ratios(time, line);
  line.push_back(fmt::format("{:.1e}", row.check.max_error));
  line.push_back(row.check.passed ? "yes" : "NO");
  return line;
}

Line predicted_line(const Row& row) {
  Line line = first_cells(row);
  if (!row.predicted) {
    line.resize(11, "-");
    return line;
  }
  const Metrics& at = *row.predicted;
  line.push_back(format_us(at.compute_us));
  add_times(at, at.us, line);
  line.push_back(fraction(at.roofline_fraction()));
  line.push_back(if_finite(at.tflops(), fmt::format("{:.0f}", at.tflops())));
  line.push_back(if_finite(at.mfu(), fmt::format("{:.0f}%", 100 * at.mfu())));
  return line;
}

Line planned_line(const Row& row) {
  Line line = first_cells(row);
  if (!row.predicted) {
    line.resize(8, "-");
    return line;
  }
  const std::string params = params_text(row.params);
  line.push_back(params.empty() ? "-" : params);
  add_times(*row.predicted, row.predicted->us, line);
  return line;
}

/// Total of a layer's operators, run one after the other. Empty if an operator appears twice or has no time.
std::optional<Metrics> total(const std::vector<Row>& rows) {
  Metrics sum;
  std::set<std::string> names;
  for (const Row& row : rows) {
    if (!row.predicted || !names.insert(row.named.name).second) return std::nullopt;
    sum.us += row.predicted->us;
    sum.sequential_us += row.predicted->sequential_us;
    sum.compute_us += row.predicted->compute_us;
  }
  return names.size() > 1 ? std::optional(sum) : std::nullopt;
}

std::vector<Line> planned_lines(const std::vector<Row>& rows) {
  std::vector<Line> lines{
      {"operator", "M×N×K", "mechanism", "params", "sequential", "predicted", "speedup", "overlap"}};
  for (const Row& row : rows) lines.push_back(planned_line(row));
  if (const std::optional<Metrics> sum = total(rows)) {
    Line line{"total", "", "", ""};
    add_times(*sum, sum->us, line);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string reason_of(const Row& row) {
  const std::string of = first_cells(row)[0];
  if (!row.reason.empty()) return fmt::format("{} {}: {}", of, row.mechanism, row.reason);
  if (row.choice)
    return fmt::format("{}: {}{}{}", of, row.choice->reason, row.note.empty() ? "" : "; ", row.note);
  return row.note.empty() ? "" : fmt::format("{} {}: {}", of, row.mechanism, row.note);
}

/// Explains the stars of a table.
std::vector<std::string> noise_notes(const std::vector<Row>& rows) {
  if (std::ranges::none_of(rows, [](const Row& row) { return noisy(row); })) return {};
  const bool measured = std::ranges::any_of(rows, &Row::ran);
  return {measured ? measured_noise : "* above 1 is an error of the prediction: there is no more to hide"};
}

std::string below(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::string title(const Machine& machine) {
  return fmt::format("predicted for {}\n", machine.name);
}

}  // namespace

std::string describe(const NamedWork& named) {
  const std::string work = shingle::describe(named.work);
  return named.name.empty() ? work : fmt::format("{} {}", named.name, work);
}

RowHead head_of(const Work& work) {
  if (const auto* workload = std::get_if<Workload>(&work))
    return {.op = "overlap", .m = workload->m(), .n = workload->n(), .k = workload->k()};
  const Problem& p = std::get<Problem>(work);
  return {.op = name(p.op),
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .inner = p.traits().chains() ? p.inner : 0,
          .multiplies = p.traits().multiplies(),
          .attention = p.traits().attends ? &p.attention : nullptr};
}

Row predicted_row(const NamedWork& named, const Candidate& candidate, const Machine& machine,
                  const SimOptions& options) {
  Row row{.named = named,
          .backend = "simulator",
          .machine = machine.name,
          .mechanism = candidate.mechanism,
          .choice = candidate.choice,
          .note = candidate.note,
          .simulated = true};
  if (candidate.plan) {
    row.params = params_json(*candidate.plan);
    row.predicted = measure(*candidate.plan, machine, options).value();
  } else {
    row.reason = candidate.plan.reason();
  }
  return row;
}

bool any_predicted(const std::vector<Row>& rows) {
  return std::ranges::any_of(rows, [](const Row& row) { return row.predicted.has_value(); });
}

std::vector<Line> lines_of(const std::vector<Row>& rows) {
  std::vector<Line> lines{{"operator", "M×N×K", "mechanism", "sequential", "overlapped", "spread", "speedup",
                           "overlap", "max error", "verified"}};
  for (const Row& row : rows) lines.push_back(line_of(row));
  return lines;
}

std::vector<Line> predicted_lines(const std::vector<Row>& rows) {
  std::vector<Line> lines{{"operator", "M×N×K", "mechanism", "compute", "sequential", "predicted", "speedup",
                           "overlap", "roofline", "TFLOP/s", "MFU"}};
  for (const Row& row : rows) lines.push_back(predicted_line(row));
  return lines;
}

std::vector<std::string> reasons(const std::vector<Row>& rows) {
  std::vector<std::string> lines = noise_notes(rows);
  for (const Row& row : rows)
    if (std::string line = reason_of(row); !line.empty()) lines.push_back(std::move(line));
  return lines;
}

bool noisy(const Row& row) {
  if (row.ran()) return above_one(row.time->overlap_efficiency());
  return row.predicted &&
         (above_one(row.predicted->overlap_efficiency()) || above_one(row.predicted->roofline_fraction()));
}

std::string to_table(const std::vector<Row>& rows) {
  return aligned(lines_of(rows)) + below(reasons(rows));
}

std::string legend(const std::vector<Row>& rows) {
  int least = std::numeric_limits<int>::max(), most = 0;
  for (const Row& row : rows)
    if (row.ran()) least = std::min(least, row.time->rounds), most = std::max(most, row.time->rounds);
  if (most == 0) return {};
  const std::string rounds = least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
  return fmt::format(
      "M×N×K       sizes of one rank's GEMM\n"
      "sequential  the whole computation, then the collective: median of {} rounds\n"
      "overlapped  this plan: median of the same rounds, in turn with sequential\n"
      "spread      of overlapped: interquartile range / median; a smaller gain is noise\n"
      "speedup     sequential / overlapped\n"
      "overlap     share of the communication that is hidden: 1 all, 0 none, < 0 slower\n"
      "max error   largest relative error of a 64x64 tile against fp64\n"
      "verified    whether that error is within the rounding of the element type\n",
      rounds);
}

std::string predicted_table(const Machine& machine, const std::vector<Row>& rows) {
  return title(machine) + aligned(predicted_lines(rows), {.keys = {0, 1, 3}}) + below(reasons(rows));
}

std::string planned_table(const Machine& machine, const std::vector<Row>& rows) {
  std::vector<std::string> notes = noise_notes(rows);
  for (const Row& row : rows) {
    const bool gains = row.predicted && row.mechanism != name(Mechanism::sequential);
    if (gains && row.note.empty()) continue;  // the times above are the reason
    if (std::string line = reason_of(row); !line.empty()) notes.push_back(std::move(line));
  }
  return title(machine) + aligned(planned_lines(rows), {.words = word_columns + 1, .prose = word_columns}) +
         below(notes);
}

}  // namespace shingle::cli
