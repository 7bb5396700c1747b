#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/models/catalogue.h>
#include <trireme/models/language.h>
#include <trireme/stages/schedule_file.h>
#include <trireme/train/options.h>

namespace trireme::train {
namespace {

template <class Enum>
Enum named(const std::string& name, const std::vector<std::string>& names, const char* what) {
  for (size_t i = 0; i < names.size(); i++)
    if (names[i] == name) return static_cast<Enum>(i);
  fail<InvalidArgument>("unknown {} '{}'{}", what, name, did_you_mean(name, names));
}

namespace fs = std::filesystem;
constexpr int kMicroPerStage = 4;  // as a Pipeline's own

void check(const KeepOptions& k) {
  if (k.resume == "latest" && k.dir.empty())
    fail<InvalidArgument>("resume latest means the newest checkpoint of --checkpoint DIR: give that, or --resume DIR");
  if (k.weights_only && k.resume.empty())
    fail<InvalidArgument>("resume-weights-only needs --resume DIR: from which checkpoint?");
  if (k.keep < 0) fail<InvalidArgument>("keep is a number of checkpoints, 0 for all, not {}", k.keep);
  if (!(k.grace >= 0)) fail<InvalidArgument>("grace is a time of at least 0 s, not {}", k.grace);
  if (fs::exists(k.dir) && !fs::is_directory(k.dir))
    fail<InvalidArgument>("{} is no folder: --checkpoint names one, in which each checkpoint is a folder", k.dir);
  if (!k.resume.empty() && !fs::exists(k.from()))
    fail<InvalidArgument>("there is no checkpoint to resume: {} is not there; leave out --resume to begin anew",
                          k.from());
}

void check_rollback(const Options& o) {
  const exchange::Options& x = o.parallel.exchange;
  if (x.on_nan != exchange::OnNan::rollback) return;
  if (!x.sync.lockstep())
    fail<InvalidArgument>(
        "on-nan rollback needs workers that take every step together, and with sync '{}' each goes at its own pace. "
        "Use on-nan skip, which leaves out the gradient of the worker that has the NaN",
        exchange::name_of(x.sync));
  if (o.keeping.dir.empty())
    fail<InvalidArgument>(
        "on-nan rollback goes back to a checkpoint, and this run writes none: give --checkpoint DIR, or use on-nan "
        "skip");
}

/// What a part of a layer is made of. `rows`: of the embedding, where they are known.
void check_divides(const Options& o, const models::LanguageSpec& spec, std::optional<int64_t> rows) {
  const auto fits = [&](int64_t degree) { return spec.heads % degree == 0 && rows.value_or(0) % degree == 0; };
  if (fits(o.tensor)) return;
  const bool heads = spec.heads % o.tensor != 0;
  std::vector<int64_t> fitting;
  for (int64_t degree = 2; degree <= spec.heads && fitting.size() < 4; degree++)
    if (fits(degree)) fitting.push_back(degree);
  fail<InvalidArgument>("{} has {} {}, which tensor {} does not divide: use tensor {}", o.model,
                        heads ? spec.heads : *rows, heads ? "heads" : "rows of its vocabulary", o.tensor,
                        fitting.empty() ? "1" : fmt::format("{}", fmt::join(fitting, ", ")));
}

void check_lockstep(const Options& o, const char* degree, int number) {
  const exchange::Sync& sync = o.parallel.exchange.sync;
  if (!sync.lockstep() || sync.needs_servers())
    fail<InvalidArgument>(
        "{} {} divides a model among workers that take every step together, and so does not go with sync '{}': use "
        "shared, allreduce or central",
        degree, number, exchange::name_of(sync));
}

/// The model says how many stages it can have, and nobody knows it yet.
void check_pipeline(const Options& o) {
  if (o.pipeline < 1) fail<InvalidArgument>("pipeline is a number of stages, at least 1, not {}", o.pipeline);
  if (o.micro < 0) fail<InvalidArgument>("micro is a number of micro-batches, at least 1, not {}", o.micro);
  if (o.pipeline == 1) {
    if (o.micro > 0)
      fail<InvalidArgument>("micro-batches of one stage after another are --accumulate {}: use that, or --pipeline P",
                            o.micro);
    return;
  }
  check_lockstep(o, "pipeline", o.pipeline);
  if (o.parallel.exchange.zero == 3)
    fail<InvalidArgument>(
        "zero 3 gathers parameters in the order in which one backward pass uses them, and a pipeline has several under "
        "way at a time: use zero 2 or less with pipeline {}",
        o.pipeline);
  if (o.parallel.accumulate > 1)
    fail<InvalidArgument>(
        "accumulate {} goes through micro-batches one after another, and pipeline {} has several under way at a time: "
        "use --micro {} instead",
        o.parallel.accumulate, o.pipeline, std::max(o.parallel.accumulate, 2 * o.pipeline));
  if (o.parallel.sync_batch_norm)
    fail<InvalidArgument>(
        "in a pipeline a batch norm sees one micro-batch at a time, as with accumulation: leave out --sync-batch-norm, "
        "or use --pipeline 1");
  stages::make_schedule(stages::parse_schedule(o.schedule), o.pipeline, micro_batches(o));  // refuses what cannot work
  check_writable(o.record_schedule);
}

void check_virtual(const Options& o) {
  const int pieces = o.parallel.exchange.virtual_workers;
  if (pieces == 0) return;
  if (o.tensor > 1 || o.pipeline > 1)
    fail<InvalidArgument>(
        "virtual {} divides samples among workers that have all of the model, and with {} {} they have parts of it: "
        "leave out one of them",
        pieces, o.tensor > 1 ? "tensor" : "pipeline", o.tensor > 1 ? o.tensor : o.pipeline);
  if (o.batch < static_cast<size_t>(pieces))
    fail<InvalidArgument>(
        "virtual {} cuts a batch of {} into more pieces than it has samples: use --batch {} or more, or fewer virtual "
        "workers",
        pieces, o.batch, pieces);
  if (models::has_batch_norm(o.model))
    fail<InvalidArgument>(
        "{} has batch norms, whose statistics are gathered from the samples that a worker happens to see, and with "
        "virtual {} nothing may depend on that: use a model without, or leave out --virtual",
        o.model, pieces);
}

void check_balance(const Options& o) {
  if (o.parallel.balance == Balancing::even) return;
  const std::string what = "balance " + balancing_names()[static_cast<size_t>(o.parallel.balance)];
  if (o.tensor > 1 || o.pipeline > 1)
    fail<InvalidArgument>(
        "{} divides samples among workers that have all of the model, and with {} {} a step waits for those who have "
        "the parts of it: leave out one of them",
        what, o.tensor > 1 ? "tensor" : "pipeline", o.tensor > 1 ? o.tensor : o.pipeline);
  if (o.plain_mean)
    fail<InvalidArgument>(
        "with mean plain every worker counts the same, and {} gives them different numbers of samples, which would "
        "count differently: leave out one of them",
        what);
}

void check_precision(const Options& o) {
  if (o.parallel.precision == Precision::bf16 && o.dtype == "f64")
    fail<InvalidArgument>(
        "precision bf16 multiplies in 16 bits what dtype f64 keeps in 64: use --dtype f32 with --precision bf16, or "
        "--precision f32");
  if (o.recompute && o.parallel.sync_batch_norm)
    fail<InvalidArgument>(
        "recompute runs layers again in backward, where batch norms cannot meet a second time: leave out "
        "--sync-batch-norm or --recompute");
}

void check_compression(const Options& o) {
  const exchange::Options& x = o.parallel.exchange;
  if (!x.codes()) return;
  const std::string what = exchange::what_codes(x);
  if (o.dtype == "f64")
    fail<InvalidArgument>("{} is for gradients of type f32: use dtype f32, or leave out compress", what);
  if (o.tensor > 1 || o.pipeline > 1)
    fail<InvalidArgument>("{} is not there yet for models that workers have in parts: leave out compress, or {} {}",
                          what, o.tensor > 1 ? "tensor" : "pipeline", o.tensor > 1 ? o.tensor : o.pipeline);
}

}  // namespace

int micro_batches(const Options& o) {
  if (o.micro > 0) return o.micro;
  const stages::ScheduleSpec spec = stages::parse_schedule(o.schedule);
  return spec.name == stages::ScheduleSpec::Name::file ? stages::read_schedule(spec.path).micro
                                                       : kMicroPerStage * o.pipeline;
}

void check_schedule_name(const std::string& name) {
  const std::vector<std::string> rates = space::schedule_names();
  if (std::find(rates.begin(), rates.end(), name) != rates.end())
    fail<InvalidArgument>("{} is a schedule of the learning rate: --lr-schedule {}", name, name);
  stages::parse_schedule(name);
}

void check_division(const Options& o) {
  if (o.tensor < 1) fail<InvalidArgument>("tensor is a number of workers, at least 1, not {}", o.tensor);
  check_schedule_name(o.schedule);
  if (o.tensor > 1) check_lockstep(o, "tensor", o.tensor);
  check_pipeline(o);
  if (o.tensor == 1) return;
  const auto spec = models::language_spec(o.model);
  if (!spec)
    fail<InvalidArgument>("tensor {}: {} has no form that workers divide; gpt and bert have", o.tensor, o.model);
  // Bytes are known; what a tokenizer has, when it is open: check_vocabulary().
  check_divides(o, *spec, o.tokenizer.empty() ? std::optional(models::embedded(*spec, 256)) : std::nullopt);
  if (o.keeping.weights_only)
    fail<InvalidArgument>(
        "resume-weights-only fills whole models, and with tensor {} each worker has a part of one: resume all of the "
        "checkpoint, or begin with tensor 1",
        o.tensor);
}

void check_vocabulary(const Options& o, int64_t tokens) {
  if (const auto spec = models::language_spec(o.model)) check_divides(o, *spec, models::embedded(*spec, tokens));
}

void check_writable(const std::string& path) {
  if (path.empty()) return;
  const fs::path folder = fs::absolute(path).parent_path();
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) fail<IoError>("cannot make the folder {}: {}", folder.string(), failed.message());
  if (fs::is_directory(path)) fail<InvalidArgument>("{} is a folder; give a file", path);
  if (access(path.c_str(), F_OK) == 0 && access(path.c_str(), W_OK) != 0)
    fail<IoError>("cannot write {}: {}", path, errno_text());
  if (fs::exists(path) && !fs::is_regular_file(path)) return;  // a terminal, a pipe
  const std::string probe =
      fmt::format("{}.{}.tmp", path, getpid());  // some file systems refuse what the permissions allow
  if (!std::ofstream(probe)) fail<IoError>("cannot write to the folder {}: {}", folder.string(), errno_text());
  fs::remove(probe, failed);
}

int usual_epochs(bool may_be_small, int64_t steps_per_epoch) {
  constexpr int64_t kUsual = 10, kMost = 50, kUpdates = 500;
  if (!may_be_small) return kUsual;
  const int64_t steps = std::max<int64_t>(1, steps_per_epoch);
  return static_cast<int>(std::clamp((kUpdates + steps - 1) / steps, kUsual, kMost));
}

void check(const Options& o) {
  if (o.epochs.value_or(0) < 0) fail<InvalidArgument>("epochs must be at least 0, not {}", *o.epochs);
  if (o.batch == 0) fail<InvalidArgument>("the batch must be at least 1");
  check(o.parallel);
  const space::ScheduleOptions& schedule = o.parallel.schedule;
  if (o.max_steps < 0 || schedule.warmup < 0)
    fail<InvalidArgument>("max-steps and warmup must be at least 0, not {} and {}", o.max_steps, schedule.warmup);
  check(o.stop, o.parallel.exchange.on_nan);
  check_rollback(o);
  check(o.keeping);
  check_precision(o);
  check_division(o);
  check_virtual(o);
  check_balance(o);
  check_compression(o);
  if (o.max_steps > 0 && o.stop.steps > 0 && o.max_steps != o.stop.steps)
    fail<InvalidArgument>("max-steps {} and stop steps={} are the same limit: give one of them", o.max_steps,
                          o.stop.steps);
  if (!std::isfinite(schedule.gamma) || !std::isfinite(o.step_epochs) || o.step_epochs <= 0)
    fail<InvalidArgument>("gamma must be a number and step-epochs more than 0, not {} and {}", schedule.gamma,
                          o.step_epochs);
  if (!(schedule.floor >= 0 && schedule.floor <= 1))
    fail<InvalidArgument>("floor is a part of the learning rate, from 0 to 1, not {}", schedule.floor);
  if (o.dtype != "f32" && o.dtype != "f64") fail<InvalidArgument>("unknown dtype '{}': f32 or f64", o.dtype);
  if (!(o.straggler_factor >= 1 && o.straggler_factor <= 100))
    fail<InvalidArgument>("a straggler takes 1 to 100 times as long, not {}", o.straggler_factor);
  space::Updater(o.optimizer, {});
  if (fs::exists(o.save) && !fs::is_regular_file(o.save) && !fs::is_directory(o.save))
    fail<InvalidArgument>("{} is not a file: it would be replaced by the model", o.save);
  check_writable(o.save);
  check_writable(o.report);
}

std::vector<std::string> memory_format_names() { return {"auto", "default", "channels-last"}; }
MemoryFormat memory_format_named(const std::string& name) {
  return named<MemoryFormat>(name, memory_format_names(), "memory format");
}
std::vector<std::string> loss_names() { return {"auto", "cross-entropy", "mse"}; }
Loss loss_named(const std::string& name) { return named<Loss>(name, loss_names(), "loss"); }

}  // namespace trireme::train
