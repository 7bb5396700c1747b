#pragma once
// What an update has overwritten, kept until it is known whether the update was right.
//
// Who writes by a guess saves what it is about to overwrite, piece by piece, each piece once. Then all of it is put
// back, bit by bit, or forgotten. Memory comes when it is first needed, and stays for the next time. One thread.
#include <cstddef>
#include <vector>

#include <trireme/space/arena.h>

namespace trireme::space {

class Undo {
 public:
  /// Room for this much from now on. What was saved before must have been put back or forgotten.
  void reserve(size_t bytes);
  /// Before writing to [live, live + bytes). There must be room.
  void save(void* live, size_t bytes);
  void put_back();
  void forget();

  size_t saved_bytes() const { return used_; }

 private:
  struct Piece {
    void* live;
    size_t home, bytes;  // home: where it is in room_
  };
  Arena room_;
  size_t used_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace trireme::space
