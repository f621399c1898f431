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

// The job that is going on, in one word: which it is, how many helpers may join, its parts, and the next one to take. A
// part is taken by counting `next` up in a word that is still the one that was read, so nobody can take part in a job
// that is over.
struct Ticket {
    std::uint64_t word;
    static Ticket make(std::uint64_t job, int helpers, int parts) {
        return {job << 32 | std::uint64_t(helpers) << 24 | std::uint64_t(parts) << 12};
    }
    int next() const { return static_cast<int>(word & 0xfff); }
    int parts() const { return static_cast<int>(word >> 12 & 0xfff); }
    int helpers() const { return static_cast<int>(word >> 24 & 0xff); }
    bool open_to(int helper) const { return next() < parts() && helper < helpers(); }
};
static_assert(Pool::kMostThreads * Pool::kPartsPerThread < 0xfff, "parts must fit the ticket");

} // namespace

// Lives until the process ends: its threads may be asleep when static objects are destroyed.
struct Shared : Pool {
    std::mutex busy; // held by the call that uses the pool
    int helpers = 0;
    const pid_t owner = getpid();

    static Shared *instance() {
        static std::mutex guard;
        static Shared *shared = nullptr;
        std::lock_guard<std::mutex> lock(guard);
        // A forked child inherits the object without its threads.
        if (!shared || shared->owner != getpid()) shared = new Shared;
        return shared;
    }

    void add_helper() {
        std::thread([this, helper = helpers] { help(helper); }).detach();
        ++helpers;
    }

    void run(int threads, int parts, void *context, void (*work)(void *, int)) {
        context_ = context;
        work_ = work;
        left_.store(parts);
        ticket_.store(Ticket::make(++job_, threads - 1, parts).word);
        if (sleeping_.load() > 0) {
            std::lock_guard<std::mutex> lock(mutex_);
            wake_.notify_all();
        }
        while (take(-1)) {}
        for (int spin = 0; left_.load() > 0; ++spin) {
            pause();
            if (spin > kPolite) sched_yield();
        }
    }

  private:
    // Does one part of the job, if one is left for this helper; the caller is helper -1.
    bool take(int helper) {
        Ticket ticket{ticket_.load()};
        while (ticket.open_to(helper)) {
            if (!ticket_.compare_exchange_weak(ticket.word, ticket.word + 1)) continue;
            // The job cannot end before this part does, so what it points to is alive.
            work_(context_, ticket.next());
            left_.fetch_sub(1);
            return true;
        }
        return false;
    }

    void help(int helper) {
        const auto open = [&] { return Ticket{ticket_.load()}.open_to(helper); };
        for (;;) {
            while (take(helper)) {}
            for (int spin = 0; spin < kSpins && !open(); ++spin) pause();
            if (open()) continue;
            std::unique_lock<std::mutex> lock(mutex_);
            sleeping_.fetch_add(1);
            wake_.wait(lock, open);
            sleeping_.fetch_sub(1);
        }
    }

    std::uint64_t job_ = 0;
    void *context_ = nullptr;
    void (*work_)(void *, int) = nullptr;
    std::atomic<std::uint64_t> ticket_{0};
    std::atomic<int> left_{0}, sleeping_{0};
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
        while (shared->helpers < threads_ - 1) shared->add_helper();
    } catch (...) { // no more threads to be had: use those there are
        threads_ = shared->helpers + 1;
    }
}

Pool::Lease::~Lease() {
    if (pool_) static_cast<Shared *>(pool_)->busy.unlock();
}

void Pool::Lease::run(int parts, void *context, void (*part)(void *, int)) const {
    static_cast<Shared *>(pool_)->run(threads_, parts, context, part);
}

} // namespace stompp
