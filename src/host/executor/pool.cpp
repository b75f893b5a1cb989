#include "pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "host/compute/products.hpp"
#include "scheduling.hpp"
#include "shingle/base/error.hpp"

namespace shingle::host {

Pool::Pool(int helpers, const std::vector<int>& cores, Health& health) : health_(health) {
  try {
    for (int i = 0; i < helpers; ++i) threads_.emplace_back([this, cores] { help(cores); });
  } catch (const std::system_error&) {
    const std::size_t started = threads_.size();
    stop();
    throw Unsupported(
        fmt::format("cannot start worker threads: {} of {} of a rank were started; use fewer --workers",
                    started, helpers));
  }
}

Pool::~Pool() {
  stop();
}

void Pool::stop() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  opened_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::run(Job& job, Worker& worker, int helpers) {
  helpers = std::min(helpers, this->helpers());
  if (helpers <= 0) return job.work(worker);
  std::list<Open>::iterator open;
  {
    const std::lock_guard lock(mutex_);
    open = open_.insert(open_.end(), {&job, helpers, 0});
  }
  opened_.notify_all();
  try {
    job.work(worker);
  } catch (const Stopped&) {
    close(open);
    throw;
  } catch (...) {
    // So that the helpers leave the job, which is destroyed with this frame
    health_.fail(std::current_exception());
    close(open);
    throw Stopped{};
  }
  close(open);
}

void Pool::close(std::list<Open>::iterator open) {
  std::unique_lock lock(mutex_);
  open->room = 0;
  left_.wait(lock, [&] { return open->inside == 0; });
  open_.erase(open);
}

void Pool::help(const std::vector<int>& cores) {
  stay_on(cores);
  compute_on_this_thread_only();
  Worker worker;
  std::unique_lock lock(mutex_);
  for (;;) {
    std::list<Open>::iterator open;
    opened_.wait(lock, [&] {
      open = std::ranges::find_if(open_, [](const Open& o) { return o.room > 0; });
      return quit_ || open != open_.end();
    });
    if (quit_) return;
    --open->room;
    ++open->inside;
    lock.unlock();
    try {
      open->job->work(worker);
    } catch (const Stopped&) {
    } catch (...) {
      health_.fail(std::current_exception());
    }
    lock.lock();
    --open->inside;
    left_.notify_all();
  }
}

}  // namespace shingle::host
