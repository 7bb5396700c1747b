// Wide and deep: a click model with embeddings in sparse tables on the parameter servers, by 64-bit keys; the dense
// part is an ordinary module.
//
//   trireme launch -n 2 --servers 2 -- ./06_recommender [TRAIN TEST]     or alone: ./06_recommender, with the tables in
//   this process
//
// TRAIN and TEST are files in Criteo's format; without them data of that kind are made, with a model planted in them.
// Output: the AUC on the test file, and for made data that of the planted model, which nothing beats.
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>

#include <trireme/trireme.h>

using trireme::data::Clicks;
using trireme::ps::SparseTable;
constexpr size_t kWidth = 8, kBatch = 256, kFields = Clicks::kCategories;
constexpr double kLr = 0.05;

/// The rows of a batch, from the servers or, alone, from tables of this process.
struct Embeddings {
  trireme::Parallel& train;
  std::vector<SparseTable> own;

  torch::Tensor pull(size_t table, const std::vector<uint64_t>& keys, int64_t width) {
    auto rows = torch::empty({static_cast<int64_t>(keys.size() / kFields), static_cast<int64_t>(kFields) * width});
    if (own.empty())
      train.servers().pull_rows(table, keys, rows.data_ptr<float>()).wait();
    else
      own[table].pull(keys, rows.data_ptr<float>());
    return rows.requires_grad_();
  }
  void push(size_t table, const std::vector<uint64_t>& keys, const torch::Tensor& rows) {
    const auto gradient = rows.grad().contiguous();
    if (own.empty())
      train.servers().push_rows(table, keys, gradient.data_ptr<float>(), kLr).wait();
    else
      own[table].push(keys, gradient.data_ptr<float>(), kLr);
  }
};

torch::Tensor numbers_of(Clicks& clicks) {
  return torch::from_blob(clicks.numbers.data(),
                          {static_cast<int64_t>(clicks.size()), static_cast<int64_t>(Clicks::kNumbers)});
}

int main(int argc, char** argv) {
  auto world = trireme::join();
  std::string files[2] = {argc > 2 ? argv[1] : "", argc > 2 ? argv[2] : ""};
  double planted = 0;
  for (int i = 0; i < 2 && argc <= 2; i++) {
    files[i] =
        (std::filesystem::temp_directory_path() / ("trireme-clicks" + std::to_string(i) + std::to_string(getppid())))
            .string();
    if (world.first())
      planted = trireme::data::make_criteo_like(files[i], i == 0 ? 40000 : 8000, static_cast<uint64_t>(i) + 1).auc;
  }
  world.comm().barrier("the files are there");
  Clicks all = trireme::data::read_criteo(files[1]), clicks;
  trireme::data::CriteoReader reader(files[0], world.rank(), world.size());
  world.comm().barrier("and were read");

  torch::manual_seed(1);
  torch::nn::Sequential deep(torch::nn::Linear(kFields * kWidth + Clicks::kNumbers, 64), torch::nn::ReLU(),
                             torch::nn::Linear(64, 1));
  const std::vector<SparseTable::Options> tables = {{.name = "wide", .width = 1, .optimizer = trireme::adagrad()},
                                                    {.name = "deep",
                                                     .width = kWidth,
                                                     .optimizer = trireme::adagrad(),
                                                     .fill = SparseTable::Fill::normal,
                                                     .scale = 0.05}};
  const bool servers = world.servers() > 0;
  auto train = servers ? trireme::parallel(world, *deep, trireme::adam({.lr = 0.002}),
                                           {.sync = trireme::Sync::async, .tables = tables})
                       : trireme::parallel(world, *deep, trireme::adam({.lr = 0.002}));
  Embeddings rows{train, {}};
  if (!servers) rows.own = {SparseTable(tables[0]), SparseTable(tables[1])};
  const auto scores_of = [&](const torch::Tensor& wide, const torch::Tensor& embedded, Clicks& c) {
    return wide.sum(1) + deep->forward(torch::cat({embedded, numbers_of(c)}, 1)).squeeze(1);
  };
  for (int epoch = 0; epoch < 3; epoch++, reader.rewind())
    for (reader.read(kBatch, clicks); clicks.size() > 0; reader.read(kBatch, clicks)) {
      const auto y = torch::from_blob(clicks.labels.data(), {static_cast<int64_t>(clicks.size())});
      const auto wide = rows.pull(0, clicks.keys, 1), embedded = rows.pull(1, clicks.keys, kWidth);
      train.step([&] { return torch::binary_cross_entropy_with_logits(scores_of(wide, embedded, clicks), y); });
      rows.push(0, clicks.keys, wide);
      rows.push(1, clicks.keys, embedded);
    }
  double reached = 0;
  train.settled([&] {
    const torch::NoGradGuard no_grad;
    const auto scores = scores_of(rows.pull(0, all.keys, 1), rows.pull(1, all.keys, kWidth), all).contiguous();
    reached = trireme::data::auc({scores.data_ptr<float>(), all.size()}, all.labels);
  });
  if (world.first()) std::printf("test AUC %.4f; the planted model has %.4f\n", reached, planted);
  if (world.first() && argc <= 2) std::filesystem::remove(files[0]), std::filesystem::remove(files[1]);
  return reached > 0.75 ? 0 : 1;
}
