#include "shingle/run/matrices.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "check/npy.hpp"
#include "shingle/common/problems.hpp"

namespace shingle::cli {
namespace {

/// Column of the whole B, which has `whole` columns, that holds column `col` of a rank's B. -1 for padding.
/// For [gate | up], each half is split.
std::int64_t whole_column(const Problem& p, int rank, std::int64_t col, std::int64_t whole) {
  if (p.op != Op::allgather_gemm) return col;
  const bool halves = p.epilogue.activation == Activation::swiglu;
  const std::int64_t own = halves ? p.n / 2 : p.n, all = halves ? whole / 2 : whole;
  const std::int64_t at = rank * own + col % own;
  return at < all ? at + col / own * all : -1;
}

class SplitInputs final : public Inputs {
 public:
  SplitInputs(const Problem& problem, NpyArray a, NpyArray b)
      : Inputs(problem), a_(std::move(a)), b_(std::move(b)) {}

 private:
  void row(int rank, Role role, std::int64_t row, std::int64_t col, std::int64_t cols,
           float* out) const override {
    const bool turned = role == Role::a ? problem().transpose_a : problem().transpose_b;
    for (std::int64_t i = 0; i < cols; ++i) {
      const std::int64_t r = turned ? col + i : row, c = turned ? row : col + i;
      out[i] = role == Role::a ? a(rank, r, c) : b(rank, r, c);
    }
  }
  float a(int rank, std::int64_t row, std::int64_t k) const {
    const Problem& p = problem();
    if (p.traits().reduces()) k += rank * p.k;
    if (p.op == Op::allgather_gemm) row += smaller(rank * p.shard_rows(), p.m);
    if (p.traits().routes()) row += p.routing->global_base(rank);
    return element(a_, p.transpose_a, row, k);
  }
  float b(int rank, std::int64_t k, std::int64_t col) const {
    const Problem& p = problem();
    if (p.traits().reduces()) k += rank * p.k;
    return element(b_, p.transpose_b, k, whole_column(p, rank, col, p.transpose_b ? b_.rows : b_.cols));
  }
  /// Element of op(matrix); zero beyond it.
  static float element(const NpyArray& matrix, bool transposed, std::int64_t row, std::int64_t col) {
    if (transposed) std::swap(row, col);
    if (row < 0 || col < 0 || row >= matrix.rows || col >= matrix.cols) return 0;
    return load_element(matrix.dtype, matrix.data.data(), static_cast<std::size_t>(row * matrix.cols + col));
  }

  NpyArray a_, b_;
};

/// Refuses NaN and infinity: their effect on a sum cannot be distinguished from a wrong result.
template <class Holder>
void require_finite(const std::string& file, const char* matrix, const NpyArray& array, Holder holder) {
  std::int64_t first = -1, count = 0;
  for (std::int64_t i = 0; i < array.rows * array.cols; ++i) {
    if (std::isfinite(load_element(array.dtype, array.data.data(), static_cast<std::size_t>(i)))) continue;
    if (count++ == 0) first = i;
  }
  if (count == 0) return;
  const std::int64_t row = first / array.cols, col = first % array.cols;
  const float value = load_element(array.dtype, array.data.data(), static_cast<std::size_t>(first));
  throw InvalidArgument(fmt::format(
      "{}: row {}, column {} of {} is {} (of {}){}; results can be checked for finite matrices only", file,
      row, col, matrix, value, holder(row, col),
      count > 1 ? fmt::format(", and {} more elements are not finite", count - 1) : ""));
}

std::string shape_text(const NpyHeader& header) {
  return fmt::format("{}x{} {}", header.rows, header.cols, name(header.dtype));
}

void refuse_what_has_no_matrix(const ProblemFlags& flags) {
  if (!flags.model.empty() || !flags.op) throw InvalidArgument("--a and --b need --op");
  Problem asked;
  asked.op = *flags.op;
  if (asked.traits().attends || asked.traits().grouped || !asked.traits().multiplies())
    throw InvalidArgument(fmt::format("--a and --b need an operator with one GEMM, not {}", name(asked.op)));
  if (asked.traits().chains())
    throw InvalidArgument(
        fmt::format("--a and --b need an operator with one weight; {} has two", name(asked.op)));
  if (flags.m || flags.n || flags.k || flags.inner)
    throw InvalidArgument("--a and --b have their own sizes: leave out --m, --n and --k");
  if (flags.epilogue.bias || flags.norm || flags.residual)
    throw InvalidArgument("--a and --b allow an activation only: leave out bias, norm and residual");
  if (flags.row_order != RowOrder::contiguous)
    throw InvalidArgument("with --a and --b, rows are contiguous: leave out --row-order");
}

}  // namespace

UserMatrices::UserMatrices(const MatrixFlags& files, const ProblemFlags& flags, int world) : files_(files) {
  if (files.a.empty() || files.b.empty())
    throw InvalidArgument("--a, --b and --out go together: two matrices in, one out");
  refuse_what_has_no_matrix(flags);
  const NpyHeader a = read_npy_header(files.a), b = read_npy_header(files.b);
  m_ = flags.transpose_a ? a.cols : a.rows;
  k_ = flags.transpose_a ? a.rows : a.cols;
  n_ = flags.transpose_b ? b.rows : b.cols;
  const std::int64_t b_k = flags.transpose_b ? b.cols : b.rows;
  if (a.dtype != b.dtype)
    throw InvalidArgument(fmt::format("{} holds {}, but {} holds {}: both need one element type", files.a,
                                      name(a.dtype), files.b, name(b.dtype)));
  if (k_ != b_k)
    throw InvalidArgument(
        fmt::format("{} ({}) and {} ({}) cannot be multiplied: op(A) is {}x{}, op(B) is {}x{}", files.a,
                    shape_text(a), files.b, shape_text(b), m_, k_, b_k, n_));
  if (m_ == 0 || n_ == 0 || k_ == 0)
    throw InvalidArgument(fmt::format("{} or {} is empty", files.a, files.b));
  if (flags.dtype && *flags.dtype != a.dtype)
    throw InvalidArgument(
        fmt::format("--dtype is {}, but {} holds {}", name(*flags.dtype), files.a, name(a.dtype)));
  problem_.op = *flags.op;
  problem_.world = world;
  problem_.dtype = a.dtype;
  apply_flags(flags, problem_);
  const bool halves = problem_.epilogue.activation == Activation::swiglu;
  if (halves && n_ % 2 != 0)
    throw InvalidArgument(fmt::format("swiglu takes [gate | up]: N = {} must be even", n_));
  problem_.m = m_;
  problem_.n = n_;
  problem_.k = problem_.traits().reduces() ? ceil_div(k_, world) : k_;
  if (problem_.op == Op::allgather_gemm)
    problem_.n = halves ? 2 * ceil_div(n_ / 2, world) : ceil_div(n_, world);
  if (problem_.traits().routes()) {
    std::vector<std::int64_t> rows;
    const std::int64_t part = ceil_div(m_, world);
    for (int rank = 0; rank < world; ++rank) rows.push_back(smaller(part, m_ - smaller(rank * part, m_)));
    problem_.routing = make_routing(flags, problem_, rows);
    problem_.m = 0;
    for (int rank = 0; rank < problem_.routing->world(); ++rank)
      problem_.m = larger(problem_.m, problem_.routing->rows(rank));
    if (problem_.routing->global_base(problem_.routing->world()) != m_)
      throw InvalidArgument(fmt::format("the routing has {} rows, {} has {}",
                                        problem_.routing->global_base(problem_.routing->world()), files.a,
                                        m_));
  }
  problem_.validate();
}

double UserMatrices::bytes() const {
  const auto m = static_cast<double>(m_), n = static_cast<double>(n_), k = static_cast<double>(k_);
  return (m * k + k * n + m * n) * static_cast<double>(size_bytes(problem_.dtype));
}

std::unique_ptr<Inputs> UserMatrices::load() const {
  NpyArray a = read_npy(files_.a), b = read_npy(files_.b);
  require_finite(files_.a, "A", a, [&](std::int64_t row, std::int64_t col) {
    return holder(Role::a, problem_.transpose_a ? col : row, problem_.transpose_a ? row : col);
  });
  require_finite(files_.b, "B", b, [&](std::int64_t row, std::int64_t col) {
    return holder(Role::b, problem_.transpose_b ? col : row, problem_.transpose_b ? row : col);
  });
  return std::make_unique<SplitInputs>(problem_, std::move(a), std::move(b));
}

/// Returns, for example, "rank 2" for a position in op(A) or op(B), or "all ranks" if each has a copy.
std::string UserMatrices::holder(Role role, std::int64_t row, std::int64_t col) const {
  const Problem& p = problem_;
  const std::int64_t k = role == Role::a ? col : row;
  std::int64_t rank = -1;
  if (p.traits().reduces()) {
    rank = k / p.k;
  } else if (p.op == Op::allgather_gemm) {
    const std::int64_t half = n_ / 2, own = p.n / 2;
    const bool halves = p.epilogue.activation == Activation::swiglu;
    rank = role == Role::a ? row / p.shard_rows() : halves ? col % half / own : col / p.n;
  } else if (p.traits().routes() && role == Role::a) {
    for (rank = 0; p.routing->global_base(static_cast<int>(rank) + 1) <= row;) ++rank;
  }
  return rank < 0 ? "all ranks" : fmt::format("rank {}", rank);
}

void UserMatrices::save(World& world, const std::vector<Output>& outputs, bool writes) const {
  if (files_.out.empty()) return;
  const Problem& p = problem_;
  const bool halves = p.epilogue.activation == Activation::swiglu;
  const std::int64_t cols = halves ? n_ / 2 : n_;
  NpyArray whole{p.dtype, m_, cols,
                 std::vector<std::byte>(static_cast<std::size_t>(m_ * cols) * size_bytes(p.dtype))};
  struct Holder {
    const Output* output;
    std::int64_t row;
  };
  std::vector<std::vector<Holder>> holders(static_cast<std::size_t>(m_));
  for (const Output& output : outputs)
    for (const GlobalRun& run : p.out_runs(output.rank))
      for (std::int64_t i = 0; i < run.rows; ++i)
        holders[static_cast<std::size_t>(run.global_row + i)].push_back({&output, run.local_row + i});
  // Every element is known to some process; others give -infinity, so the max. over processes is the element.
  for (std::int64_t row = 0; row < m_; ++row) {
    std::vector<double> values(static_cast<std::size_t>(cols), -std::numeric_limits<double>::infinity());
    for (const Holder& holder : holders[static_cast<std::size_t>(row)]) {
      const std::int64_t first = p.op == Op::allgather_gemm ? holder.output->rank * p.out_cols() : 0;
      for (std::int64_t col = 0; col < smaller(p.out_cols(), cols - first); ++col)
        values[static_cast<std::size_t>(first + col)] = static_cast<double>(load_element(
            p.dtype, holder.output->memory, static_cast<std::size_t>(holder.row * p.out_cols() + col)));
    }
    values = world.all_max(std::move(values));
    for (std::int64_t col = 0; col < cols; ++col)
      store_element(p.dtype, whole.data.data(), static_cast<std::size_t>(row * cols + col),
                    static_cast<float>(values[static_cast<std::size_t>(col)]));
  }
  if (writes) write_npy(files_.out, whole);
}

}  // namespace shingle::cli
