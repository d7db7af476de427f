#include "ps/kernels.h"

#include <cstring>

// This file is compiled once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/kernels.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace muster::ps::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// How many rows ahead memory is asked for, and how many lines of a row at most: later lines follow
// by the processor's own foresight.
constexpr std::size_t kRowsAhead = 8;
constexpr std::size_t kFloatsInLine = 16;
constexpr std::size_t kLinesAhead = 8;

// Each rule takes vectors of values p, slots a and b and gradient g, and changes p, a and b.
// t is the step, lr the learning rate, wd the weight decay.

// g += wd p;  p -= lr g
struct Sgd {
  static constexpr std::size_t kSlots = 0;
  template <class D, class V>
  HWY_INLINE static void Step(D d, const Rule& r, V& p, V&, V&, V g) {
    g = hn::Add(g, hn::Mul(hn::Set(d, r.weight_decay), p));
    p = hn::Sub(p, hn::Mul(hn::Set(d, r.learning_rate), g));
  }
};

// g += wd p;  a = momentum a + g;  p -= lr a
struct Momentum {
  static constexpr std::size_t kSlots = 1;
  template <class D, class V>
  HWY_INLINE static void Step(D d, const Rule& r, V& p, V& a, V&, V g) {
    g = hn::Add(g, hn::Mul(hn::Set(d, r.weight_decay), p));
    a = hn::Add(hn::Mul(hn::Set(d, r.momentum), a), g);
    p = hn::Sub(p, hn::Mul(hn::Set(d, r.learning_rate), a));
  }
};

// g += wd p;  a = momentum a + g;  p -= lr (g + momentum a)
struct Nesterov {
  static constexpr std::size_t kSlots = 1;
  template <class D, class V>
  HWY_INLINE static void Step(D d, const Rule& r, V& p, V& a, V&, V g) {
    const V momentum = hn::Set(d, r.momentum);
    g = hn::Add(g, hn::Mul(hn::Set(d, r.weight_decay), p));
    a = hn::Add(hn::Mul(momentum, a), g);
    const V ahead = hn::Add(g, hn::Mul(momentum, a));
    p = hn::Sub(p, hn::Mul(hn::Set(d, r.learning_rate), ahead));
  }
};

// g += wd p;  a += g^2;  p -= lr g / (sqrt(a) + epsilon)
struct Adagrad {
  static constexpr std::size_t kSlots = 1;
  template <class D, class V>
  HWY_INLINE static void Step(D d, const Rule& r, V& p, V& a, V&, V g) {
    g = hn::Add(g, hn::Mul(hn::Set(d, r.weight_decay), p));
    a = hn::Add(a, hn::Mul(g, g));
    const V root = hn::Add(hn::Sqrt(a), hn::Set(d, r.epsilon));
    p = hn::Sub(p, hn::Div(hn::Mul(hn::Set(d, r.learning_rate), g), root));
  }
};

// a = beta1 a + (1 - beta1) g;  b = beta2 b + (1 - beta2) g^2;
// p -= lr / (1 - beta1^t) a / (sqrt(b) / sqrt(1 - beta2^t) + epsilon)
template <class D, class V>
HWY_INLINE void AdamStep(D d, const Rule& r, V& p, V& a, V& b, V g) {
  a = hn::Add(hn::Mul(hn::Set(d, r.beta1), a), hn::Mul(hn::Set(d, r.one_minus_beta1), g));
  b = hn::Add(hn::Mul(hn::Set(d, r.beta2), b),
              hn::Mul(hn::Set(d, r.one_minus_beta2), hn::Mul(g, g)));
  const V root =
      hn::Add(hn::Div(hn::Sqrt(b), hn::Set(d, r.root_correction2)), hn::Set(d, r.epsilon));
  p = hn::Sub(p, hn::Div(hn::Mul(hn::Set(d, r.step_size), a), root));
}

// g += wd p;  then as above
struct Adam {
  static constexpr std::size_t kSlots = 2;
  template <class D, class V>
  HWY_INLINE static void Step(D d, const Rule& r, V& p, V& a, V& b, V g) {
    g = hn::Add(g, hn::Mul(hn::Set(d, r.weight_decay), p));
    AdamStep(d, r, p, a, b, g);
  }
};

// p *= 1 - lr wd;  then as above
struct AdamW {
  static constexpr std::size_t kSlots = 2;
  template <class D, class V>
  HWY_INLINE static void Step(D d, const Rule& r, V& p, V& a, V& b, V g) {
    p = hn::Mul(p, hn::Set(d, r.decay));
    AdamStep(d, r, p, a, b, g);
  }
};

// FTRL-Proximal, McMahan et al. 2013, algorithm 1; n is a, z is b, alpha is lr:
// sigma = (sqrt(n + g^2) - sqrt(n)) / alpha;  z += g - sigma p;  n += g^2;
// p = 0 where |z| <= l1, else (sign(z) l1 - z) / ((beta + sqrt(n)) / alpha + l2)
struct Ftrl {
  static constexpr std::size_t kSlots = 2;
  template <class D, class V>
  HWY_INLINE static void Step(D d, const Rule& r, V& p, V& n, V& z, V g) {
    const V alpha = hn::Set(d, r.learning_rate);
    const V l1 = hn::Set(d, r.l1);
    const V square = hn::Mul(g, g);
    const V before = hn::Sqrt(n);
    n = hn::Add(n, square);
    const V after = hn::Sqrt(n);
    // The difference of the roots as g^2 / their sum, which cancels nothing.
    const V sum = hn::Mul(hn::Add(before, after), alpha);
    const V sigma = hn::IfThenElseZero(hn::Gt(sum, hn::Zero(d)), hn::Div(square, sum));
    z = hn::Add(z, hn::Sub(g, hn::Mul(sigma, p)));
    const V rate =
        hn::Add(hn::Div(hn::Add(hn::Set(d, r.ftrl_beta), after), alpha), hn::Set(d, r.l2));
    const V moved = hn::Div(hn::Sub(hn::CopySign(l1, z), z), rate);
    p = hn::IfThenElseZero(hn::Gt(hn::Abs(z), l1), moved);
  }
};

template <class Step, class D>
HWY_INLINE void One(D d, const Rule& rule, float* HWY_RESTRICT p, float* HWY_RESTRICT a,
                    float* HWY_RESTRICT b, const float* HWY_RESTRICT g) {
  auto values = hn::LoadU(d, p);
  auto first = hn::Zero(d);
  auto second = hn::Zero(d);
  if constexpr (Step::kSlots > 0) first = hn::LoadU(d, a);
  if constexpr (Step::kSlots > 1) second = hn::LoadU(d, b);
  Step::Step(d, rule, values, first, second, hn::LoadU(d, g));
  hn::StoreU(values, d, p);
  if constexpr (Step::kSlots > 0) hn::StoreU(first, d, a);
  if constexpr (Step::kSlots > 1) hn::StoreU(second, d, b);
}

// From element i on, as far as whole vectors of D go.
template <class Step, class D>
HWY_INLINE std::size_t Some(D d, const Rule& rule, const Arrays& at, const float* gradient,
                            std::size_t i, std::size_t n) {
  const std::size_t lanes = hn::Lanes(d);
  for (; i + lanes <= n; i += lanes) {
    One<Step>(d, rule, at.values + i, Step::kSlots > 0 ? at.slots[0] + i : nullptr,
              Step::kSlots > 1 ? at.slots[1] + i : nullptr, gradient + i);
  }
  return i;
}

template <class Step>
HWY_INLINE void Range(const Rule& rule, const Arrays& at, const float* gradient, std::size_t n) {
  std::size_t i = Some<Step>(hn::ScalableTag<float>(), rule, at, gradient, 0, n);
  if (i == n) return;
  i = Some<Step>(hn::CappedTag<float, 4>(), rule, at, gradient, i, n);
  Some<Step>(hn::CappedTag<float, 1>(), rule, at, gradient, i, n);
}

HWY_INLINE void PrefetchRow(const float* row, std::size_t elements) {
  const std::size_t end = HWY_MIN(elements, kLinesAhead * kFloatsInLine);
  for (std::size_t i = 0; i < end; i += kFloatsInLine) hwy::Prefetch(row + i);
}

template <class Step>
HWY_INLINE void Rows(const Rule& rule, const Arrays& at, std::size_t row_elements,
                     std::span<const std::int64_t> ids, const float* gradients) {
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (k + kRowsAhead < ids.size()) {
      const std::size_t next = static_cast<std::size_t>(ids[k + kRowsAhead]) * row_elements;
      PrefetchRow(at.values + next, row_elements);
      if constexpr (Step::kSlots > 0) PrefetchRow(at.slots[0] + next, row_elements);
      if constexpr (Step::kSlots > 1) PrefetchRow(at.slots[1] + next, row_elements);
    }
    Range<Step>(rule, at.At(static_cast<std::size_t>(ids[k]) * row_elements),
                gradients + k * row_elements, row_elements);
  }
}

template <class Function>
HWY_INLINE void WithRule(RuleKind kind, const Function& function) {
  switch (kind) {
    case RuleKind::kSgd:
      return function(Sgd());
    case RuleKind::kMomentum:
      return function(Momentum());
    case RuleKind::kNesterov:
      return function(Nesterov());
    case RuleKind::kAdagrad:
      return function(Adagrad());
    case RuleKind::kAdam:
      return function(Adam());
    case RuleKind::kAdamW:
      return function(AdamW());
    case RuleKind::kFtrl:
      return function(Ftrl());
  }
}

void Dense(const Rule& rule, const Arrays& arrays, std::span<const float> gradient) {
  WithRule(rule.kind, [&](auto step) HWY_ATTR {
    Range<decltype(step)>(rule, arrays, gradient.data(), gradient.size());
  });
}

void RowsOf(const Rule& rule, const Arrays& arrays, std::size_t row_elements,
            std::span<const std::int64_t> ids, const float* gradients) {
  WithRule(rule.kind, [&](auto step) HWY_ATTR {
    Rows<decltype(step)>(rule, arrays, row_elements, ids, gradients);
  });
}

// 0 * x is 0 for every finite x, and NaN for the others; NaN sticks.
bool Finite(std::span<const float> values) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  auto even = zero;
  auto odd = zero;
  std::size_t i = 0;
  for (; i + 2 * lanes <= values.size(); i += 2 * lanes) {
    even = hn::Add(even, hn::Mul(zero, hn::LoadU(d, values.data() + i)));
    odd = hn::Add(odd, hn::Mul(zero, hn::LoadU(d, values.data() + i + lanes)));
  }
  if (!hn::AllTrue(d, hn::Eq(hn::Add(even, odd), zero))) return false;
  float rest = 0;
  for (; i < values.size(); ++i) rest += 0.0F * values[i];
  return rest == 0;
}

}  // namespace muster::ps::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::ps {

HWY_EXPORT(Dense);
HWY_EXPORT(RowsOf);
HWY_EXPORT(Finite);

void ApplyDense(const Rule& rule, const Arrays& arrays, std::span<const float> gradient) {
  HWY_DYNAMIC_DISPATCH(Dense)(rule, arrays, gradient);
}

void ApplyRows(const Rule& rule, const Arrays& arrays, std::size_t row_elements,
               std::span<const std::int64_t> ids, const float* gradients) {
  HWY_DYNAMIC_DISPATCH(RowsOf)(rule, arrays, row_elements, ids, gradients);
}

bool AllFinite(std::span<const float> values) { return HWY_DYNAMIC_DISPATCH(Finite)(values); }

void GatherRows(const float* values, std::size_t row_elements, std::span<const std::int64_t> ids,
                float* into) {
  constexpr std::size_t kAhead = 8;
  constexpr std::size_t kLine = 16;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (k + kAhead < ids.size()) {
      const float* next = values + static_cast<std::size_t>(ids[k + kAhead]) * row_elements;
      for (std::size_t i = 0; i < row_elements && i < 8 * kLine; i += kLine)
        hwy::Prefetch(next + i);
    }
    std::memcpy(into + k * row_elements, values + static_cast<std::size_t>(ids[k]) * row_elements,
                row_elements * sizeof(float));
  }
}

}  // namespace muster::ps
#endif
