#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/exchange/on_nan.h>

namespace trireme::exchange {

std::vector<std::string> on_nan_names() { return {"stop", "ignore", "skip", "rollback"}; }
std::string name_of(OnNan what) { return on_nan_names()[static_cast<size_t>(what)]; }

OnNan on_nan_named(const std::string& name) {
  const auto names = on_nan_names();
  for (size_t i = 0; i < names.size(); i++)
    if (names[i] == name) return static_cast<OnNan>(i);
  fail<InvalidArgument>("unknown answer to NaN '{}'{}: stop, ignore, skip or rollback", name,
                        did_you_mean(name, names));
}

}  // namespace trireme::exchange
