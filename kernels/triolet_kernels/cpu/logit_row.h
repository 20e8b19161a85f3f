// A row of logits, in groups of neighbours: the highest of each, their sums of weights, and a draw from all of them.
#pragma once

#include <stdint.h>
#include <string.h>

#include "simd.h"

namespace {

constexpr int64_t kMaxGroups = 1024;
constexpr float kLeastPower = -126;
constexpr float kLowest = -3.4028234663852886e38f;
constexpr double kMinTemperature = 1.1754943508222875e-38;
constexpr double kLog2E = 1.4426950408889634;

// A row of logits, in groups of neighbours whose size follows from the row's alone.
struct Row {
    const float* logits;
    int64_t size, group_size, num_groups;
    float highest, scale;
    float maxima[kMaxGroups];

    int64_t end_of(int64_t group) const { return (group + 1) * group_size < size ? (group + 1) * group_size : size; }
};

TRIOLET_INLINE float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// kLanes values from `source`, or as many as there are and minus infinity.
TRIOLET_INLINE Vec load_part(const float* source, int64_t count) {
    if (count >= kLanes) return load(source);
    float values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) values[lane] = lane < count ? source[lane] : as_float(0xff800000);
    return load(values);
}

// e to the power of (logit - highest) / temperature; 0 where that is too small for a float.
TRIOLET_INLINE Vec weights_of(const Row& row, Vec logits) {
    Vec power = mul(sub(logits, splat(row.highest)), splat(row.scale));
    return zero_below(exp2(power), power, kLeastPower);
}

float max_of_group(const Row& row, int64_t group) {
    int64_t end = row.end_of(group);
    Vec best = splat(as_float(0xff800000));
    for (int64_t i = group * row.group_size; i < end; i += kLanes)
        best = max(load_part(row.logits + i, end - i), best);
    return max_lanes(best);
}

void find_highest(Row& row) {
    row.highest = as_float(0xff800000);
    for (int64_t group = 0; group < row.num_groups; ++group)
        if (row.maxima[group] > row.highest) row.highest = row.maxima[group];
}

// A row with its highest logits. None of the logits is NaN.
void open_row(Row& row, const float* logits, int64_t size) {
    row.logits = logits;
    row.size = size;
    int64_t vectors = (size + kLanes - 1) / kLanes;
    row.group_size = (vectors + kMaxGroups - 1) / kMaxGroups * kLanes;
    row.num_groups = (size + row.group_size - 1) / row.group_size;
    for (int64_t group = 0; group < row.num_groups; ++group) row.maxima[group] = max_of_group(row, group);
    find_highest(row);
}

// How logits become weights at a temperature that is not 0.
void set_temperature(Row& row, double temperature) {
    row.scale = float(kLog2E / (temperature > kMinTemperature ? temperature : kMinTemperature));
}

bool is_finite(const Row& row) { return row.highest >= kLowest && row.highest <= -kLowest; }

int64_t first_highest(const Row& row) {
    int64_t group = 0;
    while (row.maxima[group] != row.highest) ++group;
    int64_t i = group * row.group_size;
    while (row.logits[i] != row.highest) ++i;
    return i;
}

float sum_group(const Row& row, int64_t group) {
    int64_t end = row.end_of(group);
    Vec sum = splat(0);
    for (int64_t i = group * row.group_size; i < end; i += kLanes)
        sum = add(sum, weights_of(row, load_part(row.logits + i, end - i)));
    return sum_lanes(sum);
}

// The weight of each group.
void sum_groups(const Row& row, float* sums) {
    for (int64_t group = 0; group < row.num_groups; ++group) sums[group] = sum_group(row, group);
}

// By inversion, in the order of token ids: the group first, then the token in it. -1 if nothing weighs anything.
int64_t draw_whole(const Row& row, const float* sums, double uniform) {
    double total = 0;
    for (int64_t group = 0; group < row.num_groups; ++group) total += sums[group];
    double target = uniform * total, running = 0;
    int64_t group = 0, last = 0;  // the last group that can be drawn from
    for (; group < row.num_groups && running + sums[group] <= target; running += sums[group++])
        if (sums[group] > 0) last = group;
    if (group == row.num_groups) running -= sums[group = last];
    int64_t end = row.end_of(group), chosen = -1;
    for (int64_t i = group * row.group_size; i < end; i += kLanes) {
        float weights[kLanes];
        store(weights, weights_of(row, load_part(row.logits + i, end - i)));
        for (int lane = 0; lane < kLanes; ++lane) {
            if (weights[lane] > 0) chosen = i + lane;
            running += weights[lane];
            if (running > target) return chosen;
        }
    }
    return chosen;
}

}  // namespace
