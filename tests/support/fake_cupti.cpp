// A library that looks like CUPTI to the tuner plugin, and records the kernels that a test names. Buffers are
// handed over as CUPTI does it: from the flush, with records of varying kinds and incomplete ones.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "nccl_tuner/cupti.hpp"

namespace {

using namespace shingle::nccl_tuner::cupti;

/// As long as the record of CUDA 13, whose later fields the plugin does not know.
struct Record {
  KernelRecord known;
  std::uint64_t unknown[13];
};
static_assert(sizeof(Record) == 216);

GiveBuffer give = nullptr;
TakeBuffer take = nullptr;
bool enabled = false, refuses = false;
std::vector<Record> records;
std::deque<std::string> names;  // outlive their records, as CUPTI's do

}  // namespace

#define EXPORT extern "C" [[gnu::visibility("default")]]

EXPORT int cuptiActivityRegisterCallbacks(GiveBuffer given, TakeBuffer taken) {
  give = given, take = taken;
  return 0;
}
EXPORT int cuptiActivityEnable(int kind) {
  if (refuses || kind != concurrent_kernel || give == nullptr) return 1;
  enabled = true;
  return 0;
}
EXPORT int cuptiActivityDisable(int) {
  enabled = false;
  return 0;
}
EXPORT int cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid_bytes, void** record) {
  auto* const next = *record == nullptr ? buffer : static_cast<std::uint8_t*>(*record) + sizeof(Record);
  if (next + sizeof(Record) > buffer + valid_bytes) return 12;  // no more
  *record = next;
  return 0;
}
EXPORT int cuptiActivityFlushAll(std::uint32_t flag) {
  std::size_t done = 0;
  while (flag == forced && done < records.size()) {
    std::uint8_t* buffer = nullptr;
    std::size_t bytes = 0, most = 1;
    give(&buffer, &bytes, &most);
    const std::size_t count = std::min(bytes / sizeof(Record), records.size() - done);
    if (count == 0 || most != 0) return 1;
    std::memcpy(buffer, records.data() + done, count * sizeof(Record));
    take(nullptr, 0, buffer, bytes, count * sizeof(Record));
    done += count;
  }
  records.clear();
  return 0;
}

// For tests.

EXPORT void fake_cupti_kernel(const char* name, std::uint32_t device, std::uint32_t stream, double begin_us,
                              double end_us) {
  if (!enabled) return;
  names.emplace_back(name);
  Record record{};
  std::memset(&record, 0xa5, sizeof record);
  record.known.kind = concurrent_kernel;
  record.known.begin_ns = static_cast<std::uint64_t>(begin_us * 1e3);
  record.known.end_ns = static_cast<std::uint64_t>(end_us * 1e3);
  record.known.device = device, record.known.stream = stream;
  record.known.name = names.back().c_str();
  records.push_back(record);
  record.known.kind = 1;  // a copy
  records.push_back(record);
}
EXPORT void fake_cupti_refuse(bool refuse) {
  refuses = refuse;
}
EXPORT bool fake_cupti_enabled() {
  return enabled;
}
