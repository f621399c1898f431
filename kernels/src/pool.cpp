#include "pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace stompp {
namespace {

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

constexpr int kSpins = 4000;  // some 40 microseconds: longer than the gap between two layers
constexpr int kPolite = 1000; // then let others on this core run

// What is left of one thread's share of a job, in one word: parts [next, end). A part is taken by moving one of the two in
// a word that is still the one that was read, so nobody can take part in a job that is over.
struct Share {
    std::uint64_t word;
    static Share of(std::uint32_t job, int next, int end) {
        return {std::uint64_t(job) << 32 | std::uint64_t(next) << 16 | std::uint64_t(end)};
    }
    std::uint32_t job() const { return static_cast<std::uint32_t>(word >> 32); }
    int next() const { return static_cast<int>(word >> 16 & 0xffff); }
    int end() const { return static_cast<int>(word & 0xffff); }
    bool empty() const { return next() >= end(); }
    Share without_first() const { return of(job(), next() + 1, end()); }
    Share without_last() const { return of(job(), next(), end() - 1); }
};
static_assert(Pool::kMostThreads * Pool::kPartsPerThread < 0xffff, "parts must fit the word");

struct alignas(64) Slot { // a cache line each: a thread that waits watches its own
    std::atomic<std::uint64_t> share{0};
};

} // namespace

// Lives until the process ends: its threads may be asleep when static objects are destroyed.
struct Shared : Pool {
    std::mutex busy; // held by the call that uses the pool
    const pid_t owner = getpid();

    static Shared *instance() {
        static std::mutex guard;
        static Shared *shared = nullptr;
        std::lock_guard<std::mutex> lock(guard);
        // A forked child inherits the object without its threads.
        if (!shared || shared->owner != getpid()) shared = new Shared;
        return shared;
    }

    int helpers() const { return helpers_.load(); }

    void add_helper() {
        std::thread([this, self = helpers() + 1] { help(self); }).detach();
        helpers_.fetch_add(1);
    }

    void run(int threads, void *context, void (*work)(void *, int)) {
        context_ = context;
        work_ = work;
        left_.store(threads * kPartsPerThread);
        ++job_;
        for (int i = 0; i < threads; ++i)
            slots_[i].share.store(Share::of(job_, i * kPartsPerThread, (i + 1) * kPartsPerThread).word);
        if (sleeping_.load() > 0) {
            std::lock_guard<std::mutex> lock(mutex_);
            wake_.notify_all();
        }
        take_all(0);
        for (int spin = 0; left_.load() > 0; ++spin) {
            pause();
            if (spin > kPolite) sched_yield();
        }
    }

  private:
    // Takes part in the job that this thread has a share in: its own parts first, then what others have not begun. Threads
    // that the job does not want have no share of it, and threads of other jobs are left alone.
    void take_all(int self) {
        const std::uint32_t job = Share{slots_[self].share.load()}.job();
        while (take(self, job, &Share::next, &Share::without_first, 0)) {}
        for (int other = 0; other <= helpers_.load(); ++other)
            while (take(other, job, &Share::end, &Share::without_last, -1)) {}
    }

    bool take(int from, std::uint32_t job, int (Share::*place)() const, Share (Share::*rest)() const, int offset) {
        Share share{slots_[from].share.load()};
        while (share.job() == job && !share.empty()) {
            const int part = (share.*place)() + offset;
            if (!slots_[from].share.compare_exchange_weak(share.word, (share.*rest)().word)) continue;
            // The job cannot end before this part does, so what it points to is alive.
            work_(context_, part);
            left_.fetch_sub(1);
            return true;
        }
        return false;
    }

    void help(int self) {
        const auto wanted = [&] { return !Share{slots_[self].share.load()}.empty(); };
        for (;;) {
            take_all(self);
            for (int spin = 0; spin < kSpins && !wanted(); ++spin) pause();
            if (wanted()) continue;
            std::unique_lock<std::mutex> lock(mutex_);
            sleeping_.fetch_add(1);
            wake_.wait(lock, wanted);
            sleeping_.fetch_sub(1);
        }
    }

    std::uint32_t job_ = 0;
    Slot slots_[kMostThreads]; // of the caller, then of each helper
    void *context_ = nullptr;
    void (*work_)(void *, int) = nullptr;
    std::atomic<int> left_{0}, sleeping_{0}, helpers_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
};

Pool::Lease::Lease(int threads) {
    if (threads <= 1) return;
    Shared *shared = Shared::instance();
    if (!shared->busy.try_lock()) return;
    pool_ = shared;
    threads_ = threads < kMostThreads ? threads : kMostThreads;
    try {
        while (shared->helpers() < threads_ - 1) shared->add_helper();
    } catch (...) { // no more threads to be had: use those there are
        threads_ = shared->helpers() + 1;
    }
}

Pool::Lease::~Lease() {
    if (pool_) static_cast<Shared *>(pool_)->busy.unlock();
}

void Pool::Lease::run(int threads, void *context, void (*part)(void *, int)) const {
    static_cast<Shared *>(pool_)->run(threads, context, part);
}

} // namespace stompp
