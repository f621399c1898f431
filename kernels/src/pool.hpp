// A small pool of threads for one process.
//
// Work is cut by position, and every output element is computed whole within one part: so results depend neither on the
// number of threads nor on which thread took which part. The calling thread takes parts too, so that on a busy machine
// nothing waits for a thread that has not been given a CPU.
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

        // Calls work(begin, end) on up to `most` contiguous parts of [0, count), in parallel.
        template <class Work> void split(std::int64_t count, std::int64_t most, const Work &work) const {
            const std::int64_t parts = most < kPartsPerThread * threads_ ? most : kPartsPerThread * threads_;
            if (threads_ <= 1 || parts <= 1 || count <= 1) {
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

    static constexpr int kMostThreads = 255;
    static constexpr int kPartsPerThread = 2;
};

} // namespace stompp
