// Sharing work between the threads of a team (team.cpp), which comes in as a function pointer.
#pragma once

#include <stdint.h>

namespace {

// Runs body(data) on up to num_threads threads; triolet_run_team in team.cpp. Null does the work on the caller.
typedef void (*RunTeam)(void (*body)(void*), void* data, unsigned num_threads);

constexpr int64_t kMaxRanges = 64;

// Units from `first` up to `end` that nobody has taken yet, in one word, so that both ends can be taken from.
struct alignas(64) Range {
    uint64_t ends;

    void set(int64_t first, int64_t end) { ends = uint64_t(end) << 32 | uint64_t(first); }

    // A unit from the front or the back; -1 if none is left.
    int64_t take(bool is_front) {
        uint64_t seen = __atomic_load_n(&ends, __ATOMIC_RELAXED);
        for (;;) {
            int64_t first = int64_t(seen & 0xffffffff), end = int64_t(seen >> 32);
            if (first == end) return -1;
            uint64_t rest = is_front ? seen + 1 : seen - (uint64_t(1) << 32);
            if (__atomic_compare_exchange_n(&ends, &seen, rest, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
                return is_front ? first : end - 1;
        }
    }
};

template <class MakeWorker>
struct Claims {
    const MakeWorker* make_worker;
    int64_t num_ranges;
    int64_t num_entered;
    Range ranges[kMaxRanges];
};

// Works off a range from the front, then what others have left of theirs from the back.
template <class MakeWorker>
void claim_units(void* data) {
    auto* claims = static_cast<Claims<MakeWorker>*>(data);
    auto worker = (*claims->make_worker)();
    int64_t num_ranges = claims->num_ranges;
    int64_t own = __atomic_fetch_add(&claims->num_entered, 1, __ATOMIC_RELAXED) % num_ranges;
    for (int64_t i = 0; i < num_ranges; ++i) {
        Range& range = claims->ranges[(own + i) % num_ranges];
        for (int64_t unit; (unit = range.take(i == 0)) >= 0;) worker(unit);
    }
}

// Calls worker(unit) once for every unit below num_units, where each thread makes a worker of its own. Threads claim
// units one by one, so that a thread whose core is taken away holds up one unit, not its share of all. Those that a
// thread claims follow each other as long as it keeps pace, so that what it fetches ahead from memory is what it needs
// next.
template <class MakeWorker>
void share_units(RunTeam run_team, int64_t num_threads, int64_t num_units, const MakeWorker& make_worker) {
    if (num_units == 0) return;
    if (num_threads > num_units) num_threads = num_units;
    if (!run_team || num_threads < 2) {
        auto worker = make_worker();
        for (int64_t unit = 0; unit < num_units; ++unit) worker(unit);
        return;
    }
    Claims<MakeWorker> claims;
    claims.make_worker = &make_worker;
    claims.num_ranges = num_threads < kMaxRanges ? num_threads : kMaxRanges;
    claims.num_entered = 0;
    for (int64_t i = 0; i < claims.num_ranges; ++i)
        claims.ranges[i].set(i * num_units / claims.num_ranges, (i + 1) * num_units / claims.num_ranges);
    run_team(claim_units<MakeWorker>, &claims, unsigned(num_threads));
}

// The same where threads keep nothing from one unit to the next.
template <class Body>
void for_each_unit(RunTeam run_team, int64_t num_threads, int64_t num_units, const Body& body) {
    share_units(run_team, num_threads, num_units, [&] { return [&](int64_t unit) { body(unit); }; });
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
