// Result: a value, or the reason why there is none. It reports failures that a caller expects, for example an
// infeasible plan.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "shingle/base/error.hpp"

namespace shingle {

/// Why there is no value: one line for the user.
struct Reason {
  std::string text;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Reason reason) : state_(std::move(reason)) {}

  explicit operator bool() const noexcept { return std::holds_alternative<T>(state_); }
  bool has_value() const noexcept { return static_cast<bool>(*this); }

  /// The value. Throws Unsupported with the reason if there is none.
  T& value() & {
    require();
    return std::get<T>(state_);
  }
  const T& value() const& {
    require();
    return std::get<T>(state_);
  }
  T&& value() && {
    require();
    return std::get<T>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  /// The reason. Call it only if there is no value.
  const std::string& reason() const { return std::get<Reason>(state_).text; }

 private:
  void require() const {
    if (!has_value()) throw Unsupported(reason());
  }
  std::variant<T, Reason> state_;
};

}  // namespace shingle
