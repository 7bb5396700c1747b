#pragma once
// Which way each bucket goes in the steps to come, while codecs are tried and afterwards: heats of steps, and what
// follows from what they measured (compress/judge.h). Neither a clock nor the network is in here: all ranks hear the
// same of each heat, so all have the same choice in the same step. Not thread-safe.
//
// At first a few steps without a codec say how long one is. A look is a survey, then a trial. Then the choice stays,
// until it is time to look again, or steps have become much longer or shorter.
#include <string>
#include <vector>

#include <trireme/compress/judge.h>

namespace trireme::exchange {

class Trials {
 public:
  static constexpr int kRounds = 4;    // of a survey, and of a trial
  static constexpr int kWarming = 8;   // steps that come before, of which half count
  static constexpr int kSettled = 64;  // steps of a heat between looks
  static constexpr int kSooner = 4;    // the next look comes at this part of its time when steps have changed: moods of
                                       // a machine must not make it look all the time

  /// `names`: of the candidates, those that lose least first. `codable`, by bucket: codecs take something of it. Where
  /// they take nothing at all there is nothing to try, and heats never end.
  Trials(std::vector<std::string> names, std::vector<uint8_t> codable);

  /// Of the step that comes, by bucket.
  const compress::Choice& choice() const { return choice_; }
  /// The step that comes is the first of a heat, whose time does not count.
  bool first() const { return steps_ == 0; }
  /// What this rank measured of a step: its seconds, those in which the wire was busy, and by bucket those of the
  /// codec. True: the heat is over, and all ranks conclude() it.
  bool add(double seconds, double link, const std::vector<double>& coding);
  /// What this rank has measured in the heat; bytes and cosines are for others to add.
  compress::Heat mine() const;
  /// The same of all ranks.
  void conclude(const compress::Heat& all);

  /// A choice was made, and stays for now.
  bool settled() const { return part_ == Part::settled; }
  int64_t looks() const { return looks_; }
  const compress::Judgement& judgement() const { return judgement_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  enum class Part : uint8_t { warming, survey, trial, settled };
  void begin_survey();
  void begin_trial();
  void settle();
  void begin_rounds(Part part, std::vector<compress::Choice> ways);
  void begin_heat(const compress::Choice& choice, int unsettled, int64_t counted);
  void next_way();
  /// Every other round goes through the ways backwards: what grows or shrinks with time meets all of them.
  size_t way() const { return rounds_.size() % 2 == 1 ? tried_ : ways_.size() - 1 - tried_; }

  std::vector<std::string> names_;
  std::vector<uint8_t> codable_;
  Part part_ = Part::warming;
  compress::Choice choice_;
  compress::Judgement judgement_;

  // The heat that is under way.
  int unsettled_ = 0;
  int64_t counted_ = 0, steps_ = 0;
  std::vector<double> seconds_;
  compress::Heat sum_;

  // The look that is under way.
  std::vector<compress::Choice> ways_;
  size_t tried_ = 0;  // ways, in this round
  std::vector<compress::Round> rounds_, survey_;
  int64_t counted_of_look_ = 0, steps_of_look_ = 0;
  double seconds_of_look_ = 0;
  int64_t looks_ = 0;

  // Since then.
  std::vector<double> lately_;
  int64_t steps_since_ = 0, until_look_ = 0;
};

}  // namespace trireme::exchange
