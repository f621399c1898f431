// A small pool of threads for one process.
//
// Work is cut by position, and every output element is computed whole within one part: so results depend neither on the
// number of threads nor on which thread took which part. Each thread begins with the same share of every job, since what
// it wrote in the last layer lies in its caches; who has done his share takes parts from the ends of others'. The calling
// thread is one of them, so that on a busy machine nothing waits for a thread that has not been given a CPU.
#pragma once
#include <cstdint>

namespace stompp {

class Pool {
  public:
    // Holds the pool for one call. If another Python thread holds it, the call does its work alone.
    class Lease {
      public:
        explicit Lease(int threads);
        ~Lease();
        Lease(const Lease &) = delete;
        Lease &operator=(const Lease &) = delete;

        // Calls work(begin, end) on contiguous parts of [0, count), in parallel on up to `most` threads.
        template <class Work> void split(std::int64_t count, std::int64_t most, const Work &work) const {
            const int threads = most < threads_ ? static_cast<int>(most) : threads_;
            if (threads <= 1 || count <= 1) {
                if (count > 0) work(std::int64_t(0), count);
                return;
            }
            const std::int64_t parts = std::int64_t(threads) * kPartsPerThread;
            struct Job {
                const Work *work;
                std::int64_t count, parts;
            } job{&work, count, parts};
            run(threads, &job, [](void *context, int part) {
                const Job &j = *static_cast<Job *>(context);
                const std::int64_t begin = j.count * part / j.parts, end = j.count * (part + 1) / j.parts;
                if (begin < end) (*j.work)(begin, end);
            });
        }

        // How many threads there are for this call.
        int threads() const { return threads_; }

      private:
        void run(int threads, void *context, void (*part)(void *, int)) const;

        Pool *pool_ = nullptr; // null: this call works alone
        int threads_ = 1;
    };

    static constexpr int kMostThreads = 255;
    static constexpr int kPartsPerThread = 2;
};

} // namespace stompp
