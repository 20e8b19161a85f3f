// Sharing work between the threads of a team (team.cpp), which comes in as a function pointer.
#pragma once

#include <stdint.h>

namespace {

// Runs body(data) on up to num_threads threads; triolet_run_team in team.cpp. Null does the work on the caller.
typedef void (*RunTeam)(void (*body)(void*), void* data, unsigned num_threads, unsigned flags);

template <class Body>
struct Claims {
    const Body* body;
    int64_t num_units;
    int64_t next;
};

template <class Body>
void claim_units(void* data) {
    auto* claims = static_cast<Claims<Body>*>(data);
    for (;;) {
        int64_t unit = __atomic_fetch_add(&claims->next, 1, __ATOMIC_RELAXED);
        if (unit >= claims->num_units) return;
        (*claims->body)(unit);
    }
}

// Calls body(unit) once for every unit below num_units. Threads claim units one by one, so that a thread whose
// core is taken away holds up one unit, not its share of all.
template <class Body>
void for_each_unit(RunTeam run_team, int64_t num_threads, int64_t num_units, const Body& body) {
    Claims<Body> claims = {&body, num_units, 0};
    if (num_threads > num_units) num_threads = num_units;
    if (run_team && num_threads > 1)
        run_team(claim_units<Body>, &claims, unsigned(num_threads), 0);
    else
        claim_units<Body>(&claims);
}

// The same over rows, in runs long enough that claiming them costs nothing beside the work.
template <class Body>
void for_each_row(RunTeam run_team, int64_t num_threads, int64_t num_rows, int64_t row_size, const Body& body) {
    constexpr int64_t kUnitSize = 16384;
    int64_t rows_per_unit = kUnitSize / row_size > 1 ? kUnitSize / row_size : 1;
    int64_t num_units = (num_rows + rows_per_unit - 1) / rows_per_unit;
    for_each_unit(run_team, num_threads, num_units, [&](int64_t unit) {
        int64_t end = (unit + 1) * rows_per_unit < num_rows ? (unit + 1) * rows_per_unit : num_rows;
        for (int64_t row = unit * rows_per_unit; row < end; ++row) body(row);
    });
}

}  // namespace
