// A run from its options to its result: what ranks compare, the model, and what is said of it.
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <trireme/base/blas.h>
#include <trireme/base/sha256.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/cluster/agreement.h>
#include <trireme/cluster/gather_metrics.h>
#include <trireme/cluster/mesh_plan.h>
#include <trireme/exchange/holdings.h>
#include <trireme/exchange/tree.h>
#include <trireme/models/about.h>
#include <trireme/models/catalogue.h>
#include <trireme/models/language.h>
#include <trireme/models/models.h>
#include <trireme/train/memory_format.h>
#include <trireme/train/run.h>

namespace trireme::train {
namespace {

constexpr size_t kSpansInReport = 30;

}  // namespace

Run::Run(World& world, const Options& options, const Listener& listener, const std::atomic<bool>& stop)
    : world_(world),
      options_(options),
      listener_(listener),
      stop_(stop),
      count_(world.registry()),
      guard_(world, options, listener.note),
      dtype_(options.dtype == "f64" ? torch::kFloat64 : torch::kFloat32) {
  check(options);
}

/// Errors of libtorch's own have its words, and where they came up, without its stack of addresses.
Result Run::run() {
  try {
    return train();
  } catch (const c10::Error& error) {
    std::string text = error.what_without_backtrace();
    // "[enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't …": what failed stands behind
    if (text.starts_with("[enforce fail"))
      if (const size_t end = text.find(". ", text.find("] ")); end != std::string::npos) text = text.substr(end + 2);
    fail<Error>("libtorch, training {} on {} (worker {}, after {} steps): {}", options_.model, options_.data,
                world_.rank(), position_, text.substr(0, text.find('\n')));
  } catch (const Error& error) {
    guard_.ends_with(error.what(), position_);
    throw;
  }
}

Result Run::so_far() {
  result_.decisions = guard_.decisions();
  return result_;
}

Result Run::train() {
  if (world_.first()) introduce();
  compare_options();
  introduce_virtual();
  models::check_fits(options_.model, options_.data);
  const data::Splits splits = data::open(world_.local(), options_.data, data_options());
  compare_data(splits);
  for (size_t i = 0; world_.first() && i < splits.notes.size(); i++) listener_.note(splits.notes[i]);
  make_mesh();
  const data::Cut cut{splits.train.count, options_.batch, pieces(), options_.parallel.accumulate};
  data::check(cut, splits.train.name);
  check_vocabulary(options_, splits.train.classes);
  mse_ = options_.loss == Loss::mse || (options_.loss == Loss::automatic && splits.train.task == data::Task::regress);
  if (mse_ && data::is_text(splits.train.task))
    fail<InvalidArgument>("tokens of a text are no numbers to predict: --loss mse is for those, leave it out");
  if (!mse_ && splits.train.task == data::Task::regress)
    fail<InvalidArgument>("cross-entropy needs classes, but the labels of {} are not whole numbers from 0",
                          splits.train.name);
  check_data(options_.stop, splits.test.count > 0, !mse_);
  torch::manual_seed(options_.seed);
  net_ = models::make(options_.model, splits.train.shape, mse_ ? 1 : splits.train.classes,
                      {.task = mse_ ? data::Task::regress : splits.train.task,
                       .ranks = mesh_ ? layers::TensorGroup(*mesh_) : layers::TensorGroup(),
                       .recompute = options_.recompute});
  net_.module().to(dtype_);
  if (options_.keeping.weights_only) take_weights();
  const bool channels_last = agree_on_format(splits.train);
  make_pipeline(cut, splits.train);
  seed_dropout();

  const auto steps = static_cast<int64_t>(cut.steps());
  choose_epochs(splits, steps);
  if (splits.schema && mse_) loss_unit_ = splits.schema->deviation * splits.schema->deviation;
  steps_ = steps;
  const bool joins = world_.newcomer();
  if (joins) world_.told_newcomers(kTrains);
  Parallel train = make_parallel(parallel_options(steps, channels_last));
  data::Feed feed(train, splits.train,
                  {.batch = options_.batch, .seed = options_.seed, .shuffle = options_.shuffle, .dtype = dtype_});
  result_.parameters = train.contents().layout.elements();
  if (world_.first())
    listener_.note(fmt::format(
        "{}: {} parameters; {}: {} training and {} test samples; {} worker{}{}, sync {}, batch {} ({} steps an "
        "epoch)",
        options_.model, result_.parameters, options_.data, splits.train.count, splits.test.count, world_.group().size(),
        world_.group().size() == 1 ? "" : "s", servers_text(), exchange::name_of(asked().sync), options_.batch, steps));
  introduce_batch_norm();
  introduce_language(splits);
  introduce_parts(train);
  const Closing closing{checkpoints_};
  keep_checkpoints(train, feed, splits, channels_last, joins);
  guard_.begin(Seconds(history_.time));
  settled_ = position_ / steps;
  if (joins) join_in(train);
  if (owes_evaluation(splits, steps)) {  // it was stopped between an epoch and its figures
    audit(train, splits.train, result_.epochs.back());
    evaluate(train, splits.test, Patience::until_stopped);
    if (world_.first() && !result_.stopped) listener_.epoch(result_.epochs.back());
  }
  through_changes(train, [&] {
    run_epochs(train, feed, splits);
    finish(train, splits);
  });
  record_schedule();
  return so_far();
}

void Run::finish(Parallel& train, const data::Splits& splits) {
  keep_last();
  save(train, splits);
  finish_checkpoints();  // whoever has stopped the run may end it soon: what is to be kept comes before figures
  if (result_.stopped) evaluate_stopped(train, splits.test);
  result_.sha256 = train.sha256();
  if (options_.parallel.balance != Balancing::even) result_.balance = train.balance();
  if (const exchange::Compression* chosen = train.exchange().compression()) {
    result_.compression = *chosen;
    if (world_.first()) listener_.note("compression: " + chosen->judgement.reason);
  }
  if (!train.lockstep()) result_.updates = all_updates_;
  collect_metrics(train);
}

/// Where layers or stages of the model are on different workers: who is with whom.
void Run::make_mesh() {
  if (options_.tensor * options_.pipeline == 1) return;
  const cluster::MeshPlan plan = cluster::plan_mesh(
      world_.group(), cluster::degrees_of(world_.size(), {.pipeline = options_.pipeline, .tensor = options_.tensor}));
  // Stages may well be on different machines; ranks that divide layers had better not.
  const bool slow =
      cluster::plan_mesh(world_.group(), cluster::degrees_of(world_.size(), {.tensor = options_.tensor})).crosses;
  if (world_.first()) listener_.note((slow ? "warning: " : "") + plan.reason);
  mesh_.emplace(cluster::mesh_for(world_.group(), plan));
}

Parallel Run::make_parallel(const ParallelOptions& options) {
  if (pipe_) return Parallel(*mesh_, *pipe_, options_.optimizer, options);
  if (mesh_) return Parallel(*mesh_, *net_, options_.optimizer, options);
  return Parallel(world_, *net_, options_.optimizer, options);
}

void Run::collect_metrics(Parallel& train) {
  const auto ranks = cluster::gather_metrics(world_.comm(), world_.registry().snapshot(kSpansInReport));
  if (!world_.first()) return;
  const auto servers = train.counted_by_servers();
  result_.counted.clear();
  for (size_t i = 0; i < ranks.size(); i++)
    result_.counted.emplace_back(fmt::format("rank {}", world_.group().ranks()[i]), ranks[i]);
  for (size_t i = 0; i < servers.size(); i++) result_.counted.emplace_back(fmt::format("server {}", i), servers[i]);
}

/// With what depends on data and model.
ParallelOptions Run::parallel_options(int64_t steps, bool channels_last) const {
  ParallelOptions options = options_.parallel;
  options.schedule.total = options_.most_steps() > 0 ? options_.most_steps() : steps * epochs_;
  options.schedule.step_size = std::max<int64_t>(1, std::llround(options_.step_epochs * static_cast<double>(steps)));
  options.exchange.seed = options_.seed;
  options.channels_last = channels_last;
  return options;
}

void Run::introduce() {
  for (const std::string& warning : world_.warnings()) listener_.note("warning: " + warning);
  if (options_.parallel.precision == Precision::bf16 && !vector_units().bf16)
    listener_.note(
        "warning: this processor has no instructions for bf16 (AVX512-BF16 or AMX): --precision f32 will be faster");
  if (world_.launcher() != "trireme launch" || world_.machines() > 1)
    listener_.note(fmt::format("started by {}: {} ranks on {} machine{}; {}", world_.launcher(), world_.size(),
                               world_.machines(), world_.machines() == 1 ? "" : "s", world_.engine()));
}

/// Another one for each copy of the model and each stage of it: dropout differs between samples, and between layers.
void Run::seed_dropout() {
  constexpr uint64_t kCopies = 1000003, kStages = 7919;
  const uint64_t stage = pipe_ ? static_cast<uint64_t>(pipe_->stage()) : 0;
  torch::manual_seed(options_.seed * kCopies + static_cast<uint64_t>(copy()) + stage * kCopies * kStages);
}

/// Smaller passes are slower ones: whoever asks for many hears how small they are.
void Run::introduce_virtual() {
  const int pieces = asked().virtual_workers;
  if (pieces == 0) return;
  exchange::check_runs(pieces, world_.size());
  if (!world_.first()) return;
  const size_t least = options_.batch / static_cast<size_t>(pieces);
  const bool even = options_.batch % static_cast<size_t>(pieces) == 0;
  listener_.note(fmt::format(
      "virtual {}: bits do not depend on the workers. Every step is {} passes of {}{} sample{}, whoever computes "
      "them{}",
      pieces, pieces, even ? "" : "at least ", least, least == 1 ? "" : "s",
      least >= 16 ? "" : ": so few samples at a time are slow; fewer virtual workers or a larger --batch help"));
}

void Run::introduce_batch_norm() {
  if (!world_.first() || world_.size() == 1 || !models::has_batch_norm(options_.model) ||
      options_.parallel.sync_batch_norm)
    return;
  listener_.note(pipe_ ? "batch norm: each micro-batch is normalized by its own statistics, as with --accumulate"
                       : "batch norm: each worker uses the statistics of its own samples; --sync-batch-norm uses those "
                         "of the whole batch");
}

/// What a language model has beside other models.
void Run::introduce_language(const data::Splits& splits) {
  const auto spec = models::language_spec(options_.model);
  if (!spec || !world_.first()) return;
  const int64_t rows = models::embedded(*spec, splits.train.classes);
  listener_.note(
      fmt::format("{} layers, width {}, {} heads, context {}, vocabulary {}{}; {} at a learning rate of {:g}",
                  spec->layers, spec->width, spec->heads, spec->context, splits.train.classes,
                  rows == splits.train.classes
                      ? ""
                      : fmt::format(" (embedded as {}{})", rows, spec->masked ? ", with a mask token" : ""),
                  space::name_of(options_.optimizer.kind), options_.optimizer.lr));
}

/// What each worker has of the model, and what it is spared.
void Run::introduce_parts(const Parallel& train) {
  if (!world_.first()) return;
  const space::Layout& layout = train.exchange().flat().layout();
  const double mine = static_cast<double>(layout.elements()), all = static_cast<double>(result_.parameters);
  if (pipe_) introduce_stages();
  if (mesh_ && !pipe_)
    listener_.note(fmt::format(
        "tensor {}: each worker holds {:.0f} of {:.0f} parameters, and as much of their gradients and optimizer state: "
        "{:.0f} % less. Norms, positions and biases of sums are on all, the rest is divided",
        options_.tensor, mine, all, 100 * (1 - mine / all)));
  if (asked().zero == 0) return;
  size_t largest = 0;
  for (const space::Bucket& bucket : train.exchange().flat().buckets())
    largest = std::max(largest, bucket.range.size());
  listener_.note(exchange::describe_holdings({.parameter_bytes = layout.bytes(),
                                              .largest_bucket = largest,
                                              .optimizer = options_.optimizer.kind,
                                              .zero = asked().zero,
                                              .ranks_here = train.group().local().size(),
                                              .machines = train.group().machines(),
                                              .zero_window = asked().zero_window,
                                              .whole_gradients = options_.parallel.accumulate > 1 || pipe_ ||
                                                                 !asked().overlap ||
                                                                 options_.parallel.sync_batch_norm,
                                              .in_parts = mesh_.has_value()}));
}

data::OpenOptions Run::data_options() const {
  data::OpenOptions options{
      .seed = options_.seed, .label = options_.label, .normalize = options_.normalize, .test = options_.test};
  if (const auto language = models::language_spec(options_.model)) {
    options.tokenizer = options_.tokenizer;
    options.context = language->context;
    options.masked = language->masked;
  }
  if (!data::is_csv(options_.data)) return options;
  if (options_.loss == Loss::mse) options.task = data::Task::regress;
  if (options_.loss == Loss::cross_entropy) options.task = data::Task::classify;
  return options;
}

void Run::choose_epochs(const data::Splits& splits, int64_t steps) {
  const bool may_be_small = splits.schema || splits.tokenizer;
  epochs_ = options_.epochs.value_or(usual_epochs(may_be_small, steps));
  if (options_.epochs || !may_be_small || !world_.first()) return;
  listener_.note(fmt::format("{} epochs of {} update{}: small data need many passes; --epochs sets their number",
                             epochs_, steps, steps == 1 ? "" : "s"));
}

/// What a saved model says of itself.
std::map<std::string, std::string> Run::metadata(const data::Splits& splits) const {
  models::About about{.model = options_.model,
                      .shape = splits.train.shape,
                      .outputs = mse_ ? 1 : splits.train.classes,
                      .task = mse_ ? data::Task::regress : splits.train.task,
                      .dtype = options_.dtype,
                      .scale = splits.train.scale,
                      .seed = options_.seed,
                      .schema = splits.schema};
  if (splits.schema && splits.train.name == splits.test.name)  // one file, of which some rows are for testing
    about.split = {std::filesystem::path(splits.train.name).filename().string(), splits.train.count + splits.test.count,
                   splits.test.count, options_.seed};
  if (splits.tokenizer) {
    about.split = {std::filesystem::path(splits.train.name).filename().string(), splits.tokens, splits.test_tokens,
                   options_.seed};
    about.tokenizer = splits.tokenizer;
    if (!options_.tokenizer.empty()) about.tokenizer_file = std::filesystem::absolute(options_.tokenizer).string();
  }
  return models::metadata_of(about);
}

/// What a run's result depends on and a checkpoint does not hold, as it is called on the command line. That of the
/// learning rate is its user's from part to part.
std::map<std::string, std::string> Run::settings() const {
  const space::UpdaterOptions& o = options_.optimizer;
  const space::ScheduleOptions& s = options_.parallel.schedule;
  const auto number = [](double value) { return fmt::format("{:g}", value); };
  std::map<std::string, std::string> all = {
      {"weight-decay", number(o.weight_decay)}, {"accumulate", fmt::format("{}", options_.parallel.accumulate)},
      {"clip", number(asked().clip)},           {"lr-schedule", space::schedule_names()[static_cast<size_t>(s.kind)]},
      {"warmup", fmt::format("{}", s.warmup)},
  };
  if (s.kind == space::RateSchedule::step)
    all["gamma"] = number(s.gamma), all["step-epochs"] = number(options_.step_epochs);
  if (s.kind == space::RateSchedule::cosine) all["floor"] = number(s.floor);
  if (o.kind == space::Optimizer::momentum)
    all["momentum"] = number(o.momentum), all["nesterov"] = o.nesterov ? "on" : "off";
  if (o.kind == space::Optimizer::adam || o.kind == space::Optimizer::adamw)
    all["beta1"] = number(o.beta1), all["beta2"] = number(o.beta2);
  return all;
}

/// What the exchange cannot compare, and what ranks do together before there is one. Whoever was started with other
/// flags hears it here.
void Run::compare_options() {
  exchange::Terms terms;
  const bool files = options_.data.find('/') != std::string::npos;  // each machine may have them elsewhere
  terms.add("model", options_.model).add("data", files ? "files" : options_.data).add("label", options_.label);
  terms.add("normalize", options_.normalize.value_or(true)).add("test", options_.test.value_or(-1));
  terms.add("tokenizer", !options_.tokenizer.empty()).add("batch", options_.batch);
  terms.add("epochs", options_.epochs.value_or(-1))
      .add("max_steps", options_.most_steps())
      .add("stop", name_of(options_.stop))
      .add("accumulate", options_.parallel.accumulate)
      .add("virtual", asked().virtual_workers);
  terms.add("seed", options_.seed)
      .add("shuffle", options_.shuffle)
      .add("plain_mean", options_.plain_mean)
      .add("dtype", options_.dtype);
  terms.add("tensor", options_.tensor).add("recompute", options_.recompute);
  terms.add("pipeline", options_.pipeline).add("micro", options_.micro).add("schedule", options_.schedule);
  terms.add("record_schedule", !options_.record_schedule.empty());
  terms.add("memory_format", memory_format_names()[static_cast<size_t>(options_.memory_format)]);
  terms.add("loss", loss_names()[static_cast<size_t>(options_.loss)])
      .add("save", options_.save.empty() ? "nothing" : "the model");
  terms.add("checkpoints", options_.keeping.dir.empty() ? "none" : name_of(options_.keeping.every));
  exchange::agree(world_, "options", terms.text());
}

namespace {

/// The SHA-256 of all samples, as they are in memory, and of what columns mean.
std::string contents_of(const data::Splits& splits) {
  Sha256 hash;
  const std::string schema = splits.schema ? data::to_json(*splits.schema) : "";
  hash.add(schema.data(), schema.size());
  hash.add(splits.train.inputs, splits.tokens * static_cast<size_t>(splits.train.token_bytes));  // of a text, all of it
  for (const data::Dataset* set : {&splits.train, &splits.test}) {
    if (splits.tokenizer || set->inputs == nullptr) continue;
    hash.add(set->inputs, set->count * set->sample_bytes());
    if (set->labels != nullptr) hash.add(set->labels, set->count * sizeof *set->labels);
    if (set->targets != nullptr) hash.add(set->targets, set->count * sizeof *set->targets);
  }
  return hash.finish();
}

}  // namespace

/// Machines read their own copies of the data: they must be the same.
void Run::compare_data(const data::Splits& splits) {
  if (world_.store() == nullptr) return;  // all are on one machine, whoever comes
  const std::string mine = contents_of(splits);
  const auto train = static_cast<int64_t>(splits.train.count), test = static_cast<int64_t>(splits.test.count);
  exchange::Terms terms;
  terms.add("training samples", train).add("test samples", test).add("SHA-256", mine);
  exchange::agree_with_newcomers(world_, "data", terms.text());
  if (world_.machines() == 1) return;
  int64_t first[2] = {train, test};
  world_.comm().broadcast(first, 2, DType::i64, 0, "sizes of the data");
  if (first[0] != train || first[1] != test)
    fail<Mismatch>(
        "{} on this machine (rank {}) has {} training and {} test samples, on rank 0's machine {} and {}. Copy the "
        "same files to all machines",
        options_.data, world_.rank(), train, test, first[0], first[1]);
  std::string theirs = mine;
  world_.comm().broadcast(theirs.data(), theirs.size(), DType::u8, 0, "columns of the data");
  if (theirs != mine)
    fail<Mismatch>(
        "{} on this machine (rank {}) has as many {} as on rank 0's machine, but other {} in them. Copy the same files "
        "to all machines",
        options_.data, world_.rank(),
        splits.tokenizer ? "tokens"
        : splits.schema  ? "rows"
                         : "samples",
        splits.tokenizer ? "text"
        : splits.schema  ? "names, categories or numbers"
                         : "images or labels");
}

std::string Run::servers_text() const {
  return world_.servers() == 0 ? ""
                               : fmt::format(" and {} server{}", world_.servers(), world_.servers() == 1 ? "" : "s");
}

/// Of a run that goes on: as it was, so that bits stay the same. Collective.
std::optional<bool> Run::kept_format() {
  if (options_.keeping.resume.empty() || options_.keeping.weights_only) return std::nullopt;
  const std::string format = cluster::on_first(
      world_.comm(),
      [&] {
        const auto usable = checkpoint::Folder(checkpoint::system_files(), options_.keeping.from()).newest();
        const auto found = usable.entry.manifest->options.find("memory_format");
        return found == usable.entry.manifest->options.end() ? "" : found->second;
      },
      "the memory format of the checkpoint");
  return format.empty() ? std::nullopt : std::optional<bool>(format == "channels-last");
}

/// Newcomers have the crew's: what they would measure may be another.
bool Run::agree_on_format(const data::Dataset& set) {
  const std::vector<std::string> names = memory_format_names();
  const auto name = [&](MemoryFormat format) { return std::string(names[static_cast<size_t>(format)]); };
  if (world_.newcomer()) return world_.told_newcomers("memory format") == name(MemoryFormat::channels_last);
  const bool channels_last = choose_format(set);
  world_.tell_newcomers("memory format", name(channels_last ? MemoryFormat::channels_last : MemoryFormat::plain));
  return channels_last;
}

bool Run::choose_format(const data::Dataset& set) {
  if (net_.is_language()) return false;  // no convolutions
  if (options_.memory_format != MemoryFormat::automatic) return options_.memory_format == MemoryFormat::channels_last;
  if (const auto kept = kept_format()) return *kept;
  if (asked().virtual_workers > 0) {  // measured, it would depend on the workers
    const auto tensors = net_.module().parameters();
    const bool convolves = std::any_of(tensors.begin(), tensors.end(), [](const auto& one) { return one.dim() == 4; });
    if (world_.first() && convolves) listener_.note("memory format: channels-last, as --virtual measures nothing");
    return convolves;
  }
  const int passes = options_.pipeline > 1 ? micro_batches(options_) : options_.parallel.accumulate;
  // As the job was started: whoever comes later finds the same.
  const size_t workers = static_cast<size_t>(mesh_ ? copies() : world_.size());
  const size_t share = std::max<size_t>(1, options_.batch / workers / static_cast<size_t>(passes));
  const auto order = data::epoch_order(std::min(share, set.count), 0, 0, false);
  const data::Batch batch = data::make_batch(set, order, 0, order.size(), dtype_);
  const FormatChoice choice = choose_memory_format(world_, net_, batch.x, batch.y, options_.model, options_.cache);
  if (world_.first()) listener_.note(choice.reason);
  return choice.channels_last;
}

void Run::save(Parallel& train, const data::Splits& splits) {
  if (options_.save.empty()) return;
  if (result_.stopped && world_.first())
    listener_.note(fmt::format("stopped after {} updates; saving the model to {}", result_.updates, options_.save));
  train.save(options_.save, metadata(splits));
  result_.saved = std::filesystem::absolute(options_.save).string();
}

}  // namespace trireme::train
