#include "pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace stompp {
namespace {

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

constexpr int kSpins = 4000;  // some 40 microseconds: longer than the gap between two layers
constexpr int kPolite = 2000; // then let others on this core run

// One waiting thread. It spins for the next layer's work, then sleeps.
class Worker {
  public:
    explicit Worker(int part) : part_(part), thread_([this] { loop(); }) { thread_.detach(); }

    void start(void *context, void (*work)(void *, int), std::atomic<int> *left) {
        context_ = context;
        work_ = work;
        left_ = left;
        ticket_.fetch_add(1);
        if (sleeping_.load()) {
            std::lock_guard<std::mutex> lock(mutex_);
            wake_.notify_one();
        }
    }

  private:
    void loop() {
        for (unsigned seen = 0;; ++seen) {
            for (int spin = 0; spin < kSpins && ticket_.load() == seen; ++spin) pause();
            if (ticket_.load() == seen) {
                std::unique_lock<std::mutex> lock(mutex_);
                sleeping_.store(true);
                wake_.wait(lock, [&] { return ticket_.load() != seen; });
                sleeping_.store(false);
            }
            work_(context_, part_);
            left_->fetch_sub(1);
        }
    }

    const int part_;
    void *context_ = nullptr;
    void (*work_)(void *, int) = nullptr;
    std::atomic<int> *left_ = nullptr;
    std::atomic<unsigned> ticket_{0};
    std::atomic<bool> sleeping_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::thread thread_;
};

} // namespace

// Lives until the process ends: its threads may be asleep when static objects are destroyed.
struct Shared : Pool {
    std::mutex busy;
    std::vector<std::unique_ptr<Worker>> workers;
    pid_t owner = getpid();

    static Shared *instance() {
        static std::mutex guard;
        static Shared *shared = nullptr;
        std::lock_guard<std::mutex> lock(guard);
        // A forked child inherits the object without its threads.
        if (!shared || shared->owner != getpid()) shared = new Shared;
        return shared;
    }
};

Pool::Lease::Lease(int threads) {
    if (threads <= 1) return;
    Shared *shared = Shared::instance();
    if (!shared->busy.try_lock()) return;
    pool_ = shared;
    threads_ = threads < kMostThreads ? threads : kMostThreads;
    try {
        while (static_cast<int>(shared->workers.size()) < threads_ - 1)
            shared->workers.push_back(std::make_unique<Worker>(static_cast<int>(shared->workers.size()) + 1));
    } catch (...) { // no more threads to be had: use those there are
        threads_ = static_cast<int>(shared->workers.size()) + 1;
    }
}

Pool::Lease::~Lease() {
    if (pool_) static_cast<Shared *>(pool_)->busy.unlock();
}

void Pool::Lease::run(int parts, void *context, void (*part)(void *, int)) const {
    auto &workers = static_cast<Shared *>(pool_)->workers;
    std::atomic<int> left{parts - 1};
    for (int i = 1; i < parts; ++i) workers[i - 1]->start(context, part, &left);
    part(context, 0);
    for (int spin = 0; left.load() > 0; ++spin) {
        pause();
        if (spin > kPolite) sched_yield();
    }
}

} // namespace stompp
