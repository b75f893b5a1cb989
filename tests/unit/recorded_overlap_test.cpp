// The overlap of an iteration, from a trace in torch.profiler's format. The sample is made up: three layers
// of two products, each of which awaits the all-gather that was begun a layer before, then a reduce-scatter,
// an all-reduce of another group, and an optimizer.
#include "workload/recorded_overlap.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/file.hpp"
#include "shingle/base/error.hpp"

namespace shingle::recorded_overlap_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string& sample() {
  static const std::string text = read_file(SHINGLE_TEST_SOURCE_DIR "/tests/data/torch_trace.json", 1 << 20);
  return text;
}

/// The sample with every event as `change` leaves it; false leaves it out.
std::string changed(const std::function<bool(json&)>& change) {
  json trace = json::parse(sample()), events = json::array();
  for (json& event : trace["traceEvents"])
    if (change(event)) events.push_back(event);
  trace["traceEvents"] = events;
  return trace.dump();
}

bool is_of(const json& event, const char* category) {
  return event.value("cat", "") == category;
}

std::vector<std::vector<std::int32_t>> awaited(const auto& items) {
  std::vector<std::vector<std::int32_t>> lists;
  for (const auto& item : items) lists.push_back(item.after);
  return lists;
}

TEST(RecordedOverlap, HasSizesAndWhoAwaitsWhom) {
  const RecordedOverlap found = recorded_overlap(sample());
  EXPECT_EQ(found.step, "ProfilerStep#4");
  EXPECT_EQ(found.workload.world, 4);
  EXPECT_EQ(found.workload.dtype, DType::bf16);
  EXPECT_TRUE(found.exact);
  EXPECT_EQ(found.products, 6);
  EXPECT_EQ(found.left_out, 1) << "of a group of two";
  EXPECT_GT(found.us, 250);
  EXPECT_LT(found.us, 400);
  std::vector<std::string> names;
  for (const Workload::Computation& item : found.workload.computations) names.push_back(item.name);
  EXPECT_THAT(names,
              ElementsAre("mm", "other", "addmm", "mm", "other", "addmm", "mm", "other", "addmm", "other"));
  const Workload::Computation& up = found.workload.computations[0];
  const Workload::Computation& down = found.workload.computations[2];
  EXPECT_THAT((std::vector{up.m, up.n, up.k}), ElementsAre(2048, 4096, 1024));
  EXPECT_THAT((std::vector{down.m, down.n, down.k}), ElementsAre(2048, 1024, 4096))
      << "two kernels of one call";
  // A layer awaits its weights; these are gathered when the layer before the last is over.
  EXPECT_THAT(awaited(found.workload.computations),
              ElementsAre(ElementsAre(0), ElementsAre(), ElementsAre(), ElementsAre(1), ElementsAre(),
                          ElementsAre(), ElementsAre(2), ElementsAre(), ElementsAre(), ElementsAre(3)));
  EXPECT_THAT(awaited(found.workload.collectives),
              ElementsAre(ElementsAre(), ElementsAre(), ElementsAre(2), ElementsAre(8)));
  EXPECT_EQ(found.workload.collectives[0].kind, CollectiveKind::allgather);
  EXPECT_EQ(found.workload.collectives[3].kind, CollectiveKind::reducescatter);
  for (const Workload::Collective& item : found.workload.collectives)
    EXPECT_EQ(item.bytes, 2 * 1024 * 4096 * 2) << "of the whole matrix";
}

/// 30 us for a product of 2048x4096x1024 and as many for the other, so that 12 us (16 with what came before
/// and was too short to count) are as much as 2048x2048x(...).
TEST(RecordedOverlap, CountsOtherKernelsByTheirTime) {
  const RecordedOverlap found = recorded_overlap(sample());
  const double flops_per_us = 2.0 * 2048 * 4096 * 1024 / 30;
  const auto us = [&](const Workload::Computation& item) {
    return 2.0 * static_cast<double>(item.m * item.n * item.k) / flops_per_us;
  };
  EXPECT_NEAR(us(found.workload.computations[1]), 12, 0.1);
  EXPECT_NEAR(us(found.workload.computations[4]), 14, 0.1) << "with an addition of 2 us";
  EXPECT_NEAR(us(found.workload.computations[9]), 17, 0.1);
}

TEST(RecordedOverlap, TakesTheStepAndGroupThatIsAskedFor) {
  EXPECT_EQ(recorded_overlap(sample(), {.step = 3}).step, "ProfilerStep#3");
  EXPECT_EQ(recorded_overlap(sample(), {.step = 3}).workload, recorded_overlap(sample()).workload);
  const RecordedOverlap two = recorded_overlap(sample(), {.ranks = 2});
  EXPECT_EQ(two.workload.collectives.size(), 1u);
  EXPECT_EQ(two.workload.collectives[0].bytes, 1024);
  EXPECT_EQ(two.left_out, 4);
  const std::string whole = changed([](const json& event) { return !is_of(event, "user_annotation"); });
  EXPECT_EQ(recorded_overlap(whole).step, "");
  EXPECT_EQ(recorded_overlap(whole).products, 12);
}

/// Without what streams await: what was over counts as awaited, so that nothing may end later than it did.
TEST(RecordedOverlap, GoesByTimeWhereTheTraceDoesNotSay) {
  const RecordedOverlap found =
      recorded_overlap(changed([](const json& event) { return !is_of(event, "cuda_sync"); }));
  EXPECT_FALSE(found.exact);
  EXPECT_EQ(found.workload.computations.size(), 10u);
  EXPECT_EQ(found.workload.computations[0].after, (std::vector<std::int32_t>{0}));
  const std::vector<std::int32_t> second{1};
  EXPECT_EQ(found.workload.computations[2].after, second) << "gathered while the first product ran";
  EXPECT_TRUE(found.workload.computations[3].after.empty());
  found.workload.validate();
}

/// Operators of NCCL have their metadata where its kernels do not.
TEST(RecordedOverlap, FindsCollectivesByTheirOperators) {
  const RecordedOverlap found = recorded_overlap(changed([](json& event) {
    if (is_of(event, "kernel")) event["args"].erase("Collective name");
    return true;
  }));
  EXPECT_EQ(found.workload, recorded_overlap(sample()).workload);
}

/// An event that another stream awaits counts for what its stream had awaited before, too.
TEST(RecordedOverlap, FollowsWaitsThroughStreams) {
  const auto kernel = [](int stream, int correlation, double begin, json more) {
    json args = {{"stream", stream}, {"correlation", correlation}};
    args.update(more);
    return json{{"ph", "X"}, {"cat", "kernel"}, {"name", "k"}, {"ts", begin}, {"dur", 9.0}, {"args", args}};
  };
  const auto wait = [](int stream, int correlation, int on, int recorded) {
    return json{{"ph", "X"},
                {"cat", "cuda_sync"},
                {"name", "Stream Wait Event"},
                {"ts", 0},
                {"args",
                 {{"stream", stream},
                  {"correlation", correlation},
                  {"wait_on_stream", on},
                  {"wait_on_cuda_event_record_corr_id", recorded}}}};
  };
  const json op = {
      {"ph", "X"},
      {"cat", "cpu_op"},
      {"name", "aten::mm"},
      {"ts", 0},
      {"args",
       {{"External id", 1}, {"Input Dims", {{64, 32}, {32, 16}}}, {"Input type", {"float", "float"}}}}};
  const json call = {
      {"Collective name", "all_reduce"}, {"In msg nelems", 128}, {"dtype", "Float"}, {"Group size", 2}};
  for (const int recorded : {8, -1, 99}) {  // known; not known, so at the wait
    SCOPED_TRACE(recorded);
    const json events = {op,
                         kernel(20, 1, 0, call),
                         wait(30, 4, 20, 3),
                         wait(7, 6, 30, 5),
                         kernel(7, 7, 10, {{"External id", 1}}),
                         wait(20, 9, -1, recorded),
                         kernel(20, 10, 20, call)};
    const RecordedOverlap found = recorded_overlap(events.dump());
    EXPECT_EQ(found.workload.dtype, DType::f32);
    EXPECT_THAT(awaited(found.workload.computations), ElementsAre(ElementsAre(0)));
    EXPECT_THAT(awaited(found.workload.collectives), ElementsAre(ElementsAre(), ElementsAre(0)));
  }
}

/// Streams that await each other again and again: as many steps as waits, not as ways through them.
TEST(RecordedOverlap, TakesLongTraces) {
  json trace = json::parse(sample());
  json& events = trace["traceEvents"];
  for (int i = 0; i < 1000; ++i)
    for (const int stream : {7, 20})
      events.push_back(
          {{"ph", "X"},
           {"cat", "cuda_sync"},
           {"name", "Stream Wait Event"},
           {"ts", 0},
           {"args",
            {{"stream", stream}, {"correlation", 2 * i + stream % 2}, {"wait_on_stream", 27 - stream}}}});
  for (json& event : events)
    if (event.contains("args") && event["args"].contains("correlation") && event.value("ts", 0.0) > 0)
      for (const char* key : {"correlation", "wait_on_cuda_event_record_corr_id"})
        if (event["args"].contains(key)) event["args"][key] = event["args"][key].get<int>() + 10000;
  EXPECT_EQ(recorded_overlap(trace.dump()).workload, recorded_overlap(sample()).workload);
}

std::string refused(const std::string& text, const RecordingOptions& options = {}) {
  try {
    recorded_overlap(text, options);
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "nothing";
}

TEST(RecordedOverlap, RefusesWhatIsNone) {
  EXPECT_THAT(refused("{"), HasSubstr("malformed JSON"));
  EXPECT_THAT(refused("7"), HasSubstr("traceEvents is missing"));
  EXPECT_THAT(refused("{}"), HasSubstr("traceEvents is missing"));
  EXPECT_THAT(refused(R"({"traceEvents": 3})"), HasSubstr("traceEvents must be a list"));
  EXPECT_THAT(refused("[]"), HasSubstr("no collectives in the trace"));
  EXPECT_THAT(refused("\x1f\x8b\x08"), HasSubstr("gunzip"));
  EXPECT_THAT(refused(sample(), {.step = 9}), HasSubstr("no ProfilerStep#9"));
  EXPECT_THAT(refused(sample(), {.ranks = 8}), HasSubstr("no collectives of 8 ranks in ProfilerStep#4"));
  const auto without = [](const char* key) {
    return changed([&](json& event) {
      if (is_of(event, "cpu_op")) event["args"].erase(key);
      return true;
    });
  };
  EXPECT_THAT(refused(without("Input Dims")), HasSubstr("mm has no sizes: record with record_shapes=True"));
  EXPECT_THAT(refused(changed([](const json& event) { return !is_of(event, "cpu_op"); })),
              HasSubstr("no matrix products in ProfilerStep#4"));
  EXPECT_THAT(refused(changed([](json& event) {
                if (event["name"] == "aten::mm") event["args"]["Input Dims"] = {{2, 3}, {4, 5}};
                return true;
              })),
              HasSubstr("aten::mm multiplies [2,3] by [4,5]"));
  EXPECT_THAT(refused(changed([](json& event) {
                if (is_of(event, "kernel")) event["ts"] = "noon";
                return true;
              })),
              HasSubstr("ts must be a number"));
}

std::string trace_of(const json& events) {
  return json{{"traceEvents", events}}.dump();
}

/// Kernels and collectives beside each other, of which no waits are known.
TEST(RecordedOverlap, LongTracesTakeLinearTime) {
  json events = json::array();
  for (int i = 0; i < 60000; ++i) {
    const json kernel{{"ph", "X"}, {"cat", "kernel"}, {"name", "gemm"}, {"ts", 2 * i}, {"dur", 1}};
    json call = kernel;
    call["name"] = "ncclDevKernel_AllReduce";
    call["args"] = {
        {"Collective name", "allreduce"}, {"In msg nelems", 1024}, {"dtype", "Float"}, {"Group size", 4}};
    events.push_back(kernel);
    events.push_back(call);
  }
  try {
    recorded_overlap(trace_of(events));
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("no matrix products"));
  }
}

TEST(RecordedOverlap, RefusesSizesBeyondAnyMatrix) {
  for (const json& size :
       {json(std::uint64_t{18446744073709551615u}), json(-1), json(std::int64_t{1} << 31)}) {
    const std::string text = changed([&](json& event) {
      if (event.contains("args") && event["args"].contains("Input Dims") && event["name"] == "aten::mm")
        event["args"]["Input Dims"] = {{size, 64}, {64, 64}};
      return true;
    });
    try {
      recorded_overlap(text);
      FAIL() << "accepted " << size;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("aten::mm: size " + size.dump() + " in 'Input Dims' is outside"));
    }
  }
}

}  // namespace
}  // namespace shingle::recorded_overlap_test
