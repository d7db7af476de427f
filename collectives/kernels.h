// Sums, means and the like of several buffers, element by element.
//
// Sources are added in the order in which they are given, so that a result does not depend on how
// the work was cut into ranges. float16 and bfloat16 are added in float32 and rounded once;
// integers wrap around in SUM and PRODUCT, and are added in int64 for MEAN, whose result is
// float64. MIN and MAX of a NaN and anything are NaN.
//
// Threading: any thread; calls on ranges that do not overlap may run at the same time.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "common/base/dtype.h"

namespace muster::collectives {

enum class Reduction : unsigned char { kSum, kMean, kMin, kMax, kProduct };
// "SUM"
std::string_view NameOf(Reduction reduction);

// Numbers; neither bool nor strings.
bool Reducible(DType type);
// MEAN of integers is float64; everything else keeps its type.
DType ResultType(Reduction reduction, DType type);

// Whether sums may be added up: narrow floating numbers and means of integers would be rounded each
// time.
bool AddsUp(Reduction reduction, DType type);
// What is added up for it: a mean is a sum until all is there.
Reduction WhileAdding(Reduction reduction);

// Elements [begin, end) of every destination become the reduction of the same elements of all
// sources. At least one source. A destination may be one of the sources when the types are equal.
// `handed` are more destinations, which other processors read: they are written past the caches
// (common/base/stream.h), and there when the call returns.
void ReduceRange(Reduction reduction, DType type, std::span<const void* const> sources,
                 std::span<void* const> destinations, std::size_t begin, std::size_t end,
                 std::span<void* const> handed = {});

// Divides elements [begin, end) of floating numbers in place.
void DivideRange(DType type, void* values, std::size_t divisor, std::size_t begin, std::size_t end);

}  // namespace muster::collectives
