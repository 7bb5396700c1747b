#pragma once
#include <cstddef>

#include <trireme/space/dtype.h>

namespace trireme::comm::network {

/// data[i] /= by, integers towards zero: turns a sum that was formed in several places into a mean.
void divide(DType type, void* data, size_t count, int by);

}  // namespace trireme::comm::network
