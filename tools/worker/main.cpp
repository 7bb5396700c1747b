// `trireme-worker`: what `trireme` starts for work with tensors. People do not call it.
#include "../commands.h"

int main(int argc, char** argv) {
  using namespace trireme::tools;
  return run_command(argc, argv,
                     {{"train", add_train_worker},
                      {"bench", add_bench_worker},
                      {"tune", add_tune_worker},
                      {"evaluate", add_evaluate_worker},
                      {"predict", add_predict_worker},
                      {"generate", add_generate_worker},
                      {"checkpoint", add_checkpoint_worker},
                      {"describe", add_describe}});
}
