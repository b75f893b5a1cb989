// Processes that find each other through an all-gather of the host program, here as threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "backend/processes.hpp"
#include "shingle/api/registry.hpp"
#include "shingle/base/error.hpp"
#include "shingle/shingle.h"

namespace shingle::bootstrap_test {
namespace {

using testing::HasSubstr;

/// The all-gather of a host program with several threads.
class Store {
 public:
  explicit Store(int size) : parts_(static_cast<std::size_t>(size)) {}

  std::string gather(int rank, std::string_view own) {
    std::unique_lock lock(mutex_);
    parts_[static_cast<std::size_t>(rank)] = own;
    const int turn = turn_;
    if (++came_ == static_cast<int>(parts_.size())) {
      all_.clear();
      for (const std::string& part : parts_) all_ += part;
      came_ = 0;
      ++turn_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return turn_ != turn; });
    return all_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> parts_;
  std::string all_;
  int came_ = 0, turn_ = 0;
};

void together(int size, const std::function<void(const Bootstrap&)>& action) {
  Store store(size);
  std::vector<std::future<void>> all;
  for (int rank = 0; rank < size; ++rank)
    all.push_back(std::async(std::launch::async, [&, rank] {
      action({rank, size, 0, [&, rank](std::string_view own) { return store.gather(rank, own); }});
    }));
  for (auto& one : all) one.get();
}

TEST(Bootstrap, ConnectsAGroup) {
  for (const int size : {1, 2, 5})
    together(size, [](const Bootstrap& group) {
      const auto processes = connect(group, 10e6);
      const auto all = processes->all_gather(std::string(static_cast<std::size_t>(group.rank), 'x'), 10e6);
      ASSERT_EQ(all.size(), static_cast<std::size_t>(group.size));
      for (std::size_t rank = 0; rank < all.size(); ++rank) EXPECT_EQ(all[rank].size(), rank);
    });
}

/// Tensor-parallel and data-parallel groups of four ranks, both alive.
TEST(Bootstrap, GroupsMayOverlap) {
  Store rows[] = {Store(2), Store(2)}, columns[] = {Store(2), Store(2)};
  std::vector<std::future<void>> all;
  for (int rank = 0; rank < 4; ++rank)
    all.push_back(std::async(std::launch::async, [&, rank] {
      const int row = rank / 2, column = rank % 2;
      const auto tensor = connect(
          Bootstrap{column, 2, 0, [&](std::string_view own) { return rows[row].gather(column, own); }}, 10e6);
      const auto data = connect(
          Bootstrap{row, 2, 0, [&](std::string_view own) { return columns[column].gather(row, own); }}, 10e6);
      EXPECT_EQ(tensor->from_first("row " + std::to_string(row), 10e6), "row " + std::to_string(row));
      EXPECT_EQ(data->from_first("column " + std::to_string(column), 10e6),
                "column " + std::to_string(column));
    }));
  for (auto& one : all) one.get();
}

TEST(Bootstrap, OneThatEndsIsNamed) {
  together(3, [](const Bootstrap& group) {
    auto processes = connect(group, 10e6);
    if (group.rank == 2) return processes->tell("rank 2 has no memory");
    try {
      processes->barrier(10e6);
      FAIL() << "a barrier without rank 2";
    } catch (const Timeout& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 2 has no memory"));
    }
  });
}

std::string error_of(const Bootstrap& group) {
  try {
    connect(group, 1e6);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Bootstrap, WrongGroupsAreRefused) {
  EXPECT_THAT(error_of({.rank = 2, .size = 2}), HasSubstr("rank 2 of 2 ranks is outside [0, 2)"));
  EXPECT_THAT(error_of({.rank = 0, .size = 2}), HasSubstr("allgather is null"));
  const auto short_of = [](std::string_view own) { return std::string(own); };
  EXPECT_THAT(error_of({0, 2, 0, short_of}), HasSubstr("expected"));
  const auto others_only = [](std::string_view own) { return std::string(2 * own.size(), 'x'); };
  EXPECT_THAT(error_of({0, 2, 0, others_only}), HasSubstr("entry 0 is not what rank 0 gave"));
  together(2, [](const Bootstrap& group) {
    Bootstrap other = group;
    // Rank 1 takes the group for one of three ranks.
    if (group.rank == 1) {
      other.size = 3;
      other.allgather = [&](std::string_view own) { return group.allgather(own) + std::string(own); };
    }
    EXPECT_THAT(error_of(other), HasSubstr("is in a group of"));
  });
}

TEST(Bootstrap, HostBackendsTakeNone) {
  EXPECT_THAT([] { make_world(2, {.backend = "host", .bootstrap = Bootstrap{}}); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("only 'cuda' does")));
  const shingle_world_options options{.struct_size = sizeof options,
                                      .backend = "host",
                                      .link = nullptr,
                                      .timeout_us = 0,
                                      .ranks = 2,
                                      .workers_per_rank = 0,
                                      .allgather = [](void*, const void*, void*, size_t) { return 0; },
                                      .user = nullptr,
                                      .communicators = nullptr,
                                      .communicator_count = 0,
                                      .rank = 0,
                                      .device = 0,
                                      .reserved = 0};
  shingle_world* world = nullptr;
  EXPECT_EQ(shingle_world_create(&options, &world), SHINGLE_INVALID_ARGUMENT);
  EXPECT_THAT(shingle_last_error(), HasSubstr("only 'cuda' does"));
}

}  // namespace
}  // namespace shingle::bootstrap_test
