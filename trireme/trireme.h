#pragma once
// Trireme's public surface.
//
//   auto world = trireme::join();                        // one process alone, or the ranks that a launcher started
//   auto net   = trireme::models::lenet();               // any torch::nn module
//   auto train = trireme::parallel(world, *net, trireme::momentum({.lr = 0.05}));
//   train.step([&] { return loss(net, batch); });        // forward, backward, reduce, update
#include <trireme/base/error.h>
#include <trireme/cluster/world.h>
#include <trireme/data/auc.h>
#include <trireme/data/criteo.h>
#include <trireme/data/loader.h>
#include <trireme/exchange/kept_state.h>
#include <trireme/layers/attention.h>
#include <trireme/layers/collectives.h>
#include <trireme/layers/cut.h>
#include <trireme/layers/embedding.h>
#include <trireme/layers/layer_norm.h>
#include <trireme/layers/linear.h>
#include <trireme/layers/recompute.h>
#include <trireme/layers/shard.h>
#include <trireme/models/answers.h>
#include <trireme/models/generate.h>
#include <trireme/models/load.h>
#include <trireme/models/models.h>
#include <trireme/models/resnet.h>
#include <trireme/models/torchscript.h>
#include <trireme/models/transformer.h>
#include <trireme/parallel/parallel.h>
#include <trireme/parallel/pipeline.h>
#include <trireme/ps/client.h>
#include <trireme/ps/server.h>
#include <trireme/space/schedule.h>
#include <trireme/space/updater.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/policy.h>

namespace trireme {

using exchange::OnNan;
using exchange::Rate;
using exchange::Sync;
using layers::Column;
using layers::cut;
using layers::Gathered;
using layers::Row;
using layers::shard;
using layers::Vocab;
using models::cut;
using space::adagrad;
using space::adam;
using space::adamw;
using space::momentum;
using space::RateSchedule;
using space::sgd;

}  // namespace trireme
