// What the operations on variables of programs do to their elements, whatever the dtype: one code
// for the server, which applies them, and for a client, which shows a closure its own writes before
// they are sent.
//
// Integers wrap; a division truncates; min and max give NaN where either side is NaN. float16,
// bfloat16 and bool are stored only. Threading: free functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/dtype.h"
#include "common/base/status.h"

namespace muster::ps {

// Numbers of the wire.
enum class ElementOp : std::uint8_t {
  kAssign = 1,
  kAdd = 2,
  kSub = 3,
  kMul = 4,
  kDiv = 5,
  kMin = 6,
  kMax = 7,
};

constexpr bool IsElementOp(std::uint8_t op) { return op >= 1 && op <= 7; }
// "assign", "add", ...
std::string_view NameOf(ElementOp op);

// Whether variables may have it: float32, float64, int32, int64, uint8, bool, float16, bfloat16.
bool IsVariableDType(DType dtype);

// Whether `op` with these operands can be applied to elements of `dtype`; `what` names the
// variable.
//   kInvalidArgument: it is stored only, or an integer division by zero.
Status CheckOperands(ElementOp op, DType dtype, std::span<const std::byte> operands,
                     std::string_view what);

// The same of a gradient for the attached optimizer, at a learning rate.
//   kInvalidArgument: a number that is not finite, or a rate below 0.
Status CheckGradient(DType dtype, std::span<const std::byte> gradient, double learning_rate,
                     std::string_view what);

// values[i] = values[i] op operands[i], for as many elements as `operands` has. Whatever the
// operands are (they may lie in memory that a peer writes to), it does not trap: an integer by zero
// is 0. Both are aligned to the dtype.
void ApplyElements(ElementOp op, DType dtype, std::byte* values,
                   std::span<const std::byte> operands);
// The same for row ids[k] of `values` and row k of `operands`, one after another, so that an id
// that comes twice counts twice.
void ScatterElements(ElementOp op, DType dtype, std::byte* values, std::size_t row_bytes,
                     std::span<const std::int64_t> ids, std::span<const std::byte> operands);

// Row ids[k] of `values` becomes row k of `into`.
void GatherRowBytes(const std::byte* values, std::size_t row_bytes,
                    std::span<const std::int64_t> ids, std::byte* into);

}  // namespace muster::ps
