// Vectors: the elements that one access of up to 16 bytes moves, and how they are taken apart.
#pragma once

#include "types.cuh"

namespace distscan {

// The largest power of 2 up to 16, which is one access, that divides a size.
__device__ constexpr int alignment_of(int size) { return size % 16 == 0 ? 16 : size & -size; }

template <class T, int ITEMS>
struct alignas(alignment_of(sizeof(T) * ITEMS)) Vector {
  T item[ITEMS];
};

// An element of 16 bytes that is only moved, whatever its type.
struct alignas(16) Bytes16 {
  unsigned long long half[2];
};

// ---- Narrow elements stay packed, in words of 4 bytes, until they are computed with ----------

template <class T, int ITEMS>
inline constexpr bool is_packed = (sizeof(T) < 4 && sizeof(T) * ITEMS % 4 == 0);

// The 4-byte words of a packed vector.
template <class T, int ITEMS>
struct alignas(alignment_of(sizeof(T) * ITEMS)) Packed {
  unsigned word[sizeof(T) * ITEMS / 4];
};

// The type that a vector is loaded and stored as.
template <class T, int ITEMS>
using Storage = typename Choose<is_packed<T, ITEMS>, Packed<T, ITEMS>, Vector<T, ITEMS>>::type;

// The 4 bytes of the 8 in (a, b) that `select` names, lowest first; 8 + n is n's sign, 4 times.
__device__ inline unsigned permute(unsigned a, unsigned b, unsigned select) {
  unsigned bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(select));
  return bytes;
}

// Item i of a vector.
template <class T, int ITEMS>
__device__ T item(const Vector<T, ITEMS>& vector, int i) {
  if constexpr (is_packed<T, ITEMS>) {
    constexpr int EACH = 4 / sizeof(T);
    union {
      unsigned word;
      T value;
    } low;
    low.word = reinterpret_cast<const Packed<T, ITEMS>&>(vector).word[i / EACH];
    low.word >>= i % EACH * (32 / EACH);
    return low.value;
  } else {
    return vector.item[i];
  }
}

// The same as a To. Narrow integers come out of their word by one instruction.
template <class To, class T, int ITEMS>
__device__ To get(const Vector<T, ITEMS>& vector, int i) {
  constexpr bool INTO_WORDS = is_packed<T, ITEMS> && is_integer<To> && sizeof(To) == 4;
  if constexpr (INTO_WORDS && same<T, boolean>) {
    const unsigned word = reinterpret_cast<const Packed<T, ITEMS>&>(vector).word[i / 4];
    return static_cast<To>(convert<truth>(__dp4a(word, 1u << i % 4 * 8, 0u)));
  } else if constexpr (INTO_WORDS && is_integer<T> && !same<To, truth>) {
    constexpr int EACH = 4 / sizeof(T);
    constexpr bool SIGNED = static_cast<T>(-1) < static_cast<T>(0);
    const unsigned word = reinterpret_cast<const Packed<T, ITEMS>&>(vector).word[i / EACH];
    const int low = i % EACH * sizeof(T);
    if constexpr (sizeof(T) == 1) {
      // A dot product with 1 and 0s: minima and permutations keep another unit of the chip busy.
      if constexpr (SIGNED) return __dp4a(static_cast<int>(word), 1 << 8 * low, 0);
      return static_cast<To>(__dp4a(word, 1u << 8 * low, 0u));
    } else {
      return permute(word, 0,
                     SIGNED ? (low | (low + 1) << 4 | 0x8800 | (low + 1) * 0x1100)
                            : (0x4400 | low | (low + 1) << 4));
    }
  } else {
    return convert<To>(item(vector, i));
  }
}

template <class T, int ITEMS>
__device__ void set_item(Vector<T, ITEMS>& vector, int i, T x) {
  vector.item[i] = x;
}

// The vector of some values, converted.
template <class T, int ITEMS, class From>
__device__ Vector<T, ITEMS> pack(const From (&value)[ITEMS]) {
  Vector<T, ITEMS> vector;
  if constexpr (is_packed<T, ITEMS> && is_integer<T> && is_integer<From> && sizeof(From) == 4) {
    constexpr int EACH = 4 / sizeof(T);
    auto& packed = reinterpret_cast<Packed<T, ITEMS>&>(vector);
#pragma unroll
    for (int w = 0; w < ITEMS / EACH; ++w) {
      const From* four = value + w * EACH;
      if constexpr (sizeof(T) == 1)
        packed.word[w] =
            permute(permute(four[0], four[1], 0x0040), permute(four[2], four[3], 0x0040), 0x5410);
      else
        packed.word[w] = permute(four[0], four[1], 0x5410);
    }
  } else {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) set_item(vector, i, convert<T>(value[i]));
  }
  return vector;
}

// The items from the last to the first.
template <class T, int ITEMS>
__device__ Vector<T, ITEMS> flip(const Vector<T, ITEMS>& vector) {
  Vector<T, ITEMS> flipped;
  if constexpr (is_packed<T, ITEMS>) {
    constexpr int WORDS = sizeof(T) * ITEMS / 4;
    const auto& from = reinterpret_cast<const Packed<T, ITEMS>&>(vector);
    auto& to = reinterpret_cast<Packed<T, ITEMS>&>(flipped);
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
      to.word[w] = permute(from.word[WORDS - 1 - w], 0, sizeof(T) == 1 ? 0x0123 : 0x1032);
  } else {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) flipped.item[i] = vector.item[ITEMS - 1 - i];
  }
  return flipped;
}

// ---- In memory -----------------------------------------------------------------------------

template <int ITEMS, class T>
__device__ bool is_aligned(const T* p) {
  return reinterpret_cast<unsigned long long>(p) % alignof(Vector<T, ITEMS>) == 0;
}

// The vector at p, which is aligned for it.
template <int ITEMS, class T>
__device__ Vector<T, ITEMS> load_aligned(const T* p /* [ITEMS] */) {
  return *reinterpret_cast<const Vector<T, ITEMS>*>(p);
}

// The same, of narrow elements by their words.
template <int ITEMS, class T>
__device__ Vector<T, ITEMS> load_packed(const T* p /* [ITEMS] */) {
  Vector<T, ITEMS> vector;
  using Moved = Storage<T, ITEMS>;
  reinterpret_cast<Moved&>(vector) = *reinterpret_cast<const Moved*>(p);
  return vector;
}

}  // namespace distscan
