#include "shingle/bench/contenders.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shingle/common/flags.hpp"

namespace shingle::cli {
namespace {

bool names_mechanism(const std::string& word) {
  const std::string head = word.substr(0, word.find(':'));
  return head == "auto" || std::ranges::any_of(planners(), [&](const PlannerEntry& entry) {
           return head == name(entry.mechanism);
         });
}

/// Splits a list at commas, but only where a mechanism's name follows.
std::vector<std::string> split_contenders(const std::string& text) {
  std::vector<std::string> parts;
  for (const std::string& word : split(text, ','))
    if (parts.empty() || names_mechanism(word)) {
      parts.push_back(word);
    } else {
      parts.back() += "," + word;
    }
  return parts;
}

/// Parses params that are written as the flags of `run`.
ParamList params_in(const std::string& label, const std::vector<std::string>& settings) {
  if (settings.empty()) return {};
  std::vector<std::string> arguments;
  for (const std::string& setting : settings) arguments.push_back("--" + setting);
  PlanFlags flags;
  try {
    flags = parse_plan_flags(std::move(arguments));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("'{}': {}", label, error.what()));
  }
  if (flags.asked) throw InvalidArgument(fmt::format("'{}' names a mechanism twice", label));
  return flags.params;
}

/// Throws if the mechanism does not take a param. `auto` gives each param to the mechanisms that take it.
void require_taken(const Contender& contender) {
  if (contender.automatic) return;
  if (const auto reason = why_refused(contender.mechanism, contender.params))
    throw InvalidArgument(fmt::format("'{}': {}", contender.label, reason->text));
}

}  // namespace

std::vector<Contender> parse_contenders(const std::string& text) {
  std::vector<Contender> contenders;
  for (const std::string& label : split_contenders(text)) {
    std::vector<std::string> parts = split(label, ':');
    Contender contender{.label = label, .automatic = parts[0] == "auto"};
    if (!contender.automatic) contender.mechanism = mechanism_named(parts[0], "or auto");
    parts.erase(parts.begin());
    contender.params = params_in(label, parts);
    require_taken(contender);
    if (std::ranges::find(contenders, contender) == contenders.end()) contenders.push_back(contender);
  }
  return contenders;
}

std::vector<Contender> with_comm_workers(const std::vector<Contender>& contenders,
                                         const std::vector<std::int32_t>& workers) {
  if (workers.empty()) return contenders;
  std::vector<Contender> all;
  for (const Contender& contender : contenders)
    for (const std::int32_t count : workers) {
      if (std::ranges::find(contender.params, "comm-workers", &Param::name) != contender.params.end())
        throw InvalidArgument(fmt::format("--comm-workers: '{}' already sets comm-workers", contender.label));
      all.push_back(contender);
      all.back().label += fmt::format(":comm-workers={}", count);
      all.back().params.push_back({"comm-workers", std::to_string(count)});
      require_taken(all.back());
    }
  return all;
}

}  // namespace shingle::cli
