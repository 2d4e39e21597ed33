// Threads. This is the only part of the library that knows OpenMP.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace headway {

// Threads for the next calls. The first of these that is set counts: set_num_threads, HEADWAY_NUM_THREADS,
// OMP_NUM_THREADS, the usable CPUs. Throws std::invalid_argument where an environment variable holds no such number.
int num_threads();
void set_num_threads(int count);      // 1 .. kMaxThreads, else std::invalid_argument
std::string threads_source();         // why that number
std::string parallel_runtime();       // "OpenMP 4.5 (libgomp)", or what stands in for it
inline constexpr int kMaxThreads = 1024;

// Whether the calling thread is the process's first one, in which signal handlers run.
bool on_main_thread();

// Rounding to nearest, no flush-to-zero in the calling thread: returns the mode that was set, which `leave` puts back.
std::uint64_t enter_usual_float_mode();
void leave_usual_float_mode(std::uint64_t callers);

// Raised in the calling thread when `interrupted` of run_tasks said so.
struct Interrupted {};

// Calls task(index, thread) for every index below num_tasks, each once, handed out one at a time in ascending order;
// thread < threads. Tasks must not throw. The calling thread asks `interrupted` between its tasks and whenever a task
// asks should_stop(); when it says yes, no further task starts, and Interrupted is thrown once all threads are idle.
// Every thread computes with rounding to nearest and subnormal numbers, whatever the caller's mode, which is restored.
// Inside another parallel region, all runs in the calling thread. After a fork, std::thread takes OpenMP's place.
class StopFlag;
void run_tasks(std::int64_t num_tasks, int threads, const std::function<bool()>& interrupted,
               const std::function<void(std::int64_t index, int thread, StopFlag& stop)>& task);

class StopFlag {
 public:
  // Whether the task should end early; cheap enough to ask every few milliseconds of work.
  virtual bool should_stop(int thread) = 0;

 protected:
  ~StopFlag() = default;
};

}  // namespace headway
