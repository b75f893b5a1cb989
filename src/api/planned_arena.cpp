// The arena that a context would need: a context declares the operator on a world that has no memory.
#include "shingle/api/context.hpp"
#include "shingle/base/error.hpp"

namespace shingle {
namespace {

struct PlannedArena final : Arena {
  explicit PlannedArena(std::int64_t of) : size(of) {}
  std::int64_t bytes() const override { return size; }
  void* data(int) const override { return nullptr; }
  void extend(std::span<void* const>) override {}
  std::int64_t size;
};

/// Ranks of a machine that only plan. None is of this process, and nothing is collective.
class PlanningWorld final : public World {
 public:
  PlanningWorld(int ranks, const Machine& machine) : ranks_(ranks), machine_(machine) {}

  std::string backend() const override { return "planning"; }
  int size() const override { return ranks_; }
  std::vector<int> local_ranks() const override { return {}; }
  const Machine& machine() const override { return machine_; }
  Capabilities capabilities() const override { return {}; }
  DeviceBuffer allocate(int, std::size_t) override { throw Unsupported("a planning world has no memory"); }
  std::unique_ptr<Executable> compile(const Plan&) override {
    throw Unsupported("a planning world runs nothing");
  }
  std::shared_ptr<Arena> make_arena(std::int64_t bytes, std::shared_ptr<Heap>) override {
    return std::make_shared<PlannedArena>(bytes);
  }
  void barrier() override {}
  std::vector<double> all_max(std::vector<double> values) override { return values; }

 private:
  int ranks_;
  Machine machine_;
};

}  // namespace

std::int64_t arena_bytes_needed(const Problem& largest, const Machine& machine, ContextOptions options,
                                DeclareOptions declared) {
  PlanningWorld world(largest.world, machine);
  Context context(world, std::move(options));
  context.declare(largest, std::move(declared));
  return context.arena_bytes();
}

}  // namespace shingle
