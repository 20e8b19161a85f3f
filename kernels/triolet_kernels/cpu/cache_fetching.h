// Asking for keys and values before their turn, a few lines beside each piece of the work on what is there.
//
// Memory is the limit of decoding, so some lines must be on their way at all times, also while nothing is read; if all
// were asked for at once, what is read meanwhile would have to wait behind them. Lines come from the pages of all chunks
// in turn: the hardware reads on in each page by itself, so the more pages, the more is on its way. Knows nothing of
// what is done with keys and values.
#pragma once

#include "attention_chunk.h"

namespace {

// What comes next of a cache of E whose queries are of T.
template <class T, class E>
class Fetching {
public:
    explicit Fetching(const ChunkGeometry& geometry) : geometry_(geometry) {}

    // All of `next` is to be on its way by the time that `beside` has been called for so many pieces. It must live
    // until then.
    void start(const Chunks<E>& next, int64_t num_pieces) {
        next_ = &next;
        num_pieces_ = num_pieces;
        num_steps_ = next.count * ((geometry_.head_dim + kValues - 1) / kValues);
        due_ = chunk_ = first_ = 0;
        num_left_ = num_steps_;
    }

    TRIOLET_INLINE void beside(int64_t num_pieces = 1) {
        for (due_ += num_steps_ * num_pieces; due_ >= num_pieces_ && num_left_; due_ -= num_pieces_) fetch();
    }

private:
    static constexpr int64_t kPairs = 4, kValues = kPairs * PairSize<T>::value;  // of a step

    TRIOLET_INLINE void fetch() {
        const Chunk<E>& chunk = next_->chunk[chunk_];
        const int64_t size = geometry_.chunk * PairSize<T>::value, stride = geometry_.block_size * PairSize<T>::value;
        for (int64_t pair = first_; pair < first_ + kPairs; ++pair) {
            fetch_lines(chunk.keys + pair * stride, size);
            fetch_lines(chunk.values + pair * size, size);
        }
        if (first_ == 0) fetch_scales(chunk);
        if (++chunk_ == next_->count) chunk_ = 0, first_ += kPairs;
        --num_left_;
    }

    // Always inlined: GCC 12 takes a function that only prefetches for one without effect, and drops the call.
    static TRIOLET_INLINE void fetch_lines(const E* first, int64_t size) {
        for (int64_t i = 0; i < size; i += 64 / int64_t(sizeof(E))) __builtin_prefetch(first + i, 0, 2);
    }
    static TRIOLET_INLINE void fetch_scales(const Chunk<T>&) {}
    static TRIOLET_INLINE void fetch_scales(const Chunk<Code>& chunk) {
        __builtin_prefetch(chunk.key_scales, 0, 2);
        __builtin_prefetch(chunk.value_scales, 0, 2);
    }

    const ChunkGeometry geometry_;
    const Chunks<E>* next_ = nullptr;
    int64_t num_pieces_ = 1, num_steps_ = 0, num_left_ = 0, due_ = 0, chunk_ = 0, first_ = 0;
};

}  // namespace
