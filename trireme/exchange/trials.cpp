#include <algorithm>
#include <utility>

#include <trireme/exchange/trials.h>

namespace trireme::exchange {

using compress::Choice;
using compress::Heat;

Trials::Trials(std::vector<std::string> names, std::vector<uint8_t> codable)
    : names_(std::move(names)), codable_(std::move(codable)) {
  judgement_.reason = "nothing is chosen yet: codecs take turns";
  const Choice none(codable_.size(), 0);
  begin_heat(none, kWarming / 2, kWarming / 2);
  if (std::find(codable_.begin(), codable_.end(), 1) != codable_.end() && !names_.empty()) return;
  part_ = Part::settled;
  judgement_ = compress::judge(names_, {}, {}, codable_);
}

void Trials::begin_heat(const Choice& choice, int unsettled, int64_t counted) {
  choice_ = choice;
  unsettled_ = unsettled;
  counted_ = counted;
  steps_ = 0;
  seconds_.clear();
  sum_ = {};
  sum_.coding.assign(codable_.size(), 0.0);
}

bool Trials::add(double seconds, double link, const std::vector<double>& coding) {
  if (settled() && looks_ == 0) return false;  // there is nothing to try
  if (++steps_ <= unsettled_) return false;
  seconds_.push_back(seconds);
  sum_.link += link;
  for (size_t b = 0; b < coding.size(); b++) sum_.coding[b] += coding[b];
  return steps_ == unsettled_ + counted_;
}

/// Of the steps the lower median: what happens between some of them, such as an evaluation, is no step.
Heat Trials::mine() const {
  Heat mine = sum_;
  std::vector<double> seconds = seconds_;
  const auto middle = seconds.begin() + static_cast<ptrdiff_t>((seconds.size() - 1) / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  mine.step = *middle;
  mine.link /= static_cast<double>(counted_);
  for (double& one : mine.coding) one /= static_cast<double>(counted_);
  return mine;
}

void Trials::conclude(const Heat& all) {
  const int64_t steps = unsettled_ + counted_;
  if (part_ == Part::warming) {
    counted_of_look_ = compress::counted_steps(all.step);
    return begin_survey();
  }
  if (part_ == Part::settled) {
    lately_.push_back(all.step);
    steps_since_ += steps;
    const bool changed = steps_since_ >= until_look_ / kSooner && compress::has_changed(judgement_.chosen, lately_);
    if (steps_since_ < until_look_ && !changed) return begin_heat(Choice(choice_), 1, kSettled - 1);
    counted_of_look_ = compress::counted_steps(all.step);
    return begin_survey();
  }
  seconds_of_look_ += all.step * static_cast<double>(steps);
  steps_of_look_ += steps;
  rounds_.back()[way()] = all;
  tried_++;
  next_way();
}

void Trials::begin_survey() {
  seconds_of_look_ = 0;
  steps_of_look_ = 0;
  std::vector<Choice> ways;
  for (size_t codec = 0; codec <= names_.size(); codec++) {
    Choice& way = ways.emplace_back(codable_.size(), 0);
    for (size_t b = 0; b < way.size(); b++) way[b] = codable_[b] != 0 ? static_cast<uint8_t>(codec) : 0;
  }
  begin_rounds(Part::survey, std::move(ways));
}

void Trials::begin_trial() {
  survey_ = std::exchange(rounds_, {});
  std::vector<Choice> ways = ways_of(compress::propose(survey_, codable_), codable_);
  if (ways.size() == 1) return settle();
  begin_rounds(Part::trial, std::move(ways));
}

void Trials::begin_rounds(Part part, std::vector<Choice> ways) {
  part_ = part;
  ways_ = std::move(ways);
  rounds_.assign(1, compress::Round(ways_.size()));
  tried_ = 0;
  next_way();
}

void Trials::next_way() {
  if (tried_ == ways_.size()) {
    if (rounds_.size() == kRounds) return part_ == Part::survey ? begin_trial() : settle();
    rounds_.emplace_back(ways_.size());
    tried_ = 0;
  }
  begin_heat(ways_[way()], 1, counted_of_look_);
}

void Trials::settle() {
  judgement_ = compress::judge(names_, survey_, rounds_, codable_);
  part_ = Part::settled;
  looks_++;
  lately_.clear();
  rounds_.clear();
  steps_since_ = 0;
  until_look_ = compress::steps_until_look(seconds_of_look_ - judgement_.chosen * static_cast<double>(steps_of_look_),
                                           judgement_.chosen);
  begin_heat(judgement_.choice, 1, kSettled - 1);
}

}  // namespace trireme::exchange
