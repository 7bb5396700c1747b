#include <trireme/models/catalogue.h>

namespace trireme::models {

const std::vector<Entry>& catalogue() {
  static const std::vector<Entry> entries = {
      {"linear", "any", "one linear layer: linear or logistic regression"},
      {"mlp:W,W,…", "any", "linear layers with ReLU between; W are the hidden widths (mlp alone: 512,512)"},
      {"lenet", "1×28×28", "LeNet-5 with ReLU and average pooling, 61,706 parameters"},
      {"twoconv", "1×28×28", "the two-convolution net of MNIST tutorials, with dropout, 21,840 parameters"},
  };
  return entries;
}

}  // namespace trireme::models
