// Rows as JSON.
#include "shingle/common/rows_json.hpp"

#include "shingle/plan/json.hpp"

namespace shingle::cli {
namespace {

using nlohmann::ordered_json;

void add_metrics(const Metrics& at, ordered_json& object) {
  object["compute_us"] = at.compute_us;
  object["wire_us"] = at.wire_us;
  object["exposed_us"] = at.exposed_us;
  object["ect_us"] = at.ect_us();
  object["roofline_fraction"] = at.roofline_fraction();
  object["tflops"] = at.tflops();
  object["mfu"] = at.mfu();
}

ordered_json json_of(const Chosen& chosen) {
  ordered_json object;
  object["reason"] = chosen.reason;
  object["confirmed"] = chosen.confirmed;
  object["considered"] = ordered_json::array();
  for (const Considered& at : chosen.considered) {
    ordered_json one;
    one["mechanism"] = name(mechanism_of(at.params));
    one["predicted_us"] = at.us > 0 ? ordered_json(at.us) : ordered_json();
    if (at.measured_us > 0) one["measured_us"] = at.measured_us;
    one["tried"] = at.tried;
    one["reason"] = at.reason.empty() ? ordered_json() : ordered_json(at.reason);
    object["considered"].push_back(std::move(one));
  }
  return object;
}

/// `time` is measured or predicted: both types have the same fields.
template <class Time>
void add_time(const Time& time, double us, ordered_json& object) {
  object["sequential_us"] = time.sequential_us;
  object["overlapped_us"] = us;
  object["speedup"] = time.speedup();  // a value that is not finite becomes null too
  object["overlap_efficiency"] = time.overlap_efficiency();
}

void add_results(const Row& row, ordered_json& object) {
  for (const char* key : {"sequential_us", "overlapped_us", "spread", "rounds", "speedup",
                          "overlap_efficiency", "max_error", "tolerance", "verified"})
    object[key] = nullptr;
  if (row.predicted) add_time(*row.predicted, row.predicted->us, object);
  if (row.simulated) return;
  object["verified"] = row.ran() && row.check.passed;
  if (!row.ran()) return;
  add_time(*row.time, row.time->overlapped_us, object);
  object["spread"] = row.time->spread;
  object["rounds"] = row.time->rounds;
  if (row.dropped) object["dropped"] = *row.dropped;
  object["max_error"] = row.check.max_error;
  object["tolerance"] = row.check.tolerance;
}

std::string text_of(const ordered_json& array) {
  return array.dump(1) + "\n";
}

}  // namespace

void flag_noise(ordered_json& object) {
  ordered_json noise = ordered_json::array();
  for (const char* key : {"overlap_efficiency", "roofline_fraction"})
    if (object.contains(key) && object[key].is_number() && above_one(object[key].get<double>()))
      noise.push_back(key);
  object["noise"] = std::move(noise);
}

ordered_json json_of(const Row& row) {
  const RowHead head = head_of(row.named.work);
  ordered_json object;
  if (!row.named.name.empty()) object["layer_op"] = row.named.name;
  object["op"] = head.op;
  object["m"] = head.m;
  object["n"] = head.n;
  object["k"] = head.k;
  if (head.inner > 0) object["inner"] = head.inner;
  if (head.attention != nullptr) {
    object["heads"] = head.attention->heads;
    object["kv_heads"] = head.attention->kv_heads;
    object["head_dim"] = head.attention->head_dim;
    object["causal"] = head.attention->causal;
  }
  object["world"] = world_of(row.named.work);
  object["dtype"] = name(dtype_of(row.named.work));
  object["backend"] = row.backend;
  object["machine"] = row.machine.empty() ? ordered_json() : ordered_json(row.machine);
  object["mechanism"] = row.mechanism;
  object["params"] = row.params.empty() ? ordered_json() : ordered_json::parse(row.params);
  object["params_note"] = row.note.empty() ? ordered_json() : ordered_json(row.note);
  object["source"] = row.simulated ? "predicted" : "measured";
  add_results(row, object);
  flag_noise(object);
  if (row.choice) object["choice"] = json_of(*row.choice);
  object["reason"] = row.reason.empty() ? ordered_json() : ordered_json(row.reason);
  return object;
}

std::string to_json(const std::vector<Row>& rows) {
  ordered_json array = ordered_json::array();
  for (const Row& row : rows) array.push_back(json_of(row));
  return text_of(array);
}

std::string simulated_json(const std::vector<Row>& rows) {
  ordered_json array = ordered_json::array();
  for (const Row& row : rows) {
    array.push_back(json_of(row));
    if (!row.predicted) continue;
    add_metrics(*row.predicted, array.back());
    flag_noise(array.back());
  }
  return text_of(array);
}

std::string params_json(const Plan& plan) {
  return shingle::to_json(plan.params, -1);
}

std::string params_text(const std::string& json) {
  return json.empty() ? "" : shingle::describe(params_from_json(json));
}

}  // namespace shingle::cli
