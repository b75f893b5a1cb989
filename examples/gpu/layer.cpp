// A tensor-parallel layer on GPUs from C++: gemm+allreduce of bf16 matrices, called on streams and replayed
// from a CUDA graph. Run it alone (all GPUs of the machine), or as one process for each GPU:
//
//     torchrun --no-python --nproc-per-node 2 ./layer
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "shingle/api/context.hpp"
#include "shingle/base/error.hpp"
#include "shingle/cuda/cuda.hpp"

namespace {

constexpr int most_tokens = 512, n = 256, k = 128, replays = 3;
constexpr int nothing_to_run_on = 77;  // exit code for test drivers

void check(cudaError_t error) {
  if (error != cudaSuccess) throw shingle::CudaError(cudaGetErrorString(error), error, -1);
}

/// Elements of the ranks' matrices: integers, so that sums are exact.
float element(int rank, int row, int col) {
  return static_cast<float>((rank + 3 * row + 5 * col) % 3 - 1);
}

/// The matrices of a rank, on its device, and the stream on which it calls the layer.
struct Rank {
  int number = 0, device = 0;
  shingle::DeviceBuffer a{}, b{}, out{};
  cudaStream_t stream = nullptr;
  cudaGraphExec_t graph = nullptr;
};

shingle::DeviceBuffer on_device(shingle::World& world, int rank, int rows, int cols) {
  std::vector<std::byte> host(std::size_t{2} * static_cast<std::size_t>(rows * cols));
  for (int i = 0; i < rows * cols; ++i)
    shingle::store_element(shingle::DType::bf16, host.data(), static_cast<std::size_t>(i),
                           element(rank, i / cols, i % cols));
  shingle::DeviceBuffer device = world.allocate(rank, host.size());
  world.upload(rank, device.data(), host.data(), host.size());
  return device;
}

bool is_right(shingle::World& world, const Rank& at, int tokens) {
  std::vector<std::byte> out(std::size_t{2} * static_cast<std::size_t>(tokens * n));
  world.download(at.number, out.data(), at.out.data(), out.size());
  for (int i = 0; i < tokens; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int rank = 0; rank < world.size(); ++rank)
        for (int l = 0; l < k; ++l) sum += element(rank, i, l) * element(rank, l, j);
      if (shingle::load_element(shingle::DType::bf16, out.data(), static_cast<std::size_t>(i * n + j)) != sum)
        return false;
    }
  return true;
}

/// One call of the layer for these tokens, on the streams of the local ranks.
void call(shingle::Context& context, int op, const std::vector<Rank>& ranks, int tokens) {
  std::vector<shingle::Argument> arguments;
  std::vector<void*> streams;
  for (const Rank& at : ranks) {
    const auto add = [&](shingle::Role role, const shingle::DeviceBuffer& memory, int rows, int cols) {
      arguments.push_back({at.number, role, {memory.data(), {rows, cols}, shingle::DType::bf16}});
    };
    add(shingle::Role::a, at.a, tokens, k);
    add(shingle::Role::b, at.b, k, n);
    add(shingle::Role::out, at.out, tokens, n);
    streams.push_back(at.stream);
  }
  context.call(op, tokens, arguments, streams);
}

int run() {
  const auto world = shingle::make_cuda_world(0);
  std::vector<Rank> ranks;
  // Alone, rank r is on device r. A launcher's process is on the device of its local rank, or on the only
  // one.
  int devices = 0;
  check(cudaGetDeviceCount(&devices));
  const char* const local_rank = std::getenv("LOCAL_RANK");
  for (const int number : world->local_ranks()) {
    Rank& at = ranks.emplace_back(Rank{.number = number});
    at.device = (local_rank != nullptr ? std::atoi(local_rank) : number) % devices;
    at.a = on_device(*world, number, most_tokens, k);
    at.b = on_device(*world, number, k, n);
    at.out = on_device(*world, number, most_tokens, n);
    check(cudaSetDevice(at.device));
    check(cudaStreamCreateWithFlags(&at.stream, cudaStreamNonBlocking));
  }
  int wrong = 0;
  {
    shingle::Context context(*world);
    shingle::Problem layer;
    layer.op = shingle::Op::gemm_allreduce;
    layer.world = world->size();
    layer.m = most_tokens, layer.n = n, layer.k = k;
    layer.dtype = shingle::DType::bf16;
    const int op = context.declare(layer);

    // Any number of tokens, without another declaration.
    for (const int tokens : {most_tokens, 1, 77}) {
      call(context, op, ranks, tokens);
      context.synchronize();
      for (const Rank& at : ranks) wrong += is_right(*world, at, tokens) ? 0 : 1;
    }

    // Two calls in a CUDA graph. Each device has its own part, and all are captured together.
    for (const Rank& at : ranks) {
      check(cudaSetDevice(at.device));
      check(cudaStreamBeginCapture(at.stream, cudaStreamCaptureModeRelaxed));
    }
    call(context, op, ranks, 40);
    call(context, op, ranks, most_tokens);
    for (Rank& at : ranks) {
      cudaGraph_t graph = nullptr;
      check(cudaSetDevice(at.device));
      check(cudaStreamEndCapture(at.stream, &graph));
      check(cudaGraphInstantiate(&at.graph, graph, 0));
      check(cudaGraphDestroy(graph));
    }
    for (int replay = 0; replay < replays; ++replay) {
      for (const Rank& at : ranks) {
        check(cudaSetDevice(at.device));
        check(cudaMemsetAsync(at.out.data(), 0xff, at.out.bytes(), at.stream));
        check(cudaGraphLaunch(at.graph, at.stream));
      }
      for (const Rank& at : ranks) check(cudaStreamSynchronize(at.stream));
      for (const Rank& at : ranks) wrong += is_right(*world, at, most_tokens) ? 0 : 1;
    }
    for (const Rank& at : ranks) check(cudaGraphExecDestroy(at.graph));  // graphs go before the context
  }
  for (const Rank& at : ranks) {
    check(cudaSetDevice(at.device));
    check(cudaStreamDestroy(at.stream));
  }
  if (ranks.front().number == 0)
    std::printf("%d ranks, %s\n", world->size(), wrong == 0 ? "all results exact" : "wrong results");
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const shingle::Unsupported& why) {
    std::fprintf(stderr, "%s\n", why.what());
    return nothing_to_run_on;
  } catch (const shingle::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
