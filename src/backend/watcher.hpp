// Looks for failures elsewhere while the program runs code of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace shingle {

class Watcher {
 public:
  struct Actions {
    /// Must return soon. Throws if something has failed.
    std::function<void()> look;
    /// Called once, with what look() has thrown. Must not throw.
    std::function<void(std::exception_ptr)> fail;
  };

  Watcher() = default;
  /// As stop().
  ~Watcher() { stop(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  /// From now on a thread calls `look` at this interval, except while a Hold exists. It ends after `fail`.
  void start(std::chrono::steady_clock::duration interval, Actions actions);
  /// Waits for an action that has begun. None begins afterwards.
  void stop();

  class Pause;
  /// Held by a call that looks for failures itself, or that uses what the actions use. Waits for an action
  /// that has begun. Holds may nest, and several threads may have one. Actions must make none.
  class Hold {
   public:
    explicit Hold(Watcher& watcher) : holds_(watcher.holds_) { take(); }
    ~Hold() { release(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    friend Watcher::Pause;
    void take();
    void release() { --holds_; }

    std::atomic<int>& holds_;
  };

  /// Lifts a Hold for as long as it exists, around work that may block until an action ends it. Such work
  /// must use nothing that the actions change. At the end it waits for an action that has begun.
  class Pause {
   public:
    explicit Pause(Hold& hold) : hold_(hold) { hold_.release(); }
    ~Pause() { hold_.take(); }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Hold& hold_;
  };

 private:
  static constexpr int acting = -1;

  void serve(std::chrono::steady_clock::duration interval, const Actions& actions);
  bool act(const Actions& actions);

  std::atomic<int> holds_{0};  // number of Holds; `acting` during an action
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace shingle
