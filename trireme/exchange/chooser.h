#pragma once
// With several codecs to choose from, between machines: measures what each costs and saves, and says of each bucket by
// which of them it goes, if by any (trials.h). All ranks hear the same of every heat after the same step, in two
// small sums, and so change their choice together. Not thread-safe.
#include <memory>
#include <span>
#include <vector>

#include <trireme/exchange/coding.h>
#include <trireme/exchange/compression.h>
#include <trireme/exchange/trials.h>

namespace trireme::exchange {

/// Of the rank that shows the job's: what was chosen for a bucket. Written by the thread that trains.
struct ChosenMetrics {
  ChosenMetrics(metrics::Registry* registry, const std::string& bucket)
      : codec(registry, {"chosen_codec", "number", "Of the candidates of --compress auto, from 1; 0: none"}, bucket),
        before_bytes(registry, {"chosen_before_bytes", "bytes", "That a machine sends of a bucket without a codec"},
                     bucket),
        after_bytes(registry, {"chosen_after_bytes", "bytes", "That it sends as it is chosen"}, bucket),
        saved_seconds(registry,
                      {"chosen_saved_seconds", "seconds", "Of codec and link that it saves in each step, by measure"},
                      bucket),
        cosine(registry, {"chosen_cosine", "cosine", "Between the gradient with what was left over, and what is sent"},
               bucket) {}
  metrics::Gauge codec, before_bytes, after_bytes, saved_seconds, cosine;
};

class Chooser {
 public:
  /// `slices`: this rank's, by bucket. `lane` is null for a rank without any. `usual_piece`: bytes, without a codec.
  /// Views what it is given. Not collective.
  Chooser(const space::Layout& layout, std::span<const space::Bucket> buckets, std::span<const space::Range> slices,
          const Options& options, size_t usual_piece, comm::Communicator& all, comm::network::Communicator* lane,
          metrics::Registry* registry);

  /// A step begins, and the one before has landed. Sometimes collective, and then on all ranks alike.
  void begin_step();
  /// By which a bucket goes in this step, if it does; null for ranks without a lane.
  Coding* coding(size_t bucket);
  size_t piece_bytes(size_t bucket) const;
  /// A bucket departs as it is: what codecs have left over of this rank's slice goes with it. `flags`, by the bucket's
  /// slots: there is a gradient.
  void add_rest(size_t bucket, std::byte* gradients, std::span<const uint8_t> flags);
  /// The step is over, and was applied or not.
  void settle(bool applied);
  /// As Coding::carried(), of the whole gradient.
  double carried() const;
  /// What codecs keep for later is written over.
  void forget() {
    feedback_.forget();
    std::fill(rest_.begin(), rest_.end(), kRests);
  }
  compress::ErrorFeedback& feedback() { return feedback_; }
  const Compression& compression() const { return compression_; }

 private:
  static constexpr int kRests = 2;  // vectors that may have something of a bucket

  size_t codec_of(size_t bucket) const { return trials_.choice()[bucket]; }
  double sent_bytes(size_t bucket) const;
  void add_seconds();
  compress::Heat gather();
  void use_choice();
  void show();

  const space::Layout& layout_;
  const std::span<const space::Bucket> buckets_;
  const std::span<const space::Range> slices_;
  const Options options_;
  const size_t usual_piece_;
  comm::Communicator& all_;
  comm::network::Communicator* const lane_;
  metrics::Registry* const registry_;
  compress::ErrorFeedback feedback_;  // that all codecs share
  Trials trials_;
  Compression compression_;
  std::vector<std::unique_ptr<Coding>> codings_;  // by candidate: those in use
  std::vector<int> rest_;                         // by bucket: steps as it is until nothing is left over
  std::vector<uint8_t> whole_;                    // by bucket, of this step: nothing was held back
  std::vector<compress::ErrorFeedback::Likeness> likeness_;
  std::vector<ChosenMetrics> shown_;
  CodingMetrics count_;

  // Of the step that is under way.
  Clock::time_point begun_{};
  double busy_ = 0;             // the lane's, when it began
  std::vector<double> coding_;  // by bucket: the codecs' seconds by then, and in the end those of the step
  bool first_ = true;           // there was none before
};

}  // namespace trireme::exchange
