// Writing of plans as JSON.
#include <charconv>
#include <nlohmann/json.hpp>
#include <span>

#include "fields.hpp"
#include "shingle/plan/json.hpp"

namespace shingle {
namespace {

using nlohmann::ordered_json;  // keys stay in the order of their fields()

constexpr std::size_t line_width = 110;

/// Replaces text that is not UTF-8, so that writing never throws.
std::string on_one_line(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

/// The shortest decimal that reads back as the same float: 1e-05, not 9.999999747378752e-06.
double shortest(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double decimal = value;
  std::from_chars(text, end, decimal);
  return static_cast<float>(decimal) == value ? decimal : value;
}

/// Writes the object of one struct.
class Writer {
 public:
  template <class T>
  static ordered_json write(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      using plan_json::name;
      return name(value);
    } else if constexpr (std::is_same_v<T, float>) {
      return shortest(value);
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      return value;
    } else if constexpr (std::is_array_v<T>) {
      return list(value);
    } else {
      Writer object;
      if constexpr (std::is_same_v<T, Plan>) {
        object.json_["format"] = plan_json::format;
        object.json_["version"] = plan_json_version;
      }
      plan_json::fields(object, value);
      return std::move(object.json_);
    }
  }
  template <class T>
  static ordered_json write(const std::vector<T>& values) {
    return list(values);
  }
  static ordered_json write(const ParamList& params) {
    ordered_json json = ordered_json::object();
    for (const auto& [name, value] : params) json[name] = param(value);
    return json;
  }
  static ordered_json write(const Step& step) {
    Writer object;
    object.json_["step"] = plan_json::step_names[step.index()];
    std::visit([&](const auto& s) { plan_json::fields(object, s); }, step);
    return std::move(object.json_);
  }

  template <class T>
  void required(const char* key, const T& value) {
    json_[key] = write(value);
  }
  template <class T>
  void list_or_one(const char* key, const std::vector<T>& values) {
    required(key, values);
  }
  template <class T>
  void optional(const char* key, const T& value, const T& absent = {}) {
    if (!(value == absent)) required(key, value);
  }
  template <class T>
  void optional(const char* key, const std::vector<T>& values, int = 0) {
    if (!values.empty()) required(key, values);
  }
  template <class T, class U>
  void optional(const char* key, const T& value, const U& absent) {
    optional(key, value, static_cast<T>(absent));
  }
  template <class... T>
  void alternative(const char* key, std::span<const std::string_view> names,
                   const std::variant<T...>& value) {
    if (value.index() != 0) json_[key] = names[value.index()];
  }
  void work(const Work& work) {
    if (const auto* workload = std::get_if<Workload>(&work))
      required("workload", *workload);
    else
      required("problem", std::get<Problem>(work));
  }

 private:
  /// A switch is true; counts are numbers.
  static ordered_json param(const std::string& value) {
    if (value.empty()) return true;
    std::int64_t count = 0;
    const char* end = value.data() + value.size();
    const auto [rest, error] = std::from_chars(value.data(), end, count);
    const bool same = rest == end && error == std::errc{} && std::to_string(count) == value;
    return same ? ordered_json(count) : ordered_json(value);
  }
  static ordered_json list(const auto& values) {
    ordered_json json = ordered_json::array();
    for (const auto& value : values) json.push_back(write(value));
    return json;
  }

  ordered_json json_ = ordered_json::object();
};

/// Keeps on one line what fits; breaks long lists of numbers like text.
void lay_out(const ordered_json& json, int indent, std::size_t margin, std::string& out) {
  const std::string line = on_one_line(json);
  if (!json.is_structured() || json.empty() ||
      out.size() - (out.rfind('\n') + 1) + line.size() < line_width) {
    out += line;
    return;
  }
  const bool fill = json.is_array() && std::none_of(json.begin(), json.end(),
                                                    [](const ordered_json& j) { return j.is_structured(); });
  const std::size_t inner = margin + static_cast<std::size_t>(indent);
  const std::string newline = '\n' + std::string(inner, ' ');
  out += json.is_array() ? '[' : '{';
  bool first = true;
  for (auto it = json.begin(); it != json.end(); ++it) {
    if (!first) out += ',';
    if (first || !fill || out.size() - (out.rfind('\n') + 1) + on_one_line(*it).size() > line_width)
      out += newline;
    first = false;
    if (json.is_object()) out += on_one_line(it.key()) + ": ";
    lay_out(*it, indent, inner, out);
  }
  out += '\n' + std::string(margin, ' ') + (json.is_array() ? ']' : '}');
}

std::string text_of(const ordered_json& json, int indent) {
  if (indent < 0) return on_one_line(json);
  std::string out;
  lay_out(json, indent, 0, out);
  return out + '\n';
}

}  // namespace

std::string to_json(const Plan& plan, int indent) {
  return text_of(Writer::write(plan), indent);
}

std::string to_json(const Problem& problem, int indent) {
  return text_of(Writer::write(problem), indent);
}

std::string lists_to_json(const Workload& workload, int indent) {
  return text_of(Writer::write(plan_json::Lists{workload.computations, workload.collectives}), indent);
}

std::string to_json(const ParamList& params, int indent) {
  return text_of(Writer::write(params), indent);
}

}  // namespace shingle
