// Which variants this CPU (and its operating system) can run. Compiled for the oldest CPU.

extern "C" __attribute__((visibility("default"))) int triolet_runs_portable() { return 1; }

#if defined(__x86_64__)

extern "C" __attribute__((visibility("default"))) int triolet_runs_avx2() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

extern "C" __attribute__((visibility("default"))) int triolet_runs_avx512() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}

#endif
