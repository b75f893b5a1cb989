#include "torch_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/json_fields.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/problem.hpp"

namespace shingle::torch {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
constexpr double longest_us = 1e18;  // since 1970, in microseconds as the profiler counts
constexpr std::string_view step_name = "ProfilerStep#";

std::int64_t integer(const Fields& fields, const char* key, std::int64_t otherwise) {
  return fields.integer({key}, std::numeric_limits<std::int64_t>::min(), any / 2).value_or(otherwise);
}

/// Index of the first matrix among the inputs of an operator that multiplies. The second matrix follows it.
std::optional<std::size_t> first_matrix(std::string_view op) {
  static constexpr std::pair<std::string_view, std::size_t> known[] = {
      {"aten::mm", 0},    {"aten::bmm", 0},     {"aten::_scaled_mm", 0},
      {"aten::addmm", 1}, {"aten::baddbmm", 1}, {"aten::_addmm_activation", 1}};
  for (const auto& [name, place] : known)
    if (op == name) return place;
  return {};
}

std::optional<DType> dtype_of(const std::string& name) {
  if (name == "c10::BFloat16") return DType::bf16;
  if (name == "c10::Half") return DType::f16;
  if (name == "float") return DType::f32;
  return {};
}

/// Extents of a matrix, or of a batch of matrices.
std::vector<std::int64_t> sizes(const Json& dims, const std::string& op) {
  std::vector<std::int64_t> all;
  if (!dims.is_array()) return all;
  for (const Json& size : dims) {
    if (!size.is_number_integer()) continue;
    const bool fits = size.is_number_unsigned() && size.get<std::uint64_t>() <= std::uint64_t{max_extent};
    if (!fits)
      throw InvalidArgument(
          fmt::format("{}: size {} in 'Input Dims' is outside [0, {}]", op, show(size), max_extent));
    all.push_back(size.get<std::int64_t>());
  }
  return all;
}

/// Sizes of [m, k] times [k, n]; a batch counts as one taller matrix.
Product product_of(const Json& op, std::size_t at) {
  const Fields fields(op);
  const std::string name = fields.text({"name"}).value_or("");
  const Json* dims = fields.list({"args.Input Dims"});
  if (dims == nullptr || dims->size() < at + 2)
    throw InvalidArgument(fmt::format("{} has no sizes: record with record_shapes=True", name));
  const auto a = sizes((*dims)[at], name), b = sizes((*dims)[at + 1], name);
  if (a.size() != b.size() || (a.size() != 2 && a.size() != 3) || a.back() != b[b.size() - 2])
    throw InvalidArgument(
        fmt::format("{} multiplies {} by {}; expected [m, k] by [k, n], or a batch of these", name,
                    (*dims)[at].dump(), (*dims)[at + 1].dump()));
  Product product{a[a.size() - 2] * (a.size() == 3 ? a.front() : 1), b.back(), a.back(), {}};
  if (const Json* types = fields.list({"args.Input type"}); types != nullptr && types->size() > at)
    if ((*types)[at].is_string()) product.dtype = dtype_of((*types)[at].get<std::string>());
  return product;
}

std::int64_t element_bytes(const std::string& dtype) {
  static const std::unordered_map<std::string, std::int64_t> known{
      {"Double", 8}, {"Long", 8}, {"Float", 4}, {"Int", 4}, {"BFloat16", 2}, {"Half", 2}, {"Short", 2}};
  const auto found = known.find(dtype);
  return found == known.end() ? 1 : found->second;  // Byte, Char, Bool, Float8_…
}

/// Kind of a collective by its name: "_allgather_base", "all_gather_into_tensor", …
std::optional<CollectiveKind> kind_of(std::string name) {
  std::erase(name, '_');
  for (const CollectiveKind kind : {CollectiveKind::allreduce, CollectiveKind::reducescatter,
                                    CollectiveKind::allgather, CollectiveKind::alltoall})
    if (name.find(shingle::name(kind)) != std::string::npos) return kind;
  return {};
}

/// A call from a collective's metadata, which its kernel has, or else the operator "record_param_comms".
std::optional<Call> call_of(const Json& event) {
  const Fields fields(event);
  const auto name = fields.text({"args.Collective name"});
  if (!name) return {};
  Call call{.kind = kind_of(*name)};
  const std::int64_t element = element_bytes(fields.text({"args.dtype"}).value_or("Byte"));
  const bool gathers = call.kind == CollectiveKind::allgather;
  call.bytes =
      element *
      fields.integer({gathers ? "args.Out msg nelems" : "args.In msg nelems"}, 0, any / 16).value_or(0);
  call.ranks = static_cast<int>(fields.integer({"args.Group size"}, 0, 1 << 24).value_or(0));
  return call;
}

bool is_nccl(std::string_view kernel) {
  return kernel.starts_with("nccl");
}

/// The events of a trace by type.
class Trace {
 public:
  explicit Trace(const Json& trace) {
    const Json* events = trace.is_array() ? &trace : Fields(trace).list({"traceEvents"});
    if (events == nullptr || !events->is_array())
      throw InvalidArgument("not a trace of torch.profiler: traceEvents is missing");
    for (const Json& event : *events)
      if (event.is_object()) sort(event);
  }

  Iteration iteration(int wanted) const {
    Iteration found;
    double begin = 0, end = longest_us;
    if (!steps_.empty() || wanted >= 0) {
      const auto step = wanted < 0 ? std::ranges::max_element(steps_, {}, &Step::number)
                                   : std::ranges::find(steps_, wanted, &Step::number);
      if (step == steps_.end())
        throw InvalidArgument(fmt::format(
            "the trace has no {}{}: call the profiler's step() after each iteration", step_name, wanted));
      found.name = fmt::format("{}{}", step_name, step->number);
      begin = step->begin_us, end = step->end_us;
    }
    for (const Json* event : device_) {
      const double at = launched_us(Fields(*event));
      if (at >= begin && at < end) found.work.push_back(work_of(*event));
    }
    std::ranges::sort(found.work, {}, &Work::correlation);
    found.waits = waits_;
    std::ranges::sort(found.waits, {}, &Wait::correlation);
    found.has_waits = !waits_.empty();
    return found;
  }

 private:
  struct Step {
    int number = 0;
    double begin_us = 0, end_us = 0;
  };

  static double begin_us(const Fields& event) {
    return event.number({"ts"}, -longest_us, longest_us).value_or(0);
  }
  static double end_us(const Fields& event) {
    return begin_us(event) + event.number({"dur"}, 0, longest_us).value_or(0);
  }

  void sort(const Json& event) {
    const Fields fields(event);
    if (!fields.is_text({"ph"}, "X")) return;
    const std::string category = fields.text({"cat"}).value_or("");
    if (category == "cpu_op") {
      ops_[integer(fields, "args.External id", -1)] = &event;
    } else if (category == "cuda_runtime" || category == "cuda_driver") {
      launched_us_[integer(fields, "args.correlation", -1)] = begin_us(fields);
    } else if (category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset") {
      device_.push_back(&event);
    } else if (category == "user_annotation") {
      add_step(fields);
    } else if (category == "cuda_sync" && fields.is_text({"name"}, "Stream Wait Event")) {
      Wait wait{.stream = integer(fields, "args.stream", -1),
                .correlation = integer(fields, "args.correlation", -1),
                .on_stream = integer(fields, "args.wait_on_stream", -1),
                .recorded = integer(fields, "args.wait_on_cuda_event_record_corr_id", -1)};
      const bool known = wait.recorded >= 0 && wait.recorded < wait.correlation;
      if (!known) wait.recorded = wait.correlation;
      waits_.push_back(wait);
    }
  }

  void add_step(const Fields& event) {
    const std::string name = event.text({"name"}).value_or("");
    if (!name.starts_with(step_name)) return;
    Step step{.begin_us = begin_us(event), .end_us = end_us(event)};
    const char* digits = name.data() + step_name.size();
    const auto [rest, error] = std::from_chars(digits, name.data() + name.size(), step.number);
    if (error == std::errc{} && rest != digits) steps_.push_back(step);
  }

  /// Time at which an event was enqueued, else its begin.
  double launched_us(const Fields& event) const {
    const auto found = launched_us_.find(integer(event, "args.correlation", -1));
    return found == launched_us_.end() ? begin_us(event) : found->second;
  }

  Work work_of(const Json& event) const {
    const Fields fields(event);
    Work work{.name = fields.text({"name"}).value_or("kernel"),
              .op = integer(fields, "args.External id", -1),
              .begin_us = begin_us(fields),
              .end_us = end_us(fields),
              .stream = integer(fields, "args.stream", -1),
              .correlation = integer(fields, "args.correlation", -1),
              .product = {},
              .call = call_of(event)};
    const auto found = work.op < 0 ? ops_.end() : ops_.find(work.op);
    if (is_nccl(work.name) && !work.call) work.call = found == ops_.end() ? Call{} : call_of(*found->second);
    if (is_nccl(work.name) && !work.call) work.call = Call{};
    if (work.call || found == ops_.end()) return work;
    work.name = Fields(*found->second).text({"name"}).value_or(work.name);
    if (const auto at = first_matrix(work.name)) work.product = product_of(*found->second, *at);
    return work;
  }

  std::unordered_map<std::int64_t, const Json*> ops_;     // CPU operators, by external id
  std::unordered_map<std::int64_t, double> launched_us_;  // by correlation
  std::vector<const Json*> device_;
  std::vector<Step> steps_;
  std::vector<Wait> waits_;
};

}  // namespace

Iteration read_trace(std::string_view text, int step) {
  if (text.starts_with("\x1f\x8b")) throw InvalidArgument("the trace is compressed: unpack it with gunzip");
  const Json json = parse_json(text, RepeatedKeys::last_counts);
  if (!json.is_structured()) throw InvalidArgument("not a trace of torch.profiler: traceEvents is missing");
  return Trace(json).iteration(step);
}

}  // namespace shingle::torch
