// `trireme checkpoint`: what is in checkpoints, without libtorch.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <ctime>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/checkpoint/compare.h>
#include <trireme/checkpoint/folder.h>
#include <trireme/checkpoint/reader.h>

#include "commands.h"
#include "with_commas.h"

namespace trireme::tools {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Condition;
using checkpoint::Entry;
using checkpoint::Manifest;
using checkpoint::system_files;
using checkpoint::Tensors;

std::string size_text(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value < 1e3) return fmt::format("{} B", bytes);
  if (value < 1e6) return fmt::format("{:.1f} kB", value / 1e3);
  return value < 1e9 ? fmt::format("{:.1f} MB", value / 1e6) : fmt::format("{:.2f} GB", value / 1e9);
}

std::string age_text(int64_t time) {
  const double seconds = std::max(0.0, static_cast<double>(std::time(nullptr) - time));
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  return seconds < 172800 ? fmt::format("{:.0f} h", seconds / 3600) : fmt::format("{:.0f} d", seconds / 86400);
}

std::string time_text(int64_t time) {
  const std::time_t seconds = time;
  std::tm parts{};
  char text[64];
  gmtime_r(&seconds, &parts);
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts)};
}

std::string metrics_text(const std::map<std::string, double>& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) text += fmt::format("{}{}={:.4g}", text.empty() ? "" : " ", name, value);
  return text;
}

/// Those of a folder; a folder without any is an error with the same words as for --resume.
std::vector<Entry> entries_of(const std::string& path) {
  std::vector<Entry> entries = checkpoint::Folder(system_files(), path).list();
  if (entries.empty()) entries = {checkpoint::Folder(system_files(), path).newest().entry};
  return entries;
}

int list_folder(const std::string& path) {
  fmt::print("{:<20} {:>6} {:>8} {:>10}  {:<12} {}\n", "CHECKPOINT", "EPOCH", "AGE", "SIZE", "STATE", "METRICS");
  for (const Entry& entry : entries_of(path)) {
    const bool known = entry.manifest.has_value();
    fmt::print("{:<20} {:>6} {:>8} {:>10}  {:<12} {}\n", entry.name,
               known ? fmt::format("{}", entry.manifest->epoch) : "-", known ? age_text(entry.manifest->time) : "-",
               known ? size_text(entry.manifest->bytes()) : "-", name_of(entry.condition),
               entry.condition == Condition::complete ? metrics_text(entry.manifest->metrics) : entry.reason);
  }
  return 0;
}

void show_map(const char* title, const std::map<std::string, std::string>& entries) {
  constexpr size_t kMost = 100;  // a schema may be long
  if (!entries.empty()) fmt::print("{}\n", title);
  for (const auto& [name, value] : entries)
    fmt::print("  {:<20} {}\n", name, value.size() > kMost ? value.substr(0, kMost) + "…" : value);
}

void show_tensors(const std::map<std::string, Checkpoint::Found>& tensors) {
  fmt::print("tensors\n");
  for (const auto& [name, found] : tensors)
    fmt::print("  {:<40} {:>5} {:<20} {:>10}  {}\n", name, found.tensor->type,
               fmt::format("[{}]", fmt::join(found.tensor->shape, ",")), size_text(found.tensor->bytes()),
               checkpoint::name_in(found.file->path()));
}

void show_rows(const Checkpoint& opened) {
  for (const state::Table& table : opened.manifest().about.tables) {
    size_t rows = 0;
    opened.rows(table.name, [&](const state::Row&) { rows++; });
    fmt::print("table                {}: {} rows of {}, {}\n", table.name, with_commas(static_cast<double>(rows)),
               table.width, table.optimizer);
  }
}

void show_manifest(const Manifest& m) {
  fmt::print("step                 {}\nepoch                {}\nwritten              {}, by Trireme {}\n", m.step,
             m.epoch, time_text(m.time), m.library);
  fmt::print("crew                 {} workers, {} machines, {} servers, sync {}\n", m.crew.workers, m.crew.machines,
             m.crew.servers, m.crew.sync.empty() ? "not known" : m.crew.sync);
  fmt::print("optimizer            {}\n", m.about.optimizer.empty() ? "the program's own" : m.about.optimizer);
  fmt::print("state of its own     {}\n", m.about.workers == 0
                                              ? "none: any number of workers can go on with it"
                                              : fmt::format("for each of {} workers", m.about.workers));
  if (!m.metrics.empty()) fmt::print("metrics              {}\n", metrics_text(m.metrics));
}

int show(const std::string& path, bool all) {
  const Tensors tensors = Tensors::open(system_files(), path);
  fmt::print("{}\n", tensors.path);
  if (tensors.checkpoint) {
    const Manifest& m = tensors.checkpoint->manifest();
    show_manifest(m);
    show_rows(*tensors.checkpoint);
    show_map("metadata", m.metadata);
    show_map("options", m.options);
    if (!m.scalars.empty()) fmt::print("scalars\n");
    for (const auto& [name, value] : m.scalars) fmt::print("  {:<20} {}\n", name, value);
    fmt::print("files\n");
    for (const checkpoint::FileNote& file : m.files)
      fmt::print("  {:<40} {:>10}  sha256 {}\n", file.name, size_text(file.bytes), file.sha256);
  } else {
    show_map("metadata", tensors.file->header().metadata);
  }
  show_tensors(all ? tensors.by_name : tensors.model());
  return 0;
}

/// Why a checkpoint is of no use; "" when all is well.
std::string fault_of(const Entry& entry, int threads) {
  if (entry.condition != Condition::complete) return entry.reason;
  try {
    Checkpoint(system_files(), entry.path).verify(threads);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

int verify(const std::string& path, int threads) {
  size_t bad = 0;
  for (const Entry& entry : entries_of(path)) {
    const std::string fault = fault_of(entry, threads);
    bad += !fault.empty();
    fmt::print("{:<20} {}\n", entry.name,
               fault.empty() ? fmt::format("good: {} in {} files", size_text(entry.manifest->bytes()),
                                           entry.manifest->files.size())
                             : "BAD: " + fault);
  }
  return bad == 0 ? 0 : 1;
}

/// The number of tables that differ.
size_t diff_rows(const Checkpoint& a, const Checkpoint& b) {
  size_t differing = 0;
  for (const state::Table& table : a.manifest().about.tables) {
    const checkpoint::RowsDifference rows = compare_rows(a, b, table.name);
    if (rows.only_first + rows.only_second + rows.different == 0) continue;
    differing++;
    fmt::print("table {}: {} rows differ, {} only in the first, {} only in the second, {} are the same\n", table.name,
               rows.different, rows.only_first, rows.only_second, rows.same);
  }
  return differing;
}

int diff(const std::string& first, const std::string& second) {
  const Tensors a = Tensors::open(system_files(), first), b = Tensors::open(system_files(), second);
  const bool both = a.checkpoint && b.checkpoint;  // a file of a model has no optimizer to compare
  const auto left = both ? a.by_name : a.model(), right = both ? b.by_name : b.model();
  if (both && a.checkpoint->manifest().step != b.checkpoint->manifest().step)
    fmt::print("step {} and step {}\n", a.checkpoint->manifest().step, b.checkpoint->manifest().step);
  const std::vector<checkpoint::TensorDifference> differences = compare_tensors(left, right);
  for (const checkpoint::TensorDifference& d : differences)
    if (d.kind.empty())
      fmt::print("{:<40} {} of {} elements differ, by at most {:.6g}\n", d.name,
                 with_commas(static_cast<double>(d.elements)),
                 with_commas(static_cast<double>(left.at(d.name).tensor->elements())), d.largest);
    else
      fmt::print("{:<40} {}\n", d.name, d.kind);
  const size_t tables = both ? diff_rows(*a.checkpoint, *b.checkpoint) : 0;
  if (differences.empty() && tables == 0) return fmt::print("the same: {} tensors\n", left.size()), 0;
  fmt::print("{} tensors and {} tables differ\n", differences.size(), tables);
  return 1;
}

constexpr const char* kWhat =
    "A folder of checkpoints, of which the newest is taken, or one of them (DIR/step-000000500)";

}  // namespace

Run add_checkpoint(CLI::App& app, const Invocation& invocation) {
  struct Settings {
    std::string path, other;
    bool all = false;
    int threads = 2;
  };
  auto s = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand(
      "checkpoint",
      "Look at checkpoints: list, show, verify, compare them, and export the model (docs/checkpoint-format.md)");
  command->require_subcommand(1);
  CLI::App* ls = command->add_subcommand("ls", "List a folder's checkpoints, newest first, and what each is worth");
  ls->add_option("DIR", s->path, "What --checkpoint of `trireme train` named")->required();
  CLI::App* shown =
      command->add_subcommand("show", "What a checkpoint or a safetensors file has: state, options, tensors");
  shown->add_option("DIR", s->path, fmt::format("{}, or a .safetensors file", kWhat))->required();
  shown->add_flag("--all", s->all, "Tensors of the optimizer and of single workers too");
  CLI::App* verified = command->add_subcommand(
      "verify", "Compare the SHA-256 of every file: one flipped bit is found. Exit code 1 if so");
  verified->add_option("DIR", s->path, "A folder of checkpoints, all of which are verified, or one of them")
      ->required();
  verified->add_option("--threads", s->threads, "That read and hash files")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  CLI::App* differ = command->add_subcommand("diff", "Which tensors differ, and by how much. Exit code 1 if any does");
  differ->add_option("FIRST", s->path, fmt::format("{}, or a .safetensors file", kWhat))->required();
  differ->add_option("SECOND", s->other, "The same; of a file and a checkpoint, models alone are compared")->required();
  const Run exported = add_export(*command, invocation);
  command->footer(
      "Examples:\n"
      "  trireme checkpoint ls runs/a                       # steps, age, size, metrics; which are damaged, and why\n"
      "  trireme checkpoint show runs/a                     # the newest one\n"
      "  trireme checkpoint verify runs/a\n"
      "  trireme checkpoint diff runs/a/step-000000500 runs/b/step-000000500\n"
      "  trireme checkpoint export runs/a --out model.safetensors\n"
      "  trireme checkpoint export runs/a --out model.pt    # TorchScript: torch.jit.load(\"model.pt\")\n\n"
      "Python:  safetensors.torch.load_file(\"model.safetensors\")");
  return [=] {
    if (ls->parsed()) return list_folder(s->path);
    if (shown->parsed()) return show(s->path, s->all);
    if (verified->parsed()) return verify(s->path, s->threads);
    return differ->parsed() ? diff(s->path, s->other) : exported();
  };
}

}  // namespace trireme::tools
