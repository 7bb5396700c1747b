#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <sstream>

#include <trireme/base/error.h>
#include <trireme/base/sha256.h>
#include <trireme/ps/copy.h>
#include <trireme/ps/models.h>

namespace trireme::ps {
namespace {

constexpr int kMostModels = 1 << 16;  // more is a mistake or an attack

}  // namespace

Models::Models(int server, ModelMemory& memory, Helpers& helpers, metrics::Registry& registry)
    : server_(server), memory_(memory), helpers_(helpers), registry_(registry) {}

Service& Models::service_of(int model) {
  auto& service = services_[model];
  if (!service) {
    Service::Neighbours* neighbours = this;
    service = std::make_unique<Service>(
        server_, [this, model](size_t bytes) { return memory_.take(model, bytes); }, helpers_, registry_, model,
        neighbours);
    running_.push_back(service.get());
  }
  return *service;
}

Models::Admission Models::open(int model, int worker, const std::string& job) {
  if (model < kRoll || model >= kMostModels)
    return {nullptr, fmt::format("there is no model {}: a job has {} at most, numbered from 0", model, kMostModels)};
  if (gone_.contains(worker)) return {nullptr, fmt::format("worker {} has been here, and is gone", worker)};
  const bool known = services_.contains(model);
  Service& service = service_of(model);
  std::string refusal = service.open(worker, job);
  if (!known && service.job() == nullptr) {  // what came first describes nothing
    std::erase(running_, &service);
    services_.erase(model);
    return {nullptr, std::move(refusal)};
  }
  if (!known) {
    for (const auto& [other, departure] : gone_) service.gone(other, departure);
    if (const auto models = without_roll(); models.size() > 1)
      for (Service* one : models) one->name_model();
  }
  return {&service, std::move(refusal)};
}

std::vector<Service*> Models::others(const Service& service) const {
  std::vector<Service*> all;
  std::copy_if(running_.begin(), running_.end(), std::back_inserter(all),
               [&](const Service* one) { return one != &service; });
  return all;
}

std::vector<Service*> Models::without_roll() const {
  std::vector<Service*> all;
  for (const auto& [model, service] : services_)
    if (model != kRoll) all.push_back(service.get());
  return all;
}

// ---- who goes ----

void Models::lost(Service& service, int worker, const std::string& how) {
  if (!service.here(worker)) return;
  gone_.try_emplace(worker, Departure{how});
  // One that is in no model takes nothing with it: a program may end without having left the job.
  const auto models = without_roll();
  if (failure_.empty() &&
      std::any_of(models.begin(), models.end(), [&](const Service* one) { return one->here(worker); }))
    failure_ = how;
  for (Service* one : std::vector(running_)) one->gone(worker, {how});
}

/// A worker has left one of the models. It may come to others, unless this is the roll.
void Models::left(Service& service, int worker, const Departure& departure) {
  if (service.model() == kRoll && gone_.try_emplace(worker, departure).second) {
    if (failure_.empty()) failure_ = departure.how;
    for (Service* one : others(service))
      if (!departure.how.empty() || !one->here(worker)) one->gone(worker, departure);
  }
  if (!service.finished() || std::erase(running_, &service) == 0) return;
  service.release();
  memory_.give_back(service.model());
}

/// Nobody waits for it in other models, until it goes on there.
void Models::rests(const Service& service, int worker) {
  for (Service* one : others(service)) one->rest(worker);
}

std::string Models::failure() const {
  if (!failure_.empty() || services_.contains(kRoll))
    return failure_;  // who keeps the roll may get over what went wrong with one model
  for (const auto& [model, service] : services_)
    if (!service->failure().empty()) return service->failure();
  return "";
}

Service* Models::where(int worker) const {
  const auto found =
      std::find_if(running_.begin(), running_.end(), [&](const Service* one) { return one->here(worker); });
  return found == running_.end() ? nullptr : *found;
}

bool Models::here(int model, int worker) const {
  const auto found = services_.find(model);
  return found != services_.end() && found->second->here(worker);
}

// ---- all of it, for a backup ----

void Models::copy_to(CopyWriter& out) const {
  out.put(failure_);
  out.put(gone_.size());
  for (const auto& [worker, departure] : gone_) {
    out.put(worker);
    out.put(departure.how);
    out.put(departure.victim);
  }
  out.put(running_.size());
  for (const auto& [model, service] : services_) {
    if (service->finished()) continue;
    out.put(model);
    out.put(service->job_from());
    out.put(service->job_text());
    service->copy_to(out);
  }
}

void Models::copy_from(CopyReader& in, const Again& again) {
  failure_ = in.text();
  gone_.clear();
  for (size_t count = in.get<size_t>(); count > 0; count--) {
    const int worker = in.get<int>();
    std::string how = in.text();
    gone_.emplace(worker, Departure{std::move(how), in.get<bool>()});
  }
  std::set<int> copied;
  for (size_t count = in.get<size_t>(); count > 0; count--) {
    const int model = in.get<int>(), from = in.get<int>();
    if (model < kRoll || model >= kMostModels || !copied.insert(model).second)
      fail<Corruption>("the copy of a shard has a model {}", model);
    Service& service = service_of(model);
    if (const std::string refusal = service.open(from, in.text()); !refusal.empty()) fail<Corruption>("{}", refusal);
    service.copy_from(in, [&](int worker, const Request& request) { return again(model, worker, request); });
  }
  if (const auto models = without_roll(); models.size() > 1)
    for (Service* one : models) one->name_model();
}

std::string Models::digest() const {
  CopyWriter all;
  copy_to(all);
  Sha256 hash;
  hash.add(all.bytes().data(), all.bytes().size());
  return hash.finish();
}

// ---- time and control ----

std::optional<Clock::time_point> Models::due() const {
  std::optional<Clock::time_point> first;
  for (const Service* service : running_)
    if (const auto due = service->due(); due && (!first || *due < *first)) first = due;
  return first;
}

void Models::tick(Clock::time_point now) {
  for (Service* service : std::vector(running_)) service->tick(now);
}

std::string Models::control(const std::string& words) {
  std::istringstream in(words);
  std::vector<std::string> parts{std::istream_iterator<std::string>(in), {}};
  if (words == "servers") return fmt::format("server {}: no replicas", server_);
  std::vector<Service*> models = without_roll();
  std::erase_if(models, [](const Service* one) { return one->finished(); });
  std::string command = words;
  if (parts.size() == 4) {  // a delay in one model
    std::erase_if(models, [&](const Service* one) { return std::to_string(one->model()) != parts[3]; });
    if (models.empty()) fail<InvalidArgument>("server {} has no model {} now", server_, parts[3]);
    command = fmt::format("{} {} {}", parts[0], parts[1], parts[2]);
  }
  if (models.empty()) fail<InvalidArgument>("the job has not begun");
  std::vector<std::string> lines;
  for (Service* one : models) lines.push_back(one->control(command));
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace trireme::ps
