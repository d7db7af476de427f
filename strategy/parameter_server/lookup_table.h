// A table of constants, of which every process has a copy of its own: looking up asks nobody.
//
//   LookupTable<std::int64_t, std::int64_t> table({{0, 0}, {1, 1}, {2, 2}}, /*otherwise=*/-2);
//   table.lookup(torch::tensor({0, 1, 3}));  // 0, 1, -2
//
// As a field of the program's object it is made in each process; one that the driver has found out
// goes to the workers once, by create_per_worker_resource<f>(table) and an f that returns it.
//
// Threading: any thread; nothing changes after creation.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategy/base/error.h"
#include "strategy/base/torch.h"
#include "strategy/cluster/codec.h"

namespace muster {

template <class Key, class Value>
class LookupTable {
 public:
  // `otherwise`: the value of all keys that have none.
  LookupTable(std::map<Key, Value> entries, Value otherwise)
      : entries_(std::move(entries)), otherwise_(std::move(otherwise)) {}

  std::size_t size() const { return entries_.size(); }
  const std::map<Key, Value>& entries() const { return entries_; }
  const Value& otherwise() const { return otherwise_; }

  const Value& operator[](const Key& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? otherwise_ : found->second;
  }
  std::vector<Value> lookup(const std::vector<Key>& keys) const {
    std::vector<Value> values;
    values.reserve(keys.size());
    for (const Key& key : keys) values.push_back((*this)[key]);
    return values;
  }
  // Integers of any shape and type; values of Value's type, of the same shape, on the CPU. What is
  // no Key has no value. INVALID_ARGUMENT: keys that are no integers.
  torch::Tensor lookup(const torch::Tensor& keys) const
    requires(std::integral<Key> && std::is_arithmetic_v<Value>)
  {
    if (!keys.defined() || !torch::isIntegralType(keys.scalar_type(), /*includeBool=*/true)) {
      raise(ErrorCode::kInvalidArgument,
            std::string("lookup() of a table whose keys are integers was given ") +
                (keys.defined() ? torch::toString(keys.scalar_type()) : "an undefined tensor") +
                ": convert the keys, as in keys.to(torch::kLong)");
    }
    const torch::Tensor given = keys.to(torch::kCPU, torch::kLong).contiguous();
    const torch::Tensor values =
        torch::empty(given.sizes(), torch::dtype(c10::CppTypeToScalarType<Value>::value));
    const auto* const from = given.data_ptr<std::int64_t>();
    auto* const to = values.data_ptr<Value>();
    for (std::int64_t i = 0; i < given.numel(); ++i) {
      to[i] = is_key(from[i]) ? (*this)[static_cast<Key>(from[i])] : otherwise_;
    }
    return values;
  }

 private:
  // std::in_range knows no bool and no char.
  static bool is_key(std::int64_t number) {
    if (std::is_unsigned_v<Key> && number < 0) return false;
    return static_cast<std::int64_t>(static_cast<Key>(number)) == number;
  }

  std::map<Key, Value> entries_;
  Value otherwise_;
};

template <Travels Key, Travels Value>
struct Codec<LookupTable<Key, Value>> {
  static void write(const LookupTable<Key, Value>& table, Bytes& to) {
    Codec<std::map<Key, Value>>::write(table.entries(), to);
    Codec<Value>::write(table.otherwise(), to);
  }
  static LookupTable<Key, Value> read(ByteReader& from) {
    auto entries = Codec<std::map<Key, Value>>::read(from);
    return LookupTable<Key, Value>(std::move(entries), Codec<Value>::read(from));
  }
};

}  // namespace muster
