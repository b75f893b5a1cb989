#include "arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/base/error.hpp"

namespace shingle::cli {
namespace {

/// Names the unknown command; CLI11 would only report a missing subcommand.
void refuse_unknown_command(const CLI::App& app, int argc, const char* const* argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::string known;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == argv[1]) return;
    known += (known.empty() ? "" : ", ") + command->get_name();
  }
  throw InvalidArgument(fmt::format("unknown command '{}' (one of {})", argv[1], known));
}

InvalidArgument is_empty(const CLI::Option& option) {
  return InvalidArgument(
      fmt::format("{} is empty; give {} or leave it out", option.get_name(), option.get_type_name()));
}

/// Refuses "--out=" and "--out --format=json": CLI11 would take the next word for the value.
void refuse_missing_values(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* command = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--")) {
      const auto named = app.get_subcommands([&](const CLI::App* one) { return one->get_name() == word; });
      if (command == &app && !named.empty()) command = named.front();
      continue;
    }
    const std::size_t sign = word.find('=');
    const CLI::Option* const option = command->get_option_no_throw(word.substr(0, sign));
    if (option == nullptr || option->get_items_expected_min() == 0) continue;
    const bool next_is_flag = i + 1 < argc && std::string_view(argv[i + 1]).starts_with("--");
    if (sign == std::string::npos ? next_is_flag : sign + 1 == word.size()) throw is_empty(*option);
  }
}

/// Refuses empty values, for example from an unset shell variable, which CLI11 would treat as a missing flag.
void refuse_empty_values(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands())
    for (const CLI::Option* option : command->get_options()) {
      if (option->count() == 0 || option->get_items_expected_min() == 0) continue;
      if (std::ranges::any_of(option->results(), &std::string::empty)) throw is_empty(*option);
    }
}

/// Required arguments of a command, such as "compare needs A.json and B.json".
std::string usage_of_required(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    std::vector<std::string> missing, types;
    for (const CLI::Option* option : command->get_options()) {
      if (!option->get_required()) continue;
      types.push_back(option->get_type_name());
      if (option->count() == 0)
        missing.push_back(fmt::format("{} ({})", option->get_type_name(), option->get_description()));
    }
    if (!missing.empty())
      return fmt::format("{} needs {}: shingle {} {}", command->get_name(), fmt::join(missing, " and "),
                         command->get_name(), fmt::join(types, " "));
  }
  return {};
}

/// First unknown flag among the arguments that a command leaves over, such as --wings of "--wings 2". Empty
/// if there is none.
std::string unknown_flag(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands())
    for (const std::string& word : command->remaining())
      if (word.starts_with('-')) return word;
  return {};
}

InvalidArgument refused(std::string_view what) {
  return InvalidArgument(fmt::format("{} (see shingle --help)", what));
}

}  // namespace

std::optional<int> parse(CLI::App& app, int argc, const char* const* argv, const ProcessLaunch& launch) {
  refuse_unknown_command(app, argc, argv);
  refuse_missing_values(app, argc, argv);
  try {
    app.parse(argc, argv);
    refuse_empty_values(app);
    return std::nullopt;
  } catch (const CLI::RequiredError& error) {
    const std::string usage = usage_of_required(app);
    throw refused(usage.empty() ? error.what() : usage);
  } catch (const CLI::ParseError& error) {
    // CLI11 takes a misspelt flag's value for the file, which then excludes other options, or lists what is
    // left over. The flag is the error.
    const auto code = static_cast<CLI::ExitCodes>(error.get_exit_code());
    const bool left_over = code == CLI::ExitCodes::ExcludesError || code == CLI::ExitCodes::ExtrasError;
    if (const std::string unknown = left_over ? unknown_flag(app) : ""; !unknown.empty())
      throw refused(fmt::format("unknown flag {}", unknown));
    if (error.get_exit_code() != 0) throw refused(error.what());
    return launch.speaks() ? app.exit(error) : 0;
  }
}

}  // namespace shingle::cli
