#pragma once
// What an exchange is asked to do. A value; part of ParallelOptions (parallel/options.h), which is part of what a
// training run is asked (train/options.h): each layer hands on its part as it is.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <trireme/compress/codec.h>
#include <trireme/exchange/on_nan.h>
#include <trireme/exchange/sync.h>
#include <trireme/exchange/terms.h>
#include <trireme/ps/consistency.h>
#include <trireme/ps/sparse_table.h>

namespace trireme::exchange {

/// Whether updates may begin before the norm is known that they are clipped by, or by which they are left out: as if
/// nothing had to be. One that was wrong is taken back, and made again as it should be. For ranks that have stages of
/// a model, of which the others' part of the norm comes late; with Sync::shared. The result is the same.
enum class Ahead : uint8_t {
  never,  //
  idle,   // while this rank would wait for the others, unless the step before was clipped or left out
  always  // whether or not they are there, and whatever the step before was: for tests
};
std::vector<std::string> ahead_names();
/// Throws InvalidArgument with the nearest name.
Ahead ahead_named(const std::string& name);

/// For whom ranks wait in the middle of a backward pass, beside ready(): with layers in parts for those of their own
/// replica, who come by the same places in the same order; with synchronised batch norm, and between the stages of a
/// pipeline, for ranks of which that cannot be said.
enum class BackwardWaits : uint8_t { never, in_replica, anywhere };

struct Options {
  Sync sync = Sync::shared;
  size_t bucket_bytes = 1 << 20;  // gradients travel in buckets of about this size
  bool overlap = true;            // work on complete buckets while the backward pass goes on
  double clip = 0;  // norm above which a gradient is scaled down; 0: none. In lockstep the norm of the step's
                    // gradient, so that no update begins before all of it is there; otherwise of each rank's own
  OnNan on_nan = OnNan::stop;  // unless ignore: look for NaN and infinity in gradients, see Outcome. skip costs what
                               // clip does: gradients are read once more, and updates begin after the backward pass
  int zero = 0;  // stage of ZeRO, with Sync::shared: across machines each rank alone keeps its part of the optimizer's
                 // state (1), of summed gradients too (2), of parameters too (3); see docs/zero.md
  size_t zero_window = 0;   // bytes beyond its own share that a machine holds in a step: half for parameters that
                            // were gathered (stage 3), half for gradients on their way (2, 3). 0: window_of()
  int virtual_workers = 0;  // V > 0, with Sync::shared: gradients of V pieces of a step are summed in a fixed tree,
                            // whoever computes which, so that bits do not depend on the ranks (tree.h,
                            // docs/virtual.md); 0: one of each rank, in their order
  BackwardWaits backward_waits = BackwardWaits::never;  // nobody in ready() may need who waits. Where that cannot be
                                                        // had, the buckets stay until close()
  bool elastic = false;  // with Sync::shared: those who are left after a loss go on with the step that it was lost
                         // in, or the next (Succession::take_over). No update begins before all gradients are there
  Ahead ahead = Ahead::idle;               // not with elastic: a step that is not decided changes nothing
  size_t ahead_bytes = size_t{256} << 20;  // of parameters and state that are kept to take an update back: what is
                                           // more is not updated ahead
  Rate rate = Rate::share;  // what one gradient counts where they are applied one by one: how staleness is weighed;
                            // begin() has the rate itself
  Terms terms{};            // of the caller's: what ranks must agree on besides
  std::vector<std::string> notes{};  // of the caller's: names of scalars that are kept beside the model in shared
                                     // memory (State::note), four at most

  // Between machines, with Sync::shared and Sync::allreduce: what makes fewer bytes of gradients there
  // (docs/compression.md).
  compress::Spec codec{};
  std::function<std::unique_ptr<compress::Codec>()> own_codec{};  // one of the caller's, in its place; called once
  std::string own_codec_name{};                                   // of that one: ranks with different names are refused
  std::vector<std::string> codec_excludes{};  // names of parameters that travel as they are, with * and ?; those with
                                              // one dimension do in any case
  std::vector<compress::Spec> candidates{};   // in place of `codec`: measured, and chosen from for each bucket where
                                              // they pay (chooser.h); those that lose least first
  bool chooses() const { return !candidates.empty(); }
  bool codes() const { return codec || own_codec || chooses(); }

  // With parameter servers.
  size_t chunk_bytes = 1 << 20;                    // the largest part of a bucket that one server keeps
  ps::Stale stale = ps::Stale::full;               // what a gradient is worth that was computed with old parameters
  double lambda = 0.04;                            // of Stale::compensated
  uint64_t seed = 1;                               // trylock: of the workers' luck
  std::vector<ps::SparseTable::Options> tables{};  // rows by key, beside the model's parameters: see client()
};

/// Of the codecs: "compress int8", "compress auto:fp16,int8", "a codec" of the caller's.
std::string what_codes(const Options& options);
/// As `--compress` takes it: "none", "int8", "auto:fp16,int8".
std::string codec_name(const Options& options);

/// No update begins before all gradients of the step are known: to clip them, or to leave all of them out.
inline bool whole_first(const Options& options) { return options.clip > 0 || options.on_nan == OnNan::skip; }

/// Options::zero_window, or by default the larger of four of the largest buckets and an eighth of the parameters. Never
/// less than two of the largest: an operator has all of its parameters at a time.
size_t window_of(const Options& options, size_t parameter_bytes, size_t largest_bucket);

/// Throws InvalidArgument for what cannot be had with Options::candidates on several machines.
void check_choosing(const Options& options);
/// Throws InvalidArgument for what cannot be honoured.
void check(const Options& options);

}  // namespace trireme::exchange
