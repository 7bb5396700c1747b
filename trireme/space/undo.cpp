#include <cstring>

#include <trireme/base/error.h>
#include <trireme/space/undo.h>

namespace trireme::space {

void Undo::reserve(size_t bytes) {
  if (!pieces_.empty()) fail<Error>("{} bytes aside were neither put back nor forgotten", used_);
  if (room_.bytes() < bytes) room_ = Arena::of_process(bytes);
}

void Undo::save(void* live, size_t bytes) {
  if (bytes > room_.bytes() - used_) fail<Error>("no room for {} bytes aside", used_ + bytes);
  std::memcpy(room_.data() + used_, live, bytes);
  pieces_.push_back({live, used_, bytes});
  used_ += bytes;
}

void Undo::put_back() {
  for (const Piece& piece : pieces_) std::memcpy(piece.live, room_.data() + piece.home, piece.bytes);
  forget();
}

void Undo::forget() {
  pieces_.clear();
  used_ = 0;
}

}  // namespace trireme::space
