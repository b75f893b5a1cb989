// Code shared by the thread world and the MPI world.
#pragma once

#include <functional>
#include <memory>

#include "engine.hpp"
#include "shingle/backend/backend.hpp"

namespace shingle::host {

class HostWorld : public World {
 public:
  explicit HostWorld(std::shared_ptr<WorldState> state, int size) : state_(std::move(state)), size_(size) {}

  std::string backend() const override { return "host"; }
  int size() const override { return size_; }
  std::vector<int> local_ranks() const override { return state_->local_ranks; }
  const Machine& machine() const override { return state_->machine; }
  DeviceBuffer allocate(int rank, std::size_t bytes) override;
  std::unique_ptr<Executable> compile(const Plan& plan) override;
  std::shared_ptr<Arena> make_arena(std::int64_t bytes, std::shared_ptr<Heap>) override;
  std::unique_ptr<Executable> compile(const Plan& plan, const std::shared_ptr<Arena>& arena,
                                      double timeout_us) override;

 protected:
  /// Throws InvalidArgument if other processes compile another plan. Collective.
  virtual void require_same([[maybe_unused]] const Plan& plan) {}
  /// Throws Unsupported if this world cannot run the plan.
  virtual void require_served([[maybe_unused]] const Plan& plan) const {}
  virtual std::unique_ptr<Transport> connect(Engine& engine) = 0;
  const std::shared_ptr<WorldState>& state() const { return state_; }

 private:
  std::unique_ptr<Engine> make_engine(const Plan& plan, std::shared_ptr<HostArena> arena);

  std::shared_ptr<WorldState> state_;
  int size_;
};

/// Element types that oneDNN multiplies on this processor without widening them first.
std::vector<DType> native_dtypes();
/// Number of cores that this process may run on.
int usable_cores();

}  // namespace shingle::host
