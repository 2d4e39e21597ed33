#include "parallel.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "cpu_features.hpp"

#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace headway {
namespace {

std::atomic<int> chosen_threads{0};  // 0: not asked yet

// Set in a forked child: the OpenMP runtime's threads did not come along, and waiting for them would never end.
[[maybe_unused]] std::atomic<bool> forked{false};

[[maybe_unused]] const bool fork_handler_installed = [] {
#if defined(__unix__) || defined(__APPLE__)
  pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
#endif
  return true;
}();

// The usual mode for as long as it lives.
class UsualFloatMode {
 public:
  UsualFloatMode() : callers_(enter_usual_float_mode()) {}
  ~UsualFloatMode() { leave_usual_float_mode(callers_); }
  UsualFloatMode(const UsualFloatMode&) = delete;
  UsualFloatMode& operator=(const UsualFloatMode&) = delete;

 private:
  std::uint64_t callers_;
};

class Stop final : public StopFlag {
 public:
  explicit Stop(const std::function<bool()>& interrupted) : interrupted_(interrupted) {}

  bool should_stop(int thread) override {
    if (thread == 0 && !stopped()) {
      const auto now = std::chrono::steady_clock::now();
      if (now - asked_ >= std::chrono::milliseconds(50)) {
        asked_ = now;
        if (interrupted_()) stopped_.store(true, std::memory_order_relaxed);
      }
    }
    return stopped();
  }
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

 private:
  const std::function<bool()>& interrupted_;
  std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
  std::atomic<bool> stopped_{false};
};

// The thread count in an environment variable, 0 where it is not set.
int threads_from(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  // OMP_NUM_THREADS may be a list, one number per nesting level: the first counts.
  const bool whole = *end == '\0' || (*end == ',' && std::string(name) == "OMP_NUM_THREADS");
  if (end == text || !whole || count < 1) {
    throw std::invalid_argument(std::string(name) + ": expected a number of threads from 1 to " +
                                std::to_string(kMaxThreads) + ", got '" + text + "'; set it to such a number or unset it");
  }
  return static_cast<int>(std::min<long>(count, kMaxThreads));
}

#if defined(_OPENMP)
// Up to `wanted` threads that can be started beside each other, the calling one included. The OpenMP runtime ends the
// process when it cannot start a thread, so it is asked for a number only once this has gone well in this thread.
int startable_threads(int wanted) {
  thread_local int proven = 1;
  if (wanted <= proven) return wanted;
  std::vector<std::thread> trial;
  std::atomic<bool> done{false};
  bool at_the_limit = false;
  try {
    trial.reserve(static_cast<std::size_t>(wanted));
    for (int thread = 1; thread < wanted; ++thread) trial.emplace_back([&] { done.wait(false); });
  } catch (const std::system_error&) {
    at_the_limit = true;
  }
  done.store(true);
  done.notify_all();
  for (auto& thread : trial) thread.join();
  // At the limit half of them: the runtime needs room of its own beside the threads.
  const int all = static_cast<int>(trial.size()) + 1;
  const int started = at_the_limit ? std::max(all / 2, 1) : all;
  proven = std::max(proven, started);
  return started;
}
#endif

const char* const kVariables[] = {"HEADWAY_NUM_THREADS", "OMP_NUM_THREADS"};
std::atomic<const char*> source{nullptr};

}  // namespace

std::uint64_t enter_usual_float_mode() {
#if defined(__x86_64__) || defined(__i386__)
  const unsigned callers = _mm_getcsr();
  _mm_setcsr(0x1f80);
  return callers;
#elif defined(__aarch64__)
  std::uint64_t callers;
  asm volatile("mrs %0, fpcr" : "=r"(callers));
  asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
  return callers;
#else
  return 0;
#endif
}

void leave_usual_float_mode([[maybe_unused]] std::uint64_t callers) {
#if defined(__x86_64__) || defined(__i386__)
  _mm_setcsr(static_cast<unsigned>(callers));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(callers));
#endif
}

int num_threads() {
  if (const int count = chosen_threads.load(std::memory_order_relaxed)) return count;
  int count = 0;
  const char* why = "usable CPUs (affinity and container quota)";
  for (const char* name : kVariables) {
    if (count == 0 && (count = threads_from(name)) > 0) why = name;
  }
  if (count == 0) count = std::min(usable_cpus(), kMaxThreads);
  int none = 0;
  if (chosen_threads.compare_exchange_strong(none, count)) source.store(why);
  return chosen_threads.load();
}

void set_num_threads(int count) {
  if (count < 1 || count > kMaxThreads) {
    throw std::invalid_argument("n: expected a number of threads from 1 to " + std::to_string(kMaxThreads) + ", got " +
                                std::to_string(count) + "; the usable CPUs are " + std::to_string(usable_cpus()));
  }
  chosen_threads.store(count);
  source.store("set_num_threads");
}

std::string threads_source() {
  num_threads();
  const char* why = source.load();
  return why != nullptr ? why : "";
}

bool on_main_thread() {
#if defined(__linux__)
  return syscall(SYS_gettid) == getpid();
#elif defined(__APPLE__)
  return pthread_main_np() != 0;
#else
  return true;
#endif
}

std::string parallel_runtime() {
#if defined(_OPENMP)
#if defined(__clang__)
  const char* library = "libomp";
#else
  const char* library = "libgomp";
#endif
  const char* version = _OPENMP >= 202111 ? "5.2" : _OPENMP >= 202011 ? "5.1" : _OPENMP >= 201811 ? "5.0" : "4.5";
  return std::string("OpenMP ") + version + " (" + library + ")";
#else
  return "std::thread (built without OpenMP)";
#endif
}

void run_tasks(std::int64_t num_tasks, int threads, const std::function<bool()>& interrupted,
               const std::function<void(std::int64_t, int, StopFlag&)>& task) {
  Stop stop(interrupted);
  std::atomic<std::int64_t> next{0};
  const auto work = [&](int thread) noexcept {
    const UsualFloatMode mode;
    for (;;) {
      const std::int64_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= num_tasks || stop.should_stop(thread)) return;
      task(index, thread, stop);
    }
  };
#if defined(_OPENMP)
  if (omp_in_parallel()) threads = 1;
  const bool openmp = !forked.load();
  if (openmp && threads > 1 && num_tasks > 1) threads = startable_threads(threads);
#else
  const bool openmp = false;
#endif
  if (threads <= 1 || num_tasks <= 1) {
    work(0);
  } else if (openmp) {
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads)
    work(omp_get_thread_num());
#endif
  } else {
    std::vector<std::thread> helpers;
    helpers.reserve(static_cast<std::size_t>(threads));
    try {
      for (int thread = 1; thread < threads; ++thread) helpers.emplace_back(work, thread);
    } catch (const std::system_error&) {
      // Fewer threads than asked for do the same work.
    }
    work(0);
    for (auto& helper : helpers) helper.join();
  }
  if (stop.stopped()) throw Interrupted{};
}

}  // namespace headway
