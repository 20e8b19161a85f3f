// Which experts of a mixture rows go to, and the sum of what these make of them.
//
// Knows nothing of what an expert computes.

#include "parallel.h"
#include "simd.h"

namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int64_t kMaxExperts = 1024;

float exponential(float x) {
    float lanes[kLanes];
    store(lanes, exp2(splat(x * kLog2E)));
    return x != x ? x : lanes[0];
}

// The experts of the highest logits, the best first; of equal ones the first. They are distinct whatever the logits.
void choose(const float* logits, int64_t num_experts, int64_t num_chosen, int32_t* chosen) {
    bool is_taken[kMaxExperts] = {};
    for (int64_t choice = 0; choice < num_chosen; ++choice) {
        int64_t best = -1;
        for (int64_t expert = 0; expert < num_experts; ++expert)
            if (!is_taken[expert] && (best < 0 || logits[expert] > logits[best])) best = expert;
        is_taken[best] = true;
        chosen[choice] = int32_t(best);
    }
}

// What the chosen experts count: their part in the softmax of all logits, or of theirs.
void weigh(const float* logits, int64_t num_experts, const int32_t* chosen, int64_t num_chosen, bool is_normalized,
           float* weights) {
    float highest = logits[chosen[0]], total = 0;
    if (is_normalized) {
        for (int64_t choice = 0; choice < num_chosen; ++choice) total += exponential(logits[chosen[choice]] - highest);
    } else {
        for (int64_t expert = 0; expert < num_experts; ++expert) total += exponential(logits[expert] - highest);
    }
    for (int64_t choice = 0; choice < num_chosen; ++choice)
        weights[choice] = exponential(logits[chosen[choice]] - highest) / total;
}

// Pairs of a token and its choice, which come with their experts in `pairs`, sorted by expert and then by token: where
// each expert's start, which token each is of, and in `pairs` where each has gone.
void sort_pairs(int32_t* pairs, int64_t num_tokens, int64_t num_chosen, int64_t num_experts, int64_t* tokens,
                int32_t* starts) {
    int32_t next[kMaxExperts + 1] = {};
    for (int64_t pair = 0; pair < num_tokens * num_chosen; ++pair) ++next[pairs[pair] + 1];
    for (int64_t expert = 0; expert < num_experts; ++expert) next[expert + 1] += next[expert];
    memcpy(starts, next, (num_experts + 1) * sizeof(int32_t));
    for (int64_t pair = 0; pair < num_tokens * num_chosen; ++pair) {
        int32_t place = next[pairs[pair]]++;
        tokens[place] = pair / num_chosen;
        pairs[pair] = place;
    }
}

template <class T>
void sum_row(const T* x, const int32_t* pairs, const float* weights, T* output, int64_t num_chosen, int64_t size) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
        Vec sum = splat(0);
        for (int64_t choice = 0; choice < num_chosen; ++choice)
            sum = fma(load(x + pairs[choice] * size + i), splat(weights[choice]), sum);
        store(output + i, sum);
    }
    for (; i < size; ++i) {
        Vec sum = splat(0);
        for (int64_t choice = 0; choice < num_chosen; ++choice)
            sum = fma(splat(to_float(x[pairs[choice] * size + i])), splat(weights[choice]), sum);
        float lanes[kLanes];
        store(lanes, sum);
        put(output + i, lanes[0]);
    }
}

// total += sigmoid(logit) * shared
template <class T>
void add_shared(T* total, const T* shared, float logit, int64_t size) {
    float gate = 1 / (1 + exponential(-logit));
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(total + i, fma(load(shared + i), splat(gate), load(total + i)));
    for (; i < size; ++i) {
        float lanes[kLanes];
        store(lanes, fma(splat(to_float(shared[i])), splat(gate), splat(to_float(total[i]))));
        put(total + i, lanes[0]);
    }
}

}  // namespace

// logits (num_tokens, num_experts) → tokens (num_tokens × num_chosen,), starts (num_experts + 1,), pairs and weights
// (num_tokens, num_chosen): a routing, see expert_ops.py. There are at most 1024 experts.
TRIOLET_EXPORT(route_float32)
(const float* logits, int64_t* tokens, int32_t* starts, int32_t* pairs, float* weights, int64_t num_tokens,
 int64_t num_experts, int64_t num_chosen, int64_t is_normalized, RunTeam run_team, int64_t num_threads) {
    for_each_row(run_team, num_threads, num_tokens, num_chosen * num_experts, [=](int64_t token) {
        const float* row = logits + token * num_experts;
        int32_t* chosen = pairs + token * num_chosen;
        choose(row, num_experts, num_chosen, chosen);
        weigh(row, num_experts, chosen, num_chosen, is_normalized, weights + token * num_chosen);
    });
    sort_pairs(pairs, num_tokens, num_chosen, num_experts, tokens, starts);
    return true;
}

// x (num_tokens × num_chosen, size), pairs and weights (num_tokens, num_chosen) → output (num_tokens, size)
#define TRIOLET_SUM_EXPERTS(name, T)                                                                               \
    TRIOLET_EXPORT(name)                                                                                           \
    (const T* x, const int32_t* pairs, const float* weights, T* output, int64_t num_tokens, int64_t num_chosen,    \
     int64_t size, RunTeam run_team, int64_t num_threads) {                                                        \
        for_each_row(run_team, num_threads, num_tokens, num_chosen * size, [=](int64_t token) {                    \
            sum_row(x, pairs + token * num_chosen, weights + token * num_chosen, output + token * size,            \
                    num_chosen, size);                                                                             \
        });                                                                                                        \
        return true;                                                                                               \
    }

TRIOLET_SUM_EXPERTS(sum_experts_float32, float)
TRIOLET_SUM_EXPERTS(sum_experts_bfloat16, bf16)

// total and shared (num_tokens, size), logits (num_tokens,): total += sigmoid(logits) * shared
#define TRIOLET_ADD_SHARED_EXPERT(name, T)                                                                         \
    TRIOLET_EXPORT(name)                                                                                           \
    (T* total, const T* shared, const float* logits, int64_t num_tokens, int64_t size, RunTeam run_team,           \
     int64_t num_threads) {                                                                                        \
        for_each_row(run_team, num_threads, num_tokens, size, [=](int64_t token) {                                 \
            add_shared(total + token * size, shared + token * size, logits[token], size);                          \
        });                                                                                                        \
        return true;                                                                                               \
    }

TRIOLET_ADD_SHARED_EXPERT(add_shared_expert_float32, float)
TRIOLET_ADD_SHARED_EXPERT(add_shared_expert_bfloat16, bf16)
