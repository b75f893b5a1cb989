// The cache of tuned params: what is stored is found, whoever stores beside; what is broken is ignored.
#include "tune/cache.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/file.hpp"
#include "shingle/base/error.hpp"
#include "support/variable.hpp"

namespace shingle::tune_cache_test {
namespace {

using test::Variable;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Cache : public testing::Test {
 protected:
  Cache() {
    std::string name = testing::TempDir() + "tune_cache.XXXXXX";
    home = ::mkdtemp(name.data());
    directory = home / "below" / "there";
    machine.name = "small";
  }
  ~Cache() override { std::filesystem::remove_all(home); }

  TuneCache open() {
    return TuneCache(machine, directory.string(),
                     [this](const std::string& line) { warnings.push_back(line); });
  }

  std::filesystem::path home, directory;
  Machine machine;
  std::vector<std::string> warnings;
};

Problem problem(std::int64_t m) {
  return {.op = Op::gemm_allreduce, .world = 4, .m = m, .n = 512, .k = 256, .dtype = DType::bf16};
}

TuneEntry entry(std::int64_t m) {
  return {.problem = problem(m),
          .params = SignalParams{.tile = {128, 256, {.swizzle = 3}}, .group_waves = {1, 3, m}},
          .predicted_us = 0.1 * static_cast<double>(m),
          .measured_us = 1.0 / 3};
}

TEST_F(Cache, FindsWhatWasStored) {
  TuneCache cache = open();
  EXPECT_FALSE(cache.find(problem(7), Mechanism::signal));
  EXPECT_FALSE(std::filesystem::exists(directory)) << "looking creates nothing";
  cache.store(entry(7));
  EXPECT_EQ(cache.find(problem(7), Mechanism::signal), entry(7));
  const TuneCache again = open();
  EXPECT_EQ(again.find(problem(7), Mechanism::signal), entry(7));
  EXPECT_FALSE(again.find(problem(8), Mechanism::signal));
  EXPECT_FALSE(again.find(problem(7), Mechanism::fused));
  EXPECT_THAT(again.entries(), ElementsAre(entry(7)));
  EXPECT_THAT(warnings, IsEmpty());
}

TEST_F(Cache, ReplacesWhatItKnew) {
  TuneCache cache = open();
  cache.store(entry(7));
  TuneEntry better = entry(7);
  better.params = SignalParams{.group_waves = {2, 2}};
  better.measured_us = 0;
  cache.store(better);
  TuneEntry other = better;
  other.params = FusedParams{.helpers = 2};
  cache.store(other);
  EXPECT_EQ(open().find(problem(7), Mechanism::signal)->params, better.params);
  EXPECT_EQ(open().find(problem(7), Mechanism::fused)->params, other.params);
  EXPECT_EQ(open().entries().size(), 2u);
}

TEST_F(Cache, RoutingsOfTheSameSizesShareAnEntry) {
  TuneEntry routed = entry(2);
  routed.problem.op = Op::gemm_alltoall;
  routed.problem.world = 2;
  routed.problem.routing =
      std::make_shared<const Routing>(std::vector<std::vector<std::int32_t>>{{0, 1}, {1, 0}});
  open().store(routed);
  Problem other = routed.problem;
  other.routing = std::make_shared<const Routing>(std::vector<std::vector<std::int32_t>>{{1, 1}, {0}});
  const auto found = open().find(other, Mechanism::signal);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->params, routed.params);
  EXPECT_EQ(found->problem.routing, nullptr);
}

TEST_F(Cache, MachinesHaveAFileEach) {
  open().store(entry(7));
  machine.workers = 9;
  EXPECT_THAT(open().entries(), IsEmpty());
  machine.workers = 1;
  machine.sources = {{.of = "workers", .origin = Origin::measured, .note = "counted"}};
  EXPECT_EQ(open().entries().size(), 1u) << "where a figure comes from changes nothing";
  machine.tile_rows = 17;
  EXPECT_THAT(open().entries(), IsEmpty()) << "a figure without a source counts too";
}

TEST_F(Cache, AnotherVersionIsIgnoredAndReplaced) {
  open().store(entry(7));
  const std::string path = open().path();
  for (const auto& [now, other] :
       {std::pair{R"("version": 2)", R"("version": 3)"}, std::pair{R"("shingle": ")", R"("shingle": "9)"},
        std::pair{R"("machine": ")", R"("machine": "9)"}}) {
    std::string text = read_file(path, 1 << 20);
    ASSERT_THAT(text, HasSubstr(now));
    text.replace(text.find(now), std::string_view(now).size(), other);
    write_file_atomically(path, text);
    TuneCache cache = open();
    EXPECT_THAT(cache.entries(), IsEmpty()) << other;
    cache.store(entry(8));
    EXPECT_THAT(open().entries(), ElementsAre(entry(8))) << other;
  }
  EXPECT_THAT(warnings, IsEmpty());
}

TEST_F(Cache, ABrokenFileIsIgnoredWithAWarningAndReplaced) {
  open().store(entry(7));
  const std::string path = open().path(), whole = read_file(path, 1 << 20);
  std::vector<std::string> broken{"", "[]", "{}", R"({"format": "shingle-plan", "version": 1})",
                                  std::string("\0\xff", 2)};
  for (std::size_t size = 1; size + 2 < whole.size(); size += 37) broken.push_back(whole.substr(0, size));
  for (const auto& [good, bad] : {std::pair{R"("signal")", R"("smoke")"}, std::pair{R"("m":)", R"("mm":)"},
                                  std::pair{R"("tile":"128x256")", R"("tile":"128x-1")"},
                                  std::pair{R"("predicted_us": )", R"("predicted_us": -)"}}) {
    ASSERT_THAT(whole, HasSubstr(good));
    broken.push_back(std::string(whole).replace(whole.find(good), std::string_view(good).size(), bad));
  }
  for (const std::string& text : broken) {
    write_file_atomically(path, text);
    warnings.clear();
    TuneCache cache = open();
    EXPECT_THAT(cache.entries(), IsEmpty()) << text;
    ASSERT_EQ(warnings.size(), 1u) << text;
    EXPECT_THAT(warnings[0], HasSubstr(path));
    EXPECT_EQ(warnings[0].find('\n'), std::string::npos);
    cache.store(entry(8));
    warnings.clear();
    EXPECT_THAT(open().entries(), ElementsAre(entry(8)));
    EXPECT_THAT(warnings, IsEmpty());
  }
}

TEST_F(Cache, ThreadsAtOnceLoseNothing) {
  constexpr std::int64_t writers = 6, each = 8;
  TuneCache shared = open();
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < writers; ++t)
    threads.emplace_back([&, t] {
      TuneCache own(machine, directory.string());
      for (std::int64_t i = 0; i < each; ++i) (t % 2 == 0 ? shared : own).store(entry(1 + t * each + i));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(open().entries().size(), writers * each);
}

TEST_F(Cache, ProcessesAtOnceLoseNothing) {
  constexpr std::int64_t writers = 4, each = 8;
  std::vector<pid_t> children;
  for (std::int64_t p = 0; p < writers; ++p) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    int failed = 1;
    try {
      TuneCache cache(machine, directory.string());
      for (std::int64_t i = 0; i < each; ++i) cache.store(entry(1 + p * each + i));
      failed = 0;
    } catch (const Error&) {
    }
    ::_exit(failed);
  }
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(open().entries().size(), writers * each);
  EXPECT_THAT(warnings, IsEmpty());
}

TEST_F(Cache, SaysWhatItCannotStore) {
  TuneEntry timeless = entry(7);
  timeless.measured_us = std::nan("");
  EXPECT_THROW(open().store(timeless), InvalidArgument);
  directory = home / "file";
  write_file_atomically(directory.string(), "");
  EXPECT_THROW(open().store(entry(7)), IoError);
}

TEST(CacheDirectory, IsTheUsers) {
  const Variable home("HOME", "/home/me"), cache("XDG_CACHE_HOME", "/caches");
  EXPECT_EQ(default_cache_directory(), "/caches/shingle");
  const Variable relative("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(default_cache_directory(), "/home/me/.cache/shingle");
  const Variable no_home("HOME", std::nullopt), no_cache("XDG_CACHE_HOME", std::nullopt);
  EXPECT_THROW(default_cache_directory(), IoError);
}

}  // namespace
}  // namespace shingle::tune_cache_test
