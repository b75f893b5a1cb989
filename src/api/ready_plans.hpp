// The plans of a context that are ready for calls.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "shingle/backend/backend.hpp"
#include "shingle/plan/shapes.hpp"

namespace shingle {

struct ReadyPlan {
  /// A matrix that calls bring.
  struct Wanted {
    int rank = 0;
    Role role = Role::a;
    Shape shape{};
  };
  int op = 0;
  Problem problem{};
  bool in_graph = false;  ///< serves captured calls, as the chosen plan cannot be captured
  Plan plan{};
  std::vector<Wanted> wanted{};
  std::int64_t gathered_bytes = -1;  ///< offset in the arena of gathered rows that calls leave; -1: none
  std::unique_ptr<Executable> executable{};
};

/// The most recently used plans. Plans that graphs of the user hold stay.
class ReadyPlans {
 public:
  explicit ReadyPlans(std::size_t most) : most_(most) {}

  /// The plan of calls with m rows, for operators without a routing and of one sequence; null: there is none.
  ReadyPlan* find(int op, std::int64_t m) {
    const auto found = by_key_.find({op, m});
    return found == by_key_.end() ? nullptr : &use(found->second);
  }
  /// The plan that solves a problem; null: there is none.
  ReadyPlan* find(int op, const Problem& problem, bool in_graph);
  /// Makes room, so that the least recently used plan goes.
  ReadyPlan& add(ReadyPlan made);
  /// Forgets all plans, because the arena is made anew. Waits until their calls are done.
  void clear();
  void synchronize();

 private:
  using Plans = std::list<ReadyPlan>;
  /// What tells plans apart, but for the routing.
  struct Key {
    int op = 0;
    std::int64_t m = 0;
    bool in_graph = false;
    std::vector<std::int64_t> lengths{};
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
  static Key key_of(int op, const Problem& problem, bool in_graph) {
    return {op, problem.m, in_graph, problem.attention.lengths};
  }

  /// Marks a plan as the most recently used one.
  ReadyPlan& use(Plans::iterator at) {
    ready_.splice(ready_.begin(), ready_, at);
    return ready_.front();
  }
  void forget_oldest();

  std::size_t most_;
  Plans ready_;  // the most recently used first
  Plans held_;   // of former arenas
  std::unordered_multimap<Key, Plans::iterator, Hash> by_key_;
};

}  // namespace shingle
