// Which variants this CPU (and its operating system) can run. Compiled for the oldest CPU.

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern "C" __attribute__((visibility("default"))) int triolet_runs_portable() { return 1; }

#if defined(__x86_64__)

// Not every compiler in use knows the name "f16c". The operating system keeps its registers if it does those of AVX2.
static bool has_f16c() {
    constexpr unsigned kEcxF16c = 1u << 29;
    unsigned eax, ebx, ecx, edx;
    asm("cpuid" : "=a"(eax), "=b"(ebx), "=c"(ecx), "=d"(edx) : "0"(1));
    return ecx & kEcxF16c;
}

extern "C" __attribute__((visibility("default"))) int triolet_runs_avx2() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

extern "C" __attribute__((visibility("default"))) int triolet_runs_avx512() {
    __builtin_cpu_init();
    return triolet_runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}

// Linux hands out the matrix tiles on request only, to the whole process.
extern "C" __attribute__((visibility("default"))) int triolet_runs_amx() {
    constexpr unsigned kEdxTiles = 1u << 24 | 1u << 23 | 1u << 22;  // registers, AVX512-FP16, bf16
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    unsigned eax, ebx, ecx = 0, edx;
    if (!triolet_runs_avx512()) return 0;
    asm("cpuid" : "=a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx) : "0"(7));
    return (edx & kEdxTiles) == kEdxTiles && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#endif
