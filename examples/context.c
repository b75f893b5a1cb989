// A tensor-parallel layer from C: declare gemm+allreduce once, then call it with any number of tokens. Every
// rank ends up with A0·B0 + A1·B1 + … The same program runs on threads (./context) and on processes
// (mpirun --oversubscribe -n 4 ./context). It only touches its local ranks.
#include <shingle/shingle.h>
#include <stdio.h>
#include <stdlib.h>

enum { most_tokens = 256, n = 48, k = 32, most_ranks = 64 };

static void check(shingle_status status) {
  if (status == SHINGLE_OK) return;
  fprintf(stderr, "%s: %s\n", shingle_status_name(status), shingle_last_error());
  exit(1);
}

// Elements of the ranks' matrices: integers, so that sums are exact.
static float element(int rank, int row, int col) {
  return (float)((rank + 3 * row + 5 * col) % 7 - 3);
}

static float* matrix(int rank, int rows, int cols) {
  float* elements = malloc(sizeof(float) * (size_t)rows * (size_t)cols);
  for (int i = 0; i < rows * cols; ++i) elements[i] = element(rank, i / cols, i % cols);
  return elements;
}

static shingle_matrix view(int rank, shingle_role role, float* data, int rows, int cols) {
  shingle_matrix m = {.struct_size = sizeof m, .data = data, .rows = rows, .cols = cols, .rank = rank};
  m.role = role;
  m.dtype = SHINGLE_F32;
  return m;
}

static int is_right(const float* out, int tokens, int ranks) {
  for (int i = 0; i < tokens; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int rank = 0; rank < ranks; ++rank)
        for (int l = 0; l < k; ++l) sum += element(rank, i, l) * element(rank, l, j);
      if (out[i * n + j] != sum) return 0;
    }
  return 1;
}

int main(void) {
  shingle_world* world;
  check(shingle_world_create(NULL, &world));
  int32_t ranks, local[most_ranks], locals = most_ranks;
  check(shingle_world_size(world, &ranks));
  check(shingle_world_local_ranks(world, local, &locals));

  shingle_context* context;
  check(shingle_context_create(world, NULL, &context));
  const shingle_operator layer = {
      .struct_size = sizeof layer, .op = "gemm+allreduce", .m = most_tokens, .n = n, .k = k};
  int32_t op;
  check(shingle_context_declare(context, &layer, &op));

  // The user owns the matrices. Rank r has its columns of the activations and its rows of the weight.
  float *a[most_ranks], *b[most_ranks], *out[most_ranks];
  for (int i = 0; i < locals; ++i) {
    a[i] = matrix(local[i], most_tokens, k);
    b[i] = matrix(local[i], k, n);
    out[i] = matrix(-1, most_tokens, n);
  }

  const int batches[] = {most_tokens, 1, 77};
  for (int batch = 0; batch < 3; ++batch) {
    const int tokens = batches[batch];
    shingle_matrix matrices[3 * most_ranks];
    for (int i = 0; i < locals; ++i) {
      matrices[3 * i] = view(local[i], SHINGLE_A, a[i], tokens, k);
      matrices[3 * i + 1] = view(local[i], SHINGLE_B, b[i], k, n);
      matrices[3 * i + 2] = view(local[i], SHINGLE_OUT, out[i], tokens, n);
    }
    const shingle_arguments arguments = {
        .struct_size = sizeof arguments, .matrices = matrices, .matrix_count = 3 * locals};
    check(shingle_context_call(context, op, tokens, &arguments));  // returns at once
    check(shingle_context_synchronize(context));

    const char* mechanism;
    check(shingle_context_mechanism(context, op, tokens, &mechanism));
    for (int i = 0; i < locals; ++i)
      if (!is_right(out[i], tokens, ranks)) return fprintf(stderr, "rank %d is wrong\n", (int)local[i]), 1;
    printf("%d tokens on %d ranks by %s: every element is right\n", tokens, (int)ranks, mechanism);
  }

  for (int i = 0; i < locals; ++i) free(a[i]), free(b[i]), free(out[i]);
  shingle_context_destroy(context);
  shingle_world_destroy(world);
  return 0;
}
