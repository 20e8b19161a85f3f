// The team of threads that kernels share their work with. Compiled for the oldest CPU.
//
// A server's cores are never all its own: its event loop, its clients and its neighbours want them too. So nobody
// here waits for a thread that holds no work. The caller opens a job, takes part in it, closes it, and waits only
// for workers that did enter; one whose core was taken away just misses the job. (With barriers, as OpenMP has
// them, every parallel region waits until each thread has had its turn on a core: a decode step of a small model
// has hundreds, and was seen to take a hundred times as long with one core busy elsewhere.) Workers spin for a
// moment between jobs, since the next one of a step is near, then sleep.
//
// A worker that loses its core while it holds work has to be waited for, though. Where another program keeps a core
// busy that happens every few milliseconds, and two threads are slower than one. So a team that has lost much time does
// with a thread fewer for a while.

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace {

typedef void (*Body)(void*);

constexpr unsigned kMaxWorkers = 255;
constexpr int64_t kSpinNanoseconds = 100 * 1000;
constexpr int kPausesPerLook = 32;
constexpr int kPausesBeforeYield = 2000;
constexpr int64_t kMostLost = 10 * 1000 * 1000, kWithdrawal = 300 * 1000 * 1000;  // nanoseconds
constexpr int64_t kBearableLoss = 3;  // one nanosecond in so many

// The job: seats still free in the low 16 bits, workers inside in the next 16, its number above. All in one word, so
// that nobody can take a seat in a job that has been closed, or in another one than they saw.
constexpr uint64_t kSeat = 1, kInside = 1 << 16, kNumber = uint64_t(1) << 32;
constexpr uint64_t kSeats = kInside - 1, kInsides = kNumber - kInside;

pthread_mutex_t callers = PTHREAD_MUTEX_INITIALIZER;  // held by the caller whose job is open
uint64_t job = 0;
Body job_body = nullptr;
void* job_data = nullptr;
uint32_t num_jobs = 0;  // what workers sleep on
uint32_t num_sleepers = 0;
// Changed under `callers` only. Workers withdrawn are not asked for until the time given.
unsigned num_workers = 0, num_withdrawn = 0;
int64_t withdrawn_until = 0, lost = 0, last_lost = 0;

void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

int64_t now(clockid_t clock = CLOCK_MONOTONIC) {
    timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * int64_t(1000000000) + time.tv_nsec;
}

void futex(int operation, uint32_t value) {
    syscall(SYS_futex, &num_jobs, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

// Returns once there is another job than the last one seen.
uint32_t wait_for_job(uint32_t seen) {
    int64_t end = now() + kSpinNanoseconds;
    while (now() < end) {
        for (int i = 0; i < kPausesPerLook; ++i) {
            uint32_t current = __atomic_load_n(&num_jobs, __ATOMIC_ACQUIRE);
            if (current != seen) return current;
            pause_briefly();
        }
    }
    for (;;) {
        __atomic_fetch_add(&num_sleepers, 1, __ATOMIC_SEQ_CST);
        futex(FUTEX_WAIT, seen);
        __atomic_fetch_sub(&num_sleepers, 1, __ATOMIC_SEQ_CST);
        uint32_t current = __atomic_load_n(&num_jobs, __ATOMIC_ACQUIRE);
        if (current != seen) return current;
    }
}

void take_part() {
    uint64_t current = __atomic_load_n(&job, __ATOMIC_ACQUIRE);
    do {
        if ((current & kSeats) == 0) return;
    } while (!__atomic_compare_exchange_n(&job, &current, current - kSeat + kInside, true, __ATOMIC_ACQUIRE,
                                          __ATOMIC_ACQUIRE));
    job_body(job_data);
    __atomic_fetch_sub(&job, kInside, __ATOMIC_RELEASE);
}

void* work(void*) {
    for (uint32_t seen = 0;;) {
        seen = wait_for_job(seen);
        take_part();
    }
}

void hire(unsigned count) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads of the program
    for (; num_workers < count; ++num_workers) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, work, nullptr) != 0) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void open_job(Body body, void* data, unsigned seats) {
    job_body = body;
    job_data = data;
    uint64_t number = (__atomic_load_n(&job, __ATOMIC_RELAXED) / kNumber + 1) * kNumber;
    __atomic_store_n(&job, number + seats, __ATOMIC_RELEASE);
    __atomic_fetch_add(&num_jobs, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&num_sleepers, __ATOMIC_SEQ_CST) != 0) futex(FUTEX_WAKE, seats);
}

bool is_anybody_inside() { return __atomic_load_n(&job, __ATOMIC_ACQUIRE) & kInsides; }

// Takes note of time lost. Losses are borne as long as they are few; then the team does with a thread fewer.
void note_loss(int64_t loss, int64_t at) {
    int64_t borne = (at - last_lost) / kBearableLoss;
    lost = (lost > borne ? lost - borne : 0) + loss;
    last_lost = at;
    if (lost < kMostLost) return;
    lost = 0;
    ++num_withdrawn;
    withdrawn_until = at + kWithdrawal;
}

// How long other threads of this process have run.
int64_t others_time() { return now(CLOCK_PROCESS_CPUTIME_ID) - now(CLOCK_THREAD_CPUTIME_ID); }

// Waits for those who hold work still. The time is lost if nobody else here runs meanwhile: neither they, nor what has
// taken their core for work of this process.
void wait_for_stragglers() {
    int64_t start = now(), others_start = others_time();
    while (is_anybody_inside()) sched_yield();
    int64_t end = now(), loss = end - start - (others_time() - others_start);
    if (loss > 0) note_loss(loss, end);
}

void close_job() {
    __atomic_fetch_and(&job, ~kSeats, __ATOMIC_ACQ_REL);
    for (int num_pauses = 0; num_pauses < kPausesBeforeYield; ++num_pauses) {
        if (!is_anybody_inside()) return;
        pause_briefly();
    }
    wait_for_stragglers();
}

unsigned seats_now(unsigned seats) {
    if (num_withdrawn > 0 && now() >= withdrawn_until) {
        --num_withdrawn;
        withdrawn_until = now() + kWithdrawal;
    }
    return seats > num_withdrawn ? seats - num_withdrawn : 0;
}

void forget_after_fork() {
    pthread_mutex_init(&callers, nullptr);
    job = 0;
    num_jobs = num_sleepers = num_workers = num_withdrawn = 0;
    lost = 0;
}

__attribute__((constructor)) void watch_forks() { pthread_atfork(nullptr, nullptr, forget_after_fork); }

}  // namespace

// Runs body(data) on the calling thread and on up to num_threads - 1 others at the same time, and returns when all
// of them have left it. The body must share out its work itself and be right however many take part. While another
// caller's job is open, the calling thread works alone.
extern "C" __attribute__((visibility("default"))) void triolet_run_team(Body body, void* data,
                                                                        unsigned num_threads) {
    if (num_threads < 2 || pthread_mutex_trylock(&callers) != 0) return body(data);
    unsigned seats = num_threads - 1 < kMaxWorkers ? num_threads - 1 : kMaxWorkers;
    if (num_workers < seats) hire(seats);
    if ((seats = seats_now(seats)) == 0) {
        body(data);
    } else {
        open_job(body, data, seats);
        body(data);
        close_job();
    }
    pthread_mutex_unlock(&callers);
}
