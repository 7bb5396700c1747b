#pragma once
// Activations that are computed twice instead of kept.
//
// Backward needs what forward has computed in between; of a deep model that is most of the memory. recompute() keeps
// the input of a part of the model alone: backward runs that part again, and then through it. That costs one more
// forward pass of the part, and leaves the activations of one part at a time.
//
//   for (Block& block : blocks) x = recompute([&](const torch::Tensor& x) { return block->forward(x); }, x);
//
// Gradients are those of the model without it, bit by bit: the second run draws the same random numbers, and has the
// autocast of the first. A parameter's gradient is complete when it arrives, also where several parts share it.
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <functional>
#include <vector>

namespace trireme {

/// f(x). `f` may use parameters and constants besides; what else needs a gradient has to come through `x`, and is
/// refused otherwise (InvalidArgument). It is called again in backward and copied till then: what it refers to has to
/// live as long. Random numbers are those of libtorch's default generator, which belongs to the process: afterwards it
/// goes on as if there had been no second run. There are no second derivatives. Without gradients it is a plain call.
torch::Tensor recompute(const std::function<torch::Tensor(const torch::Tensor&)>& f, const torch::Tensor& x);

/// The same of an `f` that changes `buffers`, such as those of batch norm: they change in the first run alone.
torch::Tensor recompute(const std::function<torch::Tensor(const torch::Tensor&)>& f, const torch::Tensor& x,
                        const std::vector<torch::Tensor>& buffers);

/// net(x), by about √n parts of its n layers. The last one is not run twice: backward begins with it. Buffers, such as
/// those of batch norm, change in the first run alone.
torch::Tensor recompute(torch::nn::SequentialImpl& net, const torch::Tensor& x);

/// Whether this thread is in a second run: for layers that count or remember what they see.
bool recomputing();

}  // namespace trireme
