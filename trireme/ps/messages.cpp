#include <trireme/ps/messages.h>

namespace trireme::ps {

std::string_view name_of(Verb verb) {
  constexpr std::string_view names[] = {"push",
                                        "pull",
                                        "set",
                                        "begin",
                                        "take",
                                        "lock",
                                        "unlock",
                                        "barrier",
                                        "sparse push",
                                        "sparse pull",
                                        "status",
                                        "explain",
                                        "leave",
                                        "norm",
                                        "apply",
                                        "request for state",
                                        "restoring of state",
                                        "request for rows",
                                        "restoring of rows"};
  return verb < Verb::count ? names[static_cast<size_t>(verb)] : "request of an unknown kind";
}

}  // namespace trireme::ps
