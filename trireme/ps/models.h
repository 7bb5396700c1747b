#pragma once
// What a server keeps: a service for each model of its job, and the roll of the workers that are in the job at all.
//
// A program may train several models, at a time or one after another. They are numbered from 0 in the order of their
// construction, which is the same on all workers, and have nothing in common but the server's thread: each has a
// layout, chunks, rules, clocks, a lock and a barrier of its own. A worker that dies is lost to all of them. The roll
// is a model without parameters that a worker is in for as long as it is in the job: while somebody is, models may
// still come, and the server stays. Clients of programs that keep no roll end the server when the last one has left the
// last model.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <trireme/ps/service.h>

namespace trireme::ps {

/// Where a server keeps the parameters of its models.
class ModelMemory {
 public:
  virtual ~ModelMemory() = default;
  /// Room for a flat vector of so many bytes, zeroed. Once for each model. May throw.
  virtual std::byte* take(int model, size_t bytes) = 0;
  /// The model has ended.
  virtual void give_back(int model) = 0;
};

/// One thread at a time. Services live as long as this: connections point to them.
class Models final : Service::Neighbours {
 public:
  /// `memory`, `helpers` and `registry` stay the caller's.
  Models(int server, ModelMemory& memory, Helpers& helpers, metrics::Registry& registry);

  struct Admission {
    Service* service = nullptr;
    std::string refusal;  // why the worker is not admitted, or ""
  };
  /// A worker has come to a model, with its description.
  Admission open(int model, int worker, const std::string& job);
  /// Its connection to one of the models has ended; unless it had left that model, it is lost to all of them.
  void lost(Service& service, int worker, const std::string& how);

  /// Carries out what time alone decides.
  void tick(Clock::time_point now);
  /// When tick() has something to do next.
  std::optional<Clock::time_point> due() const;

  /// Nobody has come yet.
  bool empty() const { return services_.empty(); }
  /// Somebody has come, and all have left.
  bool finished() const { return running_.empty() && !services_.empty(); }
  /// Why the job failed, or "".
  std::string failure() const;
  /// A model that the worker is in now; null: none.
  Service* where(int worker) const;
  bool here(int model, int worker) const;

  /// All that is known of models that run, and who has gone.
  void copy_to(CopyWriter& out) const;
  /// Of another one with the same number, in which nothing has happened but that workers came.
  using Again = std::function<Incoming(int model, int worker, const Request& request)>;
  void copy_from(CopyReader& in, const Again& again);
  /// SHA-256 of that: the same where the same has happened in the same order.
  std::string digest() const;
  /// "delay WORKER MS", "delay WORKER MS MODEL": what `trireme ctl` says. A line for each model. Throws
  /// InvalidArgument.
  std::string control(const std::string& words);

 private:
  void rests(const Service& service, int worker) override;
  void left(Service& service, int worker, const Departure& departure) override;
  Service& service_of(int model);
  /// All that run, but this one.
  std::vector<Service*> others(const Service& service) const;
  std::vector<Service*> without_roll() const;

  const int server_;
  ModelMemory& memory_;
  Helpers& helpers_;
  metrics::Registry& registry_;
  std::map<int, std::unique_ptr<Service>> services_;  // by model; the roll's number is below all others
  std::vector<Service*> running_;                     // those that somebody is in, or will come to
  std::map<int, Departure> gone_;                     // workers that will come to no further model
  std::string failure_;
};

}  // namespace trireme::ps
