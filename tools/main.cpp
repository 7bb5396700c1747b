// The `trireme` command. It does not load libtorch: what trains is `trireme-worker` (folder worker/), which it starts.
#include <trireme/base/blas.h>

#include "commands.h"

int main(int argc, char** argv) {
  using namespace trireme::tools;
  trireme::help_openblas();  // for the workers, and for the peers of a benchmark alike
  return run_command(argc, argv,
                     {{"train", add_train},
                      {"compare", add_compare},
                      {"launch", add_launch},
                      {"join", add_join},
                      {"coordinator", add_coordinator},
                      {"tls", add_tls},
                      {"serve", add_serve},
                      {"ctl", add_ctl},
                      {"chaos", add_chaos},
                      {"bench", add_bench},
                      {"evaluate", add_evaluate},
                      {"predict", add_predict},
                      {"generate", add_generate},
                      {"checkpoint", add_checkpoint},
                      {"models", add_models},
                      {"doctor", add_doctor},
                      {"schedule", add_schedule},
                      {"tune", add_tune}});
}
