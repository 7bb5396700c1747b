#pragma once
// Whether compressing gradients pays, bucket by bucket, and which codec pays most. Pure functions of what was measured,
// without a clock: the same numbers give the same answer on every rank.
//
// Candidates take turns in *heats*: a few steps in which every bucket goes one way, by one codec or as it is. One
// heat of each way is a *round*. What counts is the differences within rounds, whose heats are neighbours in time:
// a machine's moods meet all of them. A *look* has two parts. In the survey each codec has all buckets, and every
// bucket's codec time and link time are known of each. In the trial what looks best of that is compared with no codec
// once more, by whole steps: a link that nobody waits for is not worth a codec, and the best of many noisy numbers is
// too good to be true.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme::compress {

/// By bucket: the candidate that codes it, from 1; 0: it travels as it is.
using Choice = std::vector<uint8_t>;

/// What a step of a heat took.
struct Heat {
  double step = 0;                // seconds, of the slowest rank
  double link = 0;                // seconds in which the wire was busy
  std::vector<double> coding{};   // by bucket: seconds of encoding and decoding, of the slowest rank
  std::vector<double> bytes{};    // by bucket, of a machine's messages
  std::vector<double> cosines{};  // by bucket, between what was to be sent and what was; NaN: nothing was coded
};
/// By way: of a survey none and then each candidate, of a trial as ways_of() says.
using Round = std::vector<Heat>;

/// A mean, and how far off it may be: within `half` with 95 %.
struct Interval {
  double mean = 0, half = 0;
  double least() const { return mean - half; }
};
/// Of samples that are noisy independently of one another (Student's t). Of less than two, `half` is infinite.
Interval interval_of(std::span<const double> samples);

/// A coarser codec must earn what it loses: those that come later in the list must take so much less than what came
/// before.
constexpr double kEarns = 0.95;

/// What deserves a trial.
struct Proposal {
  size_t uniform = 0;  // the candidate with the shortest steps; 0: none has shorter ones than no codec
  Choice mix;          // the best of each bucket, by its own codec time and link time
};
/// `codable`, by bucket: there is something in it that codecs take. Others travel as they are in any case.
Proposal propose(std::span<const Round> survey, std::span<const uint8_t> codable);
/// None; then all buckets by the uniform codec, and the mix, where these are something else.
std::vector<Choice> ways_of(const Proposal& proposal, std::span<const uint8_t> codable);

/// What a bucket goes by, and why.
struct Verdict {
  size_t codec = 0;    // candidate, from 1; 0: none
  double before = 0;   // bytes of a machine's messages without a codec
  double after = 0;    // with this one
  Interval saved{};    // seconds of codec and link in each step; less than zero: lost
  double cosine = 1;   // between the gradient with what was left over, and what is sent of it
  std::string reason;  // a sentence, but for its full stop
};
struct Judgement {
  Choice choice;
  Interval saved{};              // seconds of a step, as a whole
  double plain = 0, chosen = 0;  // seconds of a step without codec, and as it is chosen
  std::string reason;            // a sentence, but for its full stop
  std::vector<Verdict> buckets;
};
/// `names`: of the candidates. `trial` is empty where nothing deserved one.
Judgement judge(std::span<const std::string> names, std::span<const Round> survey, std::span<const Round> trial,
                std::span<const uint8_t> codable);

/// How many steps of a heat count: a tenth of a second of them, within bounds.
int64_t counted_steps(double step_seconds);
/// Steps until the next look, after one that took so much longer than its steps would have as they were chosen: looks
/// take at most a fiftieth of the time.
int64_t steps_until_look(double extra_seconds, double step_seconds);
/// Whether steps take so much longer or shorter than when they were judged that it is time to look again. `lately`: of
/// heats since, oldest first.
bool has_changed(double judged_seconds, std::span<const double> lately);

}  // namespace trireme::compress
