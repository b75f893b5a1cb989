#include "processes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"
#include "star.hpp"

namespace shingle {
namespace {

class Alone final : public Processes {
 public:
  void tell(std::string_view) noexcept override {}
  void watch() override {}
  void peek() override {}

 private:
  std::vector<std::string> gather(std::string_view own, double, std::size_t) override {
    return {std::string(own)};
  }
};

}  // namespace

std::string who_are_silent(const std::vector<int>& ranks) {
  if (ranks.empty()) return {};
  const bool one = ranks.size() == 1;
  return fmt::format("; rank{} {} do{} not answer", one ? "" : "s", fmt::join(ranks, ", "), one ? "es" : "");
}

std::vector<std::string> Processes::all_gather(std::string_view own, double timeout_us,
                                               std::size_t most_bytes) {
  if (own.size() > most_bytes)
    throw InvalidArgument(fmt::format("a process sends {} to the others; at most {} are expected",
                                      format_bytes(static_cast<double>(own.size())),
                                      format_bytes(static_cast<double>(most_bytes))));
  return gather(own, timeout_us, most_bytes);
}

std::vector<double> Processes::all_max(std::vector<double> values, double timeout_us) {
  const std::string_view own(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  const std::vector<std::string> all = all_gather(own, timeout_us);
  for (const std::string& one : all) {
    if (one.size() != own.size())
      throw Error("the processes are at different steps: they compare different numbers of values");
    for (std::size_t i = 0; i < values.size(); ++i) {
      double other = 0;
      std::memcpy(&other, one.data() + i * sizeof other, sizeof other);
      values[i] = std::max(values[i], other);
    }
  }
  return values;
}

std::unique_ptr<Processes> alone() {
  return std::make_unique<Alone>();
}

std::unique_ptr<Processes> connect(const Launched& launched, double timeout_us, const net::Token& token) {
  if (!launched.several()) return alone();
  return std::make_unique<Star>(launched, timeout_us, token);
}

std::unique_ptr<Processes> connect(const Launched& launched, double timeout_us) {
  return connect(launched, timeout_us, launched.several() ? net::job_token() : net::Token{});
}

}  // namespace shingle
