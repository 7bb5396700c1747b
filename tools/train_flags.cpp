#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include <trireme/base/duration.h>
#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/base/process.h>
#include <trireme/cluster/mesh_plan.h>
#include <trireme/data/dataset.h>
#include <trireme/exchange/tree.h>
#include <trireme/models/catalogue.h>
#include <trireme/models/language.h>
#include <trireme/ps/placement.h>

#include "duration_flag.h"
#include "join_names.h"
#include "train_flags.h"

namespace trireme::tools {
namespace {

constexpr double kUsualSilence = 30;     // seconds; of a worker on this machine
constexpr double kLongestTimeout = 1e8;  // seconds; the clock counts nanoseconds

std::vector<std::string> progress_names() { return {"auto", "line", "plain", "none"}; }

/// CLI11 takes -1 for a very large unsigned number, and its own checks talk of ranges from 2.2e-308.
CLI::Validator whole_number(long long least) {
  return CLI::Validator(
      [least](const std::string& text) {
        long long value = 0;
        const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool good = error == std::errc{} && stop == text.data() + text.size() && value >= least;
        return good ? "" : fmt::format("must be a whole number of at least {}, not '{}'", least, text);
      },
      "");
}

void add_checkpoint_flags(CLI::App& app, TrainSettings& s) {
  train::KeepOptions& k = s.options.keeping;
  const char* const group = "Checkpoints";
  app.add_option("--checkpoint", k.dir,
                 "Keep checkpoints in this folder, written while training goes on: all state, the optimizer's and the "
                 "place in the data too. Ctrl-C and SIGTERM write a last one (docs/checkpoints.md)")
      ->group(group);
  app.add_option("--checkpoint-every", s.checkpoint_every, "How often: 500steps, 10min, 1epoch, …")->group(group);
  app.add_option("--keep", k.keep, "How many of the newest to keep; 0: all")->check(whole_number(0))->group(group);
  app.add_flag("--keep-best", k.best, "Keep the best one, too: by test accuracy, or by the loss where there is none")
      ->group(group);
  app.add_option(
         "--resume", k.resume,
         "Go on with the newest checkpoint of a folder, with the very next batch, whatever workers, servers and "
         "sync mode it was made with; or with one checkpoint; latest: the newest of --checkpoint")
      ->group(group);
  app.add_flag("--resume-weights-only", k.weights_only,
               "Of --resume: begin anew with its parameters, as for another optimizer or other data")
      ->group(group);
  app.add_option("--grace", s.grace, "How long the last checkpoint may take when the run is stopped: 30s, 2m")
      ->group(group);
}

void add_division_flags(CLI::App& app, TrainSettings& s) {
  const char* const group = "Larger models";
  app.add_option("--tensor", s.options.tensor,
                 "gpt and bert: so many workers divide each layer between them, and workers / T copies of the model "
                 "divide the batch. A T that keeps each group inside one machine is fast (docs/model-parallel.md)")
      ->check(whole_number(1))
      ->group(group);
  app.add_option(
         "--pipeline", s.options.pipeline,
         "Any model with several layers: cut into so many stages, one after another, each on workers of its own; "
         "a batch goes through in micro-batches. Workers = copies × pipeline × tensor (docs/pipeline.md)")
      ->check(whole_number(1))
      ->group(group);
  app.add_option("--micro", s.options.micro,
                 "--pipeline: micro-batches of a batch; more of them wait less, down to what keeps a worker busy "
                 "(default: 4 for each stage; of a file: its own)")
      ->check(whole_number(1))
      ->group(group)
      ->default_str("");
  app.add_option("--schedule", s.options.schedule,
                 "--pipeline: what its stages do when: gpipe; 1f1b: less memory; interleaved:V: V pieces of the model "
                 "on each stage, less waiting; zero-bubble: hardly any waiting; file:PATH: your own "
                 "(`trireme schedule NAME` draws them). That of the learning rate is --lr-schedule")
      ->group(group);
  app.add_option("--record-schedule", s.options.record_schedule,
                 "--pipeline: write what each stage did when in the last step: FILE.svg is a picture of it below what "
                 "was planned, other files are for `trireme schedule NAME --happened FILE`")
      ->group(group);
  app.add_option("--ahead", s.ahead,
                 "--pipeline with --clip or --on-nan skip: when stages update before the norm of all of them is known, "
                 "and take back what was wrong: " +
                     join_names(exchange::ahead_names()) + ". idle: where they would wait. The result is the same")
      ->group(group);
  app.add_option(
         "--ahead-bytes", s.options.parallel.exchange.ahead_bytes,
         "--ahead: bytes of parameters and state that may be kept for that; the rest is updated when the norm is "
         "known")
      ->check(whole_number(0))
      ->group(group);
  app.add_option("--zero", s.options.parallel.exchange.zero,
                 "Any model, across machines: each worker alone keeps its part of the optimizer state (1), of the "
                 "gradients too (2), of the parameters too (3); 0: none (docs/zero.md)")
      ->check(whole_number(0))
      ->group(group);
  app.add_option("--zero-window", s.zero_window,
                 "--zero 2 and 3: MB beyond its share that a machine holds in a step (default: an eighth of the "
                 "parameters)")
      ->check(whole_number(0))
      ->group(group);
  app.add_flag("--recompute,!--no-recompute", s.options.recompute,
               "Keep few activations and compute them again in backward: less memory, the same result, about a third "
               "more time")
      ->group(group);
  app.add_option("--precision", s.precision,
                 "f32, or bf16: matrix products and convolutions in 16 bits; parameters, optimizer state, losses and "
                 "sums stay f32. Fast where the processor has instructions for it")
      ->group(group);
}

void add_flags(CLI::App& app, TrainSettings& s) {
  train::Options& o = s.options;
  exchange::Options& x = o.parallel.exchange;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->always_capture_default();
  app.add_option("MODEL", o.model,
                 "A model (`trireme models` lists them), or a recipe FILE.toml with these flags as keys")
      ->required();
  app.add_option("--data", o.data,
                 "Data: fashion-mnist, mnist, synthetic[:COUNT], a folder of IDX files or with train.csv and test.csv, "
                 "or a file that ends "
                 "in .csv, .tsv, .data or .txt; text:FILE for language models; all of them also with .gz "
                 "(docs/data.md)");
  app.add_option("--label", o.label, "CSV: name or number of the column to predict (default: the last)");
  app.add_option("--normalize", s.normalize,
                 "CSV: yes or no: numbers get mean 0 and deviation 1, by the training rows (default: yes)");
  app.add_option(
      "--test", o.test,
      "CSV without a test file: part of the rows to test with, chosen by --seed; 0: none (default: 0.2). Text: "
      "the last part of it (default: 0.1)");
  app.add_option("--tokenizer", o.tokenizer,
                 "Text: FILE.model of sentencepiece, as spm_train writes it (default: tokens are bytes)");
  app.add_option(
         "--workers", s.workers_given,
         "Worker processes on this machine; 0: one per core. LEAST:MOST, such as 2:8: the job goes on when "
         "workers die, as long as LEAST are left, starts others in their place, and `trireme ctl scale` changes "
         "their number while it runs (docs/elastic.md)")
      ->check(workers_flag());
  app.add_option("--batch", o.batch,
                 "Samples per update, over all workers: up to rounding, the result does not depend on their number")
      ->check(whole_number(1));
  app.add_option("--epochs", o.epochs,
                 "Passes over the training set (default: 10; CSV and text: more, for 500 updates, up to 50)")
      ->check(whole_number(0));
  app.add_option("--max-steps", o.max_steps, "Stop after this many updates; 0: no limit")->check(whole_number(0));
  app.add_option(
         "--stop", s.stop,
         "What ends the run early; several may be given: accuracy=0.9 or loss=0.1 at the end of an epoch (of the "
         "test set; loss without one: of the training), time=10m since training began, steps=1000 updates, "
         "plateau=5 epochs without a lower loss, nan (docs/stopping.md)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->expected(1)
      ->allow_extra_args(false)
      ->type_name("POLICY");
  app.add_option("--optimizer", s.optimizer,
                 "One of: " + join_names(space::optimizer_names()) + "; auto is momentum, for language models adamw");
  app.add_option("--lr", s.lr,
                 "Learning rate (default: 0.05; language models with adam or adamw: 0.256 / width, at most 0.003)");
  app.add_option("--momentum", o.optimizer.momentum, "For momentum");
  app.add_flag("--nesterov", o.optimizer.nesterov, "Nesterov's variant of momentum");
  app.add_option("--beta1", o.optimizer.beta1, "For adam and adamw");
  app.add_option("--beta2", o.optimizer.beta2, "For adam and adamw");
  app.add_option("--epsilon", o.optimizer.epsilon, "For adagrad, adam and adamw (default: libtorch's)");
  app.add_option("--weight-decay", o.optimizer.weight_decay, "L2 term; decoupled in adamw");
  app.add_option("--lr-schedule", s.lr_schedule, "Of the learning rate: " + join_names(space::schedule_names()));
  app.add_option("--warmup", o.parallel.schedule.warmup, "Updates over which the learning rate rises to --lr")
      ->check(whole_number(0));
  app.add_option("--step-epochs", o.step_epochs, "--lr-schedule step: epochs between drops");
  app.add_option("--floor", o.parallel.schedule.floor, "--lr-schedule cosine: where it ends, as a part of --lr");
  app.add_option("--gamma", o.parallel.schedule.gamma, "--lr-schedule step: factor of each drop");
  app.add_option("--accumulate", o.parallel.accumulate,
                 "Micro-batches per update: less memory, the same result up to rounding, one exchange")
      ->check(whole_number(1));
  app.add_option(
         "--virtual", x.virtual_workers,
         "Cut every step into so many passes, whose gradients are summed in one fixed order: the same bits with "
         "any number of workers up to that, on any number of machines (docs/virtual.md); 0: a pass per worker")
      ->check(whole_number(0));
  app.add_option("--sync", s.sync,
                 "How gradients become parameters: " + join_names(exchange::sync_names()) +
                     ". shared: workers update one copy together; server: servers wait for all workers; async: they do "
                     "not; stale:S: they do, for S steps; "
                     "trylock:P: who does not get the lock drops its gradient; hogwild: no lock; local:K: average "
                     "every K steps; diloco:K: the same through an outer optimizer (docs/parameter-server.md)");
  app.add_option(
      "--rate", s.rate,
      "Where gradients are applied one by one (async, stale:S, trylock:P, round-robin, hogwild), what each counts. "
      "share: --lr times its part of the "
      "step's samples, so that --lr means the same in every mode; full: --lr as it is, N workers move N times as far");
  app.add_option("--servers", s.servers, "Parameter servers; 0: one, if --sync needs them")->check(whole_number(0));
  app.add_option("--replicas", s.replicas,
                 "Servers: how many others have what each of them keeps (0 or 1), so that the run goes on when one is "
                 "killed: a part is served by its backup from then on (docs/parameter-server.md)")
      ->check(whole_number(0));
  app.add_option(
      "--stale-gradients", s.stale,
      "Servers: what a gradient counts that was computed with old parameters: " + join_names(ps::stale_names()));
  app.add_option("--lambda", x.lambda, "Servers, --stale-gradients compensated: the weight of the correction");
  app.add_option("--chunk-bytes", x.chunk_bytes, "Servers: the largest part of a bucket that one of them keeps")
      ->check(whole_number(1));
  app.add_option("--clip", x.clip,
                 "Scale gradients down to this norm, as torch's clip_grad_norm_ does; 0: do not. Where all workers "
                 "update together it is the norm of "
                 "their mean gradient, otherwise that of each worker's own");
  app.add_option(
      "--on-nan", s.on_nan,
      "A loss or a gradient that is NaN or infinite: " + join_names(exchange::on_nan_names()) +
          ". stop: end with the worker, the update and the tensor that had it first; skip: leave that update "
          "out on all workers, as if its batch had not been there; 10 in a row end the run; rollback: go back "
          "to the newest checkpoint and leave out the batch");
  app.add_option("--mean", s.mean, "weighted: by the number of samples; plain: every worker counts the same");
  app.add_option("--balance", s.balance,
                 "Which share of a batch each worker computes: " + join_names(balancing_names()) +
                     ". auto: by measured speed, with the same result up to rounding; watch: even shares, and a worker "
                     "that makes the others wait is named, as with auto (docs/balance.md)");
  app.add_option(
         "--balance-stint", s.balance_stint,
         "--balance auto and watch: for how long steps are measured, at least, before workers compare what they "
         "took: 0.5s, 2s")
      ->transform(duration_flag());
  app.add_option("--straggler", s.straggler,
                 "WORKER:FACTOR makes a worker compute that many times slower, to see what that does");
  app.add_option("--seed", o.seed,
                 "Of the initial parameters, the shuffling and dropout; the same seed and workers give the same bits")
      ->check(whole_number(0));
  app.add_flag("--shuffle,!--no-shuffle", o.shuffle, "Another order of the training set in every epoch");
  app.add_option("--loss", s.loss, "One of: " + join_names(train::loss_names()));
  app.add_option("--dtype", o.dtype, "f32 or f64");
  app.add_option(
      "--memory-format", s.memory_format,
      "Of convolution weights: " + join_names(train::memory_format_names()) + "; auto measures once and remembers");
  app.add_option(
         "--compress", s.compress,
         "Between machines, with --sync shared, allreduce and modes with parameter servers: fewer bytes of "
         "gradients, one of " +
             join_names(compress::spec_names()) + ", or auto. What is sent: " + compress::spec_help() +
             ". What is left out comes later. "
             "auto, in shared alone, measures, and chooses for each bucket of gradients what pays, or none, of " +
             compress::kAutomatic + ", or of those that auto:fp16,int8 names (docs/compression.md)")
      ->group("Several hosts");
  app.add_option(
         "--compress-layers", x.codec_excludes,
         "--compress: names of parameters that travel as they are, with * and ?, such as 'conv1.*'; several may "
         "be given. Biases and norms always do")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->expected(1)
      ->allow_extra_args(false)
      ->type_name("PATTERN")
      ->group("Several hosts");
  app.add_option("--bucket-bytes", x.bucket_bytes, "Gradients travel in buckets of about this size")
      ->check(whole_number(1));
  add_division_flags(app, s);
  add_elastic_flags(app, s.elastic, "worker");
  app.add_flag("--overlap,!--no-overlap", x.overlap, "Reduce complete buckets while the backward pass goes on");
  app.add_flag("--overlap-next,!--no-overlap-next", o.parallel.overlap_next,
               "Begin the next forward pass when the first parameters are there; off with --no-overlap");
  app.add_flag("--sync-batch-norm,!--no-sync-batch-norm", o.parallel.sync_batch_norm,
               "Batch norm with the statistics of the whole batch, as one worker would have them; otherwise each uses "
               "its own share's");
  app.add_option("--threads", s.threads, "Compute threads per worker")->check(whole_number(1));
  app.add_option("--timeout", s.timeout,
                 "How long to wait for another worker before giving up: 60 (seconds), 90s, 10m; the start included")
      ->transform(duration_flag());
  app.add_option(
      "--step-timeout", s.step_timeout,
      "How long a training step may take on any worker, and waits for others in it: 30s, 10m (default: waits "
      "as long as --timeout, steps as long as they like)");
  app.add_option("--report", o.report,
                 "Write a JSON report: loss, accuracy, samples/s and seconds by epoch, SHA-256 of the parameters");
  app.add_flag("--quiet-report", s.quiet_report)->group("");
  app.add_option("--restarts", s.restarts)->group("");
  app.add_option("--save", o.save, "Write the trained model in safetensors format");
  add_checkpoint_flags(app, s);
  app.add_option("--progress", s.progress,
                 "One of: " + join_names(progress_names()) +
                     "; auto is a line on a terminal, and plain under mpirun and other launchers");
  app.add_option(
         "--engine", s.engine,
         "Between machines: auto, stream, gloo, mpi or nccl. stream encrypts and authenticates every byte; gloo and "
         "mpi are for trusted networks, and with --tls need :insecure behind their name. auto is stream with "
         "--tls. Inside a machine it is always shared memory")
      ->group("Several hosts");
  add_hosts_flags(app, s.hosts);
  app.footer(
      "Examples:\n"
      "  trireme train lenet --data fashion-mnist --workers 2 --epochs 10 --lr 0.05 --save lenet.safetensors\n"
      "  trireme train mlp:256,128 --data my.csv --label price --optimizer adam --lr 1e-3\n"
      "  trireme train gpt:small --data text:book.txt --hosts a:2,b:2 --tensor 2 --zero 3 --recompute --batch 16\n"
      "  trireme train gpt:small --data text:book.txt --workers 8 --tensor 2 --pipeline 2 --zero 1 --batch 16 "
      "--micro 8 --schedule zero-bubble\n"
      "  trireme train resnet18 --data fashion-mnist --workers 2 --pipeline 2 --micro 8 --record-schedule steps.svg\n"
      "  trireme train gpt:tiny --data text:book.txt --workers 2 --save gpt.safetensors\n"
      "  trireme train recipes/lenet.toml --epochs 2 --sync allreduce\n"
      "  trireme train recipes/lenet.toml --checkpoint runs/a --checkpoint-every 10min --keep-best\n"
      "  trireme train recipes/lenet.toml --checkpoint runs/a --resume latest\n"
      "  trireme train recipes/lenet.toml --hosts a:2,b:2\n"
      "  trireme train recipes/lenet.toml --workers 2:8 --spares 1 --checkpoint runs/a");
}

/// "1:3"
void read_straggler(TrainSettings& settings) {
  if (settings.straggler.empty()) return;
  const std::string& text = settings.straggler;
  const size_t colon = text.find(':');
  int worker = -1;
  double factor = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + std::min(colon, text.size()), worker);
  const auto [end, wrong] =
      std::from_chars(text.data() + std::min(text.size(), colon + 1), text.data() + text.size(), factor);
  if (colon == std::string::npos || error != std::errc{} || stop != text.data() + colon || wrong != std::errc{} ||
      end != text.data() + text.size() || worker < 0)
    fail<InvalidArgument>("--straggler '{}' is not WORKER:FACTOR, such as 1:3", text);
  settings.options.straggler = worker;
  settings.options.straggler_factor = factor;
}

void read_policies(TrainSettings& settings) {
  train::Options& o = settings.options;
  o.keeping.every = every_named(settings.checkpoint_every);
  o.keeping.grace = duration_named(settings.grace, "--grace").count();
  for (const std::string& policy : settings.stop) train::add_stop(policy, o.stop, "--stop");
  if (settings.step_timeout.empty()) return;
  o.parallel.step_timeout = {duration_named(settings.step_timeout, "--step-timeout"), "--step-timeout"};
}

void read_normalize(TrainSettings& settings) {
  if (settings.normalize.empty()) return;
  if (settings.normalize != "yes" && settings.normalize != "no")
    fail<InvalidArgument>("unknown --normalize '{}': yes or no", settings.normalize);
  settings.options.normalize = settings.normalize == "yes";
}

/// Hosts say how many workers there are; a number beside them has to be the same, and a range has to hold it.
void check_ranks(const TrainSettings& settings, const cluster::Workers& workers) {
  if (!settings.hosts.given() || workers.most == 0) return;
  const int ranks = settings.hosts.ranks();
  if (!workers.range && ranks != workers.most)
    fail<InvalidArgument>(
        "--workers {}, but the hosts have {} slots: leave --workers out, or say a:2,b:2 for two on each of two hosts",
        workers.most, ranks);
  if (workers.range && (ranks < workers.least || ranks > workers.most))
    fail<InvalidArgument>("--workers {}, but the hosts have {} slots to begin with: that is not within",
                          settings.workers_given, ranks);
}

/// How many workers there are to begin with.
int first_workers(const TrainSettings& settings, const cluster::Workers& workers, const cluster::Place& place) {
  if (place.launcher != "alone")
    return workers.range || workers.most == 0 || settings.restarts >= 0 ? place.size : workers.most;
  if (settings.hosts.given()) return settings.hosts.ranks();
  if (workers.range) return cluster::first_crew(workers.least, workers.most, usable_cores());
  return workers.most == 0 ? usable_cores() : workers.most;
}

/// Why a crew with these flags cannot go on without one of its workers, as a flag; "": it can. All of it stands here.
std::string cannot_row_on(const TrainSettings& settings) {
  const train::Options& o = settings.options;
  const auto kind = o.parallel.exchange.sync.kind;
  if (kind != exchange::Sync::shared) return fmt::format("--sync {}", settings.sync);
  if (o.parallel.sync_batch_norm) return "--sync-batch-norm";
  if (o.parallel.exchange.on_nan == exchange::OnNan::rollback) return "--on-nan rollback";
  if (o.tensor > 1) return fmt::format("--tensor {}", o.tensor);
  if (o.pipeline > 1) return fmt::format("--pipeline {}", o.pipeline);
  if (o.parallel.exchange.codes() && settings.hosts.given()) return fmt::format("--compress {}", settings.compress);
  if (o.parallel.exchange.zero > 0 && settings.hosts.given())
    return fmt::format("--zero {} across hosts", o.parallel.exchange.zero);
  return "";
}

/// Where workers may die: whether the others go on by themselves, or all start again (docs/elastic.md).
void choose_recovery(TrainSettings& settings) {
  settings.options.restarts = std::max(settings.restarts, 0);
  if (settings.restarts >= 0) settings.elasticity = {};  // the launcher sees to it
  const std::string flag = cannot_row_on(settings);
  if (!settings.elasticity.elastic() || flag.empty()) return;
  const std::string wish =
      settings.elastic.on_failure.empty() ? "--workers LEAST:MOST" : "--on-failure " + settings.elastic.on_failure;
  if (settings.hosts.given() && settings.hosts.remote == cluster::kByHand)
    fail<InvalidArgument>(
        "{} with {}: all start again after a death, and with --remote {} nobody would start them: leave one of them "
        "out",
        wish, flag, cluster::kByHand);
  if (settings.options.keeping.dir.empty())
    fail<InvalidArgument>(
        "{} with {}: the others cannot go on by themselves there, so all start again from the newest checkpoint. Give "
        "--checkpoint DIR, or leave one of them out",
        wish, flag);
  if (settings.elastic.spares > 0 || settings.elastic.rejoin_timeout)
    fail<InvalidArgument>("{} has no effect with {}, where all start again after a death",
                          settings.elastic.spares > 0 ? "--spares" : "--rejoin-timeout", flag);
  settings.starts_again = true;
}

/// A worker that is stopped or cut off must be given up before the others give the job up because of it.
void choose_silence(TrainSettings& settings, const cluster::Place& place) {
  if (!settings.elasticity.elastic() || settings.starts_again) return;
  const double step = settings.options.parallel.step_timeout.timeout.count();
  const bool by_step = step > 0 && step < settings.timeout;
  const double shortest = by_step ? step : settings.timeout;
  const bool here = !settings.hosts.given() && place.launcher == "alone";
  const double limit =
      here && !settings.hosts.heartbeat_given ? std::min(kUsualSilence, shortest / 2) : settings.hosts.heartbeat_limit;
  settings.silence = limit;
  if (limit >= shortest)
    fail<InvalidArgument>(
        "--heartbeat-limit {:g} is not less than {} {:g}: the others would end the job before they give up a worker "
        "that is stopped. Make one of them smaller, or the other larger",
        limit, by_step ? "--step-timeout" : "--timeout", shortest);
}

void check_engine(const std::string& name) {
  const std::vector<std::string>& known = cluster::engine_words();
  if (std::find(known.begin(), known.end(), name) == known.end())
    fail<InvalidArgument>("unknown --engine '{}'{}: {}", name, did_you_mean(name, known), join_names(known));
  if (name == "nccl")
    fail<InvalidArgument>(
        "--engine nccl: this libtorch has no NCCL; use --engine stream or gloo");  // here, so that it is said once
}

}  // namespace

CLI::App* add_train_flags(CLI::App& app, TrainSettings& settings, const std::string& name) {
  settings.options.parallel.overlap_next = true;
  settings.options.cache = cluster::cache_file("choices.json");
  CLI::App* command =
      app.add_subcommand(name, "Train a model, one process per worker, on this machine or on several hosts");
  add_flags(*command, settings);
  return command;
}

void choose_optimizer(TrainSettings& settings) {
  train::Options& o = settings.options;
  models::check_name(o.model);
  const auto language = models::language_spec(o.model);
  if (settings.optimizer == "auto") settings.optimizer = language ? "adamw" : "momentum";
  o.optimizer.kind = space::optimizer_named(settings.optimizer);
  const bool adam = o.optimizer.kind == space::Optimizer::adam || o.optimizer.kind == space::Optimizer::adamw;
  o.optimizer.lr = settings.lr.value_or(language && adam ? models::usual_rate(*language) : 0.05);
}

void check_replicas(int replicas, int servers, bool several_hosts) {
  const std::string why = ps::why_no_replicas(replicas, servers, several_hosts);
  if (!why.empty()) fail<InvalidArgument>("--replicas {}: {}", replicas, why);
}

void resolve(TrainSettings& settings, const cluster::Place& place) {
  train::Options& o = settings.options;
  choose_optimizer(settings);
  exchange::Options& x = o.parallel.exchange;
  x.sync = exchange::sync_named(settings.sync);
  x.rate = exchange::rate_named(settings.rate);
  x.stale = ps::stale_named(settings.stale);
  x.on_nan = exchange::on_nan_named(settings.on_nan);
  x.ahead = exchange::ahead_named(settings.ahead);
  x.candidates = compress::candidates_named(settings.compress);
  x.codec = x.chooses() ? compress::Spec{} : compress::spec_named(settings.compress);
  x.zero_window = settings.zero_window << 20;
  o.parallel.schedule.kind = space::schedule_named(settings.lr_schedule);
  o.parallel.overlap_next = o.parallel.overlap_next && x.overlap;
  if (settings.mean != "weighted" && settings.mean != "plain")
    fail<InvalidArgument>("unknown --mean '{}': weighted or plain", settings.mean);
  o.plain_mean = settings.mean == "plain";
  o.parallel.balance = balancing_named(settings.balance);
  o.parallel.balance_stint = Seconds(settings.balance_stint);
  read_straggler(settings);
  if (settings.servers == 0 && x.sync.needs_servers()) settings.servers = 1;
  if (settings.servers > 0 && !x.sync.takes_servers())
    fail<InvalidArgument>(
        "--servers {} but sync '{}' has no use for parameter servers; modes that have: server, async, stale:S, "
        "trylock:P, round-robin, local:K, elastic:K,RHO",
        settings.servers, settings.sync);
  if (settings.servers > 0) check_replicas(settings.replicas, settings.servers, settings.hosts.given());
  o.memory_format = train::memory_format_named(settings.memory_format);
  o.loss = train::loss_named(settings.loss);
  read_policies(settings);
  o.parallel.precision = precision_named(settings.precision);
  train::check(o);
  if (o.parallel.sync_batch_norm && !models::has_batch_norm(o.model))
    fail<InvalidArgument>("--sync-batch-norm, but there is no batch norm in {}; leave it out, or train lenet-bn",
                          o.model);
  data::check_exists(o.data);
  models::check_fits(o.model, o.data);
  read_normalize(settings);
  data::check_options(o.data, {.label = o.label, .normalize = o.normalize, .test = o.test, .tokenizer = o.tokenizer});
  check_engine(settings.engine != "auto" || place.engine.empty() ? settings.engine : place.engine);
  const cluster::Workers workers = cluster::workers_named(settings.workers_given);
  if (place.launcher == "alone") check_ranks(settings, workers);
  settings.workers = first_workers(settings, workers, place);
  settings.elasticity = elasticity_of(settings.elastic, workers, settings.workers, "--workers");
  choose_recovery(settings);
  if (settings.hosts.given()) refuse_spares_on_hosts(settings.elasticity);
  if (x.virtual_workers > 0) exchange::check_runs(x.virtual_workers, std::max(settings.workers, workers.most));
  const cluster::Degrees degrees = cluster::degrees_of(settings.workers, {.pipeline = o.pipeline, .tensor = o.tensor});
  if (o.straggler >= settings.workers)
    fail<InvalidArgument>("--straggler {}: there is no worker {}; of {}, the last is {}", settings.straggler,
                          o.straggler, settings.workers, settings.workers - 1);
  if (o.batch < static_cast<size_t>(degrees.data))
    fail<InvalidArgument>(
        "--batch {} is smaller than the number of {} ({}); some would never have work. Use a batch of at least {} "
        "or fewer workers",
        o.batch, o.tensor * o.pipeline > 1 ? "copies of the model" : "workers", degrees.data, degrees.data);
  if (!(settings.timeout > 0 && settings.timeout < kLongestTimeout))
    fail<InvalidArgument>("--timeout must be more than 0 and less than {} seconds, not {}", kLongestTimeout,
                          settings.timeout);
  choose_silence(settings, place);
  if (const auto& known = progress_names(); std::find(known.begin(), known.end(), settings.progress) == known.end())
    fail<InvalidArgument>("unknown --progress '{}'{}: {}", settings.progress, did_you_mean(settings.progress, known),
                          join_names(known));
  // mpirun gives its ranks a terminal even where its own output goes to a file: under launchers, only who asks has a
  // line.
  if (settings.progress == "auto") settings.progress = place.launcher == "alone" && isatty(1) != 0 ? "line" : "plain";
}

}  // namespace trireme::tools
