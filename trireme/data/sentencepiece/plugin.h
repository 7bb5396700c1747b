#pragma once
// Between the core and the library of sentencepiece, which is loaded when it is needed. libsentencepiece.so exports an
// older protobuf than the one that gRPC and libtorch use, under the same names: linked into one program, each would
// call the other's. So one small file, libtrireme_sentencepiece.so, is linked with it, speaks C to the outside, and is
// loaded with RTLD_LOCAL, which hides its names from all others, and RTLD_DEEPBIND, which has it look at its own names
// first. Where the file is not there, Trireme was built without sentencepiece. Not installed.
#include <cstddef>
#include <cstdint>

extern "C" {

struct TriremePieces;  // a model that was read

/// All that the plugin does; its one symbol is a function that returns this. Nothing throws.
struct TriremeSentencepiece {
  /// Null when the bytes are no model; `error` gets the reason.
  TriremePieces* (*open)(const char* model, size_t bytes, char* error, size_t error_bytes);
  void (*close)(TriremePieces*);
  int32_t (*count)(const TriremePieces*);
  /// The text of a piece, with spaces for sentencepiece's ▁; its bytes. `into` has room for `room`.
  size_t (*text)(const TriremePieces*, int32_t piece, char* into, size_t room);
  /// The piece that ends a line; -1: the model has none.
  int32_t (*line_end)(const TriremePieces*);
  /// Whether lines begin with a space that is not in the text.
  bool (*adds_space)(const TriremePieces*);
  /// Calls take(context, pieces, count) with a line's pieces; false: it could not be encoded.
  bool (*encode)(const TriremePieces*, const char* line, size_t bytes,
                 void (*take)(void* context, const int* pieces, size_t count), void* context);
};

const TriremeSentencepiece* trireme_sentencepiece();

}  // extern "C"
