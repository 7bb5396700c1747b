#pragma once
// The parts of a language model as TorchScript source: what transformer.cpp and layers/ compute, without dropout and
// without ranks. A change there is one here; tests/torch/torchscript_test.cpp compares. Not installed.
#include <string>

#include <trireme/models/language.h>

namespace trireme::models {

/// A child's name in the script. `in` is a word of TorchScript's, which could not be read back: in_.
std::string script_name(const std::string& child);

/// `def forward(self, x: Tensor) -> Tensor: …` of a module of this kind ("Block"); "" for a mere list, and for kinds
/// that are not known here.
std::string language_script(const std::string& kind, const LanguageSpec& spec);

}  // namespace trireme::models
