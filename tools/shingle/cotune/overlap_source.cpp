#include "shingle/cotune/overlap_source.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "base/file.hpp"
#include "shingle/plan/json.hpp"

namespace shingle::cli {
namespace {

constexpr std::size_t most_list_bytes = std::size_t{1} << 24, most_trace_bytes = std::size_t{1} << 28;
constexpr DType usual_dtype = DType::bf16;

/// Reads a file. Errors name it.
template <class Read>
auto read_as(const std::string& path, std::size_t most, Read read) {
  const std::string text = read_file(path, most);
  try {
    return read(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", path, error.what()));
  }
}

std::string describe(const RecordedOverlap& recorded) {
  std::string text =
      fmt::format("{}: {} in {} computations, of which {} are products, and {} collectives of {} ranks\n",
                  recorded.step.empty() ? "the trace" : recorded.step, format_us(recorded.us),
                  recorded.workload.computations.size(), recorded.products,
                  recorded.workload.collectives.size(), recorded.workload.world);
  if (recorded.left_out > 0)
    text +=
        fmt::format("left out: {} calls of NCCL that belong to other groups or are not such collectives\n",
                    recorded.left_out);
  if (!recorded.exact)
    text +=
        "the trace lacks the waits of streams: a step counts as awaited if it ended before the next began; "
        "record with enable_cuda_sync_events=True for exact waits\n";
  return text;
}

}  // namespace

void check_sources(const CotuneFlags& flags) {
  if (flags.model.empty() + flags.overlap.empty() + flags.trace.empty() != 2)
    throw InvalidArgument(
        "no overlap: give --model with --pattern and --tokens, --overlap FILE, or --trace FILE");
  if (flags.model.empty() && (flags.pattern || flags.tokens > 0 || flags.sequence > 0))
    throw InvalidArgument("--pattern, --tokens and --sequence need --model");
  if (flags.trace.empty() && (flags.step >= 0 || !flags.list.empty()))
    throw InvalidArgument("--step and --list need --trace");
  if (!flags.plan.empty() && !flags.model.empty())
    throw InvalidArgument("--plan needs --overlap or --trace; a --model has several overlaps");
}

std::optional<RecordedOverlap> record_of(CotuneFlags& flags, bool speaks) {
  if (flags.trace.empty()) return {};
  auto recorded = read_as(flags.trace, most_trace_bytes, [&](const std::string& text) {
    return recorded_overlap(text, {.ranks = flags.where.world, .step = flags.step});
  });
  if (speaks) fmt::print(stderr, "{}", describe(recorded));
  flags.where.world = recorded.workload.world;
  if (!flags.dtype) flags.dtype = recorded.workload.dtype;
  return recorded;
}

std::vector<OverlapPattern> patterns_of(const CotuneFlags& flags,
                                        const std::optional<RecordedOverlap>& recorded, int ranks) {
  const DType dtype = flags.dtype.value_or(usual_dtype);
  if (recorded) {
    Workload workload = recorded->workload;
    workload.world = ranks;
    workload.dtype = dtype;
    workload.validate();
    return {{"iteration", std::move(workload)}};
  }
  if (!flags.overlap.empty())
    return read_as(flags.overlap, most_list_bytes, [&](const std::string& text) {
      return std::vector<OverlapPattern>{{"overlap", workload_from_lists(text, ranks, dtype)}};
    });
  if (!flags.pattern || flags.tokens == 0)
    throw InvalidArgument("--model needs --pattern (fsdp, tp or ep) and --tokens");
  return overlap_patterns(model_from_spec(flags.model), {.parallelism = *flags.pattern,
                                                         .ranks = ranks,
                                                         .tokens = flags.tokens,
                                                         .sequence = flags.sequence,
                                                         .dtype = dtype});
}

}  // namespace shingle::cli
