// What becomes of the sums of a linear layer on matrix tiles: they are put in scale, rounded, and written.
//
// That is done a row or two at a time, while tiles work on other sums. Knows nothing of tiles or weights.
#pragma once

#include "panel_codes.h"

#if defined(__AVX512FP16__)

namespace {

// Where results go, (rows, num_columns), and what makes them of sums.
struct ResultSpace {
    const float* bias;  // of each output, or null
    bf16* output;
    int64_t num_columns;
    float factor;
};

// Sums of some rows × a panel, which become as many results each.
class PlainResults {
public:
    static constexpr int64_t kNumParts = 1;  // panels that results are made of

    explicit PlainResults(const ResultSpace& space) : space_(space) {}

    // sums [kNumParts]: each [count][kPanel], there until all is written
    TRIOLET_INLINE void take(const float* const* sums, int64_t panel, int64_t first_row, int64_t count) {
        const int64_t first = panel * kPanel, rest = space_.num_columns - first;
        if (space_.bias) memcpy(bias_, space_.bias + first, sizeof(float) * (rest < kPanel ? rest : kPanel));
        is_there_ = rest < kPanel ? (1u << rest) - 1 : ~0u;
        target_ = space_.output + first_row * space_.num_columns + first;
        sums_ = sums[0];
        num_left_ = count;
    }

    TRIOLET_INLINE void write_some() {
        if (num_left_ > 0) write_row();
        if (num_left_ > 0) write_row();
    }

    TRIOLET_INLINE void write_all() {
        while (num_left_ > 0) write_row();
    }

private:
    TRIOLET_INLINE void write_row() {
        const Vec left = fma(load(sums_), splat(space_.factor), load(bias_));
        const Vec right = fma(load(sums_ + kLanes), splat(space_.factor), load(bias_ + kLanes));
        _mm512_mask_storeu_epi16(target_, is_there_, (__m512i)_mm512_cvtne2ps_pbh(right, left));
        sums_ += kPanel;
        target_ += space_.num_columns;
        --num_left_;
    }

    alignas(64) float bias_[kPanel] = {};
    const ResultSpace space_;
    const float* sums_ = nullptr;
    bf16* target_ = nullptr;
    int64_t num_left_ = 0;
    __mmask32 is_there_ = 0;
};

}  // namespace

#endif
