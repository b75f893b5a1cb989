// What the opaque handles of the C interface hold.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "shingle/api/context.hpp"
#include "shingle/shingle.h"

struct shingle_world {
  std::shared_ptr<shingle::World> world;
};

struct shingle_context {
  std::shared_ptr<shingle::World> world;  // outlives the context
  shingle::Context context;
  std::string json{};  // of the plan that was asked for last
  std::mutex allocating{};
  std::map<void*, shingle::DeviceBuffer> allocated{};  // registered memory
};
