// Every operator by its definition, an element at a time: what the oracle is held to.
#pragma once

#include <cmath>
#include <map>
#include <stdexcept>
#include <vector>

#include "check/oracle.hpp"

namespace shingle {

using Memory = std::vector<std::byte>;

/// All matrices of a small problem; outputs computed by the definition of the operator, an element at a time.
class Naive {
 public:
  explicit Naive(const Inputs& inputs) : inputs_(inputs), p_(inputs.problem()) {
    for (int rank = 0; rank < p_.world; ++rank)
      for (const Role role : roles_of(p_)) {
        Memory& memory = memory_[{rank, role}];
        memory.resize(static_cast<std::size_t>(bytes_of(p_, role, rank)));
        if (!is_input(role)) continue;
        inputs.write(rank, role, memory.data());
        std::vector<double>& values = values_[{rank, role}];
        for (std::size_t i = 0; i < memory.size() / size_bytes(p_.dtype); ++i)
          values.push_back(static_cast<double>(load_element(p_.dtype, memory.data(), i)));
      }
    for (int rank = 0; rank < p_.world && p_.traits().chains(); ++rank) make_hidden(rank);
    for (int rank = 0; rank < p_.world; ++rank)
      for (std::int64_t row = 0; row < p_.out_rows(rank); ++row)
        finish(rank, row, global_row(p_.out_runs(rank), row));
  }

  float get(int rank, Role role, std::int64_t row, std::int64_t col) const {
    return load_element(p_.dtype, memory_.at({rank, role}).data(), index(rank, role, row, col));
  }
  void set(int rank, Role role, std::int64_t row, std::int64_t col, double value) {
    store_element(p_.dtype, memory_.at({rank, role}).data(), index(rank, role, row, col),
                  static_cast<float>(value));
  }
  Check check() const {
    std::vector<Output> outputs;
    for (const auto& [key, memory] : memory_)
      if (is_output(key.second)) outputs.push_back({key.first, key.second, memory.data()});
    return shingle::check(inputs_, outputs);
  }

 private:
  std::size_t index(int rank, Role role, std::int64_t row, std::int64_t col) const {
    return static_cast<std::size_t>(row * shape_of(p_, role, rank).cols + col);
  }
  static std::int64_t global_row(const std::vector<GlobalRun>& runs, std::int64_t row) {
    for (const GlobalRun& run : runs)
      if (row >= run.local_row && row < run.local_row + run.rows) return run.global_row + row - run.local_row;
    throw std::logic_error("a row that no run holds");
  }
  double input(int rank, Role role, std::int64_t row, std::int64_t col) const {
    return values_.at({rank, role})[index(rank, role, row, col)];
  }
  double dot(int a_rank, std::int64_t row, int b_rank, std::int64_t col) const {
    const std::vector<double>& a = values_.at({a_rank, Role::a});
    const std::vector<double>& b = values_.at({b_rank, Role::b});
    const std::int64_t rows = p_.a_rows(a_rank);
    double sum = 0;
    for (std::int64_t k = 0; k < p_.k; ++k)
      sum += a[static_cast<std::size_t>(p_.transpose_a ? k * rows + row : row * p_.k + k)] *
             b[static_cast<std::size_t>(p_.transpose_b ? col * p_.k + k : k * p_.b_cols() + col)];
    return sum;
  }
  /// The first of two products on a rank, m × inner, activated and rounded to the dtype as every plan does.
  void make_hidden(int rank) {
    std::vector<double>& hidden = hidden_[rank];
    for (std::int64_t row = 0; row < p_.m; ++row)
      for (std::int64_t col = 0; col < p_.inner; ++col) {
        const std::int64_t owner = row / p_.shard_rows();
        const auto x = [&](std::int64_t c) {
          return dot(static_cast<int>(owner), row - owner * p_.shard_rows(), rank, c) +
                 (p_.epilogue.bias ? input(rank, Role::bias, 0, c) : 0.0);
        };
        std::byte rounded[sizeof(float)];
        store_element(p_.dtype, rounded, 0,
                      static_cast<float>(activated(p_.epilogue.activation, x, col, p_.inner)));
        hidden.push_back(static_cast<double>(load_element(p_.dtype, rounded, 0)));
      }
  }
  double dot_hidden(int rank, std::int64_t row, std::int64_t col) const {
    const std::vector<double>& hidden = hidden_.at(rank);
    double sum = 0;
    for (std::int64_t j = 0; j < p_.inner; ++j)
      sum += hidden[static_cast<std::size_t>(row * p_.inner + j)] *
             input(rank, Role::down, p_.transpose_b ? col : j, p_.transpose_b ? j : col);
    return sum;
  }
  /// Element of the operator's global product that `rank` is to have.
  double product(int rank, std::int64_t global, std::int64_t col) const {
    if (p_.op == Op::gemm) return dot(rank, global, rank, col);
    if (p_.op == Op::gemm_allgather_gemm) return dot_hidden(rank, global, col);
    double sum = 0;
    for (int r = 0; r < p_.world; ++r) {
      if (p_.op == Op::mlp)
        sum += dot_hidden(r, global, col);
      else if (p_.traits().reduces())
        sum += dot(r, global, r, col);
      for (const GlobalRun& run : p_.traits().reduces() ? std::vector<GlobalRun>{} : p_.a_runs(r))
        if (global >= run.global_row && global < run.global_row + run.rows)
          return dot(r, run.local_row + global - run.global_row, p_.op == Op::allgather_gemm ? rank : r, col);
    }
    return sum;
  }
  static double silu(double x) { return x / (1 + std::exp(-x)); }
  /// Of a row x; swiglu has its second half `half` further on.
  static double activated(Activation activation, const auto& x, std::int64_t col, std::int64_t half) {
    switch (activation) {
      case Activation::relu:
        return x(col) > 0 ? x(col) : 0;
      case Activation::gelu:
        return x(col) * (1 + std::erf(x(col) / std::sqrt(2.0))) / 2;
      case Activation::silu:
        return silu(x(col));
      case Activation::swiglu:
        return silu(x(col)) * x(half + col);
      case Activation::none:
        break;
    }
    return x(col);
  }
  void finish(int rank, std::int64_t row, std::int64_t global) {
    const auto biased = [&](std::int64_t c) {
      return product(rank, global, c) + (p_.result_epilogue().bias ? input(rank, Role::bias, 0, c) : 0.0);
    };
    std::vector<double> x;
    double squares = 0;
    for (std::int64_t col = 0; col < p_.out_cols(); ++col) {
      x.push_back(activated(p_.result_epilogue().activation, biased, col, p_.n / 2) +
                  (p_.norm.residual ? input(rank, Role::residual, row, col) : 0.0));
      squares += x.back() * x.back();
    }
    const double factor =
        1 / std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(p_.norm.epsilon));
    for (std::int64_t col = 0; col < p_.out_cols(); ++col) {
      const double value = x[static_cast<std::size_t>(col)];
      if (p_.norm.residual) set(rank, Role::sum, row, col, value);
      set(rank, Role::out, row, col,
          p_.norm.enabled ? value * factor * input(rank, Role::norm_weight, 0, col) : value);
    }
  }

  const Inputs& inputs_;
  const Problem& p_;
  std::map<std::pair<int, Role>, Memory> memory_;
  std::map<std::pair<int, Role>, std::vector<double>> values_;  // of inputs
  std::map<int, std::vector<double>> hidden_;
};

}  // namespace shingle
