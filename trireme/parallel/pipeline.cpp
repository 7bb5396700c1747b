#include <fmt/ranges.h>
#include <torch/utils.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <trireme/base/error.h>
#include <trireme/exchange/terms.h>
#include <trireme/parallel/interpreter.h>
#include <trireme/parallel/pipeline.h>
#include <trireme/stages/check.h>
#include <trireme/stages/parcels.h>
#include <trireme/stages/timeline.h>

namespace trireme {
namespace {

using torch::Tensor;

const std::string kAxis = "pipeline", kCopies = "data";
constexpr int kMicroPerStage = 4;
// Labels beside those of micro-batches, which are below.
constexpr int kLooks = 1 << 28, kShared = 1 << 29;
static_assert(stages::kMostMicro < kLooks);

/// A schedule that works out, or the reason why not.
stages::Schedule checked(const stages::ScheduleSpec& spec, int stages, int micro, size_t* in_flight) {
  stages::Schedule schedule = stages::make_schedule(spec, stages, micro);
  const stages::Verdict verdict = stages::check(schedule);
  if (!verdict.ok) fail<InvalidArgument>("the schedule {} cannot work: {}", stages::describe(spec), verdict.reason);
  if (in_flight != nullptr)
    *in_flight = static_cast<size_t>(*std::max_element(verdict.peak.begin(), verdict.peak.end()));
  return schedule;
}

std::string text_of(const stages::Schedule& schedule) {
  std::string text;
  for (const auto& row : schedule.rows) {
    for (const stages::Action& action : row) text += stages::brief(action, schedule.chunks) + ' ';
    text += '|';
  }
  return text;
}

}  // namespace

struct Pipeline::State {
  State(const Mesh& mesh, layers::Cut cut, const PipelineOptions& options)
      : mesh(mesh), cut(std::move(cut)), options(options) {}

  Mesh mesh;
  layers::Cut cut;
  PipelineOptions options;
  int stage = 0, stages = 1, micro = 1;
  stages::Schedule planned;
  /// As they are carried out, by their number of micro-batches: a small last batch has fewer. Parcels leave as soon as
  /// they are there: nobody waits to send one.
  std::map<int, stages::Schedule> schedules;
  std::optional<stages::Parcels> parcels;
  std::string reason;
  std::vector<const layers::Part*> parts;          // this rank's chunks
  std::map<std::string, std::set<int>> stages_of;  // by parameter or buffer
  std::vector<stages::Span> recorded;
  Clock::time_point began;

  const layers::Part& part(int chunk) const { return *parts[static_cast<size_t>(chunk)]; }
  int next() const { return (stage + 1) % stages; }
  int before() const { return (stage + stages - 1) % stages; }
  void agree() const;
  void check_parts() const;
  stages::Schedule& schedule_for(int64_t samples);
  stages::Label shared_label(const std::string& name) const;
};

Pipeline::Pipeline(const Mesh& mesh, layers::Cut cut, const PipelineOptions& options)
    : state_(std::make_shared<State>(mesh, std::move(cut), options)) {
  State& s = *state_;
  if (mesh.has(kAxis)) s.stage = mesh.coordinate(kAxis), s.stages = mesh.size(kAxis);
  if (options.micro < 0) fail<InvalidArgument>("a pipeline has 1 micro-batch or more, not {}", options.micro);
  s.micro = options.micro > 0 ? options.micro : kMicroPerStage * s.stages;
  size_t in_flight = 0;
  s.planned = checked(options.schedule, s.stages, s.micro, &in_flight);
  s.schedules.emplace(s.micro, stages::early_sends(s.planned));
  const int chunks = s.planned.chunks;
  s.check_parts();
  for (size_t number = 0; number < s.cut.parts.size(); number++) {
    const int stage = static_cast<int>(number) % s.stages;
    const layers::Part& part = s.cut.parts[number];
    if (stage == s.stage) s.parts.push_back(&part);
    for (const auto* names : {&part.parameters, &part.buffers})
      for (const std::string& name : *names) s.stages_of[name].insert(stage);
  }
  s.agree();
  s.reason = s.cut.reason;
  if (const std::string few = stages::few_micro_batches(s.planned); !few.empty()) s.reason += "; " + few;
  if (s.stages > 1) s.parcels.emplace(mesh.group(kAxis), in_flight + static_cast<size_t>(chunks) + 1);
}

void Pipeline::State::check_parts() const {
  const int chunks = planned.chunks;
  const auto wanted = static_cast<size_t>(stages * chunks);
  if (cut.parts.size() == wanted) return;
  fail<InvalidArgument>(
      "{} stage{} with {} chunk{} each need a model in {} parts, and this one is cut into {}: cut(net, {})", stages,
      stages == 1 ? "" : "s", chunks, chunks == 1 ? "" : "s", wanted, cut.parts.size(), wanted);
}

/// Ranks that differ would wait for what never comes.
void Pipeline::State::agree() const {
  exchange::Terms terms;
  terms.add("micro-batches of a pipeline", micro).add("schedule", stages::describe(options.schedule));
  const auto listed = [](const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, " ")); };
  for (size_t number = 0; number < cut.parts.size(); number++) {
    const layers::Part& part = cut.parts[number];
    terms.add(fmt::format("sections of part {}", number), listed(part.sections))
        .add(fmt::format("parameters of part {}", number), listed(part.parameters))
        .add(fmt::format("buffers of part {}", number), listed(part.buffers));
  }
  terms.add("rows of the schedule", text_of(planned));
  exchange::agree(mesh.whole().comm(), "pipelines", terms.text());
}

stages::Schedule& Pipeline::State::schedule_for(int64_t samples) {
  const int fewer = static_cast<int>(std::min<int64_t>(micro, samples));
  const auto found = schedules.find(fewer);
  if (found != schedules.end()) return found->second;
  if (options.schedule.name == Schedule::file)
    fail<InvalidArgument>("a batch of {} samples has none for some of the {} micro-batches of {}: use larger batches",
                          samples, micro, stages::describe(options.schedule));
  return schedules.emplace(fewer, stages::early_sends(checked(options.schedule, stages, fewer, nullptr))).first->second;
}

/// By the parameter's place among those that several stages have.
stages::Label Pipeline::State::shared_label(const std::string& name) const {
  const auto place = std::distance(cut.shared.begin(), cut.shared.find(name));
  return {stages::What::gradient, kShared + static_cast<int>(place), 0};
}

int Pipeline::stage() const { return state_->stage; }
int Pipeline::stages() const { return state_->stages; }
int Pipeline::micro() const { return state_->micro; }
torch::nn::Module& Pipeline::module() const { return *state_->cut.whole; }
const stages::Schedule& Pipeline::schedule() const { return state_->planned; }
const std::string& Pipeline::reason() const { return state_->reason; }
const std::vector<stages::Span>& Pipeline::recorded() const { return state_->recorded; }

Clock::time_point Pipeline::began() const { return state_->began; }

bool Pipeline::uses(int stage, const std::string& name) const {
  const auto found = state_->stages_of.find(name);
  return found != state_->stages_of.end() && found->second.contains(stage);
}

std::vector<int> Pipeline::users(const std::string& name) const {
  const auto found = state_->stages_of.find(name);
  if (found == state_->stages_of.end()) return {};
  return {found->second.begin(), found->second.end()};
}

std::vector<int> Pipeline::chunks_of(const std::string& name) const {
  std::vector<int> chunks;
  for (size_t chunk = 0; chunk < state_->parts.size(); chunk++) {
    const auto& names = state_->parts[chunk]->parameters;
    if (std::find(names.begin(), names.end(), name) != names.end()) chunks.push_back(static_cast<int>(chunk));
  }
  return chunks;
}

void Pipeline::take_first(const std::string& name, Tensor& parameter) {
  const torch::NoGradGuard no_grad;
  const std::vector<int> all = users(name);
  const stages::Label label = state_->shared_label(name);
  if (state_->stage != all.front()) {
    const stages::Parcel parcel = state_->parcels->receive(all.front(), label);
    parameter.copy_(view_of(parcel.tensors.front(), parcel));
    return;
  }
  const Tensor whole = parameter.detach().contiguous();
  const stages::TensorView view = view_of("", whole);
  for (size_t i = 1; i < all.size(); i++) state_->parcels->send(all[i], label, {&view, 1});
  state_->parcels->flush();
}

Tensor Pipeline::sum(const std::string& name, const Tensor& mine, const Meanwhile& meanwhile) {
  const torch::NoGradGuard no_grad;
  const std::vector<int> all = users(name);
  const stages::Label label = state_->shared_label(name);
  const Tensor whole = mine.defined() ? mine.contiguous() : mine;
  std::vector<stages::TensorView> views;
  if (whole.defined()) views.push_back(view_of("", whole));
  for (const int stage : all)
    if (stage != state_->stage) state_->parcels->send(stage, label, views);
  meanwhile([&] {
    return std::all_of(all.begin(), all.end(),
                       [&](int stage) { return stage == state_->stage || state_->parcels->arrived(stage, label); });
  });
  Tensor sum;
  const auto add = [&](const Tensor& one) { sum = sum.defined() ? sum.add_(one) : one.clone(); };
  for (const int stage : all) {
    if (stage == state_->stage) {
      if (whole.defined()) add(whole);
      continue;
    }
    const stages::Parcel parcel = state_->parcels->receive(stage, label);
    if (!parcel.tensors.empty()) add(view_of(parcel.tensors.front(), parcel));
  }
  state_->parcels->flush();
  return sum;
}

Tensor Pipeline::forward(const Tensor& x) {
  const torch::NoGradGuard no_grad;
  State& s = *state_;
  const stages::Schedule& schedule = this->schedule();
  for (int chunk = 0; chunk < schedule.chunks; chunk++) {
    layers::Carried carried{.x = x};
    stages::Parcel parcel;
    if (!stages::is_first(s.stage, chunk) && s.stages > 1) {
      parcel = s.parcels->receive(s.before(), {stages::What::activation, kLooks, chunk});
      for (const stages::TensorView& view : parcel.tensors)
        (view.name.empty() ? carried.x : carried.kept[view.name]) = view_of(view, parcel);
    }
    carried = s.part(chunk).run(std::move(carried));
    if (stages::is_last(schedule, s.stage, chunk)) return carried.x;
    if (s.stages == 1) continue;
    std::vector<stages::TensorView> views{view_of("", carried.x = dense(carried.x))};
    for (auto& [name, tensor] : carried.kept) views.push_back(view_of(name, tensor = dense(tensor)));
    const int to_chunk = chunk + (s.next() == 0 ? 1 : 0);
    s.parcels->send(s.next(), {stages::What::activation, kLooks, to_chunk}, views);
  }
  return {};
}

void Pipeline::compare_samples(int64_t samples) {
  State& s = *state_;
  const Group& replica = s.mesh.has(kCopies) ? s.mesh.across(kCopies) : s.mesh.whole();
  if (replica.size() == 1) return;
  if (s.parcels) s.parcels->flush();  // those of forward(), which may still be under way
  std::vector<int64_t> all(static_cast<size_t>(replica.size()));
  replica.comm().all_gather(&samples, all.data(), 1, DType::i64, "samples of a step");
  const auto other = std::find_if(all.begin(), all.end(), [&](int64_t one) { return one != all.front(); });
  if (other == all.end()) return;
  const std::vector<int> ranks = replica.ranks();
  fail<Mismatch>(
      "the ranks of a pipeline were given batches of different sizes: rank {} has {} samples, rank {} has {}. Give all "
      "ranks that have parts of one copy of the model the same x and y",
      ranks.front(), all.front(), ranks[static_cast<size_t>(other - all.begin())], *other);
}

void Pipeline::run(const Work& work) {
  State& s = *state_;
  Interpreter interpreter(s.schedule_for(work.x.size(0)), s.stage, s.parts, s.parcels ? &*s.parcels : nullptr);
  s.began = Clock::now();
  interpreter.run(work);
  if (s.options.record) s.recorded = interpreter.spans();
}

Pipeline pipeline(const Mesh& mesh, layers::Cut cut, const PipelineOptions& options) {
  return Pipeline(mesh, std::move(cut), options);
}

}  // namespace trireme
