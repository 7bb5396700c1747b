#pragma once
// The measure of click models: the area under the ROC curve.
#include <span>

namespace trireme::data {

/// The part of all pairs of a positive and a negative sample in which the positive one has the higher score; equal
/// scores count half. Exact; sorts, so n log n. A label above 0.5 is positive. Throws InvalidArgument when the lengths
/// differ, a score or label is NaN, or there is only one kind of sample.
double auc(std::span<const float> scores, std::span<const float> labels);

}  // namespace trireme::data
