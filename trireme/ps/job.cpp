#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <set>
#include <sstream>

#include <trireme/base/error.h>
#include <trireme/ps/job.h>

namespace trireme::ps {
namespace {

using nlohmann::json;

// What a job may have; more is a mistake or an attack.
constexpr size_t kMostSlots = 1 << 20, kMostTables = 1 << 10, kMostDims = 16, kMostWorkers = 256, kMostServers = 1024,
                 kMostName = 1 << 10;
constexpr int64_t kMostElements = int64_t{1} << 36;

json encode_optimizer(const space::UpdaterOptions& o) {
  json text = {{"kind", space::name_of(o.kind)}, {"lr", o.lr},       {"momentum", o.momentum},
               {"nesterov", o.nesterov},         {"beta1", o.beta1}, {"beta2", o.beta2}};
  text["epsilon"] = o.epsilon ? json(*o.epsilon) : json();
  text["decay"] = o.weight_decay;
  return text;
}

space::UpdaterOptions decode_optimizer(const json& text) {
  space::UpdaterOptions o;
  o.kind = space::optimizer_named(text.at("kind").get<std::string>());
  o.lr = text.at("lr").get<double>();
  o.momentum = text.at("momentum").get<double>();
  o.nesterov = text.at("nesterov").get<bool>();
  o.beta1 = text.at("beta1").get<double>();
  o.beta2 = text.at("beta2").get<double>();
  if (!text.at("epsilon").is_null()) o.epsilon = text.at("epsilon").get<double>();
  o.weight_decay = text.at("decay").get<double>();
  space::Updater(o, {});  // refuses impossible settings
  return o;
}

template <class T>
T within(const json& value, const char* what, T least, T most) {
  const T number = value.get<T>();
  if (!(number >= least && number <= most))
    fail<InvalidArgument>("{} must be {} to {}, not {}", what, least, most, number);
  return number;
}

std::string name_in(const json& value) {
  std::string name = value.get<std::string>();
  if (name.size() > kMostName || name.find('\n') != std::string::npos)
    fail<InvalidArgument>("a name is too long or has a line break");
  return name;
}

space::Slot decode_slot(const json& text) {
  space::Slot slot;
  slot.name = name_in(text.at(0));
  slot.dtype = static_cast<DType>(within<int>(text.at(1), "a type", 0, static_cast<int>(DType::u8)));
  slot.channels_last = text.at(2).get<bool>();
  if (text.at(3).size() > kMostDims)
    fail<InvalidArgument>("parameter {} has {} dimensions", slot.name, text.at(3).size());
  int64_t elements = 1;
  for (const json& extent : text.at(3)) {
    slot.shape.push_back(within<int64_t>(extent, "an extent", 0, kMostElements));
    elements = slot.shape.back() != 0 && elements > kMostElements / slot.shape.back() ? kMostElements + 1
                                                                                      : elements * slot.shape.back();
    if (elements > kMostElements) fail<InvalidArgument>("parameter {} has too many elements", slot.name);
  }
  return slot;
}

SparseTable::Options decode_table(const json& text) {
  SparseTable::Options table;
  table.name = name_in(text.at("name"));
  table.width = within<size_t>(text.at("width"), "a row's width", 1, SparseTable::kMostWidth);
  table.optimizer = decode_optimizer(text.at("optimizer"));
  table.fill = static_cast<SparseTable::Fill>(
      within<int>(text.at("fill"), "a fill", 0, static_cast<int>(SparseTable::Fill::normal)));
  table.scale = within<double>(text.at("scale"), "a scale", 0, 1e6);
  table.seed = text.at("seed").get<uint64_t>();
  table.evict_after = within<uint64_t>(text.at("evict"), "an age", 0, SparseTable::kMostTicks);
  table.most_rows = within<uint64_t>(text.at("rows"), "the most rows", 1, SparseTable::kMostRows);
  return table;
}

Job decode_json(const json& text) {
  Job job;
  job.workers = within<int>(text.at("workers"), "workers", 1, kMostWorkers);
  job.servers = within<int>(text.at("servers"), "servers", 1, kMostServers);
  job.replicas = within<int>(text.at("replicas"), "replicas", 0, kMostServers);
  job.bucket_bytes = within<size_t>(text.at("bucket"), "bucket bytes", 1, size_t{1} << 40);
  job.chunk_bytes = within<size_t>(text.at("chunk"), "chunk bytes", 64, size_t{1} << 26);
  job.optimizer = decode_optimizer(text.at("optimizer"));
  job.rules = {
      .workers = job.workers,
      .order = static_cast<Order>(within<int>(text.at("order"), "an order", 0, static_cast<int>(Order::rotating))),
      .bound = within<int64_t>(text.at("bound"), "a bound", -1, int64_t{1} << 40),
      .stale = stale_named(text.at("stale").get<std::string>()),
      .lambda = within<double>(text.at("lambda"), "lambda", 0, 1e6),
      .step_updates = within<int>(text.at("step_updates"), "updates of a step", 1, kMostWorkers)};
  if (text.at("slots").size() > kMostSlots || text.at("tables").size() > kMostTables)
    fail<InvalidArgument>("too many parameters or tables");
  std::vector<space::Slot> slots;
  size_t bytes = 0;
  for (const json& slot : text.at("slots")) {
    slots.push_back(decode_slot(slot));
    bytes += slots.back().elements() * size_of(slots.back().dtype) + space::kLine;
    if (bytes > size_t{1} << 37) fail<InvalidArgument>("the model is too large for one machine's addresses");
  }
  job.layout = space::Layout(std::move(slots));
  job.codec = compress::spec_named(text.at("codec").get<std::string>());
  if (text.at("excludes").size() > kMostSlots) fail<InvalidArgument>("too many parameters are excluded");
  for (const json& pattern : text.at("excludes")) job.codec_excludes.push_back(name_in(pattern));
  for (const space::Slot& slot : job.layout.slots())
    if (job.codec && slot.dtype != DType::f32)
      fail<InvalidArgument>("compress {} is for parameters of type f32, and '{}' is {}", compress::name_of(job.codec),
                            slot.name, name_of(slot.dtype));
  std::set<std::string> names;
  for (const json& table : text.at("tables")) {
    job.tables.push_back(decode_table(table));
    if (!names.insert(job.tables.back().name).second)
      fail<InvalidArgument>("two tables are called '{}'", job.tables.back().name);
  }
  return job;
}

}  // namespace

std::string Job::encode() const {
  json text = {{"workers", workers},
               {"servers", servers},
               {"replicas", replicas},
               {"bucket", bucket_bytes},
               {"chunk", chunk_bytes},
               {"optimizer", encode_optimizer(optimizer)},
               {"order", static_cast<int>(rules.order)},
               {"bound", rules.bound},
               {"stale", name_of(rules.stale)},
               {"lambda", rules.lambda},
               {"step_updates", rules.step_updates},
               {"codec", compress::name_of(codec)},
               {"excludes", codec_excludes},
               {"slots", json::array()},
               {"tables", json::array()}};
  for (const space::Slot& slot : layout.slots())
    text["slots"].push_back({slot.name, static_cast<int>(slot.dtype), slot.channels_last, slot.shape});
  for (const SparseTable::Options& table : tables)
    text["tables"].push_back({{"name", table.name},
                              {"width", table.width},
                              {"optimizer", encode_optimizer(table.optimizer)},
                              {"fill", static_cast<int>(table.fill)},
                              {"scale", table.scale},
                              {"seed", table.seed},
                              {"evict", table.evict_after},
                              {"rows", table.most_rows}});
  return text.dump();
}

Job Job::decode(const std::string& text) try {
  return decode_json(json::parse(text));
} catch (const json::exception& error) {
  fail<InvalidArgument>("what came is not the description of a job ({})", error.what());
}

std::string first_difference(const std::string& mine, int my_worker, const std::string& theirs, int their_worker) {
  if (mine == theirs) return "";
  const Job a = Job::decode(mine), b = Job::decode(theirs);
  const auto who = [&](int worker) { return fmt::format("worker {}", worker); };
  if (a.workers != b.workers || a.servers != b.servers)
    return fmt::format("{} was told of {} workers and {} servers, {} of {} and {}", who(my_worker), a.workers,
                       a.servers, who(their_worker), b.workers, b.servers);
  if (a.replicas != b.replicas)
    return fmt::format("{} was told of {} replicas, {} of {}", who(my_worker), a.replicas, who(their_worker),
                       b.replicas);
  if (const std::string model =
          space::first_difference(a.layout.describe(), my_worker, b.layout.describe(), their_worker);
      !model.empty())
    return model;
  const auto settings = [](const Job& job) {
    json text = json::parse(job.encode());
    text.erase("slots");
    return text.dump();
  };
  return fmt::format("{} has the settings {}, {} has {}", who(my_worker), settings(a), who(their_worker), settings(b));
}

}  // namespace trireme::ps
