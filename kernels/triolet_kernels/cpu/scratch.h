// Memory that a kernel works in, and gives back when it is done.
//
// Knows nothing of what is kept in it. A kernel that gets none says so to its caller: it must not go on.
#pragma once

#include <stdint.h>
#include <stdlib.h>

namespace {

// Room for `count` values from a cache line's start on, while it lives. True if there is as much as was asked for.
template <class T>
class Scratch {
public:
    explicit Scratch(int64_t count)
        : values(count ? static_cast<T*>(aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64)) : nullptr),
          is_there_(values || !count) {}
    ~Scratch() { free(values); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    explicit operator bool() const { return is_there_; }

    T* const values;

private:
    const bool is_there_;
};

}  // namespace
