// Measures calls of a context: host time of a call that is known and of a new m, by mechanism; and device
// time against an operator whose matrices are bound. For `sequential`, also the host time of cuBLASLt and
// NCCL called directly. Alone, or as one process for each GPU. Processes may share a GPU for host times
// (--host-only): each then needs its own NCCL_HOSTID, NCCL_NET=Socket and NCCL_SOCKET_IFNAME=lo.
#include <CLI/CLI.hpp>
#include <chrono>
#include <optional>

#include "../report.hpp"
#include "api/workspace.hpp"
#include "backend/launch.hpp"
#include "cuda/commands/blas.hpp"
#include "cuda/kernels/sync.hpp"
#include "cuda/nccl/api.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/raii/stream.hpp"
#include "cuda/runtime/world.hpp"
#include "lower/launch_program.hpp"
#include "shingle/api/context.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"
#include "shingle/cuda/cuda.hpp"

using namespace shingle;

namespace {

constexpr int burst = 16;

double us_of(const std::function<void()>& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

int device_of(const void* memory) {
  cudaPointerAttributes at{};
  cuda::check(cudaPointerGetAttributes(&at, memory), "cudaPointerGetAttributes");
  return at.device;
}

/// Matrices of a problem; in registered memory if there is a context that has some.
struct Matrices {
  Matrices(World& world, const Problem& problem, Context* registered)
      : inputs(random_inputs(problem, 1)),
        memory(registered != nullptr ? Workspace(world, *inputs, *registered) : Workspace(world, *inputs)),
        ranks(world.local_ranks()) {}

  std::unique_ptr<Inputs> inputs;
  Workspace memory;
  std::vector<int> ranks;
};

/// Streams of the local ranks, each with its device.
struct Streams {
  std::vector<int> devices;
  std::vector<cuda::Stream> owned;
  std::vector<void*> handles;

  explicit Streams(World& world) {
    for (const int rank : world.local_ranks()) {
      devices.push_back(device_of(world.allocate(rank, 1).data()));
      const cuda::DeviceGuard guard(devices.back());
      handles.push_back(owned.emplace_back().get());
    }
  }
};

/// Device time of one of `burst` epochs back to back, the maximum over ranks.
double device_us(World& world, const Streams& streams, const std::function<void()>& enqueue) {
  const cuda::DeviceGuard guard(streams.devices.front());
  const auto stream = static_cast<cudaStream_t>(streams.handles.front());
  const cuda::Event begin(cuda::Event::Timing::on), end(cuda::Event::Timing::on);
  enqueue();
  begin.record(stream);
  for (int i = 0; i < burst; ++i) enqueue();
  end.record(stream);
  end.synchronize();
  return world.all_max({1e3 * static_cast<double>(end.milliseconds_since(begin)) / burst})[0];
}

/// Host time of cuBLASLt and NCCL for the first local rank, called without Shingle.
double direct_us(World& world, const Streams& streams, const Problem& p, const Matrices& matrices) {
  auto& gpus = dynamic_cast<cuda::CudaWorld&>(world);
  const cuda::DeviceGuard guard(streams.devices.front());
  const int rank = matrices.ranks.front();
  cuda::LibraryGemm product(gpus.blas(rank), {.type = p.dtype,
                                              .out_type = p.dtype,
                                              .m = p.m,
                                              .n = p.n,
                                              .k = p.k,
                                              .lda = p.k,
                                              .ldb = p.n,
                                              .ldc = p.n});
  const cuda::DeviceMemory workspace(product.workspace_bytes());
  cuda::CommKey key;
  for (int r = 0; r < world.size(); ++r) key.ranks.push_back(r);
  const ncclComm_t comm = gpus.communicator(key).of(rank);
  const auto stream = static_cast<cudaStream_t>(streams.handles.front());
  void* const out = const_cast<void*>(matrices.memory.data(rank, Role::out));
  const auto both = [&] {
    product.run(stream,
                {matrices.memory.data(rank, Role::a), matrices.memory.data(rank, Role::b), nullptr, out},
                workspace.get());
    cuda::check(cuda::nccl().ncclAllReduce(out, out, static_cast<std::size_t>(p.m * p.n), ncclBfloat16,
                                           ncclSum, comm, stream),
                "ncclAllReduce");
  };
  both();
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  bench::Samples samples;
  for (int i = 0; i < 10 * burst; ++i) {
    if (i % burst == 0) cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    samples.us.push_back(us_of(both));
  }
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return samples.median();
}

/// Host time of a launch, and of an event that one stream records and another awaits, in microseconds.
void print_unit_costs(const Streams& streams) {
  const cuda::DeviceGuard guard(streams.devices.front());
  const auto stream = static_cast<cudaStream_t>(streams.handles.front());
  const cuda::Stream other;
  const cuda::Event event;
  bench::Samples launch, edge;
  for (int i = 0; i < 20 * burst; ++i) {
    if (i % burst == 0) cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    launch.us.push_back(us_of([&] { cuda::check(cuda::launch_delay(nullptr, 0, 0, stream), "launch"); }));
    edge.us.push_back(us_of([&] { event.record(stream), event.make_wait(other.get()); }));
  }
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  fmt::print("one launch {:.1f} us, one event edge {:.1f} us\n", launch.median(), edge.median());
}

struct Flags {
  int repeat = 10;
  int workers = 0;
  bool device = true;
  bool registered = false;
};

void measure(World& world, const Problem& problem, const Params& params, const Flags& flags,
             nlohmann::json& record) {
  const Mechanism mechanism = mechanism_of(params);
  const Result<Plan> planned =
      make_plan(problem, world.machine(), flags.registered ? params : with_unregistered(params));
  if (!planned || !world.refuses(*planned).empty()) return;
  ContextOptions options;
  options.choose = [&](const Problem&) { return params; };
  options.most_plans = 128;
  options.workers = flags.workers;
  if (flags.registered)
    for (const Role role : roles_of(problem))  // of two sets, with room to align them
      options.registered_bytes += 2 * bytes_of(problem, role, 0) + 4096;
  const Streams streams(world);
  Context context(world, options);
  Context* const registered = flags.registered ? &context : nullptr;
  const Matrices one(world, problem, registered), other(world, problem, registered);
  const int op = context.declare(problem);
  if (context.plan(op, problem.m).mechanism != mechanism) return;
  const std::vector<Argument> arguments[] = {one.memory.arguments(problem), other.memory.arguments(problem)};
  int calls = 0;
  const auto call = [&] { context.call(op, problem.m, arguments[++calls % 2], streams.handles); };
  call();
  context.synchronize();
  bench::Samples idle, together, fresh, device, bound;
  for (int i = 0; i < flags.repeat; ++i) {
    idle.us.push_back(us_of(call));
    context.synchronize();
    for (int j = 0; j < burst; ++j) together.us.push_back(us_of(call));
    context.synchronize();
  }
  for (int i = 1; i <= 3 * flags.repeat; ++i) {
    Problem smaller = problem;
    smaller.m = std::max<std::int64_t>(problem.m - 3 * i, 1);
    const std::vector<Argument> some = one.memory.arguments(smaller);
    fresh.us.push_back(us_of([&] { context.call(op, smaller.m, some, streams.handles); }));
    context.synchronize();
  }
  std::optional<double> direct;
  if (mechanism == Mechanism::sequential && problem.op == Op::gemm_allreduce &&
      world.local_ranks().size() == 1)
    direct = direct_us(world, streams, problem, one);
  if (flags.device) {
    Operator operation(world, problem, {.params = params});
    one.memory.bind(operation);
    operation.prepare();
    for (int i = 0; i < flags.repeat; ++i) {
      device.us.push_back(device_us(world, streams, call));
      context.synchronize();
      bound.us.push_back(device_us(world, streams, [&] { operation.enqueue(streams.handles); }));
      operation.synchronize();
    }
  }
  const auto local = static_cast<double>(world.local_ranks().size());
  const auto launches =
      lower(context.plan(op, problem.m)).ranks[static_cast<std::size_t>(one.ranks.front())].launches.size();
  const std::string line = fmt::format(
      "{:<11} {:2} launches; host: known {:5.1f} us idle, {:5.1f} us back to back{}; new m {:6.0f} us{}\n",
      name(mechanism), launches, idle.median() / local, together.median() / local,
      direct ? fmt::format(" (directly {:.1f} us)", *direct) : "", fresh.median() / local,
      flags.device ? fmt::format("; device: context {:.1f} us, bound {:.1f} us, {:+.1f} %", device.median(),
                                 bound.median(), 100 * (device.median() / bound.median() - 1))
                   : "");
  if (one.ranks.front() == 0) std::fputs(line.c_str(), stdout);
  nlohmann::json row{{"mechanism", name(mechanism)}, {"problem", describe(problem)},
                     {"local_ranks", local},         {"registered", flags.registered},
                     {"idle", idle.json()},          {"back_to_back", together.json()},
                     {"new_m", fresh.json()}};
  if (direct) row["direct_us"] = *direct;
  if (flags.device) row["device"] = device.json(), row["bound"] = bound.json();
  record["rows"].push_back(std::move(row));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Host and device time of calls of a context, on GPUs");
  Problem problem;
  problem.dtype = DType::bf16;
  std::vector<std::int64_t> rows{64, 2048};
  problem.n = 8192, problem.k = 3584;
  int ranks = 0;
  Flags flags;
  std::string json;
  app.add_option("--world", ranks, "GPUs (0: all)")->capture_default_str();
  app.add_option("--m", rows)->capture_default_str();
  app.add_option("--n", problem.n)->capture_default_str();
  app.add_option("--k", problem.k)->capture_default_str();
  app.add_option("--repeat", flags.repeat)->capture_default_str();
  app.add_option("--workers", flags.workers, "SMs for kernels that wait (0: all)")->capture_default_str();
  app.add_flag("--registered", flags.registered, "matrices in registered memory, which peers access");
  app.add_flag("!--host-only", flags.device, "measure no device time: for processes that share a GPU");
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  try {
    const auto world = make_cuda_world(ranks);
    problem.world = world->size();
    auto record = bench::record(argc, argv);
    if (world->local_ranks().front() == 0) print_unit_costs(Streams(*world));
    for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm})
      for (const std::int64_t m : rows) {
        problem.op = op;
        problem.m = m;
        if (world->local_ranks().front() == 0) fmt::print("{}\n", describe(problem));
        for (const PlannerEntry& entry : planners())
          measure(*world, problem, default_params(entry.mechanism), flags, record);
      }
    if (world->local_ranks().front() == 0) bench::write(record, json);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "bench_cuda_context_calls: {}\n", error.what());
    return 1;
  }
}
