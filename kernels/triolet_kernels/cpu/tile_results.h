// What becomes of the sums of a linear layer on matrix tiles: they are put in scale, rounded, and written.
//
// That is done a row or two at a time, while tiles work on other sums. Knows nothing of tiles or weights.
#pragma once

#include "activation.h"
#include "panel_codes.h"

#if defined(__AVX512FP16__)

namespace {

// Where results go, (rows, num_columns), and what makes them of sums.
struct ResultSpace {
    const float* bias;  // of each output, part after part, or null
    bf16* output;
    int64_t num_columns;
    float factor;
};

// Sums are results.
struct Plain {
    static constexpr int64_t kNumParts = 1;  // panels that a panel of results is made of

    static TRIOLET_INLINE Vec combine(const Vec (&parts)[1]) { return parts[0]; }
};

// Results are made of gates, and of what they let through: the outputs after all the gates.
template <class Activation>
struct Gated {
    static constexpr int64_t kNumParts = 2;

    static TRIOLET_INLINE Vec combine(const Vec (&parts)[2]) { return mul(Activation::apply(parts[0]), parts[1]); }
};

// Sums of some rows × a panel of each part, until they are written as results.
template <class Kind>
class Results {
public:
    static constexpr int64_t kNumParts = Kind::kNumParts;

    explicit Results(const ResultSpace& space) : space_(space) {}

    // sums [kNumParts][stride], each [count][kPanel], there until all is written; `panel` is one of results
    TRIOLET_INLINE void take(const float* sums, int64_t stride, int64_t panel, int64_t first_row, int64_t count) {
        const int64_t first = panel * kPanel, rest = space_.num_columns - first;
        const int64_t size = rest < kPanel ? rest : kPanel;
        for (int part = 0; space_.bias && part < kNumParts; ++part)
            memcpy(bias_[part], space_.bias + part * space_.num_columns + first, sizeof(float) * size);
        is_there_ = size < kPanel ? (1u << size) - 1 : ~0u;
        target_ = space_.output + first_row * space_.num_columns + first;
        sums_ = sums;
        stride_ = stride;
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
    TRIOLET_INLINE Vec result(int64_t first) const {
        Vec parts[kNumParts];
        for (int part = 0; part < kNumParts; ++part)
            parts[part] = fma(load(sums_ + part * stride_ + first), splat(space_.factor), load(bias_[part] + first));
        return Kind::combine(parts);
    }

    TRIOLET_INLINE void write_row() {
        const __m512bh values = _mm512_cvtne2ps_pbh(result(kLanes), result(0));
        _mm512_mask_storeu_epi16(target_, is_there_, (__m512i)values);
        sums_ += kPanel;
        target_ += space_.num_columns;
        --num_left_;
    }

    alignas(64) float bias_[kNumParts][kPanel] = {};
    const ResultSpace space_;
    const float* sums_ = nullptr;
    bf16* target_ = nullptr;
    int64_t stride_ = 0, num_left_ = 0;
    __mmask32 is_there_ = 0;
};

}  // namespace

#endif
