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

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#include <vector>

namespace {

constexpr int64_t ROWS_A_BLOCK = 16;
constexpr int64_t CACHE_BYTES = 640 * 1024;  // of the second level, for the sources of a tile and the next
constexpr int VECTORS = 4;  // vectors a span: enough independent sums to hide the latency of an addition

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
#ifdef __AVX512BF16__
    const __m256bh halves = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(v));
    std::memcpy(to, &halves, sizeof halves);
#else
    Words words = reinterpret_cast<Words>(v);
    Words rounded = (words + 0x7fffu + ((words >> 16) & 1u)) >> 16;
    Words quiet = (words >> 16) | 0x40u;
    Words kept = (words & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
    Halves halves = __builtin_convertvector(kept, Halves);
    std::memcpy(to, &halves, sizeof halves);
#endif
  }
};

template <class Type, class From>
typename Type::Vector load_some(const From* from, int count) {
  typename Type::Stored padded[Type::LANES] = {};
  std::memcpy(padded, from, count * sizeof *from);
  return Type::load(padded);
}

// Calls body(offset, vectors, lanes) over a row: whole spans first, then single vectors, then a short one.
// `body` is a generic lambda; the number of vectors is a compile-time constant of its argument.
template <int N>
struct Count {
  static constexpr int value = N;
};

template <class Type, class Body>
inline void over_spans(int64_t width, Body&& body) {
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

// `put` to memory that nobody has read: past the caches, which would fetch the old contents first.
template <class Type>
inline void put_new(typename Type::Stored* to, typename Type::Vector v, int lanes) {
#ifdef __AVX512F__
  if constexpr (sizeof(typename Type::Stored) * Type::LANES == 64) {
    if (lanes == Type::LANES && reinterpret_cast<uintptr_t>(to) % 64 == 0)
      return _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(v));
  } else if (lanes == Type::LANES && reinterpret_cast<uintptr_t>(to) % 32 == 0) {
    alignas(32) typename Type::Stored rounded[Type::LANES];
    Type::store(rounded, v);
    return _mm256_stream_si256(reinterpret_cast<__m256i*>(to), *reinterpret_cast<__m256i*>(rounded));
  }
#endif
  put<Type>(to, v, lanes);
}

// Vectors of the compute type, as they are (query, gains, scratch).
template <class Type>
using Plain = std::conditional_t<std::is_same_v<typename Type::Real, double>, Float64, Float32>;

// The sum of all lanes, by halves: one after the other they would take longer than the products before them.
template <class Real, int Lanes>
inline Real sum_lanes_of(const Real __attribute__((vector_size(Lanes * sizeof(Real)))) v) {
  if constexpr (Lanes == 2) {
    return v[0] + v[1];
  } else {
    Real __attribute__((vector_size(Lanes / 2 * sizeof(Real)))) low, high;
    std::memcpy(&low, &v, sizeof low);
    std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof low, sizeof high);
    return sum_lanes_of<Real, Lanes / 2>(low + high);
  }
}

template <class Type>
inline typename Type::Real sum_span(const typename Type::Vector* v) {
  static_assert(VECTORS == 4);
  return sum_lanes_of<typename Type::Real, Type::LANES>((v[0] + v[1]) + (v[2] + v[3]));
}

// Asks the second-level cache for what is read in the next tile, line by line between the arithmetic. The
// processor's own prefetching notices a stream only after some misses, and there is one stream a source.
template <class Type, int N>
inline void prefetch(const typename Type::Stored* from, int64_t ahead, Count<N>) {
  constexpr int bytes = N * Type::LANES * sizeof(*from);
  for (int at = 0; at < bytes; at += 64) __builtin_prefetch(reinterpret_cast<const char*>(from + ahead) + at, 0, 2);
}

// ---- pieces of a row ----

template <class Type>
void project_and_square(const typename Type::Stored* v, const typename Type::Real* q, int64_t width, int64_t ahead,
                        typename Type::Real* projection, typename Type::Real* square) {
  typename Type::Vector p[VECTORS] = {}, s[VECTORS] = {};
  over_spans<Type>(width, [&](int64_t at, auto count, int lanes) {
    prefetch<Type>(v + at, ahead, count);
    for (int k = 0; k < decltype(count)::value; ++k) {
      auto value = get<Type>(v + at + k * Type::LANES, lanes);
      p[k] += value * get<Plain<Type>>(q + at + k * Type::LANES, lanes);
      s[k] += value * value;
    }
  });
  *projection = sum_span<Type>(p);
  *square = sum_span<Type>(s);
}

template <class Type>
typename Type::Real dot(const typename Type::Real* g, const typename Type::Stored* v, int64_t width, int64_t ahead,
                        const typename Type::Stored* also) {
  typename Type::Vector p[VECTORS] = {};
  over_spans<Type>(width, [&](int64_t at, auto count, int lanes) {
    prefetch<Type>(v + at, ahead, count);
    if (also) prefetch<Type>(also + at, ahead, count);
    for (int k = 0; k < decltype(count)::value; ++k)
      p[k] += get<Plain<Type>>(g + at + k * Type::LANES, lanes) * get<Type>(v + at + k * Type::LANES, lanes);
  });
  return sum_span<Type>(p);
}

template <class Type>
void widen(const typename Type::Stored* from, int64_t width, typename Type::Real* to) {
  over_spans<Type>(width, [&](int64_t at, auto count, int lanes) {
    for (int k = 0; k < decltype(count)::value; ++k)
      put<Plain<Type>>(to + at + k * Type::LANES, get<Type>(from + at + k * Type::LANES, lanes), lanes);
  });
}

// h = sum_j weight_j v_j; returns h . h
template <class Type>
typename Type::Real mix(int64_t sources, const typename Type::Stored* const* v, const typename Type::Real* weight,
                        int64_t width, typename Type::Real* h) {
  typename Type::Vector square[VECTORS] = {};
  over_spans<Type>(width, [&](int64_t at, auto count, int lanes) {
    constexpr int N = decltype(count)::value;
    typename Type::Vector sum[N] = {};
    for (int64_t j = 0; j < sources; ++j)
      for (int k = 0; k < N; ++k) sum[k] += weight[j] * get<Type>(v[j] + at + k * Type::LANES, lanes);
    for (int k = 0; k < N; ++k) {
      square[k] += sum[k] * sum[k];
      put<Plain<Type>>(h + at + k * Type::LANES, sum[k], lanes);
    }
  });
  return sum_span<Type>(square);
}

template <class Type>
void scale_into(const typename Type::Real* h, typename Type::Real factor, const typename Type::Real* gain,
                int64_t width, typename Type::Stored* y) {
  over_spans<Type>(width, [&](int64_t at, auto count, int lanes) {
    for (int k = 0; k < decltype(count)::value; ++k) {
      const int64_t i = at + k * Type::LANES;
      auto value = get<Plain<Type>>(h + i, lanes);
      if (gain) value = value * factor * get<Plain<Type>>(gain + i, lanes);
      put<Type>(y + i, value, lanes);
    }
  });
}

// e^x for x <= 0, within one unit in the last place (0.93 over [-87, 0]); unlike std::exp it can be made for many
// x at once.
inline double exponential(double x) { return std::exp(x); }
inline float exponential(float x) {
  // e^x = 2^n e^y with |y| <= ln(2) / 2; ln(2) in two parts; the Taylor terms that float resolves.
  x = x < -87.0f ? -87.0f : x;
  const float n = std::floor(x * 1.44269504f + 0.5f);
  const float y = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float sum = 1.0f / 5040;
  for (float coefficient : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) sum = sum * y + coefficient;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return sum * power;
}

// From projections p and sums of squares (in r) to inverse rms r and softmax weights a, in loops over the
// sources that the compiler turns into vector code: one by one, roots and exponentials cost as much as the sums.
template <class Real>
void weigh(int64_t sources, int64_t width, Real eps, const Real* p, Real* r, Real* a) {
  Real largest = -INFINITY, total = 0;
  for (int64_t j = 0; j < sources; ++j) r[j] = 1 / std::sqrt(r[j] / width + eps);
  for (int64_t j = 0; j < sources; ++j) a[j] = p[j] * r[j];
  for (int64_t j = 0; j < sources; ++j) largest = a[j] > largest ? a[j] : largest;
  for (int64_t j = 0; j < sources; ++j) a[j] = exponential(a[j] - largest);
  for (int64_t j = 0; j < sources; ++j) total += a[j];
  for (int64_t j = 0; j < sources; ++j) a[j] /= total;
}

// What is kept of a row: p_j, r_j, a_j for every source, then R.
inline int64_t kept_a_row(int64_t sources) { return 3 * sources + 1; }

// g = dL/dh of a row, from G = dL/dy, through the norm; adds G h R to the gradient of the norm's gain.
template <class Type>
void through_norm(const typename Type::Stored* G, const typename Type::Real* h, const typename Type::Real* gain,
                  typename Type::Real norm, int64_t width, typename Type::Real* gain_gradient,
                  typename Type::Real* g) {
  using Flat = Plain<Type>;
  typename Type::Vector along[VECTORS] = {};
  over_spans<Type>(width, [&](int64_t at, auto count, int lanes) {
    for (int k = 0; k < decltype(count)::value; ++k) {
      const int64_t i = at + k * Type::LANES;
      auto upstream = get<Type>(G + i, lanes), value = get<Flat>(h + i, lanes) * norm;
      put<Flat>(gain_gradient + i, get<Flat>(gain_gradient + i, lanes) + upstream * value, lanes);
      upstream = upstream * get<Flat>(gain + i, lanes);
      along[k] += upstream * value;
      put<Flat>(g + i, upstream, lanes);
    }
  });
  const auto share = sum_span<Type>(along) / width;
  over_spans<Type>(width, [&](int64_t at, auto count, int lanes) {
    for (int k = 0; k < decltype(count)::value; ++k) {
      const int64_t i = at + k * Type::LANES;
      put<Flat>(g + i, norm * (get<Flat>(g + i, lanes) - share * norm * get<Flat>(h + i, lanes)), lanes);
    }
  });
}

// g = dL/dh for one source alone: base + g.
template <class Type>
void add_row(const typename Type::Real* g, const typename Type::Stored* base, typename Type::Stored* out,
             int64_t width) {
  over_spans<Type>(width, [&](int64_t at, auto count, int lanes) {
    for (int k = 0; k < decltype(count)::value; ++k) {
      const int64_t i = at + k * Type::LANES;
      auto part = get<Plain<Type>>(g + i, lanes);
      if (base) part += get<Type>(base + i, lanes);
      put<Type>(out + i, part, lanes);
    }
  });
}

// The part of one source: out = base + a g + delta r q - shrink v; adds delta r v to the gradient of q.
template <class Type>
void source_gradient(const typename Type::Real* g, const typename Type::Stored* v, const typename Type::Real* q,
                     typename Type::Real a, typename Type::Real delta_r, typename Type::Real shrink, int64_t width,
                     typename Type::Real* q_gradient, const typename Type::Stored* base,
                     typename Type::Stored* out) {
  using Flat = Plain<Type>;
  over_spans<Type>(width, [&](int64_t at, auto count, int lanes) {
    for (int k = 0; k < decltype(count)::value; ++k) {
      const int64_t i = at + k * Type::LANES;
      auto value = get<Type>(v + i, lanes);
      put<Flat>(q_gradient + i, get<Flat>(q_gradient + i, lanes) + delta_r * value, lanes);
      if (!out) continue;
      auto part = a * get<Flat>(g + i, lanes) + delta_r * get<Flat>(q + i, lanes) - shrink * value;
      if (base) {
        put<Type>(out + i, part + get<Type>(base + i, lanes), lanes);
      } else {
        put_new<Type>(out + i, part, lanes);
      }
    }
  });
}

// ---- tiles of rows: each source is a stream of its own, read some kilobytes at a time ----

template <class Type>
struct Problem {
  using Stored = typename Type::Stored;
  using Real = typename Type::Real;

  int64_t sources, rows, width;
  const void* const* values;
  const Real* q;          // null: one source, and the norm alone
  Real eps;
  const Real* norm_gain;  // null: no norm
  Real norm_eps;

  const Stored* row(int64_t source, int64_t n) const { return static_cast<const Stored*>(values[source]) + n * width; }

  // Rows a tile, so that `copies` tiles of every source stay in the second-level cache.
  int64_t tile(int64_t copies) const {
    int64_t rows_a_tile = ROWS_A_BLOCK;
    while (rows_a_tile > 1 && copies * sources * rows_a_tile * width * int64_t(sizeof(Stored)) > CACHE_BYTES)
      rows_a_tile /= 2;
    return rows_a_tile;
  }
};

template <class Type>
void forward_tile(const Problem<Type>& of, int64_t first, int64_t end, int64_t ahead, typename Type::Real* kept,
                  typename Type::Real* h, typename Type::Stored* y) {
  using Real = typename Type::Real;
  const int64_t sources = of.sources, width = of.width;
  for (int64_t j = 0; of.q && j < sources; ++j)
    for (int64_t n = first; n < end; ++n) {
      Real* row = kept + n * kept_a_row(sources);
      project_and_square<Type>(of.row(j, n), of.q, width, ahead, row + j, row + sources + j);
    }
  std::vector<const typename Type::Stored*> v(sources);
  for (int64_t n = first; n < end; ++n) {
    Real* row = kept + n * kept_a_row(sources);
    Real *p = row, *r = row + sources, *a = row + 2 * sources;
    if (of.q) {
      weigh(sources, width, of.eps, p, r, a);
    } else {
      a[0] = 1;
    }
    for (int64_t j = 0; j < sources; ++j) v[j] = of.row(j, n);
    const Real norm = 1 / std::sqrt(mix<Type>(sources, v.data(), a, width, h) / width + of.norm_eps);
    row[3 * sources] = norm;
    scale_into<Type>(h, norm, of.norm_gain, width, y + n * width);
  }
}

template <class Type>
struct Gradients {
  const typename Type::Stored* upstream;  // dL/dy
  const void* const* base;                // of each source so far, or null
  void* const* out;                       // with this reader's part; null if not wanted
  typename Type::Real* q;                 // of this block of rows
  typename Type::Real* norm_gain;

  const typename Type::Stored* base_row(int64_t source, int64_t offset) const {
    return base[source] ? static_cast<const typename Type::Stored*>(base[source]) + offset : nullptr;
  }
  typename Type::Stored* out_row(int64_t source, int64_t offset) const {
    return out[source] ? static_cast<typename Type::Stored*>(out[source]) + offset : nullptr;
  }
};

// g = dL/dh of every row of a tile.
template <class Type>
void upstream_tile(const Problem<Type>& of, const Gradients<Type>& to, int64_t first, int64_t end,
                   const typename Type::Real* kept, typename Type::Real* h, typename Type::Real* g) {
  std::vector<const typename Type::Stored*> v(of.sources);
  for (int64_t n = first; n < end; ++n, g += of.width) {
    const auto* upstream = to.upstream + n * of.width;
    const auto* row = kept + n * kept_a_row(of.sources);
    if (of.norm_gain) {
      for (int64_t j = 0; j < of.sources; ++j) v[j] = of.row(j, n);
      mix<Type>(of.sources, v.data(), row + 2 * of.sources, of.width, h);
      through_norm<Type>(upstream, h, of.norm_gain, row[3 * of.sources], of.width, to.norm_gain, g);
    } else {
      widen<Type>(upstream, of.width, g);
    }
  }
}

template <class Type>
void backward_tile(const Problem<Type>& of, const Gradients<Type>& to, int64_t first, int64_t end, int64_t ahead,
                   const typename Type::Real* kept, typename Type::Real* scratch) {
  using Real = typename Type::Real;
  const int64_t sources = of.sources, width = of.width, count = end - first;
  Real *h = scratch, *g = h + width, *along = g + count * width, *shrink = along + count * sources;
  upstream_tile(of, to, first, end, kept, h, g);
  if (!of.q) {
    for (int64_t n = first; n < end; ++n)
      if (auto* out = to.out_row(0, n * width))
        add_row<Type>(g + (n - first) * width, to.base_row(0, n * width), out, width);
    return;
  }
  for (int64_t j = 0; j < sources; ++j)
    for (int64_t n = first; n < end; ++n)
      along[(n - first) * sources + j] =
          dot<Type>(g + (n - first) * width, of.row(j, n), width, ahead, to.base_row(j, n * width));
  for (int64_t n = first; n < end; ++n) {
    const Real *p = kept + n * kept_a_row(sources), *r = p + sources, *a = r + sources;
    Real *u = along + (n - first) * sources, *s = shrink + (n - first) * sources, mean = 0;
    for (int64_t j = 0; j < sources; ++j) mean += a[j] * u[j];
    for (int64_t j = 0; j < sources; ++j) {
      u[j] = a[j] * (u[j] - mean) * r[j];             // delta_j r_j
      s[j] = u[j] * (p[j] * r[j]) * (r[j] / width);  // in this order nothing overflows for tiny sources
    }
  }
  for (int64_t j = 0; j < sources; ++j)
    for (int64_t n = first; n < end; ++n) {
      const int64_t at = (n - first) * sources + j;
      const Real weight = kept[n * kept_a_row(sources) + 2 * sources + j];
      source_gradient<Type>(g + (n - first) * width, of.row(j, n), of.q, weight,
                            along[at], shrink[at], width, to.q, to.base_row(j, n * width), to.out_row(j, n * width));
    }
}

// Calls body(block, first row, end, elements to the same place in the next tile) for every tile of every block.
template <class Type, class Body>
void over_rows(const Problem<Type>& of, int64_t rows_a_tile, int64_t block, Body&& body) {
  const int64_t end = std::min(of.rows, (block + 1) * ROWS_A_BLOCK);
  for (int64_t first = block * ROWS_A_BLOCK; first < end; first += rows_a_tile)
    body(first, std::min(end, first + rows_a_tile), rows_a_tile * of.width);
}

template <class Type>
void forward(const Problem<Type>& of, void* kept, void* y, int threads) {
  const int64_t blocks = (of.rows + ROWS_A_BLOCK - 1) / ROWS_A_BLOCK;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<typename Type::Real> h(of.width);
#pragma omp for schedule(static)
    for (int64_t block = 0; block < blocks; ++block)
      over_rows(of, of.tile(2), block, [&](int64_t first, int64_t end, int64_t ahead) {
        forward_tile<Type>(of, first, end, ahead, static_cast<typename Type::Real*>(kept), h.data(),
                           static_cast<typename Type::Stored*>(y));
      });
  }
}

// q_gradient and norm_gradient are [blocks, width], zeroed by the caller, one row a block.
template <class Type>
void backward(const Problem<Type>& of, Gradients<Type> to, const void* kept, void* q_gradient, void* norm_gradient,
              int threads) {
  using Real = typename Type::Real;
  const int64_t blocks = (of.rows + ROWS_A_BLOCK - 1) / ROWS_A_BLOCK;
#pragma omp parallel num_threads(threads) if (threads > 1) firstprivate(to)
  {
    std::vector<Real> scratch(of.width + ROWS_A_BLOCK * (of.width + 2 * of.sources));
#pragma omp for schedule(static)
    for (int64_t block = 0; block < blocks; ++block) {
      to.q = of.q ? static_cast<Real*>(q_gradient) + block * of.width : nullptr;
      to.norm_gain = of.norm_gain ? static_cast<Real*>(norm_gradient) + block * of.width : nullptr;
      over_rows(of, of.tile(4), block, [&](int64_t first, int64_t end, int64_t ahead) {
        backward_tile<Type>(of, to, first, end, ahead, static_cast<const Real*>(kept), scratch.data());
      });
    }
#ifdef __AVX512F__
    _mm_sfence();  // stores past the caches, before others read them
#endif
  }
}

}  // namespace

#define DEPTH_MIX(NAME, TYPE)                                                                                      \
  extern "C" void depth_mix_forward_##NAME(                                                                        \
      int64_t sources, int64_t rows, int64_t width, const void* const* v, const void* q, double eps,               \
      const void* norm_gain, double norm_eps, void* kept, void* y, int threads) {                                  \
    using Real = TYPE::Real;                                                                                       \
    const Problem<TYPE> of{sources, rows, width, v, static_cast<const Real*>(q), Real(eps),                        \
                           static_cast<const Real*>(norm_gain), Real(norm_eps)};                                   \
    forward(of, kept, y, threads);                                                                                 \
  }                                                                                                                \
  extern "C" void depth_mix_backward_##NAME(                                                                       \
      int64_t sources, int64_t rows, int64_t width, const void* const* v, const void* const* base,                 \
      void* const* out, const void* upstream, const void* q, const void* norm_gain, const void* kept,              \
      void* q_gradient, void* norm_gradient, int threads) {                                                        \
    using Real = TYPE::Real;                                                                                       \
    const Problem<TYPE> of{sources, rows, width, v, static_cast<const Real*>(q), 0,                                \
                           static_cast<const Real*>(norm_gain), 0};                                                \
    const Gradients<TYPE> to{static_cast<const TYPE::Stored*>(upstream), base, out, nullptr, nullptr};             \
    backward(of, to, kept, q_gradient, norm_gradient, threads);                                                    \
  }

DEPTH_MIX(float32, Float32)
DEPTH_MIX(float64, Float64)
DEPTH_MIX(bfloat16, BFloat16)

extern "C" int64_t depth_mix_rows_a_block() { return ROWS_A_BLOCK; }
