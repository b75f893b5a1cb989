// Shingle's umbrella header: everything that a user of the library needs.
//
// `Problem` (plan/problem.hpp) describes an operator. `make_world()` (api/registry.hpp) makes a `World` of
// ranks. `Operator` (api/operator.hpp) plans, proves and runs the problem on your matrices. A `Plan` can also
// be printed (plan/print.hpp), stored as JSON (plan/json.hpp) and proven (verify/verify.hpp) without a world.
// Every failure throws a shingle::Error (base/error.hpp). Sizes are in elements unless the name says bytes;
// names also say microseconds.
#pragma once

#include "shingle/api/context.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/api/registry.hpp"
#include "shingle/backend/backend.hpp"
#include "shingle/base/dtype.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/result.hpp"
#include "shingle/base/units.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/plan/plan.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/plan/problem.hpp"
#include "shingle/plan/shapes.hpp"
#include "shingle/sim/metrics.hpp"
#include "shingle/sim/simulate.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/version.hpp"
