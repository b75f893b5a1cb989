// The hardware and software that results were measured on.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace shingle::cli {

/// Returns "gpu 0: …", one fact per line. Empty in a build without CUDA.
std::string gpus_text();
/// Null in a build without CUDA.
nlohmann::ordered_json gpus_json();

/// Processor, cores, libraries and GPUs, for a record of measurements.
nlohmann::ordered_json surroundings_json();

}  // namespace shingle::cli
