// The contract of a backend as one suite: include this file, make a list of contract::Backend and instantiate
// `BackendContract` with it. Plans are written by hand and small; every rank checks what is in its own
// memory.
#pragma once

#include "elementwise_contract.hpp"
#include "executable_contract.hpp"
#include "gemm_contract.hpp"
#include "sums_contract.hpp"
#include "transport_contract.hpp"
