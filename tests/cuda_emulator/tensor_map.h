// How the stand-in encodes a tensor map. NVIDIA doesn't say how its driver does. emulator.py packs the same values.
#pragma once
#include <cstdint>

namespace emulator {
constexpr uint64_t kTensorMap = 0x70616d726f736e65;

// A matrix [images, height, width] whose boxes are fetched with their rows swizzled by 128 bytes. Strides are in
// bytes, and the innermost dimension comes first.
struct EncodedMap {
  uint64_t mark, address, extents[3], strides[2], box[3], item_bytes;
};
static_assert(sizeof(EncodedMap) <= 128, "a tensor map has 128 bytes");
}  // namespace emulator
