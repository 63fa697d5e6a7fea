// Depth mix, optionally followed by RMSNorm, forward and backward, one pass over the sources each.
//
// For every row (token) with sources v_1 .. v_n of width D, q = query * gain and w = gain of the norm:
//
//     r_j = 1 / sqrt(mean(v_j^2) + eps) ;  p_j = q . v_j ;  a = softmax(p r) ;  h = sum_j a_j v_j
//     without norm:  y = h              with norm:  R = 1 / sqrt(mean(h^2) + norm_eps) ;  y = R h w
//
// Backward, with G = dL/dy (the formulas are those of attnres_train/depth/kernels/lean.py):
//
//     with norm:  g = R w G - h R^3 / D (w G . h) ;  dL/dw = sum over rows of G h R       without:  g = G
//     u_j = g . v_j ;  delta_j = a_j (u_j - sum_k a_k u_k)
//     dL/dv_j = a_j g + delta_j r_j q - (delta_j p_j r_j^3 / D) v_j ;  dL/dq = sum over rows, j of delta_j r_j v_j
//
// Without q there is one source of weight 1, and the norm is all there is.
// h is not kept between the passes: backward makes it again from the sources, which it reads anyway.
// A row's sources fit the first caches, so memory is read once; the later loops over them are cheap.
// Sums over rows are made in blocks of ROWS_A_BLOCK whatever the number of threads: results do not depend on it.
//
// Plain C interface, called through ctypes: no header of torch, compiled in about two seconds.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t ROWS_A_BLOCK = 16;
constexpr int VECTORS = 4;  // vectors a tile: enough independent sums to hide the latency of an addition

// ---- storage types: what is in memory (Stored), what is computed with (Real), one register of it (Vector) ----

struct Float32 {
  using Stored = float;
  using Real = float;
  using Vector = float __attribute__((vector_size(64)));
  static constexpr int LANES = 16;
  static Vector load(const Stored* from) { Vector v; std::memcpy(&v, from, sizeof v); return v; }
  static void store(Stored* to, Vector v) { std::memcpy(to, &v, sizeof v); }
};

struct Float64 {
  using Stored = double;
  using Real = double;
  using Vector = double __attribute__((vector_size(64)));
  static constexpr int LANES = 8;
  static Vector load(const Stored* from) { Vector v; std::memcpy(&v, from, sizeof v); return v; }
  static void store(Stored* to, Vector v) { std::memcpy(to, &v, sizeof v); }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Real = float;
  using Vector = float __attribute__((vector_size(64)));
  using Halves = uint16_t __attribute__((vector_size(32)));
  using Words = uint32_t __attribute__((vector_size(64)));
  static constexpr int LANES = 16;
  static Vector load(const Stored* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    Words words = __builtin_convertvector(halves, Words) << 16;
    return reinterpret_cast<Vector>(words);
  }
  static void store(Stored* to, Vector v) {  // to nearest even; a NaN stays one
    Words words = reinterpret_cast<Words>(v);
    Words rounded = (words + 0x7fffu + ((words >> 16) & 1u)) >> 16;
    Words quiet = (words >> 16) | 0x40u;
    Words kept = (words & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
    Halves halves = __builtin_convertvector(kept, Halves);
    std::memcpy(to, &halves, sizeof halves);
  }
};

template <class Type, class From>
typename Type::Vector load_some(const From* from, int count) {
  typename Type::Stored padded[Type::LANES] = {};
  std::memcpy(padded, from, count * sizeof *from);
  return Type::load(padded);
}

// Calls body(offset, vectors, lanes) over a row: whole tiles first, then single vectors, then a short one.
// `body` is a generic lambda; the number of vectors is a compile-time constant of its argument.
template <int N>
struct Count {
  static constexpr int value = N;
};

template <class Type, class Body>
inline void over_tiles(int64_t width, Body&& body) {
  int64_t at = 0;
  for (; at + VECTORS * Type::LANES <= width; at += VECTORS * Type::LANES) body(at, Count<VECTORS>(), Type::LANES);
  for (; at + Type::LANES <= width; at += Type::LANES) body(at, Count<1>(), Type::LANES);
  if (at < width) body(at, Count<1>(), static_cast<int>(width - at));
}

template <class Type>
inline typename Type::Vector get(const typename Type::Stored* from, int lanes) {
  return lanes == Type::LANES ? Type::load(from) : load_some<Type>(from, lanes);
}

template <class Type>
inline void put(typename Type::Stored* to, typename Type::Vector v, int lanes) {
  if (lanes == Type::LANES) return Type::store(to, v);
  typename Type::Stored padded[Type::LANES];
  Type::store(padded, v);
  std::memcpy(to, padded, lanes * sizeof *to);
}

// Vectors of the compute type, as they are (query, gains, scratch).
template <class Type>
using Plain = std::conditional_t<std::is_same_v<typename Type::Real, double>, Float64, Float32>;

template <class Vector>
inline auto sum_lanes(Vector v) {
  constexpr int lanes = sizeof(Vector) / sizeof(v[0]);
  auto total = v[0] * 0;
  for (int i = 0; i < lanes; ++i) total += v[i];
  return total;
}

// ---- pieces of a row ----

template <class Type>
void project_and_square(const typename Type::Stored* v, const typename Type::Real* q, int64_t width,
                        typename Type::Real* projection, typename Type::Real* square) {
  typename Type::Vector p[VECTORS] = {}, s[VECTORS] = {};
  over_tiles<Type>(width, [&](int64_t at, auto count, int lanes) {
    for (int k = 0; k < decltype(count)::value; ++k) {
      auto value = get<Type>(v + at + k * Type::LANES, lanes);
      p[k] += value * get<Plain<Type>>(q + at + k * Type::LANES, lanes);
      s[k] += value * value;
    }
  });
  *projection = sum_lanes((p[0] + p[1]) + (p[2] + p[3]));
  *square = sum_lanes((s[0] + s[1]) + (s[2] + s[3]));
}

template <class Type>
typename Type::Real dot(const typename Type::Real* g, const typename Type::Stored* v, int64_t width) {
  typename Type::Vector p[VECTORS] = {};
  over_tiles<Type>(width, [&](int64_t at, auto count, int lanes) {
    for (int k = 0; k < decltype(count)::value; ++k)
      p[k] += get<Plain<Type>>(g + at + k * Type::LANES, lanes) * get<Type>(v + at + k * Type::LANES, lanes);
  });
  return sum_lanes((p[0] + p[1]) + (p[2] + p[3]));
}

// h = sum_j weight_j v_j; returns h . h
template <class Type>
typename Type::Real mix(int64_t sources, const typename Type::Stored* const* v, const typename Type::Real* weight,
                        int64_t width, typename Type::Real* h) {
  typename Type::Vector square[VECTORS] = {};
  over_tiles<Type>(width, [&](int64_t at, auto count, int lanes) {
    constexpr int N = decltype(count)::value;
    typename Type::Vector sum[N] = {};
    for (int64_t j = 0; j < sources; ++j)
      for (int k = 0; k < N; ++k) sum[k] += weight[j] * get<Type>(v[j] + at + k * Type::LANES, lanes);
    for (int k = 0; k < N; ++k) {
      square[k] += sum[k] * sum[k];
      put<Plain<Type>>(h + at + k * Type::LANES, sum[k], lanes);
    }
  });
  return sum_lanes((square[0] + square[1]) + (square[2] + square[3]));
}

template <class Type>
void scale_into(const typename Type::Real* h, typename Type::Real factor, const typename Type::Real* gain,
                int64_t width, typename Type::Stored* y) {
  over_tiles<Type>(width, [&](int64_t at, auto count, int lanes) {
    for (int k = 0; k < decltype(count)::value; ++k) {
      const int64_t i = at + k * Type::LANES;
      auto value = get<Plain<Type>>(h + i, lanes);
      if (gain) value = value * factor * get<Plain<Type>>(gain + i, lanes);
      put<Type>(y + i, value, lanes);
    }
  });
}

// What is kept of a row: p_j, r_j, a_j for every source, then R.
inline int64_t kept_a_row(int64_t sources) { return 3 * sources + 1; }

template <class Type>
void forward_row(int64_t sources, const typename Type::Stored* const* v, const typename Type::Real* q,
                 typename Type::Real eps, const typename Type::Real* norm_gain, typename Type::Real norm_eps,
                 int64_t width, typename Type::Real* kept, typename Type::Real* h, typename Type::Stored* y) {
  using Real = typename Type::Real;
  Real *p = kept, *r = kept + sources, *a = kept + 2 * sources;
  Real largest = -INFINITY, total = 0;
  for (int64_t j = 0; q && j < sources; ++j) {
    Real square;
    project_and_square<Type>(v[j], q, width, &p[j], &square);
    r[j] = 1 / std::sqrt(square / width + eps);
    a[j] = p[j] * r[j];
    largest = a[j] > largest ? a[j] : largest;
  }
  for (int64_t j = 0; q && j < sources; ++j) total += a[j] = std::exp(a[j] - largest);
  for (int64_t j = 0; j < sources; ++j) a[j] = q ? a[j] / total : 1;
  const Real square = mix<Type>(sources, v, a, width, h);
  const Real norm = 1 / std::sqrt(square / width + norm_eps);
  kept[3 * sources] = norm;
  scale_into<Type>(h, norm, norm_gain, width, y);
}

// g = dL/dh of a row, from G = dL/dy, through the norm; adds G h R to the gradient of the norm's gain.
template <class Type>
void through_norm(const typename Type::Stored* G, const typename Type::Real* h, const typename Type::Real* gain,
                  typename Type::Real norm, int64_t width, typename Type::Real* gain_gradient,
                  typename Type::Real* g) {
  using Flat = Plain<Type>;
  typename Type::Vector along[VECTORS] = {};
  over_tiles<Type>(width, [&](int64_t at, auto count, int lanes) {
    for (int k = 0; k < decltype(count)::value; ++k) {
      const int64_t i = at + k * Type::LANES;
      auto upstream = get<Type>(G + i, lanes), value = get<Flat>(h + i, lanes) * norm;
      put<Flat>(gain_gradient + i, get<Flat>(gain_gradient + i, lanes) + upstream * value, lanes);
      upstream = upstream * get<Flat>(gain + i, lanes);
      along[k] += upstream * value;
      put<Flat>(g + i, upstream, lanes);
    }
  });
  const auto share = sum_lanes((along[0] + along[1]) + (along[2] + along[3])) / width;
  over_tiles<Type>(width, [&](int64_t at, auto count, int lanes) {
    for (int k = 0; k < decltype(count)::value; ++k) {
      const int64_t i = at + k * Type::LANES;
      put<Flat>(g + i, norm * (get<Flat>(g + i, lanes) - share * norm * get<Flat>(h + i, lanes)), lanes);
    }
  });
}

template <class Type>
struct Row {
  const typename Type::Stored* const* v;     // sources
  const typename Type::Stored* const* base;  // gradient so far, or null
  typename Type::Stored* const* out;         // gradient with this reader's part; null if not wanted
};

template <class Type>
void add_rows(const typename Type::Real* g, const typename Type::Stored* base, typename Type::Stored* out,
              int64_t width) {
  if (!out) return;
  over_tiles<Type>(width, [&](int64_t at, auto count, int lanes) {
    for (int k = 0; k < decltype(count)::value; ++k) {
      const int64_t i = at + k * Type::LANES;
      auto part = get<Plain<Type>>(g + i, lanes);
      if (base) part += get<Type>(base + i, lanes);
      put<Type>(out + i, part, lanes);
    }
  });
}

template <class Type>
void backward_row(int64_t sources, const Row<Type>& row, const typename Type::Stored* G,
                  const typename Type::Real* q, const typename Type::Real* norm_gain, int64_t width,
                  const typename Type::Real* kept, typename Type::Real* scratch,
                  typename Type::Real* q_gradient, typename Type::Real* norm_gradient) {
  using Real = typename Type::Real;
  using Flat = Plain<Type>;
  const Real *p = kept, *r = kept + sources, *a = kept + 2 * sources, norm = kept[3 * sources];
  Real *g = scratch, *h = scratch + width, *along = h + width, *shrink = along + sources;
  if (norm_gain) {
    mix<Type>(sources, row.v, a, width, h);
    through_norm<Type>(G, h, norm_gain, norm, width, norm_gradient, g);
  } else {
    over_tiles<Type>(width, [&](int64_t at, auto count, int lanes) {
      for (int k = 0; k < decltype(count)::value; ++k)
        put<Flat>(g + at + k * Type::LANES, get<Type>(G + at + k * Type::LANES, lanes), lanes);
    });
  }
  if (!q) return add_rows<Type>(g, row.base[0], row.out[0], width);
  Real mean = 0;
  for (int64_t j = 0; j < sources; ++j) {
    along[j] = dot<Type>(g, row.v[j], width);
    mean += a[j] * along[j];
  }
  for (int64_t j = 0; j < sources; ++j) {
    along[j] = a[j] * (along[j] - mean) * r[j];      // delta_j r_j
    shrink[j] = along[j] * (p[j] * r[j]) * (r[j] / width);  // in this order nothing overflows for tiny sources
  }
  over_tiles<Type>(width, [&](int64_t at, auto count, int lanes) {
    constexpr int N = decltype(count)::value;
    typename Type::Vector up[N], direction[N], sum[N] = {};
    for (int k = 0; k < N; ++k) {
      up[k] = get<Flat>(g + at + k * Type::LANES, lanes);
      direction[k] = get<Flat>(q + at + k * Type::LANES, lanes);
    }
    for (int64_t j = 0; j < sources; ++j)
      for (int k = 0; k < N; ++k) {
        const int64_t i = at + k * Type::LANES;
        auto value = get<Type>(row.v[j] + i, lanes);
        sum[k] += along[j] * value;
        if (!row.out[j]) continue;
        auto part = a[j] * up[k] + along[j] * direction[k] - shrink[j] * value;
        if (row.base[j]) part += get<Type>(row.base[j] + i, lanes);
        put<Type>(row.out[j] + i, part, lanes);
      }
    for (int k = 0; k < N; ++k) {
      const int64_t i = at + k * Type::LANES;
      put<Flat>(q_gradient + i, get<Flat>(q_gradient + i, lanes) + sum[k], lanes);
    }
  });
}

// ---- all rows ----

template <class Type>
void forward(int64_t sources, int64_t rows, int64_t width, const void* const* v, const void* q, double eps,
             const void* norm_gain, double norm_eps, void* kept, void* y, int threads) {
  using Stored = typename Type::Stored;
  using Real = typename Type::Real;
  const int64_t blocks = (rows + ROWS_A_BLOCK - 1) / ROWS_A_BLOCK;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<Real> h(width);
    std::vector<const Stored*> row(sources);
#pragma omp for schedule(static)
    for (int64_t block = 0; block < blocks; ++block)
      for (int64_t n = block * ROWS_A_BLOCK; n < rows && n < (block + 1) * ROWS_A_BLOCK; ++n) {
        for (int64_t j = 0; j < sources; ++j) row[j] = static_cast<const Stored*>(v[j]) + n * width;
        forward_row<Type>(sources, row.data(), static_cast<const Real*>(q), Real(eps),
                          static_cast<const Real*>(norm_gain), Real(norm_eps), width,
                          static_cast<Real*>(kept) + n * kept_a_row(sources), h.data(),
                          static_cast<Stored*>(y) + n * width);
      }
  }
}

// q_gradient and norm_gradient are [blocks, width], zeroed by the caller, one row a block.
template <class Type>
void backward(int64_t sources, int64_t rows, int64_t width, const void* const* v, const void* const* base,
              void* const* out, const void* G, const void* q, const void* norm_gain, const void* kept,
              void* q_gradient, void* norm_gradient, int threads) {
  using Stored = typename Type::Stored;
  using Real = typename Type::Real;
  const int64_t blocks = (rows + ROWS_A_BLOCK - 1) / ROWS_A_BLOCK;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<Real> scratch(2 * width + 2 * sources);
    std::vector<const Stored*> row(sources), row_base(sources);
    std::vector<Stored*> row_out(sources);
#pragma omp for schedule(static)
    for (int64_t block = 0; block < blocks; ++block)
      for (int64_t n = block * ROWS_A_BLOCK; n < rows && n < (block + 1) * ROWS_A_BLOCK; ++n) {
        for (int64_t j = 0; j < sources; ++j) {
          row[j] = static_cast<const Stored*>(v[j]) + n * width;
          row_base[j] = base[j] ? static_cast<const Stored*>(base[j]) + n * width : nullptr;
          row_out[j] = out[j] ? static_cast<Stored*>(out[j]) + n * width : nullptr;
        }
        const Row<Type> pointers{row.data(), row_base.data(), row_out.data()};
        backward_row<Type>(sources, pointers, static_cast<const Stored*>(G) + n * width,
                           static_cast<const Real*>(q), static_cast<const Real*>(norm_gain), width,
                           static_cast<const Real*>(kept) + n * kept_a_row(sources), scratch.data(),
                           q ? static_cast<Real*>(q_gradient) + block * width : nullptr,
                           norm_gain ? static_cast<Real*>(norm_gradient) + block * width : nullptr);
      }
  }
}

}  // namespace

#define DEPTH_MIX(NAME, TYPE)                                                                                     \
  extern "C" void depth_mix_forward_##NAME(                                                                       \
      int64_t sources, int64_t rows, int64_t width, const void* const* v, const void* q, double eps,              \
      const void* norm_gain, double norm_eps, void* kept, void* y, int threads) {                                 \
    forward<TYPE>(sources, rows, width, v, q, eps, norm_gain, norm_eps, kept, y, threads);                        \
  }                                                                                                               \
  extern "C" void depth_mix_backward_##NAME(                                                                      \
      int64_t sources, int64_t rows, int64_t width, const void* const* v, const void* const* base,                \
      void* const* out, const void* G, const void* q, const void* norm_gain, const void* kept, void* q_gradient,  \
      void* norm_gradient, int threads) {                                                                         \
    backward<TYPE>(sources, rows, width, v, base, out, G, q, norm_gain, kept, q_gradient, norm_gradient, threads); \
  }

DEPTH_MIX(float32, Float32)
DEPTH_MIX(float64, Float64)
DEPTH_MIX(bfloat16, BFloat16)

extern "C" int64_t depth_mix_rows_a_block() { return ROWS_A_BLOCK; }
