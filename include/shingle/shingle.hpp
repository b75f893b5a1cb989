// Shingle's library: all that a user of it needs.
//
// Describe a `Problem` (plan/problem.hpp), make a `World` of ranks (api/registry.hpp), let an `Operator`
// (api/operator.hpp) plan, prove and run it on your matrices. A `Plan` can be printed (plan/print.hpp),
// stored (plan/json.hpp) and proven (verify/verify.hpp) by itself. Whatever fails throws a shingle::Error
// (base/error.hpp). Sizes are in elements, names say where they are in bytes or microseconds.
#pragma once

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
