// Strict reading of plans as JSON. Each value is checked here by itself; malformed() checks them together.
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "base/json_fields.hpp"
#include "fields.hpp"
#include "shingle/plan/json.hpp"

namespace shingle {
namespace {

using Json = nlohmann::json;

/// Far above any size, and a sum of two still fits 64 bits.
constexpr std::int64_t max_integer = std::int64_t{1} << 60;
constexpr std::int64_t max_memory_bytes = std::int64_t{160} << 20;  // holds five million numbers

/// Outside text, made safe to print on one line.
std::string in_quotes(const std::string& text) {
  constexpr std::size_t most = 40;
  const std::string shown = text.size() <= most ? text : text.substr(0, most) + "...";
  return Json(shown).dump(-1, ' ', true, Json::error_handler_t::replace);
}

/// The form of a value in errors.
std::string shown(const Json& json) {
  if (json.is_structured()) return json.is_array() ? "an array" : "an object";
  return json.is_string() ? in_quotes(json.get_ref<const std::string&>()) : json.dump();
}

/// Path of a value in the text. The string is made only for an error.
struct Path {
  const Path* parent = nullptr;
  std::string_view key;
  std::size_t index = 0;  // used if `key` is empty

  std::string text() const {
    if (!parent) return "";
    const std::string before = parent->text();
    if (key.empty()) return fmt::format("{}[{}]", before, index);
    return before.empty() ? std::string(key) : fmt::format("{}.{}", before, key);
  }
};

[[noreturn]] void fail_at(const Path& path, const std::string& message) {
  const std::string at = path.text();
  throw InvalidArgument(at.empty() ? message : at + ": " + message);
}

/// Reads the object of one struct, and counts the keys that were requested.
class Reader {
 public:
  template <class T>
  static void read(const Json& json, const Path& path, T& out) {
    if constexpr (std::is_same_v<T, bool>) {
      if (!json.is_boolean()) fail_at(path, fmt::format("expected true or false, found {}", shown(json)));
      out = json.get<bool>();
    } else if constexpr (std::is_enum_v<T>) {
      read_enum(json, path, out);
    } else if constexpr (std::is_integral_v<T>) {
      read_integer(json, path, out, 0);
    } else if constexpr (std::is_same_v<T, float>) {
      if (!json.is_number() || !std::isfinite(json.get<float>()))
        fail_at(path, fmt::format("expected a number, found {}", shown(json)));
      out = json.get<float>();
    } else if constexpr (std::is_array_v<T>) {
      if (!json.is_array() || json.size() != std::size(out))
        fail_at(path, fmt::format("expected an array of {}, found {}", std::size(out), shown(json)));
      for (std::size_t i = 0; i < std::size(out); ++i) read(json[i], {&path, {}, i}, out[i]);
    } else {
      Reader object(json, path);
      object.header(out);
      plan_json::fields(object, out);
      object.finish();
    }
  }
  static void read(const Json& json, const Path& path, std::string& out) {
    if (!json.is_string()) fail_at(path, fmt::format("expected a text, found {}", shown(json)));
    out = json.get<std::string>();
  }
  template <class T>
  static void read(const Json& json, const Path& path, std::vector<T>& out) {
    if (!json.is_array()) fail_at(path, fmt::format("expected an array, found {}", shown(json)));
    out.clear();  // appended one by one, so that the first wrong element ends the read of a long list
    for (std::size_t i = 0; i < json.size(); ++i) read(json[i], {&path, {}, i}, out.emplace_back());
  }
  /// Older plans have other keys, and nested values: a record keeps what it finds.
  static void read(const Json& json, const Path& path, ParamList& out) {
    if (!json.is_object()) fail_at(path, fmt::format("expected an object, found {}", shown(json)));
    out.clear();
    for (const auto& [key, value] : json.items()) {
      if (value == false) continue;
      out.push_back({key, value == true ? "" : value.is_string() ? value.get<std::string>() : value.dump()});
    }
  }
  static void read(const Json& json, const Path& path, Step& out) {
    Reader object(json, path);
    std::string kind;
    object.required("step", kind);
    object.read_step(kind, out, std::make_index_sequence<std::variant_size_v<Step>>{});
    object.finish();
  }

  template <class T>
  void required(const char* key, T& out) {
    const auto it = find(key);
    if (it == json_.end()) fail_at(path_, fmt::format("missing key '{}'", key));
    read(*it, {&path_, key}, out);
  }
  /// A required list. Older plans hold its one element alone.
  template <class T>
  void list_or_one(const char* key, std::vector<T>& out) {
    const auto it = find(key);
    if (it == json_.end() || !it->is_object()) return required(key, out);
    read(*it, {&path_, key}, out.emplace_back());
  }
  template <class T, class U = T>
  void optional(const char* key, T& out, const U& absent = {}) {
    out = static_cast<T>(absent);
    const auto it = find(key);
    if (it == json_.end()) return;
    const Path at{&path_, key};
    if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
      read_integer(*it, at, out, smaller(absent, 0));  // if absence means -1, the text may also contain -1
    } else {
      read(*it, at, out);
    }
  }
  /// A list of whole numbers, each at least `least`.
  template <class T>
  void optional(const char* key, std::vector<T>& out, int least) {
    out.clear();
    const auto it = find(key);
    if (it == json_.end()) return;
    const Path at{&path_, key};
    if (!it->is_array()) fail_at(at, fmt::format("expected an array, found {}", shown(*it)));
    for (std::size_t i = 0; i < it->size(); ++i)
      read_integer((*it)[i], {&at, {}, i}, out.emplace_back(), least);
  }
  template <class... T>
  void alternative(const char* key, std::span<const std::string_view> names, std::variant<T...>& out) {
    std::string text;
    optional(key, text, names.front());
    std::size_t i = 0;
    const bool known = ((names[i++] == text && (out.template emplace<T>(), true)) || ...);
    if (!known) fail(key, fmt::format("{} is none of {}", in_quotes(text), fmt::join(names, ", ")));
  }
  void work(Work& out) {
    if (find("workload") != json_.end()) return required("workload", out.emplace<Workload>());
    if (!is_overlap(find("problem"))) return required("problem", out.emplace<Problem>());
    plan_json::OverlapProblem older;
    required("problem", older);
    Workload& workload = out.emplace<Workload>(
        Workload{older.world, older.dtype, older.overlap.computations, older.overlap.collectives});
    if (older.m != workload.m() || older.n != workload.n() || older.k != workload.k())
      fail("problem",
           fmt::format("{}x{}x{} are not the largest sizes of the overlap's computations, {}x{}x{}", older.m,
                       older.n, older.k, workload.m(), workload.n(), workload.k()));
  }
  [[noreturn]] void fail(const char* key, const std::string& message) const {
    fail_at({&path_, key}, message);
  }

 private:
  Reader(const Json& json, const Path& path) : json_(json), path_(path) {
    if (!json.is_object()) fail_at(path, fmt::format("expected an object, found {}", shown(json)));
  }

  Json::const_iterator find(const char* key) {
    if (std::ranges::find(asked_, key) == asked_.end()) asked_.push_back(key);
    return json_.find(key);
  }

  /// True of an OverlapProblem.
  bool is_overlap(Json::const_iterator problem) const {
    if (problem == json_.end() || !problem->is_object()) return false;
    const auto op = problem->find("op");
    return op != problem->end() && *op == plan_json::OverlapProblem::op_name;
  }

  /// Checks format and version before any other field.
  template <class T>
  void header(const T&) {
    if constexpr (std::is_same_v<T, Plan>) {
      std::string format;
      int version = 0;
      required("format", format);
      if (format != plan_json::format)
        fail("format", fmt::format("expected '{}', found {}", plan_json::format, in_quotes(format)));
      required("version", version);
      if (version != plan_json_version)
        fail("version",
             fmt::format("{} is not {}, the version that this program reads", version, plan_json_version));
    }
  }

  template <std::size_t... I>
  void read_step(const std::string& kind, Step& out, std::index_sequence<I...>) {
    const bool known =
        ((kind == plan_json::step_names[I] && (plan_json::fields(*this, out.emplace<I>()), true)) || ...);
    if (!known) fail("step", fmt::format("unknown step {}", in_quotes(kind)));
  }

  void finish() const {
    for (const auto& item : json_.items())
      if (std::find(asked_.begin(), asked_.end(), item.key()) == asked_.end())
        fail_at(path_,
                fmt::format("unknown key {}; accepted: {}", in_quotes(item.key()), fmt::join(asked_, ", ")));
  }

  template <class E>
  static void read_enum(const Json& json, const Path& path, E& out) {
    using plan_json::name;
    std::string text, known;
    read(json, path, text);
    for (int i = 0; i <= static_cast<int>(plan_json::last<E>); ++i) {
      out = static_cast<E>(i);
      if (name(out) == text) return;
      known += (i == 0 ? "" : ", ") + std::string(name(out));
    }
    fail_at(path, fmt::format("{} is none of {}", in_quotes(text), known));
  }

  template <class T>
  static void read_integer(const Json& json, const Path& path, T& out, std::int64_t least) {
    const std::int64_t most = smaller(max_integer, static_cast<std::int64_t>(std::numeric_limits<T>::max()));
    if (!json.is_number_integer())
      fail_at(path, fmt::format("expected a whole number, found {}", shown(json)));
    const bool fits = json.is_number_unsigned()
                          ? json.get<std::uint64_t>() <= static_cast<std::uint64_t>(most)
                          : json.get<std::int64_t>() >= least && json.get<std::int64_t>() <= most;
    if (!fits) fail_at(path, fmt::format("{} is outside [{}, {}]", json.dump(), least, most));
    out = static_cast<T>(json.get<std::int64_t>());
  }

  const Json& json_;
  const Path& path_;
  std::vector<std::string_view> asked_;
};

/// Refuses deep nesting, and more values than a plan that can be proven has. It also refuses repeated keys,
/// which a parser would accept.
Json parse(std::string_view text) {
  try {
    scan_json(text, {.repeated_keys = false, .memory_bytes = max_memory_bytes});
    return Json::parse(text);
  } catch (const Json::exception& e) {
    const std::string_view what = e.what();  // "[json.exception.…] parse error at line 1, column 5: …"
    throw InvalidArgument("not JSON: " + std::string(what.substr(what.find("] ") + 2).substr(0, 200)));
  }
}

template <class T>
T read_all(std::string_view text) {
  const Json json = parse(text);
  T out;
  Reader::read(json, Path{}, out);
  return out;
}

}  // namespace

Plan parse_plan(std::string_view text) {
  return read_all<Plan>(text);
}

Problem problem_from_json(std::string_view text) {
  Problem problem = read_all<Problem>(text);
  problem.validate();
  return problem;
}

Problem unrouted_problem_from_json(std::string_view text) {
  return read_all<Problem>(text);
}

Workload workload_from_lists(std::string_view text, int world, DType dtype) {
  plan_json::Lists lists = read_all<plan_json::Lists>(text);
  Workload workload{world, dtype, std::move(lists.computations), std::move(lists.collectives)};
  workload.validate();
  return workload;
}

ParamList params_from_json(std::string_view text) {
  return read_all<ParamList>(text);
}

}  // namespace shingle
