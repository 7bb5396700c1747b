#pragma once
// In which order a stage computes, by schedule: forwards and backwards only. Where sends and receives stand between
// them is not a matter of the schedule (transfers.h). Not installed: private to this folder.
//
//   warm-up     forwards until the first gradient can come back
//   steady      one forward, one backward: as many activations are held as the warm-up has made, and one
//   cool-down   the backwards that are left
#include <trireme/stages/schedule.h>

namespace trireme::stages {

using Row = std::vector<Action>;

/// All forwards, then all backwards.
Row gpipe_order(int micro, int chunks);

/// At stage r of p a warm-up of p - r - 1.
Row one_f_one_b_order(int stage, int stages, int micro);

/// Micro-batches go in *rounds* through the first chunk, then through the next one. A round has at least as many as
/// there are stages (where there are so many), since the first of them needs that long to come round; those that do not
/// divide make rounds longer, not one round short: a short one would wait for itself, at worst for ever.
/// At stage r of p, with v chunks, the warm-up is 2(p - r - 1) + (v - 1) * the longest round.
Row interleaved_order(int stage, int stages, int micro, int chunks);
std::vector<int> interleaved_rounds(int stages, int micro);

/// 1F1B with backwards in two parts. Gradients of inputs go on at once; at stage r those of weights come r
/// micro-batches later, and fill what would be waits at the end. So each stage holds as many activations as the first
/// one, which holds the most with 1F1B.
Row zero_bubble_order(int stage, int stages, int micro);

}  // namespace trireme::stages
