// A run's model in stages: where it is cut, what is said of that, and what its stages did when.
#include <fmt/ranges.h>
#include <torch/utils.h>

#include <algorithm>
#include <numeric>
#include <set>

#include <trireme/base/clock.h>
#include <trireme/stages/check.h>
#include <trireme/stages/timeline_file.h>
#include <trireme/torch/compat.h>
#include <trireme/train/run.h>

namespace trireme::train {
namespace {

constexpr int kMeetings = 15;         // by which clocks of machines are compared
constexpr size_t kNumbersOfSpan = 6;  // stage, kind, micro-batch, chunk, begin, end

/// "blocks.0 to blocks.3"
std::string sections_text(const layers::Part& part) {
  return part.sections.size() == 1 ? part.name : fmt::format("{} to {}", part.name, part.sections.back());
}

std::string percent(double part, double all) { return fmt::format("{:.0f} %", all > 0 ? 100 * part / all : 0); }

void append(std::vector<double>& numbers, const stages::Span& span, double begin) {
  const stages::Action& action = span.action;
  numbers.insert(numbers.end(), {double(span.stage), double(action.kind), double(action.micro), double(action.chunk),
                                 begin + span.begin, begin + span.end});
}

stages::Span span_at(const double* numbers) {
  return {static_cast<int>(numbers[0]),
          {static_cast<stages::Kind>(numbers[1]), static_cast<int>(numbers[2]), static_cast<int>(numbers[3])},
          numbers[4],
          numbers[5]};
}

/// By how much this machine's clock is ahead of rank 0's, to about the time that a message takes. Collective.
double clock_ahead(World& world) {
  if (world.machines() == 1) return 0;
  std::vector<double> ahead, all(static_cast<size_t>(world.size()));
  for (int meeting = 0; meeting < kMeetings; meeting++) {
    world.comm().barrier("comparing clocks");
    const double now = Seconds(Clock::now().time_since_epoch()).count();
    world.comm().all_gather(&now, all.data(), 1, DType::f64, "clocks");
    ahead.push_back(now - all[0]);
  }
  std::nth_element(ahead.begin(), ahead.begin() + kMeetings / 2, ahead.end());
  return ahead[kMeetings / 2];
}

/// Everybody's numbers, one rank's after the other. Collective.
std::vector<double> gathered(comm::Communicator& ranks, const std::vector<double>& mine) {
  const auto size = static_cast<int64_t>(mine.size());
  std::vector<int64_t> sizes(static_cast<size_t>(ranks.size()));
  ranks.all_gather(&size, sizes.data(), 1, DType::i64, "sizes of timelines");
  const auto longest = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::vector<double> own = mine, all(sizes.size() * longest), result;
  own.resize(longest);
  if (longest > 0) ranks.all_gather(own.data(), all.data(), longest, DType::f64, "timelines");
  for (size_t rank = 0; rank < sizes.size(); rank++) {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(rank * longest);
    result.insert(result.end(), begin, begin + sizes[rank]);
  }
  return result;
}

}  // namespace

/// Throws InvalidArgument before anything is trained where the model has not so many parts.
void Run::make_pipeline(const data::Cut& batches, const data::Dataset& set) {
  if (options_.pipeline == 1) return;
  const stages::ScheduleSpec spec = stages::parse_schedule(options_.schedule);
  const int micro = micro_batches(options_);
  const stages::Schedule schedule = stages::make_schedule(spec, options_.pipeline, micro);
  const int parts = options_.pipeline * schedule.chunks;
  check_sizes_of_batches(batches, spec, micro);
  layers::Cut cut = measured_cut(set, parts, micro);
  describe_stages(cut);
  if (options_.keeping.weights_only) share_weights();
  pipe_.emplace(*mesh_, std::move(cut),
                PipelineOptions{.micro = micro, .schedule = spec, .record = !options_.record_schedule.empty()});
}

/// A schedule's file has so many micro-batches, and no batch may have fewer samples, the last of an epoch included.
void Run::check_sizes_of_batches(const data::Cut& batches, const stages::ScheduleSpec& spec, int micro) const {
  if (spec.name != stages::ScheduleSpec::Name::file) return;
  const int64_t most = options_.most_steps();
  const size_t last = batches.steps() - 1;
  for (const size_t step : {size_t{0}, last}) {
    if (most > 0 && most <= static_cast<int64_t>(step)) continue;
    for (int replica = 0; replica < copies(); replica++)
      if (const size_t size = data::piece_of(batches, step, replica, 0).size();
          size > 0 && size < static_cast<size_t>(micro))
        fail<InvalidArgument>(
            "{} has {} micro-batches, and {} batch gives a copy of the model {} sample{}: use larger batches, or a "
            "--batch that divides the {} training samples",
            options_.schedule, micro, step == last ? "an epoch's last" : "a", size, size == 1 ? "" : "s",
            batches.count);
  }
}

/// By what a micro-batch takes. In f32, as autocast would keep casts of one section for others. Collective.
layers::Cut Run::measured_cut(const data::Dataset& set, int parts, int micro) {
  const size_t share = options_.batch / static_cast<size_t>(copies()) / static_cast<size_t>(micro);
  const auto order = data::epoch_order(std::clamp<size_t>(share, 1, set.count), 0, 0, false);
  const data::Batch batch = data::make_batch(set, order, 0, order.size(), dtype_);
  net_.train();
  return models::cut(*mesh_, net_, parts, {.example = batch.x, .last = [&](const torch::Tensor& last) {
                                             return net_.loss_from(last, batch.y);
                                           }});
}

/// While this rank has all of the model.
void Run::describe_stages(const layers::Cut& cut) {
  const auto parameters = net_.module().named_parameters();
  const double total = std::accumulate(cut.cost.begin(), cut.cost.end(), 0.0);
  const auto stages = static_cast<size_t>(options_.pipeline);
  for (size_t stage = 0; stage < stages; stage++) {
    std::set<std::string> names;
    std::string sections;
    double cost = 0;
    for (size_t number = stage; number < cut.parts.size(); number += stages) {
      const layers::Part& part = cut.parts[number];
      names.insert(part.parameters.begin(), part.parameters.end());
      sections += (sections.empty() ? "" : ", ") + sections_text(part);
      cost += cut.cost[number];
    }
    int64_t elements = 0;
    for (const std::string& name : names) elements += parameters[name].numel();
    stages_text_ += fmt::format("{}stage {} has {} ({} parameters, {} of the time)", stage == 0 ? "" : "; ", stage,
                                sections, elements, percent(cost, total));
  }
  for (const auto& [name, numbers] : cut.shared) {
    std::set<size_t> users;
    for (const size_t number : numbers) users.insert(number % stages);
    if (users.size() > 1)
      stages_text_ += fmt::format("; {} is on {} of them, which sum its gradients", name, users.size());
  }
}

/// Rank 0 has read them; the first rank of each stage is to begin with them, too. Collective.
void Run::share_weights() {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> tensors = net_.module().parameters();
  for (const torch::Tensor& buffer : net_.module().buffers()) tensors.push_back(buffer);
  for (const torch::Tensor& tensor : tensors)
    world_.comm().broadcast(tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                            torch_compat::dtype_of(tensor.scalar_type()), 0, "weights to begin with");
}

/// Who has what, how long stages wait, and what they hold meanwhile.
void Run::introduce_stages() {
  const stages::Schedule& schedule = pipe_->schedule();
  listener_.note(fmt::format("pipeline {}: {}. Cut by measured times, where the costliest is cheapest{}",
                             options_.pipeline, stages_text_,
                             options_.tensor > 1 ? fmt::format("; each is divided among {}", options_.tensor) : ""));
  const auto formula =
      stages::bubble_formula(stages::parse_schedule(options_.schedule), schedule.stages, schedule.micro);
  const double bubble = formula.value_or(stages::simulate(schedule).bubble);
  listener_.note(
      fmt::format("schedule {}, {} micro-batches: by {} stages wait {:.1f} % of the time; the most "
                  "activations that each holds at a time: {}",
                  options_.schedule, schedule.micro, formula ? "formula" : "simulation", 100 * bubble,
                  fmt::join(stages::check(schedule).peak, ", ")));
  if (const std::string few = stages::few_micro_batches(schedule); !few.empty()) listener_.note("warning: " + few);
  const size_t share = options_.batch / static_cast<size_t>(copies());
  if (share < static_cast<size_t>(schedule.micro))
    listener_.note(
        fmt::format("warning: a batch of {} samples for a copy of the model makes {} micro-batches, not {}: stages "
                    "wait longer. Use "
                    "a larger --batch, or --micro {}",
                    share, share, schedule.micro, share));
}

/// Collective.
torch::Tensor Run::output_of(const torch::Tensor& x) {
  if (!pipe_) return net_.forward(x);
  const torch::Tensor last = pipe_->forward(x);
  return last.defined() ? net_.outputs_from(last) : last;
}

/// One of those that find the same.
bool Run::counts_results() const {
  if (!mesh_) return true;
  if (!pipe_) return mesh_->across("data").first();
  return pipe_->stage() + 1 == pipe_->stages() && (!mesh_->has("tensor") || mesh_->coordinate("tensor") == 0);
}

/// Of the first copy of the model. Collective.
void Run::record_schedule() {
  if (!pipe_ || options_.record_schedule.empty()) return;
  const double begin = Seconds(pipe_->began().time_since_epoch()).count() - clock_ahead(world_);
  std::vector<double> mine;
  if (copy() == 0 && (!mesh_->has("tensor") || mesh_->coordinate("tensor") == 0))
    for (const stages::Span& span : pipe_->recorded()) append(mine, span, begin);
  const std::vector<double> all = gathered(world_.comm(), mine);
  if (!world_.first()) return;
  if (all.empty()) return listener_.note("warning: no step was made, so that there is no schedule to record");
  std::vector<stages::Span> spans;
  int micro = 0;
  for (size_t at = 0; at < all.size(); at += kNumbersOfSpan) {
    spans.push_back(span_at(&all[at]));
    micro = std::max(micro, spans.back().action.micro + 1);
  }
  const auto schedule = stages::make_schedule(stages::parse_schedule(options_.schedule), options_.pipeline, micro);
  stages::write_record(options_.record_schedule, schedule, spans);
  listener_.note(fmt::format("what the stages did in the last step is in {}; they waited {:.1f} % of its time",
                             options_.record_schedule, 100 * stages::recorded(schedule, spans).bubble));
}

}  // namespace trireme::train
