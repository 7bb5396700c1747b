#include <nlohmann/json.hpp>

#include <cmath>

#include <trireme/base/error.h>
#include <trireme/train/history.h>

namespace trireme::train {
namespace {

using Json = nlohmann::json;

Json json_of(const EpochResult& e) {
  return {{"epoch", e.epoch},
          {"loss", e.loss},
          {"test_loss", e.test_loss},
          {"test_accuracy", e.test_accuracy},
          {"has_test", e.has_test},
          {"seconds", e.seconds},
          {"samples_per_second", e.samples_per_second},
          {"tokens", e.tokens},
          {"samples", e.samples},
          {"left_out", e.left_out},
          {"each_once", e.each_once},
          {"lost", e.lost},
          {"joined", e.joined}};
}

/// JSON has no NaN: it is null there.
double number_in(const Json& row, const char* name) {
  return row.at(name).is_null() ? std::nan("") : row.at(name).get<double>();
}

EpochResult epoch_of(const Json& row) {
  EpochResult e;
  e.epoch = row.at("epoch");
  e.loss = number_in(row, "loss");
  e.test_loss = number_in(row, "test_loss");
  e.test_accuracy = number_in(row, "test_accuracy");
  e.has_test = row.at("has_test");
  e.seconds = number_in(row, "seconds");
  e.samples_per_second = number_in(row, "samples_per_second");
  e.tokens = row.value("tokens", int64_t{0});  // not in older ones
  e.samples = row.value("samples", int64_t{-1});
  e.left_out = row.value("left_out", int64_t{0});
  e.each_once = row.value("each_once", false);
  e.lost = row.value("lost", 0);
  e.joined = row.value("joined", 0);
  return e;
}

}  // namespace

std::string History::json() const {
  Json rows = Json::array();
  for (const EpochResult& epoch : epochs) rows.push_back(json_of(epoch));
  return Json{{"epochs", rows},
              {"partial", json_of(partial)},
              {"partial_steps", partial_steps},
              {"seconds", seconds},
              {"time", time}}
      .dump();
}

History History::parse(const std::string& text) {
  History history;
  if (text.empty()) return history;
  try {
    const Json json = Json::parse(text);
    for (const Json& row : json.at("epochs")) history.epochs.push_back(epoch_of(row));
    history.partial = epoch_of(json.at("partial"));
    history.partial_steps = json.at("partial_steps");
    history.seconds = number_in(json, "seconds");
    history.time = number_in(json, "time");
  } catch (const Json::exception& error) {
    fail<Corruption>("the checkpoint's history of epochs cannot be read: {}", error.what());
  }
  return history;
}

}  // namespace trireme::train
