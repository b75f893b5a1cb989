// gemm+alltoall, the combine step of a mixture of experts: the routing gives each row's destination. The same
// program runs on threads (./alltoall) and on processes (mpirun --oversubscribe -n 4 ./alltoall). It only
// touches its local ranks.
#include <cstdio>
#include <memory>
#include <vector>

#include "shingle/host/host.hpp"
#include "shingle/shingle.hpp"

int main() {
  try {
    const auto world = shingle::make_world(shingle::launched_by_mpi() ? 0 : 3);
    const int ranks = world->size();

    // Row i of rank s goes to rank (s + i) modulo the number of ranks.
    constexpr std::int64_t rows = 90, cols = 64, inner = 32;
    std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(ranks));
    for (int s = 0; s < ranks; ++s)
      for (int i = 0; i < rows; ++i) dest[static_cast<std::size_t>(s)].push_back((s + i) % ranks);

    shingle::Problem problem;
    problem.op = shingle::Op::gemm_alltoall;
    problem.world = ranks;
    problem.m = rows;
    problem.n = cols;
    problem.k = inner;
    problem.routing = std::make_shared<shingle::Routing>(dest);
    shingle::Operator op(*world, problem);

    bool right = true;
    std::vector<std::vector<float>> memory;
    for (const int rank : world->local_ranks())
      for (const shingle::Role role : roles_of(problem)) {
        memory.emplace_back(static_cast<std::size_t>(op.shape(role, rank).elements()),
                            static_cast<float>(rank + 1));
        op.bind(rank, role, memory.back().data());
      }
    op.run();
    std::size_t set = 0;
    for (const int rank : world->local_ranks()) {
      const std::vector<float>& out = memory[3 * set++ + 2];
      // Rows are ordered by source. Rows of rank 0 are products of ones.
      right = right && out[0] == static_cast<float>(inner);
      std::printf("rank %d of %d received %lld rows\n", rank, ranks,
                  static_cast<long long>(op.shape(shingle::Role::out, rank).rows));
    }
    return right ? 0 : 1;
  } catch (const shingle::Error& error) {
    std::fprintf(stderr, "alltoall: %s\n", error.what());
    return 1;
  }
}
