#include <torch/nn/functional/loss.h>

#include <trireme/layers/recompute.h>
#include <trireme/models/model.h>

namespace trireme::models {

Model::Model(torch::nn::Sequential net, data::Task task, bool recompute)
    : module_(net.ptr()), sequential_(std::move(net)), task_(task), recompute_(recompute) {}

Model::Model(std::shared_ptr<LanguageModel> net, data::Task task)
    : module_(net), language_(std::move(net)), task_(task) {}

torch::Tensor Model::forward(const torch::Tensor& x) const {
  if (language_) return language_->forward(x);
  if (forward_) return forward_(x);
  torch::nn::Sequential net = sequential_;  // forward() of a holder is not const
  return recompute_ && torch::GradMode::is_enabled() ? recompute(*net, x) : net->forward(x);
}

torch::Tensor Model::loss(const torch::Tensor& x, const torch::Tensor& y) const {
  return language_ ? language_->loss(x, y) : loss_of(forward(x), y);
}

torch::Tensor Model::loss_of(const torch::Tensor& outputs, const torch::Tensor& y) const {
  if (task_ == data::Task::regress) return torch::mse_loss(outputs, y.to(outputs.dtype()).view_as(outputs));
  if (!language_) return torch::nn::functional::cross_entropy(outputs, y);
  return torch::nn::functional::cross_entropy(outputs.flatten(0, 1), y.flatten());
}

torch::Tensor Model::outputs_from(const torch::Tensor& last) const {
  return language_ ? language_->outputs_from(last) : last;
}

torch::Tensor Model::loss_from(const torch::Tensor& last, const torch::Tensor& y) const {
  return language_ ? language_->loss_from(last, y) : loss_of(last, y);
}

int64_t Model::parameters() const {
  int64_t count = 0;
  for (const torch::Tensor& parameter : module_->parameters()) count += parameter.numel();
  return count;
}

layers::CutOptions Model::with_end(layers::CutOptions options) const {
  if (!options.last) options.last = [net = *this](const torch::Tensor& last) { return net.outputs_from(last); };
  options.recompute = options.recompute || recompute_;
  return options;
}

layers::Cut cut(const Model& net, int parts, layers::CutOptions options) {
  return layers::cut(net.module_, parts, net.with_end(std::move(options)));
}

layers::Cut cut(const Mesh& mesh, const Model& net, int parts, layers::CutOptions options) {
  return layers::cut(mesh, net.module_, parts, net.with_end(std::move(options)));
}

}  // namespace trireme::models
