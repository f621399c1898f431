// A small pool of threads for one process.
//
// Work is cut into parts by position, never by who is idle, and every output element is computed whole by one part: so
// results do not depend on the number of threads.
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
            const std::int64_t parts = most < threads_ ? most : threads_;
            if (parts <= 1 || count <= 1) {
                if (count > 0) work(std::int64_t(0), count);
                return;
            }
            struct Job {
                const Work *work;
                std::int64_t count, parts;
            } job{&work, count, parts};
            run(static_cast<int>(parts), &job, [](void *context, int part) {
                const Job &j = *static_cast<Job *>(context);
                const std::int64_t begin = j.count * part / j.parts, end = j.count * (part + 1) / j.parts;
                if (begin < end) (*j.work)(begin, end);
            });
        }

      private:
        void run(int parts, void *context, void (*part)(void *, int)) const;

        Pool *pool_ = nullptr; // null: this call works alone
        int threads_ = 1;
    };

    static constexpr int kMostThreads = 256;
};

} // namespace stompp
