#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include <trireme/base/error.h>
#include <trireme/train/run.h>

namespace trireme::train {

namespace {

/// Shares, why they are what they are, and who waited for how long.
nlohmann::ordered_json balance_json(const Options& options, const exchange::Balance& balance) {
  nlohmann::ordered_json report = {{"mode", balancing_names()[static_cast<size_t>(options.parallel.balance)]},
                                   {"changes", balance.changes},
                                   {"reason", balance.reason}};
  const int workers = static_cast<int>(balance.names.size());
  report["shares"] = balance.shares.empty() ? exchange::even_shares(options.batch, workers) : balance.shares;
  report["steps"] = balance.last.steps;  // that the rest is the mean of
  report["workers"] = nlohmann::ordered_json::array();
  double least = INFINITY;
  for (const exchange::Effort& one : balance.last.ranks) least = std::min(least, one.exchanging);
  for (size_t rank = 0; rank < balance.last.ranks.size(); rank++)
    report["workers"].push_back({{"name", balance.names[rank]},
                                 {"computing_seconds", balance.last.ranks[rank].computing},
                                 {"waited_seconds", balance.last.ranks[rank].exchanging - least}});
  if (!balance.straggler) return report;
  report["straggler"] = {{"name", balance.names[static_cast<size_t>(balance.straggler->rank)]},
                         {"steps", balance.straggler->steps},
                         {"waited_seconds", balance.straggler->waited},
                         {"step_seconds", balance.straggler->step}};
  return report;
}

nlohmann::ordered_json interval_json(const compress::Interval& interval) {
  return {{"mean", interval.mean * 1e3}, {"plus_minus", interval.half * 1e3}};
}

/// By which codec each bucket went in the end, what that saves, and why.
nlohmann::ordered_json compression_json(const exchange::Compression& compression) {
  const compress::Judgement& judgement = compression.judgement;
  nlohmann::ordered_json report = {{"candidates", compression.candidates},
                                   {"settled", compression.settled},
                                   {"looks", compression.looks},
                                   {"reason", judgement.reason},
                                   {"ms_per_step", judgement.chosen * 1e3},
                                   {"ms_per_step_without", judgement.plain * 1e3},
                                   {"ms_saved", interval_json(judgement.saved)}};
  report["buckets"] = nlohmann::ordered_json::array();
  for (size_t b = 0; b < judgement.buckets.size(); b++) {
    const compress::Verdict& one = judgement.buckets[b];
    report["buckets"].push_back({{"bucket", compression.buckets[b]},
                                 {"codec", compression.name(one.codec)},
                                 {"bytes_before", one.before},
                                 {"bytes_after", one.after},
                                 {"ms_saved", interval_json(one.saved)},
                                 {"cosine", one.cosine},
                                 {"reason", one.reason}});
  }
  return report;
}

void write_report(const Options& options, int workers, const Result& result) {
  std::ofstream file(options.report);
  file << report_json(options, workers, result) << '\n';
  if (!file.flush()) fail<IoError>("cannot write the report {}: {}", options.report, errno_text());
}

/// What was decided, and why the run failed. The failure itself is what its caller hears of.
void report_failure(World& world, const Options& options, Run& run, const std::string& error) noexcept try {
  if (!world.first() || options.report.empty() || !run.has_begun()) return;
  Result result = run.so_far();
  result.error = error;
  write_report(options, world.size(), result);
} catch (const std::exception&) {
}

/// A crew that loses a worker before it has a model begins anew, with those who are left.
Result begun(World& world, const Options& options, const Listener& listener, const std::atomic<bool>& stop,
             const std::function<void()>& compare) {
  const bool comes = world.newcomer();  // to others, who have one
  while (true) {
    Run run(world, options, listener, stop);
    try {
      compare();
      return run.run();
    } catch (const PeerLost& lost) {
      if (!world.elastic() || comes || run.has_begun()) {
        report_failure(world, options, run, lost.what());
        throw;
      }
      world.regroup();
      if (world.first()) listener.note(fmt::format("{}. The others begin anew", lost.what()));
    } catch (const std::exception& error) {
      report_failure(world, options, run, error.what());
      throw;
    }
  }
}

}  // namespace

Result run(World& world, const Options& options, const Listener& listener, const std::atomic<bool>& stop,
           const std::function<void()>& compare) {
  Result result = begun(world, options, listener, stop, compare);
  if (world.first() && !options.report.empty()) write_report(options, world.size(), result);
  return result;
}

double EpochResult::test_perplexity() const { return std::exp(test_loss); }

std::string torch_description() {
  return fmt::format("{}, oneDNN {}", TORCH_VERSION,
                     at::globalContext().userEnabledMkldnn() && at::hasMKLDNN() ? "on" : "off");
}

std::string report_json(const Options& options, int workers, const Result& result) {
  nlohmann::ordered_json report = {{"model", options.model},
                                   {"data", options.data},
                                   {"workers", workers},
                                   {"threads", at::get_num_threads()},
                                   {"mesh",
                                    {{"data", workers / (options.tensor * options.pipeline)},
                                     {"pipeline", options.pipeline},
                                     {"tensor", options.tensor}}},
                                   {"virtual", options.parallel.exchange.virtual_workers},
                                   {"zero", options.parallel.exchange.zero},
                                   {"precision", precision_names()[static_cast<size_t>(options.parallel.precision)]},
                                   {"recompute", options.recompute},
                                   {"batch", options.batch},
                                   {"accumulate", options.parallel.accumulate},
                                   {"sync", exchange::name_of(options.parallel.exchange.sync)},
                                   {"compress", exchange::codec_name(options.parallel.exchange)},
                                   {"rate", exchange::name_of(options.parallel.exchange.rate)},
                                   {"optimizer", space::name_of(options.optimizer.kind)},
                                   {"lr", options.optimizer.lr},
                                   {"seed", options.seed},
                                   {"parameters", result.parameters},
                                   {"updates", result.updates},
                                   {"stopped", result.stopped},
                                   {"seconds", result.seconds},
                                   {"sha256", result.sha256}};
  if (options.pipeline > 1) {
    report["micro"] = micro_batches(options);
    report["schedule"] = options.schedule;
  }
  report["epochs"] = nlohmann::ordered_json::array();
  for (const EpochResult& epoch : result.epochs) {
    nlohmann::ordered_json row = {{"epoch", epoch.epoch}, {"loss", epoch.loss}};
    if (epoch.has_test) row["test_loss"] = epoch.test_loss;
    if (epoch.test_accuracy >= 0) row["test_accuracy"] = epoch.test_accuracy;
    if (epoch.has_test && epoch.tokens > 0) row["test_perplexity"] = epoch.test_perplexity();
    row["samples_per_second"] = epoch.samples_per_second;
    if (epoch.tokens > 0) row["tokens_per_second"] = epoch.samples_per_second * static_cast<double>(epoch.tokens);
    row["seconds"] = epoch.seconds;
    if (epoch.samples >= 0) {
      row["samples"] = epoch.samples;
      row["each_once"] = epoch.each_once;
      if (epoch.left_out > 0) row["left_out"] = epoch.left_out;
      row["lost"] = epoch.lost;
      row["joined"] = epoch.joined;
    }
    report["epochs"].push_back(row);
  }
  if (result.balance) report["balance"] = balance_json(options, *result.balance);
  if (result.compression) report["compression"] = compression_json(*result.compression);
  report["metrics"] = nlohmann::ordered_json::object();
  for (const auto& [member, counted] : result.counted)
    report["metrics"][member] = nlohmann::ordered_json::parse(counted.json());
  report["decisions"] = nlohmann::ordered_json::array();
  for (const Decision& decision : result.decisions)
    report["decisions"].push_back({{"step", decision.step},
                                   {"policy", decision.policy},
                                   {"decision", name_of(decision.kind)},
                                   {"reason", decision.reason}});
  if (!result.warning.empty()) report["warning"] = result.warning;
  if (!result.error.empty()) report["error"] = result.error;
  if (!result.saved.empty()) report["saved"] = result.saved;
  if (!result.checkpoint.empty()) report["checkpoint"] = result.checkpoint;
  if (!result.resumed.empty()) report["resumed"] = result.resumed;
  if (options.restarts > 0) report["restarts"] = options.restarts;
  return report.dump(2);
}

}  // namespace trireme::train
