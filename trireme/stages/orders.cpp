#include <algorithm>

#include <trireme/stages/orders.h>

namespace trireme::stages {

Row gpipe_order(int micro, int chunks) {
  Row row;
  for (int c = 0; c < chunks; c++)
    for (int i = 0; i < micro; i++) row.push_back({Kind::forward, i, c});
  for (int c = chunks - 1; c >= 0; c--)
    for (int i = 0; i < micro; i++) row.push_back({Kind::backward, i, c});
  return row;
}

Row one_f_one_b_order(int stage, int stages, int micro) {
  const int warm_up = std::min(micro, stages - stage - 1);
  Row row;
  for (int i = 0; i < warm_up; i++) row.push_back({Kind::forward, i});
  for (int i = 0; i < micro - warm_up; i++) {
    row.push_back({Kind::forward, warm_up + i});
    row.push_back({Kind::backward, i});
  }
  for (int i = micro - warm_up; i < micro; i++) row.push_back({Kind::backward, i});
  return row;
}

std::vector<int> interleaved_rounds(int stages, int micro) {
  const int count = std::max(1, micro / stages);
  std::vector<int> sizes(count, micro / count);
  for (int i = 0; i < micro % count; i++) sizes[i]++;
  return sizes;
}

Row interleaved_order(int stage, int stages, int micro, int chunks) {
  const std::vector<int> rounds = interleaved_rounds(stages, micro);
  Row forwards, backwards;
  for (int begin = 0; const int size : rounds) {
    for (int c = 0; c < chunks; c++)
      for (int i = begin; i < begin + size; i++) {
        forwards.push_back({Kind::forward, i, c});
        backwards.push_back({Kind::backward, i, chunks - 1 - c});
      }
    begin += size;
  }
  const size_t all = forwards.size();
  const size_t warm_up = std::min<size_t>(all, 2 * (stages - stage - 1) + (chunks - 1) * rounds[0]);
  Row row(forwards.begin(), forwards.begin() + warm_up);
  for (size_t k = 0; k < all - warm_up; k++) {
    row.push_back(forwards[warm_up + k]);
    row.push_back(backwards[k]);
  }
  row.insert(row.end(), backwards.begin() + (all - warm_up), backwards.end());
  return row;
}

Row zero_bubble_order(int stage, int stages, int micro) {
  const int warm_up = std::min(micro, stages - stage - 1), delay = stage;
  Row row;
  int weights = 0;
  const auto backward = [&](int i) {
    row.push_back({Kind::backward_input, i});
    if (i >= delay) row.push_back({Kind::backward_weight, weights++});
  };
  for (int i = 0; i < warm_up; i++) row.push_back({Kind::forward, i});
  for (int i = 0; i < micro - warm_up; i++) {
    row.push_back({Kind::forward, warm_up + i});
    backward(i);
  }
  for (int i = micro - warm_up; i < micro; i++) backward(i);
  while (weights < micro) row.push_back({Kind::backward_weight, weights++});
  return row;
}

}  // namespace trireme::stages
