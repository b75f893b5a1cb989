// Shingle's C interface: contexts whose operators are called with any m and any matrices. libshingle.so
// exports these functions and nothing else. docs/reference/c-api.md is the guide, examples/context.c a whole
// program.
//
// Structs. Every struct begins with `struct_size`, which the caller sets to sizeof the struct. Zero is the
// default of every other field:
//
//     shingle_world_options options = {.struct_size = sizeof options, .ranks = 4};
//
// Later versions add fields at the end only. A library that is newer than its caller gives the added fields
// their defaults. A library that is older accepts a larger struct if the fields that it does not know are 0.
//
// Errors. Every function that can fail returns a shingle_status. If it is not SHINGLE_OK, the outputs are
// unchanged and shingle_last_error() has one line that names what is wrong, what is accepted and the remedy.
// A null handle or output is SHINGLE_INVALID_ARGUMENT. No C++ exception leaves the library.
//
// Threads. One thread at a time may use a world and its contexts, not always the same one.
// shingle_last_error() is of the calling thread. Any thread may call shingle_set_log().
//
// Sizes are in elements unless the name says bytes; names also say microseconds (us). Matrices are row-major.
#ifndef SHINGLE_SHINGLE_H
#define SHINGLE_SHINGLE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SHINGLE_API __attribute__((visibility("default")))
#else
#define SHINGLE_API
#endif

#ifdef __cplusplus
#define SHINGLE_NOEXCEPT noexcept
extern "C" {
#else
#define SHINGLE_NOEXCEPT
#endif

// ---- Errors

typedef enum shingle_status {
  SHINGLE_OK = 0,
  SHINGLE_INVALID_ARGUMENT = 1,  ///< a value from the caller is wrong
  SHINGLE_UNSUPPORTED = 2,       ///< this build or this machine cannot serve the request
  SHINGLE_TIMEOUT = 3,        ///< a wait passed its deadline or another rank failed; the world is then broken
  SHINGLE_IO_ERROR = 4,       ///< a file cannot be read or written
  SHINGLE_CUDA_ERROR = 5,     ///< a call of the CUDA runtime failed
  SHINGLE_NCCL_ERROR = 6,     ///< a call of NCCL failed
  SHINGLE_MPI_ERROR = 7,      ///< a call of MPI failed
  SHINGLE_OUT_OF_MEMORY = 8,  ///< host memory is exhausted
  SHINGLE_INTERNAL_ERROR = 9,  ///< a defect of Shingle: please report the text
} shingle_status;

/// "invalid argument", …; "unknown status" for other numbers.
SHINGLE_API const char* shingle_status_name(int32_t status) SHINGLE_NOEXCEPT;
/// One line about the most recent call of this thread that failed; "" if none has. It stays valid until the
/// next call of this thread that fails.
SHINGLE_API const char* shingle_last_error(void) SHINGLE_NOEXCEPT;

// ---- Version and log

/// Version of the loaded library: "0.1.0".
SHINGLE_API const char* shingle_version(void) SHINGLE_NOEXCEPT;
/// The git commit that the library was built from; "unknown" outside a git checkout.
SHINGLE_API const char* shingle_commit(void) SHINGLE_NOEXCEPT;

/// What this machine and this build support, as lines of text: processor, GPUs, CUDA, NCCL, backends and
/// mechanisms. It stays valid until the next shingle_info() of the thread.
SHINGLE_API shingle_status shingle_info(const char** text) SHINGLE_NOEXCEPT;

typedef enum shingle_log_level {
  SHINGLE_LOG_DEBUG = 0,    ///< which plan serves a call
  SHINGLE_LOG_INFO = 1,     ///< declared operators
  SHINGLE_LOG_WARNING = 2,  ///< the result is right, but slower than it could be
} shingle_log_level;

/// `text` is one line without a line break, valid during the call. Any thread may call it, one at a time. It
/// must not call Shingle.
typedef void (*shingle_log_function)(void* user, int32_t level, const char* text);
/// Sends all log lines to `log`. NULL: warnings go to stderr, all others nowhere, as at first. When it
/// returns, the previous function is not called any more.
SHINGLE_API void shingle_set_log(shingle_log_function log, void* user) SHINGLE_NOEXCEPT;

// ---- Worlds

/// The ranks that work together: threads, GPUs or processes.
typedef struct shingle_world shingle_world;

typedef struct shingle_world_options {
  size_t struct_size;
  const char*
      backend;  ///< "host", "cuda" or "mpi"; NULL: "mpi" in a process that mpirun started, else "host"
  /// Host backends: link that each rank emulates, such as "1GB/s,10us". NULL: as fast as memory.
  const char* link;
  double timeout_us;         ///< deadline of waits outside calls; 0: 30 s
  int32_t ranks;             ///< 0: the backend's default (host: 4, cuda: all GPUs, mpi: all processes)
  int32_t workers_per_rank;  ///< host backends: threads that compute; 0: the cores, shared among the ranks

  // cuda: a group of processes, each with one rank. Without a group or communicators, the ranks are those of
  // a launcher's variables, or GPUs of this process.
  /// Gathers `bytes` bytes of each rank of the group into `all`, in order of rank, over the program's store
  /// or process group. Returns 0, or another number if a rank is missing. Called only in
  /// shingle_world_create().
  int (*allgather)(void* user, const void* own, void* all, size_t bytes);
  void* user;  ///< passed to allgather
  /// Instead of allgather: an ncclComm_t for each rank of this process, all of one clique. The caller keeps
  /// them, and they must outlive the world.
  void* const* communicators;
  int32_t communicator_count;
  int32_t rank;      ///< with allgather: rank of this process in the group, whose size is `ranks`
  int32_t device;    ///< with allgather: device of this process
  int32_t reserved;  ///< 0
} shingle_world_options;

/// Makes a world. Collective if its ranks are processes. `options` NULL: all defaults.
///
/// SHINGLE_INVALID_ARGUMENT: an unknown backend, a wrong number of ranks. SHINGLE_UNSUPPORTED: this build or
/// this machine lacks the backend.
SHINGLE_API shingle_status shingle_world_create(const shingle_world_options* options,
                                                shingle_world** world) SHINGLE_NOEXCEPT;
/// Releases the handle; NULL does nothing. Contexts of the world keep it alive.
SHINGLE_API void shingle_world_destroy(shingle_world* world) SHINGLE_NOEXCEPT;
/// Number of ranks, on all processes.
SHINGLE_API shingle_status shingle_world_size(const shingle_world* world, int32_t* size) SHINGLE_NOEXCEPT;
/// The ranks of this process, in ascending order. `count` holds the capacity of `ranks` before the call and
/// the number of local ranks after it. `ranks` NULL: only counts.
SHINGLE_API shingle_status shingle_world_local_ranks(const shingle_world* world, int32_t* ranks,
                                                     int32_t* count) SHINGLE_NOEXCEPT;

// ---- Contexts

/// Operators that ranks call with any m up to a maximum, on one staging memory (the arena).
typedef struct shingle_context shingle_context;

typedef struct shingle_context_options {
  size_t struct_size;
  /// Mechanism and params of all operators: "fused", "chunked chunks=4", …, with the params of `shingle run`.
  /// A call that the mechanism does not serve runs as "sequential". NULL: the fastest predicted one, or the
  /// finest if the machine has no figures.
  const char* mechanism;
  /// Least size of the arena of each rank, the same on all; it grows as operators are declared.
  int64_t arena_bytes;
  int64_t most_plans;  ///< plans that are kept ready; 0: 64
  double timeout_us;   ///< deadline of every single wait of a call; 0: 30 s
  int32_t verify;      ///< 1: prove each plan when it is made
  /// SMs (host: threads) that kernels of the context may hold while they wait for other ranks; 0: all.
  /// Contexts of a device whose calls overlap in time must share its SMs.
  int32_t workers;
  /// Size of the registered memory of each rank, the same on all; 0: none, and each rank's matrices are
  /// accessed by that rank only. Otherwise peers access matrices of calls directly, which saves a copy. All
  /// matrices of calls must then come from shingle_context_allocate(), at the same offset on all ranks.
  int64_t registered_bytes;
} shingle_context_options;

/// Makes a context. Collective if the ranks are processes. `options` NULL: all defaults.
SHINGLE_API shingle_status shingle_context_create(shingle_world* world,
                                                  const shingle_context_options* options,
                                                  shingle_context** context) SHINGLE_NOEXCEPT;
/// Waits until all calls are done, then releases the handle. NULL does nothing.
SHINGLE_API void shingle_context_destroy(shingle_context* context) SHINGLE_NOEXCEPT;

// ---- Operators

typedef enum shingle_dtype {
  SHINGLE_F32 = 0,
  SHINGLE_BF16 = 1,
  SHINGLE_F16 = 2,
  SHINGLE_I32 = 3,  ///< of indices and counts; no operator is of this type
} shingle_dtype;

typedef enum shingle_row_order {
  /// Rank r holds rows [r · ceil(m / ranks), …).
  SHINGLE_ROWS_CONTIGUOUS = 0,
  /// Ranks hold blocks of `row_block` rows in turn. Of gemm+reducescatter and allgather+gemm.
  SHINGLE_ROWS_BLOCK_CYCLIC = 1,
  /// Rows are cut into C = 2 · ranks chunks of ceil(m / C). Rank r holds chunks r and C - 1 - r, in this
  /// order. Of allgather+attention and attention-backward.
  SHINGLE_ROWS_ZIGZAG = 2,
} shingle_row_order;

/// An operator with its largest m. Sizes are those of one rank's GEMM: C[m×n] = op(A)[m×k] · op(B)[k×n].
typedef struct shingle_operator {
  size_t struct_size;
  /// "gemm", "gemm+allreduce", "gemm+reducescatter", "allgather+gemm", "gemm+alltoall", "alltoall+gemm",
  /// "mlp", "gemm+allgather+gemm", "attention+reducescatter", "ulysses-attention", "allgather+attention",
  /// "attention-backward", "alltoall+grouped-gemm", "grouped-gemm+alltoall", "moe",
  /// "allgather+grouped-gemm", "grouped-gemm+reducescatter", "moe-tp", "grouped-gemm+allreduce",
  /// "moe+allreduce", "allgather", "reducescatter", "allreduce" or "alltoall".
  const char* op;
  int64_t m;      ///< the largest m of a call; all-to-alls: rows of the rank that sends most; experts:
                  ///< tokens of the rank that has most
  int64_t n;      ///< columns of op(B)
  int64_t k;      ///< columns of op(A); collectives alone move rows of k = n elements
  int64_t inner;  ///< mlp, gemm+allgather+gemm: columns of the activated first product on a rank
  const char* activation;  ///< "relu", "gelu", "silu", "swiglu"; NULL: none
  double norm_epsilon;     ///< of the RMSNorm; 0: 1e-5
  int64_t row_block;       ///< SHINGLE_ROWS_BLOCK_CYCLIC: rows of a block
  int64_t heads;           ///< attention: query heads of all ranks
  int64_t kv_heads;        ///< attention: heads of K and V of all ranks
  int64_t head_dim;        ///< attention: columns of a head
  int32_t dtype;           ///< shingle_dtype of all matrices; products accumulate in fp32
  int32_t transpose_a;     ///< 1: A is stored k×m
  int32_t transpose_b;     ///< 1: B is stored n×k, as in Linear layers
  int32_t bias;            ///< 1: a row of n elements is added before the activation
  int32_t norm;            ///< 1: RMSNorm of the rows of the result
  int32_t residual;        ///< 1, with norm: a residual is added before the norm; the sum is an output too
  int32_t causal;          ///< 1, attention: a token sees only itself and earlier tokens
  int32_t row_order;       ///< shingle_row_order of sharded rows
  /// Mechanism and params of this operator, as in shingle_context_options; NULL: those of the context. The
  /// same operator may be declared with several, to measure which is fastest.
  const char* mechanism;
  /// Grouped products, moe and moe-tp: experts of all ranks. Rank r has the r-th part of them. With
  /// tensor-parallel experts (allgather+grouped-gemm, grouped-gemm+reducescatter, moe-tp,
  /// grouped-gemm+allreduce, moe+allreduce) it has a slice of each: some columns of a weight whose tokens are
  /// gathered, some rows of a weight whose products are summed over ranks. n, k and inner are those of the
  /// slice. In the last two all ranks have the same m tokens: these, SHINGLE_TOPK_IDS and
  /// SHINGLE_TOPK_WEIGHTS must be equal on all ranks, and so is the sum.
  int32_t experts;
  int32_t topk;         ///< the same: experts of a token
  int32_t returns_lse;  ///< 1, allgather+attention: SHINGLE_OUT_LSE is an output too
  /// Operators of experts: not 0 if the device routes by SHINGLE_TOPK_IDS, so that a call has no routing. An
  /// expert then takes at most so many rows of the tokens of one rank; calls with a smaller m need at most m
  /// · topk.
  int32_t capacity;
  double scale;    ///< reducescatter and allreduce: factor of the sum, such as 1 / ranks; 0: 1
  int64_t m_step;  ///< every m of a call is a multiple of it; 0: 1. A multiple of the ranks saves staging
                   ///< memory of collectives, as no shard is short
  /// 1, reducescatter and allreduce: SHINGLE_OUT is SHINGLE_F32, whatever dtype is. The ranks' values travel
  /// in dtype, and their sum in fp32 is not rounded.
  int32_t f32_sums;
  /// SMs that calls of this operator may hold while they wait for other ranks, at most those of the context;
  /// 0: as many. Lower it if this operator's calls overlap another context's, and those of others do not.
  int32_t workers;
} shingle_operator;

/// Declares an operator and returns its number: 0, 1, … Collective: all ranks declare the same operators in
/// the same order. Enlarges the arena if needed, and then waits until earlier calls are done.
///
/// SHINGLE_INVALID_ARGUMENT: a wrong field, or other processes declare another operator. SHINGLE_UNSUPPORTED:
/// no mechanism serves the operator.
SHINGLE_API shingle_status shingle_context_declare(shingle_context* context, const shingle_operator* largest,
                                                   int32_t* op) SHINGLE_NOEXCEPT;

// ---- Calls

/// Meaning of a matrix, with its shape as stored. `rows_a` and `rows_out` are the rows of A and of the output
/// on the rank: m, or the rank's shard of m, or the rows that the routing sends or brings. With a capacity, a
/// rank's matrices of tokens have as many rows as it has tokens, at most m; rows by expert are ranks ·
/// capacity for each of the rank's experts.
typedef enum shingle_role {
  SHINGLE_A = 0,  ///< rows_a×k, or k×rows_a with transpose_a; attention: the queries
  SHINGLE_B = 1,  ///< k×n, or n×k with transpose_b; with SHINGLE_DOWN: n is inner, or 2 · inner for swiglu
  SHINGLE_BIAS = 2,         ///< 1 × the columns of op(B)
  SHINGLE_RESIDUAL = 3,     ///< as SHINGLE_OUT
  SHINGLE_NORM_WEIGHT = 4,  ///< 1 × the columns of SHINGLE_OUT
  SHINGLE_KEYS = 5,         ///< attention+reducescatter: m rows, kv_heads / ranks · head_dim columns;
                            ///< ulysses-attention and allgather+attention: rows_a rows, kv_heads · head_dim
                            ///< columns
  SHINGLE_VALUES = 6,       ///< as SHINGLE_KEYS
  SHINGLE_DOWN = 7,         ///< mlp, gemm+allgather+gemm: inner×n, or n×inner with transpose_b
  SHINGLE_OUT = 8,          ///< rows_out×n, or rows_out×n/2 if swiglu is applied to the result
  SHINGLE_SUM = 9,          ///< as SHINGLE_OUT: the result plus residual, before the norm
  SHINGLE_GRAD = 10,        ///< attention-backward: as SHINGLE_A, the gradient of the attention's result
  SHINGLE_ATTENDED = 11,    ///< attention-backward: as SHINGLE_A, the attention's result
  SHINGLE_LSE = 12,  ///< attention-backward: rows_a×heads of SHINGLE_F32, its log-sum-exp of scaled scores
  SHINGLE_KEYS_GRAD = 13,    ///< attention-backward: as SHINGLE_KEYS; SHINGLE_OUT is the gradient of A
  SHINGLE_VALUES_GRAD = 14,  ///< attention-backward: as SHINGLE_KEYS
  /// Products of experts that are summed: tokens×topk of SHINGLE_F32, of the rank's own tokens. With experts,
  /// SHINGLE_B and SHINGLE_DOWN stack the weights of the rank's experts, one below the other.
  SHINGLE_TOPK_WEIGHTS = 15,
  /// allgather+attention with returns_lse: rows_out×heads of SHINGLE_F32, the log-sum-exp of the scaled
  /// scores. attention-backward takes it as SHINGLE_LSE.
  SHINGLE_OUT_LSE = 16,
  /// Experts with a capacity: tokens×topk of SHINGLE_I32, the expert of each choice; -1: none.
  SHINGLE_TOPK_IDS = 17,
  /// Experts with a capacity: 1×2 of SHINGLE_I32, an output. How many choices of the rank's tokens found no
  /// room with their expert, and how many ids are neither an expert nor -1. Both add nothing to a result.
  SHINGLE_DROPPED = 18,
  /// alltoall+grouped-gemm and allgather+grouped-gemm with a capacity: ranks × the experts of which the rank
  /// has weights of SHINGLE_I32, an output. How many rows of SHINGLE_OUT each expert has from each rank.
  /// Those of expert e from rank s begin at row (e · ranks + s) · capacity; the rows behind them are not
  /// written.
  SHINGLE_COUNTS = 19,
} shingle_role;

/// A matrix of a rank, in memory that the rank's device can access. Inputs are only read.
typedef struct shingle_matrix {
  size_t struct_size;
  void* data;
  int64_t rows;
  int64_t cols;
  int64_t row_stride;  ///< elements from a row to the next; 0: densely packed
  int32_t rank;
  int32_t role;      ///< shingle_role
  int32_t dtype;     ///< shingle_dtype
  int32_t reserved;  ///< 0
} shingle_matrix;

/// Destinations of the rows of an all-to-all, or of tokens. Where all ranks have the same tokens
/// (grouped-gemm+allreduce, moe+allreduce), entry 0 of both arrays is that of all ranks, and the only one.
typedef struct shingle_routing {
  size_t struct_size;
  const int64_t* rows;  ///< [rank] number of rows that the rank sends
  const int32_t* const*
      destinations;  ///< [rank][row] rank that the row goes to; all ranks, not only local ones
  /// Not 0: destinations are experts, of this number. Row j · t + i of a rank with t tokens is choice j of
  /// its token i.
  int32_t experts;
  int32_t reserved;  ///< 0
} shingle_routing;

/// What a call works on.
typedef struct shingle_arguments {
  size_t struct_size;
  /// Each matrix of each local rank once, in any order. They must stay valid until the call is done.
  const shingle_matrix* matrices;
  /// A stream for each local rank, in ascending order of ranks (CUDA: cudaStream_t; host: ignored). NULL: the
  /// context's own streams.
  void* const* streams;
  /// Of operators with an all-to-all or experts, unless they have a capacity; NULL for all others.
  const shingle_routing* routing;
  int32_t matrix_count;
  int32_t stream_count;  ///< the number of local ranks, or 0
  /// Attention: tokens of each of the sequences that are packed along the rows, m in all, equal on all ranks.
  /// They may change from call to call; each new list makes a plan. NULL: one sequence of m tokens.
  const int64_t* lengths;
  int64_t length_count;  ///< number of sequences
} shingle_arguments;

/// Enqueues one call of an operator and returns at once. It never communicates: ranks may be any number of
/// calls apart. All ranks make the same calls in the same order. `m` is at most the declared one; with a
/// routing it is 0, or the rows of the rank that sends most. With a capacity no rank has more than m tokens.
///
/// SHINGLE_INVALID_ARGUMENT: m is out of range, a matrix is missing, or its shape, type or row stride is
/// wrong; the call is then not made. SHINGLE_TIMEOUT: an earlier call has failed.
SHINGLE_API shingle_status shingle_context_call(shingle_context* context, int32_t op, int64_t m,
                                                const shingle_arguments* arguments) SHINGLE_NOEXCEPT;
/// The rows that the last call gathered, on a local rank: m x k, dense, in their order. They lie in staging
/// memory, complete when the call is, until the next call of this context begins. NULL if that call was not
/// an allgather+gemm for which shingle_context_gathers_in_order() gives 1.
SHINGLE_API shingle_status shingle_context_gathered(const shingle_context* context, int32_t rank,
                                                    const void** rows) SHINGLE_NOEXCEPT;
/// 1 if calls of the operator with this m leave such rows, else 0. Makes the plan if it is not ready.
SHINGLE_API shingle_status shingle_context_gathers_in_order(shingle_context* context, int32_t op, int64_t m,
                                                            int32_t* in_order) SHINGLE_NOEXCEPT;
/// Makes the next call wait for the work that is on the streams so far, such as reads of these rows.
/// `streams`: one for each local rank; without any, nothing changes.
SHINGLE_API shingle_status shingle_context_extend(shingle_context* context, void* const* streams,
                                                  int32_t stream_count) SHINGLE_NOEXCEPT;
/// Waits until all calls are done. SHINGLE_TIMEOUT: one has failed; the text has the diagnosis.
SHINGLE_API shingle_status shingle_context_synchronize(shingle_context* context) SHINGLE_NOEXCEPT;

// ---- Registered memory

/// Takes `bytes` bytes of a local rank's registered memory, aligned to 512 bytes. Local. Ranks that allocate
/// and release the same sizes in the same order get the same offsets, which a call compares. Any thread may
/// call it. The memory ends with the context. SHINGLE_UNSUPPORTED: no free block is as large.
SHINGLE_API shingle_status shingle_context_allocate(shingle_context* context, int32_t rank, int64_t bytes,
                                                    void** memory) SHINGLE_NOEXCEPT;
/// Gives it back. All calls that use it must be done.
SHINGLE_API shingle_status shingle_context_release(shingle_context* context, void* memory) SHINGLE_NOEXCEPT;

/// Makes shingle_plugged_malloc() take the registered memory of this context, which must have one local rank;
/// NULL: of none, as at first. Of the process. Ends with the context.
SHINGLE_API shingle_status shingle_context_plug(shingle_context* context) SHINGLE_NOEXCEPT;
/// For frameworks that take an allocator by the names of two functions, such as PyTorch's
/// CUDAPluggableAllocator. NULL if no context is plugged or no free block is as large. `device` is not looked
/// at: the memory is on the device of the context. It stays until it is freed, also beyond the context.
SHINGLE_API void* shingle_plugged_malloc(ptrdiff_t bytes, int device, void* stream) SHINGLE_NOEXCEPT;
/// Does nothing for other memory.
SHINGLE_API void shingle_plugged_free(void* memory, ptrdiff_t bytes, int device,
                                      void* stream) SHINGLE_NOEXCEPT;

// ---- Memory and plans

/// Size of the arena of each rank, in bytes.
SHINGLE_API shingle_status shingle_context_arena_bytes(const shingle_context* context,
                                                       int64_t* bytes) SHINGLE_NOEXCEPT;
/// Arena that an operator would need on each rank, in bytes, without making a world. A context of several
/// operators needs the largest of theirs. `world` says which machine to plan for; NULL options: all defaults.
SHINGLE_API shingle_status shingle_arena_bytes_needed(const shingle_world_options* world,
                                                      const shingle_context_options* context,
                                                      const shingle_operator* largest,
                                                      int64_t* bytes) SHINGLE_NOEXCEPT;
/// The plan that serves calls of an operator with this m, as JSON on one line. Makes the plan if it is not
/// ready, so that the first call finds it. Not for operators whose calls have a routing, on which their plans
/// depend. The text stays valid until the next shingle_context_plan_json() of this context.
SHINGLE_API shingle_status shingle_context_plan_json(shingle_context* context, int32_t op, int64_t m,
                                                     const char** json) SHINGLE_NOEXCEPT;
/// Name of the mechanism of that plan: "sequential", "fused", … It stays valid as long as the library.
SHINGLE_API shingle_status shingle_context_mechanism(shingle_context* context, int32_t op, int64_t m,
                                                     const char** mechanism) SHINGLE_NOEXCEPT;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHINGLE_SHINGLE_H
