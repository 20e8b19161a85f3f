// How kernels are called that are known by their type alone.
#pragma once

#include "parallel.h"

namespace {

// Calls a kernel with arguments of 64 bits each: an integer, an address, or a float in the lower half.
typedef bool (*Caller)(void* kernel, const int64_t* words, RunTeam run_team, int64_t num_threads);

}  // namespace
