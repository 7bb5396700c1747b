#include <algorithm>
#include <filesystem>

#include <trireme/base/sha256.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/cluster/launching/slate.h>
#include <trireme/parallel/impl.h>
#include <trireme/parallel/parallel.h>
#include <trireme/parallel/saver.h>

namespace trireme {

Parallel::Parallel(World& world, torch::nn::Module& module, std::optional<space::UpdaterOptions> optimizer,
                   const ParallelOptions& options)
    : impl_(std::make_unique<Impl>(Ranks(world), &world, module, optimizer, options)) {}
Parallel::Parallel(const Group& group, torch::nn::Module& module, std::optional<space::UpdaterOptions> optimizer,
                   const ParallelOptions& options)
    : impl_(std::make_unique<Impl>(Ranks(group), nullptr, module, optimizer, options)) {}
Parallel::Parallel(const Mesh& mesh, torch::nn::Module& module, std::optional<space::UpdaterOptions> optimizer,
                   const ParallelOptions& options)
    : impl_(std::make_unique<Impl>(Ranks(mesh), nullptr, module, optimizer, options)) {}
Parallel::Parallel(const Mesh& mesh, const Pipeline& pipeline, std::optional<space::UpdaterOptions> optimizer,
                   const ParallelOptions& options)
    : impl_(std::make_unique<Impl>(Ranks(mesh, pipeline), nullptr, pipeline.module(), optimizer, options, &pipeline)) {}
Parallel::~Parallel() = default;

Step Parallel::step(double weight, const std::function<torch::Tensor()>& loss) {
  return impl_->through_changes([&] { return impl_->step(weight, loss); });
}
Step Parallel::step(double weight, const torch::Tensor& x, const torch::Tensor& y, const LossOf& loss) {
  return impl_->through_changes([&] { return impl_->step(weight, x, y, loss); });
}
Step Parallel::step(const std::function<torch::Tensor()>& loss) { return step(impl_->equal_weight(), loss); }
void Parallel::count_samples(int64_t epoch, double samples, double signs) {
  impl_->count_samples(epoch, samples, signs);
}
void Parallel::leave_out(int64_t epoch, double samples, double signs) { impl_->leave_out(epoch, samples, signs); }
void Parallel::take_up(const exchange::Ledger& ledger) { impl_->take_up(ledger); }
const exchange::Ledger& Parallel::ledger() const { return impl_->ledger(); }
bool Parallel::elastic() const { return impl_->elastic(); }
Step Parallel::change_crew() { return impl_->change_crew(); }
void Parallel::settle_on(int64_t number, std::string what) { impl_->settle_on(number, std::move(what)); }
const std::pair<int64_t, std::string>& Parallel::settled_on() const { return impl_->settled_on(); }
void Parallel::use_loader(const std::shared_ptr<const std::string>& terms) { impl_->use_loader(terms); }
const exchange::Balance& Parallel::balance() const { return impl_->balance(); }
void Parallel::request_stop() noexcept { impl_->stop.store(true); }
void Parallel::limited(const std::function<void()>& meet) { impl_->limited(meet); }
void Parallel::exclusive(const std::function<void()>& change) { impl_->exclusive(change); }
void Parallel::settled(const std::function<void()>& look, Looks looks) { impl_->settled(look, looks); }
bool Parallel::lockstep() const { return impl_->exchange().traits().lockstep; }
exchange::WorkSource& Parallel::source() { return impl_->source(); }
ps::Client& Parallel::servers() {
  if (impl_->pushes()) return *impl_->exchange().client();
  fail<InvalidArgument>("this mode has no parameter servers: use Sync::async or another one that has");
}
std::vector<metrics::Snapshot> Parallel::counted_by_servers() {
  ps::Client* const client = impl_->exchange().client();
  return client == nullptr ? std::vector<metrics::Snapshot>{} : client->counted();
}
double Parallel::learning_rate() const { return impl_->learning_rate(); }
const exchange::Exchange& Parallel::exchange() const { return impl_->exchange(); }

state::OwnerMap Parallel::owners() const { return impl_->owners(); }
void Parallel::visit(state::Visitor& visitor) { impl_->visit(visitor); }
std::shared_ptr<state::Snapshot> Parallel::snapshot(const state::OwnerMap& division) {
  return impl_->snapshot(division);
}
std::string Parallel::restore(state::Source& source) { return impl_->restore(source); }

checkpoint::Contents Parallel::contents() const { return impl_->contents(); }
checkpoint::CrewNote Parallel::crew() const { return impl_->crew(); }
const Group& Parallel::group() const { return impl_->group(); }
const Group& Parallel::whole() const { return impl_->whole(); }
const std::string& Parallel::mesh() const { return impl_->mesh(); }

std::string Parallel::save_state(const std::string& dir) {
  Saver saver(*this, {.dir = dir, .keep = {.keep = 0}});
  saver.save({.step = impl_->updates()});
  return saver.complete().path;
}

int64_t Parallel::load_state(const std::string& dir) { return trireme::load_state(*this, dir).manifest.step; }

std::string Parallel::sha256() {
  Sha256 hash;
  impl_->each_tensor([&](const Named& item) {
    hash.add(item.name.data(), item.name.size());
    hash.add(item.tensor.data_ptr(), item.tensor.nbytes());
  });
  return hash.finish();
}

void Parallel::save(const std::string& path, const std::map<std::string, std::string>& metadata) {
  std::vector<Named> state;
  impl_->each_tensor([&](const Named& item) {
    if (impl_->whole().first()) state.push_back(item);
  });
  if (impl_->whole().first()) {
    std::vector<checkpoint::NamedTensor> tensors;
    const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
      tensors.push_back(
          {name, format_name(tensor.scalar_type()), tensor.sizes().vec(), tensor.data_ptr(), tensor.nbytes()});
    };
    for (const auto& [name, tensor] : state) add(name, tensor);
    for (const auto& [name, first] : impl_->ties())
      add(name,
          std::find_if(state.begin(), state.end(), [&](const Named& item) { return item.name == first; })->tensor);
    std::map<std::string, std::string> entries = metadata;
    entries.emplace("producer", "trireme");
    checkpoint::write_safetensors(path, tensors, entries);
    cluster::note_saved(std::filesystem::absolute(path).string());
  }
  impl_->whole().comm().barrier("saved");
}

Parallel parallel(World& world, torch::nn::Module& module, const space::UpdaterOptions& optimizer,
                  const ParallelOptions& options) {
  return Parallel(world, module, optimizer, options);
}
Parallel parallel(World& world, torch::nn::Module& module, const space::UpdaterOptions& optimizer,
                  const exchange::Options& options) {
  return Parallel(world, module, optimizer, {.exchange = options});
}
Parallel parallel(World& world, torch::nn::Module& module, const exchange::Options& options) {
  return Parallel(world, module, std::nullopt, {.exchange = options});
}
Parallel parallel(World& world, torch::nn::Module& module, const ParallelOptions& options) {
  return Parallel(world, module, std::nullopt, options);
}
Parallel parallel(const Group& group, torch::nn::Module& module, const space::UpdaterOptions& optimizer,
                  const ParallelOptions& options) {
  return Parallel(group, module, optimizer, options);
}
Parallel parallel(const Group& group, torch::nn::Module& module, const space::UpdaterOptions& optimizer,
                  const exchange::Options& options) {
  return Parallel(group, module, optimizer, {.exchange = options});
}
Parallel parallel(const Group& group, torch::nn::Module& module, const exchange::Options& options) {
  return Parallel(group, module, std::nullopt, {.exchange = options});
}
Parallel parallel(const Group& group, torch::nn::Module& module, const ParallelOptions& options) {
  return Parallel(group, module, std::nullopt, options);
}
Parallel parallel(const Mesh& mesh, torch::nn::Module& module, const space::UpdaterOptions& optimizer,
                  const ParallelOptions& options) {
  return Parallel(mesh, module, optimizer, options);
}
Parallel parallel(const Mesh& mesh, torch::nn::Module& module, const space::UpdaterOptions& optimizer,
                  const exchange::Options& options) {
  return Parallel(mesh, module, optimizer, {.exchange = options});
}
Parallel parallel(const Mesh& mesh, torch::nn::Module& module, const exchange::Options& options) {
  return Parallel(mesh, module, std::nullopt, {.exchange = options});
}
Parallel parallel(const Mesh& mesh, torch::nn::Module& module, const ParallelOptions& options) {
  return Parallel(mesh, module, std::nullopt, options);
}

Parallel parallel(const Mesh& mesh, const Pipeline& pipeline, const space::UpdaterOptions& optimizer,
                  const ParallelOptions& options) {
  return Parallel(mesh, pipeline, optimizer, options);
}
Parallel parallel(const Mesh& mesh, const Pipeline& pipeline, const space::UpdaterOptions& optimizer,
                  const exchange::Options& options) {
  return Parallel(mesh, pipeline, optimizer, {.exchange = options});
}

}  // namespace trireme
