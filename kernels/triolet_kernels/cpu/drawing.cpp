// Drawing tokens from rows of logits: what triolet_kernels/reference/drawing.py does, one row a unit of work.
//
// Nothing about a row depends on the others or on the number of threads. Most of the work is two passes over the
// row, one for the highest logit of each of some groups of neighbours and one for the groups' sums of weights. Filters
// then look at the groups only whose highest logit may be among the most likely ones.

#include <stdlib.h>

#include "logit_row.h"
#include "parallel.h"

namespace {

constexpr int64_t kFirstPrefix = 64;
constexpr int64_t kMaxOthers = 64;

struct Settings {
    double temperature, uniform;
    int64_t top_k;
    double top_p, min_p;
};

struct Drawn {
    int64_t token_id, num_kept;
    float highest;
};

// Minus infinity for the logits whose bit of `mask` is not set: bit i % 32 of word i / 32.
void forbid(float* logits, int64_t size, const uint32_t* mask) {
    const float forbidden = as_float(0xff800000);
    for (int64_t i = 0; i < size; i += kLanes) {
        uint32_t bits = mask[i / 32] >> i % 32;
        if (i + kLanes <= size) {
            store(logits + i, keep_bits(load(logits + i), bits, forbidden));
            continue;
        }
        for (int64_t lane = 0; i + lane < size; ++lane)
            if (!(bits >> lane & 1)) logits[i + lane] = forbidden;
    }
}

// Whether there is a NaN or plus infinity.
bool has_excess(const float* values, int64_t size) {
    uint32_t found = 0;
    for (int64_t i = 0; i < size; ++i) {
        uint32_t bits;
        memcpy(&bits, values + i, 4);
        found |= (bits > 0xff800000) | (bits - 0x7f800000 < 0x00800000);
    }
    return found != 0;
}

// A number that at least `count` logits reach, and hardly more: the count-th highest of the groups' maxima.
float lower_bound(const Row& row, int64_t count) {
    if (4 * count > 3 * row.num_groups) return kLowest;
    float values[kMaxGroups];
    memcpy(values, row.maxima, sizeof(float) * row.num_groups);
    int64_t first = 0, last = row.num_groups - 1, wanted = count - 1;
    while (first < last) {  // Hoare's selection
        float pivot = values[(first + last) / 2];
        int64_t i = first, j = last;
        while (i <= j) {
            while (values[i] > pivot) ++i;
            while (values[j] < pivot) --j;
            if (i > j) break;
            float value = values[i];
            values[i++] = values[j];
            values[j--] = value;
        }
        if (wanted <= j)
            last = j;
        else if (wanted >= i)
            first = i;
        else
            break;
    }
    return values[wanted] > kLowest ? values[wanted] : kLowest;
}

// A power of two, not much below the highest one whose tokens and the likelier ones together weigh `wanted`.
float power_of_mass(const Row& row, double wanted) {
    constexpr int kSteps = 5, kNumPasses = 4;
    float high = 0, low = kLeastPower;
    for (int pass = 0; pass < kNumPasses; ++pass) {
        float limits[kSteps];
        Vec sums[kSteps];
        for (int step = 0; step < kSteps; ++step) {
            limits[step] = high + (low - high) * float(step + 1) / kSteps;
            sums[step] = splat(0);
        }
        for (int64_t i = 0; i < row.size; i += kLanes) {
            Vec logits = load_part(row.logits + i, row.size - i);
            Vec power = mul(sub(logits, splat(row.highest)), splat(row.scale)), weights = exp2(power);
            for (int step = 0; step < kSteps; ++step)
                sums[step] = add(sums[step], zero_below(weights, power, limits[step]));
        }
        int step = 0;
        while (step < kSteps - 1 && sum_lanes(sums[step]) < wanted) ++step;
        high = step ? limits[step - 1] : high;
        low = limits[step];
    }
    return low;
}

// A logit that every token is above that min-p keeps.
float bound_of_min_p(const Row& row, const Settings& settings) {
    if (settings.min_p <= 0) return kLowest;
    float bound = row.highest + (float(__builtin_log2(settings.min_p)) - 1e-3f) / row.scale;
    return bound > kLowest ? bound : kLowest;
}

// A logit that, in all likelihood, every token is above that top-p keeps.
float bound_of_top_p(const Row& row, const Settings& settings, double total) {
    if (settings.top_p >= 1) return kLowest;
    return row.highest + power_of_mass(row, settings.top_p * total) / row.scale;
}

int64_t count_from(const Row& row, float bound) {
    int64_t count = 0;
    for (int64_t group = 0; group < row.num_groups; ++group) {
        if (row.maxima[group] < bound) continue;
        for (int64_t i = group * row.group_size; i < row.end_of(group); ++i) count += row.logits[i] >= bound;
    }
    return count;
}

// One integer for a logit and its token: the order of integers is by logit, highest first, then by id.
TRIOLET_INLINE uint64_t key_of(float logit, int64_t token_id) {
    logit += 0.0f;  // -0.0 and 0.0 are the same number
    uint32_t bits;
    memcpy(&bits, &logit, 4);
    uint32_t descending = bits & 0x80000000 ? bits : ~bits & 0x7fffffff;
    return uint64_t(descending) << 32 | uint64_t(token_id);
}

void collect(const Row& row, float bound, uint64_t* keys) {
    for (int64_t group = 0; group < row.num_groups; ++group) {
        if (row.maxima[group] < bound) continue;
        for (int64_t i = group * row.group_size; i < row.end_of(group); ++i)
            if (row.logits[i] >= bound) *keys++ = key_of(row.logits[i], i);
    }
}

// Radix sort by the upper 32 bits; the lower ones are in order already. The result is in `keys`.
void sort_keys(uint64_t* keys, uint64_t* other, int64_t count) {
    for (int shift = 32; shift < 64; shift += 8) {
        int64_t places[256] = {}, place = 0;
        for (int64_t i = 0; i < count; ++i) ++places[keys[i] >> shift & 255];
        for (int64_t& entry : places) {
            int64_t size = entry;
            entry = place;
            place += size;
        }
        for (int64_t i = 0; i < count; ++i) other[places[keys[i] >> shift & 255]++] = keys[i];
        uint64_t* sorted = other;
        other = keys;
        keys = sorted;
    }
}

// The most likely tokens in order, with their weights.
struct Candidates {
    uint64_t* keys;
    float* weights;
    int64_t count;

    int64_t token_id(int64_t i) const { return int64_t(keys[i] & 0xffffffff); }
};

void weigh(const Row& row, Candidates& found) {
    for (int64_t i = 0; i < found.count; i += kLanes) {
        float logits[kLanes], weights[kLanes];
        int64_t size = found.count - i < kLanes ? found.count - i : kLanes;
        for (int64_t lane = 0; lane < size; ++lane) logits[lane] = row.logits[found.token_id(i + lane)];
        store(weights, weights_of(row, load_part(logits, size)));
        memcpy(found.weights + i, weights, sizeof(float) * size);
    }
}

// How many of the candidates top-p and min-p keep; more than there are if that is not to be seen from these.
int64_t count_kept(const Candidates& found, const Settings& settings, double mass) {
    double running = 0, limit = settings.top_p * mass;
    for (int64_t i = 0; i < found.count; ++i) {
        if (settings.min_p > 0 && found.weights[i] < settings.min_p) return i ? i : 1;
        running += found.weights[i];
        if (settings.top_p < 1 && running >= limit) return i + 1;
    }
    return found.count + 1;
}

int64_t draw_from(const Candidates& found, int64_t num_kept, double uniform) {
    double total = 0, running = 0;
    for (int64_t i = 0; i < num_kept; ++i) total += found.weights[i];
    int64_t chosen = 0;
    for (int64_t i = 0; i < num_kept; ++i) {
        if (found.weights[i] > 0) chosen = i;
        running += found.weights[i];
        if (running > uniform * total) break;
    }
    return found.token_id(chosen);
}

double sum_all(const Row& row) {
    double total = 0;
    for (int64_t group = 0; group < row.num_groups; ++group) total += sum_group(row, group);
    return total;
}

// Token -1 if there is no memory.
void draw_filtered(const Row& row, const Settings& settings, Drawn& drawn) {
    double total = settings.top_p < 1 && !settings.top_k ? sum_all(row) : -1;
    // A short prefix is enough for most rows; then one that should be; then all there is.
    float least = bound_of_min_p(row, settings);
    for (int attempt = 0;; ++attempt) {
        float bound = least;
        if (attempt == 0) bound = lower_bound(row, settings.top_k ? settings.top_k : kFirstPrefix);
        if (attempt == 1) bound = bound_of_top_p(row, settings, total);
        if (bound < least && !settings.top_k) bound = least;
        int64_t count = count_from(row, bound);
        auto* memory = static_cast<uint64_t*>(malloc(count * (2 * sizeof(uint64_t) + sizeof(float))));
        drawn.token_id = -1;
        if (!memory) return;
        Candidates found = {memory, reinterpret_cast<float*>(memory + 2 * count), count};
        collect(row, bound, found.keys);
        sort_keys(found.keys, memory + count, count);
        if (settings.top_k && settings.top_k < count) found.count = settings.top_k;
        weigh(row, found);
        double mass = total;
        if (total < 0) {
            mass = 0;
            for (int64_t i = 0; i < found.count; ++i) mass += found.weights[i];
        }
        int64_t num_kept = count_kept(found, settings, mass);
        bool is_settled = num_kept <= found.count || settings.top_k || bound <= least;
        if (is_settled) {
            drawn.num_kept = num_kept < found.count ? num_kept : found.count;
            drawn.token_id = draw_from(found, drawn.num_kept, settings.uniform);
        }
        free(memory);
        if (is_settled) return;
    }
}

// None of the logits is NaN or plus infinity.
Drawn draw_row(const float* logits, int64_t size, const Settings& settings) {
    Row row;
    open_row(row, logits, size);
    if (!is_finite(row)) return {0, size, row.highest};
    Drawn drawn = {first_highest(row), size, row.highest};
    if (settings.temperature == 0) return drawn;
    set_temperature(row, settings.temperature);
    if (settings.top_k || settings.top_p < 1 || settings.min_p > 0) {
        draw_filtered(row, settings, drawn);
        return drawn;
    }
    float sums[kMaxGroups];
    sum_groups(row, sums);
    drawn.token_id = draw_whole(row, sums, settings.uniform);
    return drawn;
}

// The `count` most likely tokens in order with their weights, -1 and 0 where there are fewer, and the weight of all
// tokens, if top-p needs that. Nothing is kept and token_id is -1 if there is no memory.
Drawn rank_row(const float* logits, int64_t size, const Settings& settings, int64_t* token_ids, float* weights,
               int64_t count, double& total) {
    for (int64_t i = 0; i < count; ++i) token_ids[i] = -1, weights[i] = 0;
    Row row;
    open_row(row, logits, size);
    total = 0;
    if (!is_finite(row)) return {0, 0, row.highest};
    set_temperature(row, settings.temperature);
    if (settings.top_p < 1 && !settings.top_k) total = sum_all(row);
    float bound = lower_bound(row, count);
    int64_t num_found = count_from(row, bound);
    auto* keys = static_cast<uint64_t*>(malloc(num_found * 2 * sizeof(uint64_t)));
    if (!keys) return {-1, 0, row.highest};
    collect(row, bound, keys);
    sort_keys(keys, keys + num_found, num_found);
    Candidates found = {keys, weights, num_found < count ? num_found : count};
    weigh(row, found);
    for (int64_t i = 0; i < found.count; ++i) token_ids[i] = found.token_id(i);
    free(keys);
    return {token_ids[0], found.count, row.highest};
}

// Takes a token out of a row and its groups' sums of weights; → its logit.
float take_out(Row& row, float* logits, int64_t token_id, float* sums) {
    float logit = logits[token_id];
    logits[token_id] = as_float(0xff800000);
    int64_t group = token_id / row.group_size;
    if (sums)
        sums[group] = sum_group(row, group);
    else
        row.maxima[group] = max_of_group(row, group);
    return logit;
}

// Tokens drawn one after the other from a row without `taken` and those before; -1 once nothing is left.
// The logits are as before in the end.
void draw_others(float* logits, int64_t size, int64_t taken, double temperature, const double* uniforms,
                 int64_t* others, int64_t count) {
    const float taken_logit = logits[taken];
    logits[taken] = as_float(0xff800000);
    Row row;
    open_row(row, logits, size);
    float sums[kMaxGroups], drawn[kMaxOthers];
    const bool is_greedy = temperature == 0;
    if (!is_greedy && is_finite(row)) {
        set_temperature(row, temperature);
        sum_groups(row, sums);
    }
    for (int64_t i = 0; i < count; ++i) {
        if (is_greedy) find_highest(row);
        others[i] = -1;
        if (!is_finite(row)) continue;
        others[i] = is_greedy ? first_highest(row) : draw_whole(row, sums, uniforms[i]);
        if (others[i] >= 0) drawn[i] = take_out(row, logits, others[i], is_greedy ? nullptr : sums);
    }
    for (int64_t i = 0; i < count; ++i)
        if (others[i] >= 0) logits[others[i]] = drawn[i];
    logits[taken] = taken_logit;
}

}  // namespace

// logits (any number of rows, size), rows (num_rows,), masks (num_rows, size / 32 rounded up)
// → token_ids, num_kept (num_rows,) int64, highest (num_rows,) float
// Null rows are the first ones; null masks forbid nothing, others do in place. Of a row with a NaN or plus infinity,
// whether forbidden or not, the highest is NaN.
TRIOLET_EXPORT(draw_float32)
(float* logits, const int64_t* rows, const uint32_t* masks, const double* temperatures, const double* uniforms,
 const int64_t* top_k, const double* top_p, const double* min_p, int64_t* token_ids, int64_t* num_kept, float* highest,
 int64_t num_rows, int64_t size, RunTeam run_team, int64_t num_threads) {
    for_each_row(run_team, num_threads, num_rows, size, [=](int64_t i) {
        Settings settings = {temperatures[i], uniforms[i], top_k[i], top_p[i], min_p[i]};
        float* row = logits + (rows ? rows[i] : i) * size;
        const bool is_wrong = has_excess(row, size);
        if (masks) forbid(row, size, masks + i * ((size + 31) / 32));
        Drawn drawn = is_wrong ? Drawn{0, size, as_float(0x7fc00000)} : draw_row(row, size, settings);
        token_ids[i] = drawn.token_id;
        num_kept[i] = drawn.num_kept;
        highest[i] = drawn.highest;
    });
    return true;
}

// logits (any number of rows, size), rows and settings (num_rows,)
// → token_ids, weights (num_rows, count), totals, highest (num_rows,); total -1 if there was no memory.
TRIOLET_EXPORT(rank_float32)
(const float* logits, const int64_t* rows, const double* temperatures, const int64_t* top_k, const double* top_p,
 int64_t* token_ids, float* weights, double* totals, float* highest, int64_t num_rows, int64_t count, int64_t size,
 RunTeam run_team, int64_t num_threads) {
    for_each_row(run_team, num_threads, num_rows, size, [=](int64_t i) {
        Settings settings = {temperatures[i], 0, top_k[i], top_p[i], 0};
        const float* row = logits + rows[i] * size;
        highest[i] = as_float(0x7fc00000);
        totals[i] = 0;
        if (has_excess(row, size)) return;
        Drawn best = rank_row(row, size, settings, token_ids + i * count, weights + i * count, count, totals[i]);
        highest[i] = best.highest;
        if (best.token_id < 0) totals[i] = -1;
    });
    return true;
}

// logits (any number of rows, size), rows, taken, temperatures (num_rows,), uniforms (num_rows, count)
// → others (num_rows, count). No logit is NaN.
TRIOLET_EXPORT(draw_others_float32)
(float* logits, const int64_t* rows, const int64_t* taken, const double* temperatures, const double* uniforms,
 int64_t* others, int64_t num_rows, int64_t count, int64_t size, RunTeam run_team, int64_t num_threads) {
    for_each_row(run_team, num_threads, num_rows, size, [=](int64_t i) {
        float* row = logits + rows[i] * size;
        draw_others(row, size, taken[i], temperatures[i], uniforms + i * count, others + i * count, count);
    });
    return true;
}
