#include <trireme/train/options.h>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>

namespace trireme::train {
namespace {

template <class Enum>
Enum named(const std::string& name, const std::vector<std::string>& names, const char* what) {
  for (size_t i = 0; i < names.size(); i++)
    if (names[i] == name) return static_cast<Enum>(i);
  fail<InvalidArgument>("unknown {} '{}'{}", what, name, did_you_mean(name, names));
}

}  // namespace

std::vector<std::string> memory_format_names() { return {"auto", "default", "channels-last"}; }
MemoryFormat memory_format_named(const std::string& name) { return named<MemoryFormat>(name, memory_format_names(), "memory format"); }
std::vector<std::string> loss_names() { return {"auto", "cross-entropy", "mse"}; }
Loss loss_named(const std::string& name) { return named<Loss>(name, loss_names(), "loss"); }

}  // namespace trireme::train
