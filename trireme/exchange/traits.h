#pragma once
// What an exchange is. A value: it is the same from the exchange's construction to its end.

namespace trireme::exchange {

struct Traits {
  bool lockstep = true;     // a step is one update of all ranks together. Otherwise each rank trains on its own, with
                            // gradients that are means over its own samples, and only publish() and settle() are
                            // collective
  bool gives_work = false;  // ranks ask for their work, so that fast ones do more; otherwise each does its share
  bool shared = false;  // all ranks of a machine look at the same parameters: one writes, and publish() carries it to
                        // the other machines
  bool kept_elsewhere = false;  // the parameters' home is not here: a change by hand has to be published
  bool patient = false;         // a bucket's parameters change only when all ranks of the machine have come to the next
                         // bucket's ready(), so that a backward pass may use them a little longer. The last bucket's is
                         // to come after the backward pass then
  bool tells = false;  // carries the numbers that ranks tell along with the gradients
};

}  // namespace trireme::exchange
