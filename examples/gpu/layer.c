// A tensor-parallel layer on GPUs from C: gemm+allreduce of bf16 matrices, called on streams and replayed
// from a CUDA graph. Run it alone (all GPUs of the machine), or as one process for each GPU:
//
//     torchrun --no-python --nproc-per-node 2 ./layer
#include <cuda_runtime_api.h>
#include <shingle/shingle.h>
#include <stdio.h>
#include <stdlib.h>

enum { most_tokens = 512, n = 256, k = 128, most_ranks = 64, replays = 3 };

static void check(shingle_status status) {
  if (status == SHINGLE_OK) return;
  fprintf(stderr, "%s: %s\n", shingle_status_name(status), shingle_last_error());
  // Exit code 77 tells a test driver that there is nothing to run on.
  exit(status == SHINGLE_UNSUPPORTED ? 77 : 1);
}

static void check_cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s\n", cudaGetErrorString(error));
  exit(1);
}

// Elements of the ranks' matrices: integers, so that sums are exact.
static float element(int rank, int row, int col) {
  return (float)((rank + 3 * row + 5 * col) % 3 - 1);
}

// bf16 is the upper half of an fp32 number.
static uint16_t to_bf16(float value) {
  union {
    float number;
    uint32_t bits;
  } both = {value};
  return (uint16_t)(both.bits >> 16);
}
static float from_bf16(uint16_t bits) {
  union {
    uint32_t bits;
    float number;
  } both = {(uint32_t)bits << 16};
  return both.number;
}

// The matrices of a rank, on its device.
typedef struct {
  int rank, device;
  uint16_t *a, *b, *out;
  cudaStream_t stream;
  cudaGraphExec_t graph;
} layer_rank;

static uint16_t* on_device(int rank, int rows, int cols) {
  const size_t bytes = sizeof(uint16_t) * (size_t)rows * (size_t)cols;
  uint16_t *host = malloc(bytes), *device = NULL;
  for (int i = 0; i < rows * cols; ++i) host[i] = to_bf16(element(rank, i / cols, i % cols));
  check_cuda(cudaMalloc((void**)&device, bytes));
  check_cuda(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
  free(host);
  return device;
}

static int is_right(const layer_rank* at, int tokens, int ranks) {
  static uint16_t out[most_tokens * n];
  check_cuda(cudaSetDevice(at->device));
  check_cuda(cudaMemcpy(out, at->out, sizeof(uint16_t) * (size_t)tokens * n, cudaMemcpyDeviceToHost));
  for (int i = 0; i < tokens; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int rank = 0; rank < ranks; ++rank)
        for (int l = 0; l < k; ++l) sum += element(rank, i, l) * element(rank, l, j);
      if (from_bf16(out[i * n + j]) != from_bf16(to_bf16(sum))) return 0;
    }
  return 1;
}

static shingle_matrix view(const layer_rank* at, shingle_role role, void* data, int rows, int cols) {
  shingle_matrix m = {.struct_size = sizeof m, .data = data, .rows = rows, .cols = cols, .rank = at->rank};
  m.role = role;
  m.dtype = SHINGLE_BF16;
  return m;
}

// One call of the layer for these tokens, on the streams of the local ranks.
static void call(shingle_context* context, int op, const layer_rank* ranks, int count, int tokens) {
  shingle_matrix matrices[3 * most_ranks];
  void* streams[most_ranks];
  for (int i = 0; i < count; ++i) {
    matrices[3 * i] = view(&ranks[i], SHINGLE_A, ranks[i].a, tokens, k);
    matrices[3 * i + 1] = view(&ranks[i], SHINGLE_B, ranks[i].b, k, n);
    matrices[3 * i + 2] = view(&ranks[i], SHINGLE_OUT, ranks[i].out, tokens, n);
    streams[i] = ranks[i].stream;
  }
  const shingle_arguments arguments = {.struct_size = sizeof arguments,
                                       .matrices = matrices,
                                       .streams = streams,
                                       .matrix_count = 3 * count,
                                       .stream_count = count};
  check(shingle_context_call(context, op, tokens, &arguments));
}

int main(void) {
  shingle_world* world = NULL;
  const shingle_world_options gpus = {.struct_size = sizeof gpus, .backend = "cuda"};
  check(shingle_world_create(&gpus, &world));
  int32_t ranks, local[most_ranks], locals = most_ranks;
  check(shingle_world_size(world, &ranks));
  check(shingle_world_local_ranks(world, local, &locals));

  shingle_context* context = NULL;
  check(shingle_context_create(world, NULL, &context));
  const shingle_operator layer = {.struct_size = sizeof layer,
                                  .op = "gemm+allreduce",
                                  .m = most_tokens,
                                  .n = n,
                                  .k = k,
                                  .dtype = SHINGLE_BF16};
  int32_t op;
  check(shingle_context_declare(context, &layer, &op));

  // Alone, rank r is on device r. A launcher's process is on the device of its local rank, or on the only
  // one.
  int devices;
  check_cuda(cudaGetDeviceCount(&devices));
  const char* const local_rank = getenv("LOCAL_RANK");
  layer_rank own[most_ranks];
  for (int i = 0; i < locals; ++i) {
    own[i].rank = local[i];
    own[i].device = (local_rank != NULL ? atoi(local_rank) : local[i]) % devices;
    check_cuda(cudaSetDevice(own[i].device));
    own[i].a = on_device(local[i], most_tokens, k);
    own[i].b = on_device(local[i], k, n);
    own[i].out = on_device(local[i], most_tokens, n);
    check_cuda(cudaStreamCreateWithFlags(&own[i].stream, cudaStreamNonBlocking));
  }

  // Any number of tokens, without another declaration.
  int wrong = 0;
  const int tokens[] = {most_tokens, 1, 77};
  for (int t = 0; t < 3; ++t) {
    call(context, op, own, locals, tokens[t]);
    check(shingle_context_synchronize(context));
    for (int i = 0; i < locals; ++i) wrong += !is_right(&own[i], tokens[t], ranks);
  }

  // Two calls in a CUDA graph. Each device has its own part, and all are captured together.
  for (int i = 0; i < locals; ++i) {
    check_cuda(cudaSetDevice(own[i].device));
    check_cuda(cudaStreamBeginCapture(own[i].stream, cudaStreamCaptureModeRelaxed));
  }
  call(context, op, own, locals, 40);
  call(context, op, own, locals, most_tokens);
  for (int i = 0; i < locals; ++i) {
    cudaGraph_t graph;
    check_cuda(cudaSetDevice(own[i].device));
    check_cuda(cudaStreamEndCapture(own[i].stream, &graph));
    check_cuda(cudaGraphInstantiate(&own[i].graph, graph, 0));
    check_cuda(cudaGraphDestroy(graph));
  }
  for (int replay = 0; replay < replays; ++replay) {
    for (int i = 0; i < locals; ++i) {
      check_cuda(cudaSetDevice(own[i].device));
      check_cuda(cudaMemsetAsync(own[i].out, 0xff, sizeof(uint16_t) * most_tokens * n, own[i].stream));
      check_cuda(cudaGraphLaunch(own[i].graph, own[i].stream));
    }
    for (int i = 0; i < locals; ++i) check_cuda(cudaStreamSynchronize(own[i].stream));
    for (int i = 0; i < locals; ++i) wrong += !is_right(&own[i], most_tokens, ranks);
  }
  if (locals > 0 && local[0] == 0)
    printf("%d ranks, %s\n", ranks, wrong == 0 ? "all results exact" : "wrong results");

  // Graphs go before the context.
  for (int i = 0; i < locals; ++i) check_cuda(cudaGraphExecDestroy(own[i].graph));
  shingle_context_destroy(context);
  shingle_world_destroy(world);
  for (int i = 0; i < locals; ++i) {
    check_cuda(cudaSetDevice(own[i].device));
    check_cuda(cudaFree(own[i].a));
    check_cuda(cudaFree(own[i].b));
    check_cuda(cudaFree(own[i].out));
    check_cuda(cudaStreamDestroy(own[i].stream));
  }
  return wrong != 0;
}
